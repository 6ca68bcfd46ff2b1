"""What DCGM's cache, health watches and XID history do, as far as an injection can tell."""

import pytest

from tools.fleet import health
from tools.fleet.exporter import render
from tools.fleet.fields import Live
from tools.fleet.hostengine import held, inject, latest
from tools.fleet.inventory import Fault, Node, build
from tools.fleet.node import Machine
from tools.fleet.state import State, fresh_dcgm, fresh_state

NOW = 1_796_000_000.0
GPU = 2


@pytest.fixture
def node() -> Node:
    return build(1, 4, 8, NOW)[0][0]


@pytest.fixture
def state(node: Node) -> State:
    return fresh_state(node, [], NOW)


def watch(state: State, systems: str = health.ALL, at: float = NOW) -> None:
    state["dcgm"]["watches"] = {"systems": systems, "at": at}


def value(node: Node, state: State, field: int, at: float) -> float:
    machine = Machine(node, state)
    gpu = node.gpus[GPU]
    found = latest(machine, gpu, field, Live(machine, gpu, machine.sensors(gpu, at), at))
    assert found is not None
    return found


def verdicts(node: Node, state: State, at: float) -> dict[str, str]:
    return {i.system: i.verdict for i in health.check(Machine(node, state), node.gpus[GPU], at)}


def test_an_injected_value_fades_when_its_hold_time_is_over(node: Node, state: State) -> None:
    live = value(node, state, 150, NOW)
    inject(state, GPU, 150, 99.0, NOW + 5, NOW)
    assert value(node, state, 150, NOW) == 99
    assert value(node, state, 150, NOW + 5.9) == 99
    assert value(node, state, 150, NOW + 6.1) != 99
    assert abs(value(node, state, 150, NOW + 6.1) - live) < 5


def test_the_xid_gauge_stays_at_its_last_value(node: Node, state: State) -> None:
    inject(state, GPU, 230, 79.0, NOW + 1, NOW)
    assert value(node, state, 230, NOW + 10**6) == 79
    inject(state, GPU, 230, 0.0, NOW + 11, NOW + 10)
    assert value(node, state, 230, NOW + 10**6) == 0


def test_xid_history_needs_watches_before_and_is_never_cleared(node: Node, state: State) -> None:
    inject(state, GPU, 230, 79.0, NOW + 1, NOW)
    watch(state)
    assert verdicts(node, state, NOW + 2) == {}
    inject(state, GPU, 230, 79.0, NOW + 4, NOW + 3)
    assert verdicts(node, state, NOW + 5) == {"Internal error": "Failure"}
    inject(state, GPU, 230, 0.0, NOW + 7, NOW + 6)
    assert verdicts(node, state, NOW + 10**6) == {"Internal error": "Failure"}
    state["dcgm"] = fresh_dcgm(NOW + 10)
    watch(state, at=NOW + 10)
    assert verdicts(node, state, NOW + 11) == {}
    assert value(node, state, 230, NOW + 11) == 0


@pytest.mark.parametrize(
    ("xid", "system", "verdict"),
    [
        (94, "Internal error", "Warning"),
        (95, "Internal error", "Failure"),
        (64, "Memory system", "Failure"),
        (62, "Thermal system", "Warning"),
        (31, "Memory system", "Warning"),
    ],
)
def test_xids_count_under_the_system_that_dcgm_files_them(
    node: Node, state: State, xid: int, system: str, verdict: str
) -> None:
    watch(state)
    inject(state, GPU, 230, xid, NOW + 1, NOW)
    assert verdicts(node, state, NOW + 2) == {system: verdict}


@pytest.mark.parametrize("xid", [109, 136, 143, 158, 13])
def test_dcgm_passes_over_xids_that_it_does_not_know(node: Node, state: State, xid: int) -> None:
    watch(state)
    inject(state, GPU, 230, xid, NOW + 1, NOW)
    assert verdicts(node, state, NOW + 2) == {}


