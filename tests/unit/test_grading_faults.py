"""Rules of discrete faults, one by one."""

import math

import pytest

from scorer.grading import NodeExplanation, explain_node, fold
from scorer.grading import metrics as m
from scorer.grading.facts import ago, pci_key
from scorer.grading.products import product_facts
from scorer.grading.rules import RULES, XID_RULES
from scorer.grading.xid import CATALOGUE, Severity, look_up
from scorer.model.board import Action
from scorer.model.dimension import Dimension
from scorer.model.evidence import LinkState, Run, RunPhase, SampleStatus
from scorer.model.grade import Grade
from scorer.model.policy import GradingPolicy
from tests.grading_fleet import HOUR, NOW, Fleet

POLICY = GradingPolicy()
TYPES = [t.name for t in POLICY.job_types]
XID = "NVRM: Xid (PCI:0000:{}:00): {}, pid=7, name=python3, {}"


def judge(fleet: Fleet) -> NodeExplanation:
    return explain_node(fold(fleet.evidence(), POLICY, NOW), 0, POLICY)


def grades(found: NodeExplanation) -> list[Grade]:
    return [j.grade for j in found.jobs]


def say(code: int, text: str = "text", age_s: float = 600.0, bus: str = "12") -> Fleet:
    fleet = Fleet().quiet()
    fleet.say(XID.format(bus, code, text), age_s)
    return fleet


@pytest.mark.parametrize(
    ("code", "text", "grade", "action"),
    [
        (79, "GPU has fallen off the bus.", Grade.RED, Action.REBOOT),
        (48, "DBE", Grade.RED, Action.RESET_GPU),
        (64, "Row Remapper failure", Grade.RED, Action.RMA),
        (95, "Uncontained", Grade.RED, Action.RESET_GPU),
        (119, "Timeout waiting for RPC from GSP!", Grade.RED, Action.RESET_GPU),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00", Grade.RED, Action.RESET_GPU),
        (144, "SAW_MVB Nonfatal XC0 i0 Link 0", Grade.YELLOW, Action.NONE),
        (63, "Row Remapper: New row marked for remapping", Grade.YELLOW, Action.RESET_GPU),
        (94, "Contained", Grade.YELLOW, Action.RESTART_APP),
        (9999, "from the future", Grade.YELLOW, Action.NONE),
        (31, "MMU Fault", Grade.GREEN, Action.RESTART_APP),
        (43, "stopped", Grade.GREEN, Action.NONE),
        (45, "Ch 1", Grade.GREEN, Action.NONE),
        (154, "recovery action changed", Grade.GREEN, Action.NONE),
    ],
)
def test_xids_of_the_kernel_log(code: int, text: str, grade: Grade, action: Action) -> None:
    found = judge(say(code, text))
    assert set(grades(found)) == {grade}
    assert found.action is action
    assert found.bad_gpus == ((2,) if grade > Grade.GREEN else ())
    assert not any("python3" in f.text + f.evidence for f in found.findings)


def test_a_follower_does_not_name_its_gpu() -> None:
    fleet = say(145, "RLW_SRC_TRACK Fatal XC0", bus="12")
    for bus in ("13", "14"):
        fleet.say(XID.format(bus, 45, "Ch 00000001 caused by previous Xid 145"), 599)
    assert judge(fleet).bad_gpus == (2,)


def test_events_end_with_their_window_or_with_a_driver_load() -> None:
    assert set(grades(judge(say(79, age_s=25 * HOUR)))) == {Grade.GREEN}
    assert judge(say(31, age_s=9 * HOUR)).action is Action.NONE
    cured = say(79, age_s=5 * HOUR)
    cured.say("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.1", 4 * HOUR)
    assert set(grades(judge(cured))) == {Grade.GREEN}
    again = say(79, age_s=4 * HOUR - 10)
    again.say("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.1", 4 * HOUR)
    assert set(grades(judge(again))) == {Grade.RED}


