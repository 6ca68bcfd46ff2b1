"""What all commands that ask the server have in common: options, printing, exit status."""

import functools
from collections.abc import Callable
from typing import Any

import click

from scorer.cli import output, watch
from scorer.cli.client import Client
from scorer.cli.main import DEFAULT_SERVER, DEFAULT_TIMEOUT_S, Real
from scorer.model.grade import Sensitivity


def parse_sensitivity(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Read a sensitivity class, for an option: its name in any case, or the letters C, B, A."""
    if value is None:
        return None
    try:
        return Sensitivity.parse(value).label
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def parse_names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Read names parted by commas, for an option; empty ones are left out."""
    return tuple(part.strip() for part in (value or "").split(",") if part.strip())


def _option(ctx: click.Context, name: str, given: Any, default: Any) -> Any:  # noqa: ANN401 -- of any option
    """An option of the subcommand, else of the group, else the default."""
    if given:
        return given
    above = ctx.obj.get(name) if isinstance(ctx.obj, dict) else None
    return above or default


def question(*, watchable: bool = False) -> Callable[[Callable[..., output.Answer]], Callable[..., None]]:
    """Make a command of a function ``(client, **options) -> Answer``.

    It gets the options that all questions share, prints the answer, and leaves with the answer's exit status.

    Args:
        watchable: whether it may be repeated with ``--watch``.
    """

    def decorate(ask: Callable[..., output.Answer]) -> Callable[..., None]:
        @functools.wraps(ask)
        def run(**options: Any) -> None:  # noqa: ANN401 -- the command's own options
            ctx = click.get_current_context()
            server = _option(ctx, "server", options.pop("server"), DEFAULT_SERVER)
            timeout_s = _option(ctx, "timeout", options.pop("timeout"), DEFAULT_TIMEOUT_S)
            ca_file = _option(ctx, "ca_file", options.pop("ca_file"), None)
            no_color = bool(_option(ctx, "no_color", options.pop("no_color"), default=False))
            form = options.pop("output")
            again, interval_s = options.pop("watch", False), options.pop("interval", 0.0)
            with Client(server, timeout_s, ca_file) as client:
                if again:
                    watch.repeat(lambda: ask(client, **options), form, no_color, interval_s)
                    return
                answer = ask(client, **options)
                output.show(answer, form, no_color)
            ctx.exit(int(answer.bad))

        decorated: Callable[..., None] = run
        for option in reversed([*_shared_options(), *(_watch_options() if watchable else ())]):
            decorated = option(decorated)
        return decorated

    return decorate


def _shared_options() -> list[Callable[..., Any]]:
    return [
        click.option("--output", "-o", type=click.Choice(output.FORMATS), default="table", show_default=True),
        click.option("--server", metavar="HOST:PORT", help="Where the server answers gRPC; also GPUGRADE_SERVER."),
        click.option(
            "--timeout",
            type=Real(min=0, min_open=True),
            metavar="SECONDS",
            help="How long to wait for an answer.",
        ),
        click.option("--ca-file", metavar="FILE", help="Certificates that sign the server's; also GPUGRADE_CA_FILE."),
        click.option("--no-color", is_flag=True, help="No colour on a terminal; also NO_COLOR."),
    ]


def _watch_options() -> list[Callable[..., Any]]:
    return [
        click.option("--watch", "-w", is_flag=True, help="Ask again and again; in a pipe print what changed."),
        click.option(
            "--interval",
            type=Real(min=0.05, max=3600),
            default=2.0,
            show_default=True,
            metavar="SECONDS",
            help="Time between two questions of --watch.",
        ),
    ]
