"""Undoing a journalled run: the one routine that a live run, the next start and the dead-man all use."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from chaos_probe.errors import JournalError, SpoolError
from chaos_probe.journal import Entry, Journal, State
from chaos_probe.records import RunRecord
from chaos_probe.revert import carry_out, read_back

Reporter = Callable[[RunRecord], None]
"""Puts a run's record where it will be reported from; raises ``SpoolError`` where it cannot."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of one open run: its entry now, and what is wrong with it (empty: closed)."""

    entry: Entry
    problem: str = ""


def _after(started: float) -> float:
    """Return the time now; where the clock went back meanwhile, the start: no run ends before it began."""
    return max(time.time(), started)


def revert(journal: Journal, run: str, by: str) -> Entry | None:
    """Revert a run and read it back, unless that was done already.

    A run whose injection had not begun has nothing to revert. One whose revert fails stays open, with what was wrong.

    Returns:
        The entry as it is now, or ``None`` where the journal knows no such run.
    """
    with journal.hold(run) as entry:
        if entry is None or entry.state is not State.OPEN:
            return entry
        if entry.started is None:
            done = replace(entry, state=State.REVERTED, by=by, detail="nothing had been injected", report=False)
        else:
            problems = carry_out(entry.reverts, entry.started)
            # What could not even be asked for will not settle by waiting.
            left = read_back(entry.reverts, 0.0) if problems else read_back(entry.reverts)
            if left:
                detail = "; ".join([*left, *problems])
                done = replace(entry, attempts=entry.attempts + 1, by=by, detail=detail)
            else:
                ended, detail = _after(entry.started), "reverted, and read back as found"
                done = replace(entry, state=State.REVERTED, ended=ended, by=by, detail=detail)
        journal.write(done)
        return done


def finish(journal: Journal, run: str, report: Reporter | None) -> Entry | None:
    """Report the end of a run that has one, then close it. A failed revert is reported and stays open.

    Raises:
        SpoolError: its record cannot be queued; the entry stays, and the next start tries again.
    """
    with journal.hold(run) as entry:
        if entry is None or entry.state is State.CLOSED:
            return entry
        if entry.report and report is not None:
            report(entry.record())
        return journal.close(entry) if entry.state is State.REVERTED else entry


def recover(journal: Journal, report: Reporter | None, by: str = "recover") -> list[Recovered]:
    """Revert and close whatever is open. Doing it again does nothing more.

    Everything is tried for every run: a full disk, or a queue that takes nothing, must not leave a fault standing.

    Returns:
        What became of each run that was open, oldest first.

    Raises:
        JournalError: what is open cannot be told.
    """
    return [_recover_one(journal, entry, report, by) for entry in journal.open_entries()]


def _recover_one(journal: Journal, entry: Entry, report: Reporter | None, by: str) -> Recovered:
    try:
        done = revert(journal, entry.run, by) or entry
    except JournalError as error:
        return Recovered(entry, f"not known to be reverted ({error}); run recover again")
    problem = ""
    if done.state is State.OPEN:
        problem = f"not reverted ({done.detail}); put it right by hand or run recover again"
    try:
        done = finish(journal, entry.run, report) or done
    except (JournalError, SpoolError) as error:
        problem = problem or f"{done.detail}, but not closed ({error}); run recover again"
    return Recovered(done, problem)