def test_fallen_off_the_bus_without_an_xid_over_three_lines() -> None:
    fleet = Fleet().quiet()
    fleet.say("NVRM: The NVIDIA GPU 0000:17:00.0", 600.0)
    fleet.say("NVRM: (PCI ID: 10de:26b5) installed in this system has", 599.9)
    fleet.say("NVRM: fallen off the bus and is not responding to commands.", 599.8)
    found = judge(fleet)
    assert set(grades(found)) == {Grade.RED}
    assert found.bad_gpus == (7,)
    assert found.action is Action.REBOOT


def test_a_fault_on_a_gpu_that_is_not_offered_spares_who_does_not_need_it() -> None:
    fleet = say(95)
    fleet.offered, fleet.expected = 7, 8
    found = judge(fleet)
    assert dict(zip(TYPES, grades(found), strict=True)) == {
        "train-multi": Grade.RED,
        "train-node": Grade.RED,
        "infer-gpu": Grade.GREEN,
        "batch-io": Grade.GREEN,
    }
    assert "7 of 8 GPUs are allocatable" in " ".join(found.jobs[0].reasons)
    assert found.bad_gpus == (2,)


def test_nothing_offered_is_red_for_all() -> None:
    fleet = Fleet(offered=0, expected=8).quiet()
    assert set(grades(judge(fleet))) == {Grade.RED}


def test_the_xid_gauge_counts_by_its_change() -> None:
    fresh = Fleet().quiet()
    fresh.read(m.XID, 95.0, gpu=1, since_s=600, previous=0.0)
    assert set(grades(judge(fresh))) == {Grade.RED}
    assert judge(fresh).bad_gpus == (1,)

    old = Fleet().quiet()
    old.read(m.XID, 95.0, gpu=1, since_s=30 * HOUR, previous=0.0)
    assert set(grades(judge(old))) == {Grade.GREEN}

    first_sight = Fleet().quiet()
    first_sight.read(m.XID, 95.0, gpu=1, since_s=600)
    assert set(grades(judge(first_sight))) == {Grade.YELLOW}
    first_sight.say("usb 1-1: new device", 30 * HOUR)
    assert set(grades(judge(first_sight))) == {Grade.GREEN}

    denied = Fleet().quiet()
    denied.read(m.XID, 95.0, gpu=1, since_s=3600, previous=0.0)
    denied.say("usb 1-1: new device", 30 * HOUR)
    denied.say("usb 1-1: another", 60)
    found = judge(denied)
    assert set(grades(found)) == {Grade.YELLOW}
    assert "the kernel log shows none" in found.jobs[0].reasons[0]


@pytest.mark.parametrize(
    ("field", "value", "previous", "grade", "action"),
    [
        (m.REMAP_FAILURE, 1.0, 0.0, Grade.RED, Action.RMA),
        (m.REMAP_PENDING, 1.0, math.nan, Grade.YELLOW, Action.RESET_GPU),
        (m.DBE_VOLATILE, 2.0, math.nan, Grade.RED, Action.RESET_GPU),
        (m.HW_THERMAL_NS, 9e9, 1e9, Grade.YELLOW, Action.CHECK_COOLING_POWER),
        (m.HW_THERMAL_NS, 9e9, math.nan, Grade.GREEN, Action.NONE),
        (m.HW_THERMAL_NS, 1e9, 9e9, Grade.GREEN, Action.NONE),
        (m.EVENT_REASONS, 0x88, math.nan, Grade.YELLOW, Action.CHECK_COOLING_POWER),
        (m.EVENT_REASONS, 0x4, math.nan, Grade.GREEN, Action.NONE),
        (m.FABRIC_STATUS, 1.0, math.nan, Grade.RED, Action.START_FABRIC_MANAGER),
        (m.FABRIC_STATUS, 3.0, math.nan, Grade.GREEN, Action.NONE),
    ],
)
def test_gauges_and_counters(field: int, value: float, previous: float, grade: Grade, action: Action) -> None:
    fleet = Fleet().quiet()
    fleet.read(field, value, gpu=4, previous=previous)
    found = judge(fleet)
    assert max(grades(found)) is grade
    assert found.action is action
    assert found.bad_gpus == ((4,) if grade > Grade.GREEN and field != m.FABRIC_STATUS else ())


