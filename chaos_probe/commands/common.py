"""What the commands share: options, settings with flags over them, plain and coloured output."""

import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console
from rich.table import Table

from chaos_probe.settings import ReportSettings, Settings, load_settings

F = TypeVar("F", bound=Callable[..., Any])

BAD_NEWS = 1
FORMATS = click.Choice(("table", "json"))


def settings_options(command: F) -> F:
    """Add the options that every command has, and hand the command one ``settings`` made of file and flags."""

    @click.option("--settings", "file", type=click.Path(), envvar="CHAOS_PROBE_SETTINGS", help="Settings file (YAML).")
    @click.option("--state-dir", type=click.Path(file_okay=False), help="Folder of the journal and the queue.")
    @click.option("--node", help="Name of this node; else NODE_NAME or the host's name.")
    @functools.wraps(command)
    def wrapped(*args: Any, file: str | None, state_dir: str | None, node: str | None, **kwargs: Any) -> Any:  # noqa: ANN401 - click calls it
        settings = load_settings(file)
        flags = {"state_dir": state_dir, "node": node}
        settings = msgspec.structs.replace(settings, **{key: value for key, value in flags.items() if value})
        return command(*args, settings=settings, **kwargs)

    return wrapped  # type: ignore[return-value] # the decorated function takes what click gives it


def report_options(command: F) -> F:
    """Add the options that say whom to tell."""
    for option in (
        click.option("--ca-file", type=click.Path(), help="Certificates that sign the scorer's; without it no TLS."),
        click.option("--token-file", type=click.Path(), help="File of this node's token."),
        click.option("--report-to", metavar="HOST:PORT", help="The scorer's gRPC address."),
    ):
        command = option(command)
    return command


def with_report(settings: Settings, to: str | None, token_file: str | None, ca_file: str | None) -> Settings:
    """Return the settings with these flags over them."""
    report = settings.report
    merged = ReportSettings(
        to=to or report.to, token_file=token_file or report.token_file, ca_file=ca_file or report.ca_file
    )
    return msgspec.structs.replace(settings, report=merged)


def print_json(data: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
    """Print JSON for programs."""
    click.echo(json.dumps(data, indent=2))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns: with colour on a terminal, plain and without borders in a pipe."""
    if sys.stdout.isatty():
        table = Table(box=None, header_style="bold", pad_edge=False)
        for head in heads:
            table.add_column(head, overflow="fold")
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
