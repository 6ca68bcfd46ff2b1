"""Injected faults: they count while they act, are masked once reverted, and never make a baseline."""

import numpy as np
import pytest

from scorer.grading import explain_node, fold, overall
from scorer.grading.metrics import XID
from scorer.model.board import Action, GradeBoard
from scorer.model.dimension import Dimension
from scorer.model.evidence import Residue, Run, RunPhase
from scorer.model.grade import Grade
from scorer.model.policy import GradingPolicy
from tests.grading_fleet import HOUR, NOW, Fleet

POLICY = GradingPolicy()
XID_79 = (Residue("dcgm", "xid:79", 3), Residue("kmsg", "xid:79", 3))


def run(phase: RunPhase, kind: str = "gpu-throttle", ended_s: float = 600.0, residues: tuple[Residue, ...] = ()) -> Run:
    ended = float("nan") if phase is RunPhase.ACTIVE else NOW - ended_s
    return Run("r1", "n0", kind, (3,), phase, NOW - 1800, ended, residues)


def throttled(phase: RunPhase) -> Fleet:
    fleet = Fleet().quiet()
    fleet.sample(0, 3, Dimension.COMPUTE, 1.4, age_h=0.3, run=0)
    fleet.runs.append(run(phase))
    return fleet


def grade(board: GradeBoard) -> Grade:
    return Grade(int(overall(board, POLICY)[0]))


def test_one_sample_under_an_active_injection_counts_at_once() -> None:
    board = fold(throttled(RunPhase.ACTIVE).evidence(), POLICY, NOW)
    found = explain_node(board, 0, POLICY)
    assert grade(board) is Grade.RED
    assert found.bad_gpus == (3,)
    assert any("experiment gpu-throttle acts on GPU 3" in r for r in found.jobs[0].reasons)
    assert found.action is Action.NONE


def test_injected_samples_never_enter_a_baseline() -> None:
    """Half of the fleet injected slow: the others are judged as if that half had not been measured."""
    fleet = Fleet(count=8).quiet()
    clean = fold(fleet.evidence(), POLICY, NOW)
    for node in range(4):
        for gpu in range(8):
            fleet.sample(node, gpu, Dimension.COMPUTE, 2.0, age_h=0.1, run=0)
    fleet.runs.append(run(RunPhase.ACTIVE))
    tagged = fold(fleet.evidence(), POLICY, NOW)
    assert np.array_equal(clean.gpu_slowdown[32:], tagged.gpu_slowdown[32:])
    assert (tagged.gpu_slowdown[:32, Dimension.COMPUTE] > 1.9).all()


def test_a_reverted_run_is_masked_and_one_clean_probe_restores_exactly_the_earlier_grade() -> None:
    before = fold(Fleet().quiet().evidence(), POLICY, NOW - 7200)
    during = fold(throttled(RunPhase.ACTIVE).evidence(), POLICY, NOW - 900, before)
    assert grade(during) is Grade.RED

    fleet = throttled(RunPhase.REVERTED)
    waiting = fold(fleet.evidence(), POLICY, NOW, during)
    assert grade(waiting) is Grade.RED
    reasons = explain_node(waiting, 0, POLICY).jobs[0].reasons
    assert any("waiting for a clean probe" in r for r in reasons)
    still = fold(fleet.evidence(), POLICY, NOW + 60, waiting)
    assert grade(still) is Grade.RED

    fleet.sample(0, 3, Dimension.COMPUTE, 1.0, age_h=0.1)
    after = fold(fleet.evidence(), POLICY, NOW, still)
    assert np.array_equal(after.grade, before.grade)
    assert not any("waiting" in r for r in explain_node(after, 0, POLICY).jobs[0].reasons)


def test_a_tagged_sample_is_no_clean_probe_and_neither_is_one_of_another_gpu() -> None:
    during = fold(throttled(RunPhase.ACTIVE).evidence(), POLICY, NOW - 900)
    fleet = throttled(RunPhase.REVERTED)
    fleet.sample(0, 3, Dimension.COMPUTE, 1.0, age_h=0.1, run=0)
    fleet.sample(0, 4, Dimension.COMPUTE, 1.0, age_h=0.1)
    assert grade(fold(fleet.evidence(), POLICY, NOW, during)) is Grade.RED


