"""``chaos-probe run``: one experiment, once, step by step."""

import sys
from contextlib import ExitStack

import click

from chaos_probe.commands.common import BAD_NEWS, FORMATS, print_json, report_options, settings_options, with_report
from chaos_probe.errors import SpoolError, UsageError
from chaos_probe.experiments import experiment
from chaos_probe.halt import Halt, on_signals
from chaos_probe.journal import Journal
from chaos_probe.machine import Machine
from chaos_probe.records import Outcome, RunRecord, Sample, Step, StepStatus, rfc3339
from chaos_probe.request import Request, Sinks
from chaos_probe.run import Runner
from chaos_probe.settings import Settings, seconds

_INDEX_DIGITS = 4
_COLOURS = {StepStatus.OK: "green", StepStatus.SKIPPED: "bright_black"}


def parse_params(pairs: tuple[str, ...]) -> dict[str, str | int | float | bool]:
    """Return ``k=v`` pairs as a mapping.

    Raises:
        UsageError: one has no ``=``, or a name comes twice.
    """
    params: dict[str, str | int | float | bool] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise UsageError(f"--param {pair}: write name=value")
        if name in params:
            raise UsageError(f"--param {name} is given twice")
        params[name] = value
    return params


def parse_gpus(text: str) -> list[int] | None:
    """Return GPU indices, or ``None`` for all.

    Raises:
        UsageError: it is neither.
    """
    if text == "all":
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) <= _INDEX_DIGITS for word in words):
        raise UsageError(f"--gpu {text}: write indices like 0,1 or all")
    return [int(word) for word in words]


def _tell(step: Step) -> None:
    status = click.style(f"{step.status:<8}", fg=_COLOURS.get(step.status, "red"))
    click.echo(f"{rfc3339(step.at)}  {step.step:<8} {status} {step.detail}")


def _close(outcome: Outcome) -> None:
    for residue in outcome.residues:
        where = f"GPU {residue.gpu}" if residue.gpu >= 0 else "node"
        click.echo(f"left on {residue.surface}, {where}: {residue.code} ({residue.detail})")
    reverted = "as it was found" if outcome.verified else "NOT AS IT WAS FOUND: run chaos-probe recover"
    click.echo(f"run {outcome.run}: {'good' if outcome.good else 'bad news'}; the node is {reverted}")


def _reporting(settings: Settings, stack: ExitStack) -> Sinks:
    """Open the queue and the way to the scorer, and return where the run's facts go."""
    from chaos_probe.report import Sender  # noqa: PLC0415 - gRPC, only for who reports
    from chaos_probe.spool import Spool  # noqa: PLC0415 - likewise
    from chaos_probe.wire import queue_run, queue_sample  # noqa: PLC0415 - likewise

    queue = Spool(settings.state_path / "queue.db", settings.spool.max_records, settings.spool.max_mib << 20)
    sender = Sender(queue, settings.node_name, settings.report)
    sender.start()

    def end() -> None:
        try:
            if not sender.flush():
                click.echo(f"not told yet, kept for the agent: {sender.counts.last_error}", err=True)
        except SpoolError as error:
            click.echo(f"not told: {error}", err=True)
        if sender.counts.refused:
            click.echo(f"the scorer refused {sender.counts.refused} record(s)", err=True)
        sender.close()

    stack.callback(end)

    def sample(item: Sample) -> None:
        queue_sample(queue, item)
        sender.wake()

    def record(item: RunRecord) -> None:
        queue_run(queue, item)
        sender.wake()

    return Sinks(sample=sample, record=record)


@click.command("run")
@click.argument("kind")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Parameter; see chaos-probe list.")
@click.option("--gpu", default="all", show_default=True, metavar="0,1|all", help="GPUs by index.")
@click.option("--hold", default="10s", show_default=True, help="How long a fault stands.")
@click.option("--dry-run", is_flag=True, help="Plan and guard, change nothing.")
@click.option("-o", "--output", type=FORMATS, default="table", show_default=True)
@report_options
@settings_options
def command(
    settings: Settings,
    kind: str,
    params: tuple[str, ...],
    gpu: str,
    hold: str,
    dry_run: bool,
    output: str,
    report_to: str | None,
    token_file: str | None,
    ca_file: str | None,
) -> None:
    """Run one experiment on this node: plan, guard, journal, inject, observe, revert, verify, report."""
    settings = with_report(settings, report_to, token_file, ca_file)
    request = Request(experiment(kind), parse_params(params), parse_gpus(gpu), seconds(hold), dry_run)
    request.experiment.parse(request.params)
    halt = Halt()
    on_signals(halt)
    journal = Journal(settings.state_path)
    machine = Machine.detect(settings.dcgm.host)
    with ExitStack() as stack:
        sinks = _reporting(settings, stack) if settings.report.to and not dry_run else Sinks()
        shown = Sinks(sinks.sample, sinks.record, _tell if output == "table" else lambda _: None)
        outcome = Runner(settings, machine, journal, shown).execute(request, halt)
    if output == "json":
        print_json(outcome.to_json())
    else:
        _close(outcome)
    sys.exit(0 if outcome.good else BAD_NEWS)
