"""``chaos-probe``: the command on GPU nodes."""

import importlib
import logging
import sys
import traceback

import click
import structlog

from chaos_probe.errors import ProbeError, RefusedError

COMMANDS = ("list", "run", "agent", "recover", "doctor", "deadman")
USAGE = 2


class LazyGroup(click.Group):
    """A group that loads a command when it is called: the dead-man must not pay for gRPC."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        found = importlib.import_module(f"chaos_probe.commands.{cmd_name}").command
        return found if isinstance(found, click.Command) else None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gpugrade", prog_name="chaos-probe")
def cli() -> None:
    """Measure the GPUs of this node, and inject faults that are always taken back."""
    # What a command answers goes to stdout; what it notes on the way must not mix with it.
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )


def main() -> None:
    """Run the command; what was raised on purpose is printed as one line."""
    try:
        cli()
    except RefusedError as error:
        click.echo(f"chaos-probe: {error}", err=True)
        sys.exit(1)
    except ProbeError as error:
        click.echo(f"chaos-probe: {error}", err=True)
        sys.exit(USAGE)
    except Exception:  # noqa: BLE001 - a fault of ours; 1 would say that the run was refused or went badly
        traceback.print_exc()
        sys.exit(USAGE)