@pytest.mark.parametrize(
    ("field", "amount", "system", "verdict"),
    [
        (202, 500, "PCIe system", "Warning"),
        (241, 1, "Thermal system", "Warning"),
        (240, 1, "Power system", "Warning"),
        (429, 1, "NVLINK system", "Failure"),
        (439, 1, "NVLINK system", "Failure"),
        (419, 1, "NVLINK system", "Warning"),
        (409, 6000, "NVLINK system", "Failure"),
    ],
)
def test_counters_need_a_baseline_first(
    node: Node, state: State, field: int, amount: int, system: str, verdict: str
) -> None:
    watch(state)
    inject(state, GPU, field, amount, NOW + 1, NOW)
    assert verdicts(node, state, NOW + 2) == {}
    state["dcgm"]["cache"].clear()
    inject(state, GPU, field, 0.0, NOW + 1, NOW)
    inject(state, GPU, field, amount, NOW + 2, NOW + 1)
    assert verdicts(node, state, NOW + 3) == {system: verdict}
    assert verdicts(node, state, NOW + 120) == {}


@pytest.mark.parametrize(("product_node", "limit"), [(0, 31), (3, 16)])
def test_pcie_replays_are_judged_by_the_link_generation(product_node: int, limit: int) -> None:
    node = build(1, 4, 8, NOW)[0][product_node]
    state = fresh_state(node, [], NOW)
    watch(state)
    inject(state, GPU, 202, 0.0, NOW + 1, NOW)
    inject(state, GPU, 202, float(limit), NOW + 2, NOW)
    assert verdicts(node, state, NOW + 3) == {}
    inject(state, GPU, 202, limit + 1.0, NOW + 3, NOW)
    assert verdicts(node, state, NOW + 4) == {"PCIe system": "Warning"}


@pytest.mark.parametrize(
    ("field", "amount", "verdict"), [(311, 1, "Failure"), (395, 1, "Failure"), (393, 512, "Warning")]
)
def test_memory_faults_are_judged_by_their_value(
    node: Node, state: State, field: int, amount: int, verdict: str
) -> None:
    watch(state)
    inject(state, GPU, field, amount, NOW + 1, NOW)
    assert verdicts(node, state, NOW + 1) == {"Memory system": verdict}


def test_only_watched_systems_are_judged(node: Node, state: State) -> None:
    watch(state, "p")
    inject(state, GPU, 311, 1.0, NOW + 1, NOW)
    assert verdicts(node, state, NOW + 1) == {}


def test_the_exporter_reads_the_same_cache(node: Node, state: State) -> None:
    before = render(Machine(node, state), NOW)
    assert f'gpu="{GPU}"' in before
    assert "XID_ERRORS_COUNT" not in before
    inject(state, GPU, 230, 79.0, NOW + 1, NOW)
    after = render(Machine(node, state), NOW + 2)
    assert 'err_code="79",err_msg="GPU has fallen off the bus"} 79' in after
    assert 'window_size_in_ms="300000",xid="79"} 1' in after
    assert "XID_ERRORS_COUNT" not in render(Machine(node, state), NOW + 400)


def test_a_physical_fault_shows_on_dcgm_too(node: Node) -> None:
    state = fresh_state(node, [Fault(GPU, "dbe", NOW - 10)], NOW)
    watch(state, at=NOW - 20)
    assert value(node, state, 311, NOW) == 1
    assert value(node, state, 230, NOW) == 48
    assert set(verdicts(node, state, NOW).values()) == {"Failure"}


def test_a_lost_gpu_has_no_series_but_its_xid(node: Node) -> None:
    state = fresh_state(node, [Fault(GPU, "lost", NOW - 10)], NOW - 20)
    lines = [line for line in render(Machine(node, state), NOW).splitlines() if f'gpu="{GPU}"' in line]
    assert {line.partition("{")[0] for line in lines} == {"DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT"}


def test_the_cache_is_bounded(node: Node, state: State) -> None:
    for n in range(2000):
        inject(state, GPU, 150, float(n), NOW + n * 0.001, NOW)
    assert len(state["dcgm"]["cache"][str(GPU)]["150"]) <= 257
    inject(state, GPU, 150, 1.0, NOW + 1000, NOW + 1000)
    assert len(state["dcgm"]["cache"][str(GPU)]["150"]) == 1
    assert held(state, GPU, 150, NOW + 1000) == 1.0
