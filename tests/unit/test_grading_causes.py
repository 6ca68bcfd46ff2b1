"""Why a GPU is slow: what its own telemetry shows stands with the slowdown, and says what to do."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from scorer.grading import NodeExplanation, explain_node, fold
from scorer.grading import metrics as m
from scorer.model.board import Action, Finding
from scorer.model.dimension import Dimension
from scorer.model.evidence import LinkState, Residue, Run, RunPhase
from scorer.model.grade import Grade, Sensitivity
from scorer.model.policy import GradingPolicy
from tests.grading_fleet import HOUR, NOW, Fleet

POLICY = GradingPolicy()
GPU = 6


def slow(dimension: Dimension = Dimension.COMPUTE, slowdown: float = 1.3) -> Fleet:
    """A fleet with one GPU that is slow in every probe."""
    fleet = Fleet().quiet(skip=[(0, GPU)])
    for d in Dimension:
        for i in range(6):
            fleet.sample(0, GPU, d, slowdown if d is dimension else 1.0, age_h=2 + 12 * i)
    return fleet


def everywhere(fleet: Fleet, field: int, value: float, own: float | None = None) -> Fleet:
    """A reading of every GPU, another one of the slow GPU."""
    for node in range(fleet.count):
        for gpu in range(fleet.gpus):
            mine = node == 0 and gpu == GPU and own is not None
            fleet.read(field, own if mine and own is not None else value, gpu, node)
    return fleet


def explain(fleet: Fleet, sensitivity: Sensitivity | None = None) -> NodeExplanation:
    return explain_node(fold(fleet.evidence(), POLICY, NOW), 0, POLICY, sensitivity=sensitivity)


def finding(found: NodeExplanation) -> Finding:
    (only,) = [f for f in found.findings if f.rule == "slow"]
    return only


def limit(value: float, own: float) -> Callable[[Fleet], Fleet]:
    return lambda fleet: everywhere(fleet, m.ENFORCED_LIMIT, value, own)


def set_limit(fleet: Fleet) -> Fleet:
    return everywhere(fleet, m.POWER_LIMIT, 700, 463)


def hot_when_idle(fleet: Fleet) -> Fleet:
    return everywhere(everywhere(fleet, m.TEMPERATURE, 33, 45), m.GPU_UTIL, 0)


def hot_under_load(fleet: Fleet) -> Fleet:
    return everywhere(everywhere(fleet, m.TEMPERATURE, 62, 83), m.GPU_UTIL, 99)


def near_its_slowdown_point(fleet: Fleet) -> Fleet:
    fleet.read(m.TEMPERATURE, 86, GPU)
    fleet.read(m.SLOWDOWN_POINT, 89, GPU)
    return fleet


def low_clock(fleet: Fleet) -> Fleet:
    return everywhere(everywhere(fleet, m.SM_CLOCK, 1755, 1350), m.GPU_UTIL, 99)


def low_clock_in_probes(fleet: Fleet) -> Fleet:
    """All GPUs idle by now; what their probes were told under load is known."""
    fleet.sm_clocks = {gpu: 1350 if gpu == GPU else 1755 for gpu in range(fleet.count * fleet.gpus)}
    return everywhere(everywhere(fleet, m.SM_CLOCK, 345), m.GPU_UTIL, 0)


def locked_clock(fleet: Fleet) -> Fleet:
    fleet.read(m.EVENT_REASONS, m.REASON_CLOCKS_SETTING, GPU)
    return low_clock(fleet)


def slowed_by_hardware(fleet: Fleet) -> Fleet:
    fleet.read(m.EVENT_REASONS, 0x40, GPU)
    return fleet


def losing_time_to_heat(fleet: Fleet) -> Fleet:
    fleet.read(m.HW_THERMAL_NS, 9e9, GPU, previous=1e9)
    return fleet


@pytest.mark.parametrize(
    ("shown", "text", "action"),
    [
        (limit(700, 463), "its power limit is 463 W, its peers' 700 W", Action.CHECK_COOLING_POWER),
        (set_limit, "its power limit is 463 W, its peers' 700 W", Action.CHECK_COOLING_POWER),
        (hot_when_idle, "it is at 45 C, its peers at 33 C, all idle", Action.CHECK_COOLING_POWER),
        (hot_under_load, "it is at 83 C, its peers at 62 C", Action.CHECK_COOLING_POWER),
        (near_its_slowdown_point, "it is at 86 C, and slows down at 89 C", Action.CHECK_COOLING_POWER),
        (low_clock, "its SM clock under load is 1350 MHz, its peers' 1755 MHz", Action.CHECK_COOLING_POWER),
        (low_clock_in_probes, "its SM clock under load is 1350 MHz, its peers' 1755 MHz", Action.CHECK_COOLING_POWER),
        (locked_clock, "its peers' 1755 MHz, as somebody set it", Action.NONE),
        (slowed_by_hardware, "the hardware slows its clocks", Action.CHECK_COOLING_POWER),
        (losing_time_to_heat, "the hardware slows its clocks", Action.CHECK_COOLING_POWER),
    ],
)
def test_what_a_slow_gpu_shows_is_its_reason_and_names_the_remedy(
    shown: Callable[[Fleet], Fleet], text: str, action: Action
) -> None:
    bare, found = explain(slow()), explain(shown(slow()))
    assert finding(found).text.startswith(f"{finding(bare).text}; ")
    assert finding(found).text.endswith(text)
    assert finding(found).action is action
    assert found.action is action
    assert found.bad_gpus == bare.bad_gpus == (GPU,)
    assert [(j.slowdown, j.low, j.high) for j in found.jobs] == [(j.slowdown, j.low, j.high) for j in bare.jobs]
    train = next(j for j in found.jobs if j.job_type == "train-multi")
    assert finding(found).text in train.reasons


@pytest.mark.parametrize(
    "shown",
    [
        lambda fleet: fleet,
        limit(700, 700),
        limit(700, 690),
        limit(500, 500),
        lambda fleet: everywhere(everywhere(fleet, m.TEMPERATURE, 33, 39), m.GPU_UTIL, 0),
        lambda fleet: everywhere(everywhere(fleet, m.SM_CLOCK, 1755, 345), m.GPU_UTIL, 0),
        lambda fleet: everywhere(everywhere(fleet, m.TEMPERATURE, 33, 83), m.GPU_UTIL, 0, 99),
        lambda fleet: everywhere(everywhere(fleet, m.SM_CLOCK, 345, 300), m.GPU_UTIL, 0, 99),
        lambda fleet: everywhere(everywhere(fleet, m.TEMPERATURE, 33, 45), m.GPU_UTIL, 50),
    ],
    ids=["silent", "same", "nearly-same", "all-lowered", "warm", "idle-clock", "hot-but-busy", "busy-alone", "between"],
)
def test_what_shows_nothing_explains_nothing(shown: Callable[[Fleet], Fleet]) -> None:
    found = explain(shown(slow()))
    assert finding(found).text == finding(explain(slow())).text
    assert found.action is Action.NONE


def test_where_peers_do_not_tell_a_limit_is_held_against_the_default() -> None:
    fleet = slow()
    fleet.read(m.ENFORCED_LIMIT, 463, GPU)
    assert finding(explain(fleet)).text.endswith("; its power limit is 463 W, its default 700 W")


def test_one_node_alone_is_its_own_measure() -> None:
    fleet = slow()
    for gpu in range(8):
        fleet.read(m.ENFORCED_LIMIT, 150 if gpu == GPU else 300, gpu)
    assert finding(explain(fleet)).text.endswith("; its power limit is 150 W, its peers' 300 W")


def test_several_signs_stand_side_by_side_with_where_they_were_seen() -> None:
    found = finding(explain(hot_when_idle(set_limit(slow()))))
    assert found.text.endswith("463 W, its peers' 700 W; it is at 45 C, its peers at 33 C, all idle")
    assert found.evidence.endswith("; dcgm-exporter field 160 = 463; dcgm-exporter field 150 = 45")


def test_a_low_clock_is_told_only_where_nothing_says_why_it_is_low() -> None:
    assert "SM clock" not in finding(explain(limit(700, 463)(low_clock(slow())))).text
    assert "SM clock" in finding(explain(low_clock(slow()))).text


def test_the_clock_of_the_newest_probe_counts() -> None:
    fleet = low_clock_in_probes(slow())
    evidence = fleet.evidence()
    clocks = evidence.samples.sm_clock.copy()
    mine = np.flatnonzero((evidence.samples.gpu == GPU) & (evidence.samples.dimension == Dimension.COMPUTE))
    clocks[mine[np.argmax(evidence.samples.at[mine])]] = 1740
    newest = replace(evidence, samples=replace(evidence.samples, sm_clock=clocks))
    found = explain_node(fold(newest, POLICY, NOW), 0, POLICY)
    assert "SM clock" not in finding(found).text
    assert "SM clock" in finding(explain(fleet)).text


def test_a_narrow_link_is_part_of_the_headline() -> None:
    fleet = everywhere(everywhere(slow(Dimension.PCIE, 1.99), m.PCIE_WIDTH, 16, 8), m.PCIE_MAX_WIDTH, 16)
    found = explain(fleet)
    batch = next(j for j in found.jobs if j.job_type == "batch-io")
    assert batch.grade is Grade.YELLOW
    assert batch.reasons[0].endswith("; its PCIe runs at x8 of x16")
    assert finding(found).action is found.action is Action.CHECK_CABLING


@pytest.mark.parametrize(("used", "told"), [(99, True), (0, False)])
def test_a_pcie_generation_counts_under_load_alone(used: float, told: bool) -> None:
    fleet = everywhere(everywhere(slow(Dimension.PCIE, 1.99), m.PCIE_GEN, 5, 1), m.PCIE_MAX_GEN, 5)
    found = explain(everywhere(fleet, m.GPU_UTIL, 0, used))
    assert finding(found).text.endswith("; its PCIe runs at generation 1 of 5") is told
    assert found.action is (Action.CHECK_CABLING if told else Action.NONE)


def test_missing_nvlinks_explain_a_slow_nvlink() -> None:
    fleet = slow(Dimension.NVLINK, 2.0)
    fleet.links += [
        LinkState("n0", NOW, GPU, str(i), "nvlink", "inactive" if i in (3, 5) else "active") for i in range(18)
    ]
    found = finding(explain(fleet))
    assert found.text.endswith("; 16 of 18 NVLinks active (inactive: link 3, 5)")
    assert found.action is Action.RESET_GPU


def test_a_sign_explains_only_the_dimensions_that_it_can_slow() -> None:
    narrow = everywhere(everywhere(slow(), m.PCIE_WIDTH, 16, 8), m.PCIE_MAX_WIDTH, 16)
    assert "PCIe" not in finding(explain(narrow)).text
    assert "power" not in finding(explain(limit(700, 463)(slow(Dimension.PCIE, 1.99)))).text


def test_a_sign_of_another_gpu_is_no_reason() -> None:
    fleet = slow()
    fleet.read(m.EVENT_REASONS, 0x40, GPU - 1)
    assert finding(explain(fleet)).text == finding(explain(slow())).text


def test_a_lowered_limit_makes_no_group_of_its_own() -> None:
    assert "40 peers" in finding(explain(limit(700, 463)(slow()))).text


def test_old_telemetry_says_nothing() -> None:
    fleet = slow()
    fleet.read(m.ENFORCED_LIMIT, 463, GPU, age_s=POLICY.stale_telemetry_s + 60)
    assert finding(explain(fleet)).text == finding(explain(slow())).text


def test_a_slowdown_that_only_the_critical_class_feels_is_told_but_sends_nobody() -> None:
    found = explain(limit(700, 650)(slow(slowdown=1.06)))
    assert finding(found).grade is Grade.GREEN
    assert finding(found).text.endswith("; its power limit is 650 W, its peers' 700 W")
    assert found.action is Action.NONE


@pytest.mark.parametrize("phase", [RunPhase.ACTIVE, RunPhase.REVERTED])
def test_what_an_experiment_did_asks_for_no_repair(phase: RunPhase) -> None:
    """While it acts the limit is named, as the GPU really is slow; once it is reverted its residue is masked."""
    fleet = Fleet().quiet() if phase is RunPhase.ACTIVE else slow()
    ended = NOW - 300.0 if phase is RunPhase.REVERTED else float("nan")
    left = (Residue("nvml", f"field:{m.ENFORCED_LIMIT}", GPU),)
    fleet.runs.append(Run("r1", "n0", "gpu-throttle", (GPU,), phase, NOW - HOUR, ended, left))
    if phase is RunPhase.ACTIVE:
        for age in (0.9, 0.5):
            fleet.sample(0, GPU, Dimension.COMPUTE, 1.4, age_h=age, run=0)
    found = explain(limit(700, 463)(fleet))
    assert ("its power limit is 463 W" in finding(found).text) is (phase is RunPhase.ACTIVE)
    assert found.action is Action.NONE
