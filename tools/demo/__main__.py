"""``python -m tools.demo``: what `make demo` runs."""

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import click
import grpc
import urllib3
from rich.console import Console

from tools.demo.processes import DemoError, Processes, with_path
from tools.demo.stage import Ports, Stage
from tools.demo.story import Story

ROOT = Path(__file__).resolve().parents[2]


@click.command()
@click.option("--once", is_flag=True, help="Leave at the end instead of staying up.")
@click.option(
    "--nodes", default=64, show_default=True, type=click.IntRange(16, 512), help="Nodes of the emulated fleet."
)
@click.option("--seed", default=7, show_default=True, help="Seed of the emulated fleet.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep all that the demo writes in this folder.")
def main(once: bool, nodes: int, seed: int, keep: Path | None) -> None:
    """Show probe, baseline, grade and place on an emulated fleet."""
    console = Console(highlight=False)
    home = keep.resolve() if keep else Path(tempfile.mkdtemp(prefix="gpugrade-demo-"))
    try:
        home.mkdir(parents=True, exist_ok=True)
        (home / "logs").mkdir(exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f"{home} cannot be written: {error.strerror}", param_hint="--keep") from error
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    env = with_path(home / "fleet" / "bin") | {
        "GPUGRADE_FLEET": str(home / "fleet"),
        "GPUGRADE_FLEET_SPEED": "60",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}",
        "PYTHONUNBUFFERED": "1",
    }
    status = 0
    started = time.monotonic()
    try:
        with Processes(home / "logs", env) as processes:
            _tell(Story(Stage(console, home, processes, Ports.choose()), nodes, seed), processes, stays=not once)
            console.print(f"\n   [dim]told in {time.monotonic() - started:.0f} s[/]")
            if not once:
                console.print("\n   It stays up. [bold]Ctrl-C[/] ends it.")
                while True:
                    processes.check()
                    time.sleep(1)
    except KeyboardInterrupt:
        console.print("\n   Ended.")
    except DemoError as error:
        console.print(f"\n[bold red]The demo failed:[/] {error}\nThe logs are in {home / 'logs'}", soft_wrap=True)
        status = 1
    if keep is None and status == 0:
        shutil.rmtree(home, ignore_errors=True)
    sys.exit(status)


def _tell(story: Story, processes: Processes, *, stays: bool) -> None:
    try:
        story.tell(stays=stays)
    except (grpc.RpcError, urllib3.exceptions.HTTPError) as error:
        processes.check()  # a child that ended says more
        text = error.details() if isinstance(error, grpc.Call) else error
        raise DemoError(f"the server does not answer: {text}") from error


def _interrupt(number: int, frame: object) -> None:
    del number, frame
    raise KeyboardInterrupt


main()
