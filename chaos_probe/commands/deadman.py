"""``chaos-probe deadman``: the watcher over one run; runs start it, people need not."""

import sys
from pathlib import Path

import click

from chaos_probe.commands.common import BAD_NEWS
from chaos_probe.deadman import keep_watch, run_of
from chaos_probe.journal import Journal
from chaos_probe.records import RunRecord
from chaos_probe.settings import SpoolSettings


@click.command("deadman", hidden=True)
@click.option("--journal", "file", required=True, type=click.Path(path_type=Path))
@click.option("--after", required=True, type=float, help="Seconds to wait.")
@click.option("--queue-records", type=int, default=SpoolSettings().max_records, help="Bound of the queue.")
@click.option("--queue-mib", type=int, default=SpoolSettings().max_mib, help="Bound of the queue.")
def command(file: Path, after: float, queue_records: int, queue_mib: int) -> None:
    """Revert a run if its journal file is still open after so many seconds."""
    state_dir, run = run_of(file)

    def report(record: RunRecord) -> None:
        from chaos_probe.spool import Spool  # noqa: PLC0415 - most watchers never need it
        from chaos_probe.wire import queue_run  # noqa: PLC0415 - likewise

        queue_run(Spool(state_dir / "queue.db", queue_records, queue_mib << 20), record)

    words = keep_watch(Journal(state_dir), run, after, report)
    click.echo(words)
    sys.exit(BAD_NEWS if "could not be reverted" in words else 0)
