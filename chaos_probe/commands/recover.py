"""``chaos-probe recover``: revert whatever a dead run left open."""

import sys

import click

from chaos_probe.commands.common import (
    BAD_NEWS,
    FORMATS,
    print_json,
    print_table,
    report_options,
    settings_options,
    with_report,
)
from chaos_probe.errors import SpoolError
from chaos_probe.guard import one_run
from chaos_probe.journal import Journal
from chaos_probe.recover import recover
from chaos_probe.settings import Settings


@click.command("recover")
@click.option("-o", "--output", type=FORMATS, default="table", show_default=True)
@report_options
@settings_options
def command(
    settings: Settings, output: str, report_to: str | None, token_file: str | None, ca_file: str | None
) -> None:
    """Revert what is open, read it back, close it. Doing it twice does nothing more."""
    settings = with_report(settings, report_to, token_file, ca_file)
    from chaos_probe.spool import Spool  # noqa: PLC0415 - only what is needed, when it is needed
    from chaos_probe.wire import queue_run  # noqa: PLC0415 - likewise

    journal = Journal(settings.state_path)

    # Opened only when it is needed: a queue that cannot be used must not keep a fault standing.
    def queue() -> Spool:
        return Spool(settings.state_path / "queue.db", settings.spool.max_records, settings.spool.max_mib << 20)

    with one_run(settings.state_path, "recover"):
        done = recover(journal, lambda record: queue_run(queue(), record))
    if settings.report.to:
        from chaos_probe.report import Sender  # noqa: PLC0415 - gRPC

        try:
            sender = Sender(queue(), settings.node_name, settings.report)
            if not sender.flush():
                click.echo(f"not told yet, kept for the agent: {sender.counts.last_error}", err=True)
            sender.close()
        except SpoolError as error:
            click.echo(f"not told: {error}", err=True)
    damaged = journal.damaged_files()
    if output == "json":
        items = [
            {"run": d.entry.run, "kind": d.entry.kind, "reverted": not d.problem, "detail": d.problem or d.entry.detail}
            for d in done
        ]
        print_json({"items": items, "damaged": [str(path) for path in damaged]})
    elif done:
        rows = [[d.entry.run, "no" if d.problem else "yes", d.problem or d.entry.detail] for d in done]
        print_table(("RUN", "REVERTED", "DETAIL"), rows)
    elif not damaged:
        click.echo("nothing is open")
    for path in damaged:
        click.echo(f"{path} was damaged: check the node by hand, then delete the file", err=True)
    sys.exit(BAD_NEWS if damaged or any(d.problem for d in done) else 0)
