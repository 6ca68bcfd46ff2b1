"""The command ``gpugrade``, also ``kubectl gpugrade``. It loads only the subcommand that is asked for."""

import difflib
import importlib
import importlib.metadata
import math
import os
import traceback
from typing import Any

import click

from scorer.model.errors import GpugradeError

#: Subcommands in the order of the help: name to what it does. ``job-types`` lives in ``scorer.cli.job_types``, and so
#: on, each as a click command called ``command``. The texts stand here so that the help needs none of those modules.
SUBCOMMANDS: dict[str, str] = {
    "nodes": "List nodes with their grades.",
    "gpus": "Show each GPU of a node, and how fast it is.",
    "explain": "Say why a node has its grade, or why a decision was made.",
    "place": "Say where a job would go, and how fast it would run there.",
    "job-types": "List job types and sensitivity classes.",
    "grade": "Grade a node from an evidence bundle, without a server.",
    "serve": "Run the server: ingest, grade, answer the scheduler.",
}

DEFAULT_SERVER = "localhost:9441"
DEFAULT_TIMEOUT_S = 10.0
FAILURE = 2
INTERRUPTED = 130
USAGE = 2


class Failure(click.ClickException):
    """A command that could not do what it was asked: exit status 2, since 1 is an answer that is bad news."""

    exit_code = FAILURE


class Real(click.FloatRange):
    """A finite number: click takes ``nan`` for one that is in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 - as click has it
        """Turn the text of an option into a number, or say what is wrong with it."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


class LazyGroup(click.Group):
    """A group that imports a subcommand when it runs, and turns every failure into one line and exit status 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        """Names, in the order of the table."""
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 -- click's signature
        """Import the subcommand, or return nothing if there is none of that name."""
        if cmd_name not in SUBCOMMANDS:
            return None
        if cmd_name != "serve":
            # gRPC's core logs lost connections by itself; commands say it in one line of their own. It reads this
            # when it is loaded.
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        module = importlib.import_module(f"scorer.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 -- click's signature
        """Write the list of subcommands from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUBCOMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand; for a misspelled one name the nearest."""
        name = args[0]
        if name not in SUBCOMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, SUBCOMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(SUBCOMMANDS)}."
            ctx.fail(f"no command is called {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 -- click's signature
        """Run the subcommand.

        Raises:
            Failure: for every error that gpugrade raises on purpose; its text is for people.
        """
        try:
            return super().invoke(ctx)
        except GpugradeError as error:
            raise Failure(str(error)) from error
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except click.ClickException as error:
            if error.exit_code == 1:
                raise Failure(error.format_message()) from error
            raise
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click knows what to do with these
        except UnicodeEncodeError as error:
            raise Failure(f"{error.object!r} is not UTF-8 text") from error
        except Exception:  # noqa: BLE001 -- a fault of ours; 1 would say that the answer is bad news
            traceback.print_exc()
            ctx.exit(USAGE)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,  # noqa: ANN401 -- click's signature
    ) -> click.Context:
        """Parse the options. Called as kubectl's plugin, the usage says ``kubectl gpugrade``."""
        if info_name and info_name.startswith("kubectl-"):
            info_name = "kubectl gpugrade"
        return super().make_context(info_name, args, parent, **extra)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    try:
        version = importlib.metadata.version("gpugrade")
    except importlib.metadata.PackageNotFoundError:
        version = "(not installed: run from a source tree)"
    click.echo(f"gpugrade {version}")
    ctx.exit()


@click.group(
    "gpugrade",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 the answer is good or neutral, 1 the answer is bad news, 2 usage or failure.",
)
@click.option(
    "--server",
    envvar="GPUGRADE_SERVER",
    metavar="HOST:PORT",
    help=f"Where the server answers gRPC; also GPUGRADE_SERVER.  [default: {DEFAULT_SERVER}]",
)
@click.option(
    "--timeout",
    type=Real(min=0, min_open=True),
    metavar="SECONDS",
    help=f"How long to wait for an answer.  [default: {DEFAULT_TIMEOUT_S:g}]",
)
@click.option(
    "--ca-file",
    envvar="GPUGRADE_CA_FILE",
    metavar="FILE",
    help="Certificates that sign the server's (PEM); also GPUGRADE_CA_FILE. Without it no TLS.",
)
@click.option("--no-color", is_flag=True, help="No colour on a terminal; also NO_COLOR.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Say which.")
@click.pass_context
def main(ctx: click.Context, server: str | None, timeout: float | None, ca_file: str | None, no_color: bool) -> None:
    """Grades of GPU nodes: which are slow or sick, why, and where a job should go."""
    ctx.obj = {"server": server, "timeout": timeout, "ca_file": ca_file, "no_color": no_color}


if __name__ == "__main__":
    main()