def test_a_reading_that_is_too_old_says_nothing() -> None:
    fleet = Fleet().quiet()
    fleet.read(m.DBE_VOLATILE, 1.0, age_s=3600, since_s=7200)
    assert set(grades(judge(fleet))) == {Grade.GREEN}


def test_a_signal_that_comes_and_goes_counts_for_its_window() -> None:
    def with_reasons(value: float, now: float) -> Fleet:
        fleet = Fleet().quiet()
        fleet.read(m.EVENT_REASONS, value, gpu=4, age_s=NOW - now)
        return fleet

    hot = fold(with_reasons(0x48, NOW).evidence(), POLICY, NOW)
    grade_of, board = {}, hot
    for minutes in (5, 50, 70):
        at = NOW + 60 * minutes
        board = fold(with_reasons(0x0, at).evidence(), POLICY, at, board)
        found = explain_node(board, 0, POLICY)
        grade_of[minutes] = max(grades(found))
        if minutes == 50:
            assert "; last seen 50 min ago" in found.jobs[0].reasons[0]
    assert grade_of == {5: Grade.YELLOW, 50: Grade.YELLOW, 70: Grade.GREEN}


def test_a_signal_of_a_reverted_experiment_does_not_linger() -> None:
    fleet = Fleet().quiet()
    fleet.read(m.EVENT_REASONS, 0x48, gpu=4)
    hot = fold(fleet.evidence(), POLICY, NOW)
    after = Fleet().quiet()
    after.runs.append(Run("r1", "n0", "gpu-throttle", (4,), RunPhase.REVERTED, NOW - 900, NOW - 10))
    after.sample(0, 4, Dimension.COMPUTE, 1.0, age_h=0.0)
    assert set(grades(explain_node(fold(after.evidence(), POLICY, NOW + 60, hot), 0, POLICY))) == {Grade.GREEN}


def test_a_gpu_is_taken_to_be_withheld_only_for_what_a_device_plugin_sees() -> None:
    """One of eight is not offered. A hot GPU is not that one, and its own slowness still counts."""
    hot = Fleet(offered=7, expected=8).quiet(skip=[(0, 4)])
    hot.read(m.EVENT_REASONS, 0x48, gpu=4)
    for d in Dimension:
        for age in (26, 14, 2):
            hot.sample(0, 4, d, 1.0 if d is not Dimension.COMPUTE else 2.5, age)
    found = {j.job_type: j for j in judge(hot).jobs}
    assert found["infer-gpu"].grade is Grade.YELLOW
    assert found["infer-gpu"].slowdown > 1.5

    lost = Fleet(offered=7, expected=8).quiet()
    lost.say(XID.format("15", 79, "GPU has fallen off the bus."))
    for link in range(17):
        lost.links.append(LinkState("n0", NOW - 60, 2, str(link), "nvlink", "active"))
    found = {j.job_type: j for j in judge(lost).jobs}
    assert found["infer-gpu"].grade is Grade.GREEN
    assert found["train-node"].grade is Grade.RED


def test_what_holds_until_a_reset_outlives_its_exporter() -> None:
    """A dead exporter makes a node unknown; it must not make a red one pass."""
    fleet = Fleet().quiet()
    fleet.read(m.DBE_VOLATILE, 1.0, age_s=3600, since_s=7200)
    fleet.read(m.EVENT_REASONS, 0x88, gpu=1, age_s=3600, since_s=7200)
    fleet.scraped["n0"] = NOW - 3600
    found = judge(fleet)
    assert set(grades(found)) == {Grade.RED}
    assert found.bad_gpus == (0,)
    assert any("no good scrape for 60 min" in f.text for f in found.findings)


def test_a_contained_error_explains_its_ecc_count() -> None:
    fleet = say(94, "Contained: SM (0x1)")
    fleet.read(m.DBE_VOLATILE, 1.0, gpu=2, previous=0.0)
    assert set(grades(judge(fleet))) == {Grade.YELLOW}


