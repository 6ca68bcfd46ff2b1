"""The way back: the journal, the reverts, the dead-man."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos_probe.deadman import keep_watch, timer_argv, watcher_argv
from chaos_probe.errors import JournalError, SpoolError
from chaos_probe.guard import one_run
from chaos_probe.journal import Entry, Journal, State
from chaos_probe.records import Residue, RunPhase, RunRecord
from chaos_probe.recover import finish, recover, revert
from chaos_probe.revert import carry_out, dcgm_value, end_processes, power_limit, read_back
from chaos_probe.settings import SpoolSettings
from tests.probe_support import entry


def test_the_journal_gives_back_what_it_was_given(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    one = entry("a", gpus=(1, 2), residues=(Residue("dcgm", "xid:79", 1, "x"),), report=True, started=2.5)
    journal.write(one)
    assert Journal(tmp_path).read("a") == one
    assert journal.read("b") is None
    with pytest.raises(JournalError):
        journal.path("../x")


@pytest.mark.parametrize("cut", [0, 1, 40, 150])
def test_a_file_cut_short_is_set_aside(tmp_path: Path, cut: int) -> None:
    journal = Journal(tmp_path)
    path = journal.write(entry("a"))
    journal.write(entry("b", created=0.5))
    whole = path.read_text()
    path.write_text(whole[:cut])
    assert [e.run for e in journal.open_entries()] == ["b"]
    (kept,) = journal.damaged_files()
    assert kept.read_text() == whole[:cut]


@settings(max_examples=60)
@given(st.text(max_size=60), st.sampled_from(["run", "gpus", "reverts", "state", "started", "version", "residues"]))
def test_a_file_with_nonsense_in_it_is_damaged_not_a_crash(
    tmp_path_factory: pytest.TempPathFactory, nonsense: str, key: str
) -> None:
    journal = Journal(tmp_path_factory.mktemp("j"))
    path = journal.write(entry("a"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: nonsense}))
    entries = journal.open_entries()
    assert len(entries) + len(journal.damaged_files()) == 1


def test_reverting_twice_is_reverting_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(entry("a", started=1.0, report=True))
    told: list[RunRecord] = []
    first = revert(journal, "a", "recover")
    assert first is not None
    assert (first.state, first.by) == (State.REVERTED, "recover")
    assert revert(journal, "a", "dead-man") == first
    assert getattr(finish(journal, "a", told.append), "state", None) is State.CLOSED
    assert getattr(finish(journal, "a", told.append), "state", None) is State.CLOSED
    assert [(r.id, r.phase) for r in told] == [("a", RunPhase.REVERTED)]
    assert recover(journal, told.append) == []


def test_what_was_never_injected_is_only_closed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(entry("a", reverts=(power_limit("GPU-0", 1.0),), report=True))
    told: list[RunRecord] = []
    (done,) = recover(journal, told.append)
    assert (done.problem, done.entry.state, told) == ("", State.CLOSED, [])


def test_a_revert_that_fails_stays_open_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    journal = Journal(tmp_path)
    journal.write(entry("a", started=1.0, report=True, reverts=(end_processes("a"),)))
    journal.write(entry("b", started=1.0, report=True, reverts=(power_limit("GPU-0", 1.0),)))
    told: list[RunRecord] = []
    results = recover(journal, told.append)
    assert [bool(r.problem) for r in results] == [False, True]
    assert "nvidia-smi is not on PATH" in results[1].problem
    assert {r.id: r.phase for r in told} == {"a": RunPhase.REVERTED, "b": RunPhase.FAILED_REVERT}
    assert [e.run for e in journal.open_entries()] == ["b"]


def test_a_report_that_cannot_be_queued_is_tried_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(entry("a", started=1.0, report=True))

    def full(_: object) -> None:
        raise SpoolError("full")

    # Another run's revert does not wait for that.
    journal.write(entry("b", started=2.0, created=2.0, report=True))
    assert ["not closed (full)" in done.problem for done in recover(journal, full)] == [True, True]
    assert [waiting.state for waiting in journal.open_entries()] == [State.REVERTED, State.REVERTED]
    told: list[RunRecord] = []
    recover(journal, told.append)
    assert [(r.id, r.phase) for r in told] == [("a", RunPhase.REVERTED), ("b", RunPhase.REVERTED)]


def test_the_dead_man_tries_on_while_the_queue_takes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(entry("a", started=1.0, report=True))
    answers = [SpoolError("full"), SpoolError("full"), None]

    def report(_: object) -> None:
        if error := answers.pop(0):
            raise error

    assert "reverted, and read back" in keep_watch(journal, "a", 0.0, report, retry_s=0.0)
    assert answers == []
    assert journal.open_entries() == []


def test_a_file_that_cannot_be_read_now_is_no_damaged_file(tmp_path: Path) -> None:
    # What opens at the path is a folder: an error of the system, as too many open files would be.
    journal = Journal(tmp_path)
    (journal.folder / "a.json").mkdir()
    with pytest.raises(JournalError, match="cannot be read: Is a directory"):
        journal.open_entries()
    assert (journal.folder / "a.json").exists()
    assert journal.damaged_files() == []


@pytest.mark.parametrize("action", [{"do": "power-limit"}, {"do": "reset-clocks", "gpu": 3}, {"do": "x"}, {}])
def test_a_revert_that_lacks_something_is_damage_and_holds_up_no_other(tmp_path: Path, action: Any) -> None:
    journal = Journal(tmp_path)
    journal.write(entry("a", started=1.0, reverts=(action,)))
    journal.write(entry("b", started=1.0))
    assert [(done.entry.run, done.problem) for done in recover(journal, None)] == [("b", "")]
    assert len(journal.damaged_files()) == 1


def test_where_no_lock_can_be_had_it_is_said(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(entry("a"))
    (journal.folder / ".a.lock").mkdir()
    with pytest.raises(JournalError, match=r"no lock can be had in .*choose a --state-dir"), journal.hold("a"):
        pass
    (tmp_path / "run.lock").mkdir()
    with pytest.raises(JournalError, match="no lock can be had"), one_run(tmp_path, "x"):
        pass


def test_a_run_does_not_end_before_it_began_when_the_clock_goes_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    ahead = time.time() + 3600.0
    journal.write(entry("a", started=ahead, report=True))
    (done,) = recover(journal, None)
    assert done.entry.ended == ahead


def test_all_reverts_are_tried_last_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    problems = carry_out([power_limit("GPU-0", 1.0), end_processes("x"), power_limit("GPU-1", 1.0)], 0.0)
    assert len(problems) == 2


@pytest.mark.parametrize(("value", "as_found"), [("7", True), ("9", True), ("0", True), ("N/A", True), ("27", False)])
def test_what_is_below_the_injected_value_is_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, as_found: bool
) -> None:
    # Below what was found too: the counter began anew with the host engine or the driver.
    script = tmp_path / "dcgmi"
    script.write_text(f"#!/bin/sh\necho 'GPU 0 {value}'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert (read_back([dcgm_value(0, 310, 7, 27, 1)], 0.0) == []) is as_found


def test_closed_entries_are_pruned(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(105):
        one = entry(f"r{number:03d}")
        journal.write(one)
        journal.close(one)
    assert len(list(journal.closed.glob("*.json"))) == 100


def test_two_processes_do_not_hold_one_run(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(entry("a"))
    order: list[Entry | None] = []
    with journal.hold("a"):
        other = threading.Thread(target=lambda: order.append(revert(Journal(tmp_path), "a", "dead-man")))
        other.start()
        other.join(0.2)
        assert order == []
        closed = journal.close(entry("a"))
    other.join(10)
    assert order == [closed]


def test_dead_man_commands(tmp_path: Path) -> None:
    bounds = SpoolSettings(max_records=7, max_mib=3)
    argv = timer_argv(tmp_path / "r.json", 90.0, "unit-x", bounds)
    assert argv[:2] == ["systemd-run", "--quiet"]
    assert "--on-active=90" in argv
    assert argv[-6:] == watcher_argv(tmp_path / "r.json", 0.0, bounds)[-6:]
    assert watcher_argv(tmp_path / "r.json", 90.0, bounds)[-1] == "90"
    # With bounds of its own it would drop from the queue what the settings allow.
    assert "--queue-records 7 --queue-mib 3" in " ".join(argv)
