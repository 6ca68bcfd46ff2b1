"""``chaos-probe agent``: measure on a schedule and tell the scorer."""

import sys

import click
import msgspec

from chaos_probe.agent import Agent, open_parts
from chaos_probe.commands.common import BAD_NEWS, report_options, settings_options, with_report
from chaos_probe.halt import Halt, on_signals
from chaos_probe.settings import Settings


@click.command("agent")
@click.option("--once", is_flag=True, help="One round of every measurement that this machine can do, then end.")
@click.option("--kernel-log", type=click.Path(), help="Kernel log to follow: a file, or /dev/kmsg.")
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Port on which to answer /metrics.")
@click.option("--metrics-file", type=click.Path(), help="File to write metrics to.")
@click.option("--seed", type=int, help="Of the schedule's jitter; else from the node's name.")
@report_options
@settings_options
def command(
    settings: Settings,
    once: bool,
    kernel_log: str | None,
    metrics_port: int | None,
    metrics_file: str | None,
    seed: int | None,
    report_to: str | None,
    token_file: str | None,
    ca_file: str | None,
) -> None:
    """Run the agent of this node until SIGTERM; it reverts what it is doing and ends with 0."""
    settings = with_report(settings, report_to, token_file, ca_file)
    flags = {"kernel_log": kernel_log, "metrics_port": metrics_port, "metrics_file": metrics_file, "seed": seed}
    given = {key: value for key, value in flags.items() if value is not None}
    settings = msgspec.structs.replace(settings, agent=msgspec.structs.replace(settings.agent, **given))
    halt = Halt()
    on_signals(halt)
    agent = Agent(open_parts(settings), halt)
    outcomes = agent.work(once=once)
    for outcome in outcomes:
        click.echo(f"{outcome.run}  {'good' if outcome.good else 'bad news'}  {len(outcome.samples)} sample(s)")
    sys.exit(0 if all(outcome.good for outcome in outcomes) else BAD_NEWS)