def test_a_fabric_manager_is_not_missed_where_the_product_has_none() -> None:
    fleet = Fleet(product="NVIDIA L40S").quiet()
    fleet.read(m.FABRIC_STATUS, 1.0)
    assert set(grades(judge(fleet))) == {Grade.GREEN}


@pytest.mark.parametrize(("load", "draw", "bad"), [(99.0, 150.0, (2,)), (99.0, 280.0, ()), (5.0, 60.0, ())])
def test_held_far_below_the_power_limit_under_load(load: float, draw: float, bad: tuple[int, ...]) -> None:
    fleet = Fleet().quiet()
    for field, value in ((m.EVENT_REASONS, 4.0), (m.GPU_UTIL, load), (m.POWER, draw), (m.ENFORCED_LIMIT, 300.0)):
        fleet.read(field, value, gpu=2)
    assert judge(fleet).bad_gpus == bad


@pytest.mark.parametrize(
    ("active", "product", "grade"),
    [
        (18, "NVIDIA H100 80GB HBM3", Grade.GREEN),
        (17, "NVIDIA H100 80GB HBM3", Grade.RED),
        (12, "NVIDIA H100 NVL", Grade.GREEN),
    ],
)
def test_nvlinks_against_the_products_count(active: int, product: str, grade: Grade) -> None:
    fleet = Fleet(product=product).quiet()
    for link in range(18):
        state = "active" if link < active else "inactive"
        fleet.links.append(LinkState("n0", NOW - 60, 3, str(link), "nvlink", state))
    found = judge(fleet)
    assert grades(found)[1] is grade
    assert grades(found)[2] is Grade.GREEN
    assert found.bad_gpus == ((3,) if grade is Grade.RED else ())


@pytest.mark.parametrize(
    ("downs_h", "last", "grade"),
    [
        ([0.5, 0.2], "active", Grade.RED),
        ([0.1], "down", Grade.RED),
        ([5.0], "active", Grade.YELLOW),
        ([96.0] * 3, "active", Grade.GREEN),
    ],
)
def test_infiniband_ports(downs_h: list[float], last: str, grade: Grade) -> None:
    fleet = Fleet().quiet()
    for i, age in enumerate(downs_h):
        at = NOW - age * HOUR + 10 * i
        fleet.links.append(LinkState("n0", at, -1, "mlx5_0:1", "ib", "down"))
        if last == "active":
            fleet.links.append(LinkState("n0", at + 5, -1, "mlx5_0:1", "ib", "active"))
    found = judge(fleet)
    assert grades(found)[0] is grade
    assert grades(found)[1:] == [Grade.GREEN] * 3
    assert found.bad_gpus == ()


def test_narrow_pcie_is_decided_by_measurement_where_there_is_one() -> None:
    def narrow(*, measured: bool) -> Fleet:
        fleet = Fleet().quiet()
        if not measured:
            fleet.rows = [r for r in fleet.rows if r[:2] != (2, Dimension.PCIE)]
        fleet.read(m.PCIE_WIDTH, 8.0, gpu=2)
        fleet.read(m.PCIE_MAX_WIDTH, 16.0, gpu=2)
        return fleet

    assert set(grades(judge(narrow(measured=True)))) == {Grade.GREEN}
    assert judge(narrow(measured=True)).action is Action.CHECK_CABLING
    unmeasured = dict(zip(TYPES, grades(judge(narrow(measured=False))), strict=True))
    assert unmeasured["batch-io"] is Grade.RED
    assert unmeasured["train-node"] is Grade.YELLOW


def test_two_timeouts_without_a_good_probe_since() -> None:
    fleet = Fleet().quiet()
    fleet.sample(0, 4, Dimension.COMPUTE, age_h=1, status=SampleStatus.TIMEOUT)
    assert set(grades(judge(fleet))) == {Grade.GREEN}
    fleet.sample(0, 4, Dimension.MEMORY, age_h=0.9, status=SampleStatus.TIMEOUT)
    found = judge(fleet)
    assert set(grades(found)) == {Grade.RED}
    assert found.bad_gpus == (4,)
    assert "timed out" in found.jobs[0].reasons[0]
    fleet.sample(0, 4, Dimension.COMPUTE, 1.0, age_h=0.5)
    assert set(grades(judge(fleet))) == {Grade.GREEN}