def test_a_real_fault_counts_while_waiting() -> None:
    calm = fold(Fleet().quiet().evidence(), POLICY, NOW - 900)
    fleet = throttled(RunPhase.REVERTED)
    fleet.say("NVRM: Xid (PCI:0000:15:00): 79, pid=1, name=x, GPU has fallen off the bus.")
    found = explain_node(fold(fleet.evidence(), POLICY, NOW, calm), 0, POLICY)
    assert {j.grade for j in found.jobs} == {Grade.RED}
    assert found.bad_gpus == (5,)


@pytest.mark.parametrize("surface", ["gauge", "kernel", "health"])
def test_residues_count_while_active_and_are_masked_after_the_revert(surface: str) -> None:
    def fleet(phase: RunPhase) -> Fleet:
        made = Fleet().quiet()
        made.runs.append(run(phase, "dcgm-inject", residues=XID_79))
        if surface == "gauge":
            made.read(XID, 79.0, gpu=3, since_s=1700, previous=0.0)
        elif surface == "kernel":
            made.say("NVRM: Xid (PCI:0000:13:00): 79, pid=1, name=x, GPU has fallen off the bus.", age_s=1700)
        else:
            made.health["n0"] = {3: {"Internal error": "Failure: GPU 3 fell off the bus (XID 79)"}}
        return made

    active = explain_node(fold(fleet(RunPhase.ACTIVE).evidence(), POLICY, NOW), 0, POLICY)
    assert {j.grade for j in active.jobs} == {Grade.RED}
    assert active.bad_gpus == (3,)
    assert any(f.run == "r1" for f in active.findings if f.grade is Grade.RED)

    reverted = fleet(RunPhase.REVERTED)
    reverted.sample(0, 3, Dimension.COMPUTE, 1.0, age_h=0.1)
    assert grade(fold(reverted.evidence(), POLICY, NOW)) is Grade.GREEN


@pytest.mark.parametrize(
    ("gpu", "code", "since_s"), [(2, 79.0, 1700.0), (3, 95.0, 1700.0), (3, 79.0, 400.0), (3, 79.0, 3600.0)]
)
def test_only_what_the_run_left_is_masked(gpu: int, code: float, since_s: float) -> None:
    """Another GPU, another code, or a change after or before the run is real."""
    fleet = Fleet().quiet()
    fleet.runs.append(run(RunPhase.REVERTED, "dcgm-inject", residues=XID_79))
    fleet.sample(0, 3, Dimension.COMPUTE, 1.0, age_h=0.1)
    fleet.read(XID, code, gpu=gpu, since_s=since_s, previous=0.0)
    assert grade(fold(fleet.evidence(), POLICY, NOW)) is Grade.RED


def test_a_failed_revert_is_never_masked() -> None:
    fleet = Fleet().quiet()
    fleet.runs.append(run(RunPhase.FAILED_REVERT, residues=XID_79))
    fleet.sample(0, 3, Dimension.COMPUTE, 1.0, age_h=0.1)
    found = explain_node(fold(fleet.evidence(), POLICY, NOW), 0, POLICY)
    assert {j.grade for j in found.jobs} == {Grade.YELLOW}
    assert "could not be reverted" in found.jobs[0].reasons[0]
    fleet.read(XID, 79.0, gpu=3, since_s=1700, previous=0.0)
    assert grade(fold(fleet.evidence(), POLICY, NOW)) is Grade.RED


def test_waiting_ends_in_unknown_when_no_probe_comes_at_all() -> None:
    during = fold(throttled(RunPhase.ACTIVE).evidence(), POLICY, NOW - 900)
    late = NOW + 100 * HOUR
    assert grade(fold(throttled(RunPhase.REVERTED).evidence(), POLICY, late, during)) is Grade.UNKNOWN


def test_a_second_experiment_decides_while_it_acts() -> None:
    calm = fold(Fleet().quiet().evidence(), POLICY, NOW - 3600)
    fleet = Fleet().quiet()
    fleet.runs.append(run(RunPhase.REVERTED))
    fleet.runs.append(Run("r2", "n0", "gpu-throttle", (1,), RunPhase.ACTIVE, NOW - 60))
    fleet.sample(0, 1, Dimension.COMPUTE, 1.4, age_h=0.01, run=1)
    assert grade(fold(fleet.evidence(), POLICY, NOW, calm)) is Grade.RED
