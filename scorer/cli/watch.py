"""Asking the same question again and again: a live table on a terminal, changes alone in a pipe."""

import re
import time
from collections.abc import Callable
from typing import Any

import click

from scorer.cli import output
from scorer.model.errors import UnavailableError

#: A server that is rolled out comes back; one that stays away this many times in a row does not.
MAX_FAILURES = 30

#: What moves with every answer and is no change.
_CLOCKS = frozenset({"age_s", "at", "board"})
#: Reasons say how long ago: "last 2 h ago", "over 7.5 days".
_SPAN = re.compile(r"\b\d+(\.\d+)? ?(s|min|h|d|days?|hours?|minutes?|seconds?)\b")


def without_clocks(document: Any) -> Any:  # noqa: ANN401 -- any JSON document
    """A document without the figures that change by time alone, those in sentences included."""
    if isinstance(document, str):
        return _SPAN.sub("", document)
    if isinstance(document, dict):
        return {key: without_clocks(value) for key, value in document.items() if key not in _CLOCKS}
    if isinstance(document, list):
        return [without_clocks(value) for value in document]
    return document


def repeat(ask: Callable[[], output.Answer], form: str, no_color: bool, interval_s: float) -> None:
    """Ask until interrupted, or until nobody reads.

    The first failure ends it. Later the server may be away for a while; the last answer stays.

    Args:
        ask: the question.
        form: output format.
        no_color: whether to do without colour.
        interval_s: seconds between two questions.

    Raises:
        UnavailableError: if the server is away at first, or too often in a row.
    """
    console = output.terminal(no_color) if form in {"table", "wide"} else None
    if console is None:
        _print_changes(ask, form, no_color, interval_s)
        return
    from rich.live import Live  # noqa: PLC0415 -- pipes do without

    answer = ask()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        failures = 0
        while True:
            live.update(output.fitted(console, answer.blocks, form == "wide"), refresh=True)
            time.sleep(interval_s)
            answer, failures = _again(ask, answer, failures)


def _print_changes(ask: Callable[[], output.Answer], form: str, no_color: bool, interval_s: float) -> None:
    answer = ask()
    seen: Any = None
    failures = 0
    while True:
        now = without_clocks(answer.document)
        if now != seen:
            separator = {"yaml": "---", "json": None}.get(form, "") if seen is not None else None
            if separator is not None and not output.write(separator):
                return
            if not output.show(answer, form, no_color):
                return
            seen = now
        time.sleep(interval_s)
        answer, failures = _again(ask, answer, failures)


def _again(ask: Callable[[], output.Answer], last: output.Answer, failures: int) -> tuple[output.Answer, int]:
    """Ask once more; a server that is away leaves the last answer, and is told once."""
    try:
        return ask(), 0
    except UnavailableError as error:
        if failures + 1 >= MAX_FAILURES:
            raise
        if not failures:
            click.echo(f"Note: {error}; trying again", err=True)
        return last, failures + 1