def test_hung_collectives_name_no_gpu() -> None:
    fleet = Fleet().quiet()
    for gpu in (0, 2):
        fleet.sample(0, gpu, Dimension.NVLINK, age_h=1, status=SampleStatus.TIMEOUT)
    found = judge(fleet)
    assert grades(found) == [Grade.RED, Grade.RED, Grade.GREEN, Grade.GREEN]
    assert found.bad_gpus == ()
    assert found.action is Action.REBOOT


def test_health_reports() -> None:
    verdicts = {
        "Memory system": ("Failure: Detected 1 volatile double-bit ECC error(s) in GPU 0.", Grade.RED),
        "Internal error": ("Failure: GPU 0 had an uncontained error (XID 95)", Grade.RED),
        "Never heard of": ("Failure: something new", Grade.YELLOW),
        "PCIe system": ("Warning: Detected more than 31 PCIe replays per minute", Grade.YELLOW),
        "Driver": ("Failure: XID 31 seen", Grade.GREEN),
    }
    for system, (text, grade) in verdicts.items():
        fleet = Fleet().quiet()
        fleet.health["n0"] = {0: {system: text}}
        assert set(grades(judge(fleet))) == {grade}, system


def test_pods_rejected_on_two_other_gpus_make_the_node_red() -> None:
    fleet = Fleet().quiet()
    fleet.health["n0"] = {0: {"kubelet": "Failure: UnexpectedAdmissionError"}}
    assert set(grades(judge(fleet))) == {Grade.GREEN}
    fleet.health["n0"][1] = {"kubelet": "Failure: UnexpectedAdmissionError"}
    found = judge(fleet)
    assert set(grades(found)) == {Grade.RED}
    assert found.bad_gpus == ()
    assert found.action is Action.RESTART_DEVICE_PLUGIN


def test_broken_telemetry_is_unknown_and_the_monitoring_is_to_be_repaired() -> None:
    gone = Fleet().quiet()
    gone.scraped["n0"] = NOW - 3600
    frozen = Fleet().quiet()
    frozen.scraped["n0"] = NOW - 30
    frozen.read(m.ENERGY, 1e9, since_s=1200)
    for fleet, word in ((gone, "gone"), (frozen, "frozen")):
        found = judge(fleet)
        assert set(grades(found)) == {Grade.UNKNOWN}
        assert found.action is Action.REPAIR_MONITORING
        assert word in found.jobs[0].reasons[0]
    lives = Fleet().quiet()
    lives.scraped["n0"] = NOW - 30
    lives.read(m.ENERGY, 1e9, since_s=30)
    assert set(grades(judge(lives))) == {Grade.GREEN}


def test_a_series_that_is_no_longer_exported_is_said_and_costs_no_grade() -> None:
    fleet = Fleet().quiet()
    fleet.scraped["n0"] = NOW - 30
    fleet.read(m.XID, math.nan, previous=0.0)
    found = judge(fleet)
    assert set(grades(found)) == {Grade.GREEN}
    assert found.action is Action.REPAIR_MONITORING
    assert any("no longer has the series XID" in r for r in found.jobs[0].reasons)


def test_tables_are_whole() -> None:
    assert set(XID_RULES.values()) <= set(RULES)
    assert len(CATALOGUE) == 172 or len(CATALOGUE) == 173
    assert look_up(79).severity is Severity.FATAL
    assert look_up(12345).severity is Severity.UNCLEAR
    assert product_facts("NVIDIA-H100-NVL").nvlinks == 12
    assert product_facts("NVIDIA A10").nvlinks == 0


def test_spellings() -> None:
    assert pci_key("00000000:5D:00.0") == pci_key("0000:5d:00") == (0, 0x5D, 0)
    assert pci_key("nonsense") is None
    assert [ago(s) for s in (40, 720, 7200, 552960, math.nan)] == [
        "40 s",
        "12 min",
        "2 h",
        "6.4 days",
        "an unknown time",
    ]
