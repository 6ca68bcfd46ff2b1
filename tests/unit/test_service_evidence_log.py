"""The evidence log: rows of the right GPU, in time order, nothing counted that must not be."""

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.model.dimension import Dimension
from scorer.model.evidence import GpuFacts, KernelMessage, Run, RunPhase, Sample
from scorer.sources.cluster import NodeRecord
from scorer.sources.evidence_log import EvidenceLog
from tests.service_support import sample

NOW = 1_780_000_000.0
NODES = {name: NodeRecord(name, gpus=2, expected_gpus=2) for name in ("gpu-0", "gpu-1")}


def gpu_rows(log: EvidenceLog, nodes: Mapping[str, NodeRecord] = NODES) -> list[tuple[int, float]]:
    columns = log.evidence(NOW, nodes).samples
    return list(zip(columns.gpu.tolist(), columns.at.tolist(), strict=True))


def test_rows_count_gpus_node_after_node() -> None:
    log = EvidenceLog()
    log.add_samples(
        [sample("a", NOW - 3, "gpu-1", 1), sample("b", NOW - 2, "gpu-0", 1), sample("c", NOW - 1, "gpu-1", 0)]
    )
    assert gpu_rows(log) == [(3, NOW - 3), (1, NOW - 2), (2, NOW - 1)]


def test_the_uuid_wins_over_the_index_and_a_gone_gpu_is_dropped() -> None:
    log = EvidenceLog()
    log.set_gpus("gpu-0", (GpuFacts(0, "GPU-a"), GpuFacts(1, "GPU-b")))
    by_uuid = Sample("a", NOW - 3, "gpu-0", 0, "GPU-b", Dimension.COMPUTE, 1.0)
    gone = Sample("b", NOW - 2, "gpu-0", 0, "GPU-old", Dimension.COMPUTE, 1.0)
    other = Sample("c", NOW - 1, "gpu-1", 0, "GPU-b", Dimension.COMPUTE, 1.0)
    log.add_samples([by_uuid, gone, other])
    assert gpu_rows(log) == [(1, NOW - 3)]
    assert log.evidence(NOW, NODES).dropped == {"sample-of-unknown-gpu": 2}


def test_no_node_takes_anothers_gpu_by_naming_it() -> None:
    log = EvidenceLog()
    log.set_gpus("gpu-0", (GpuFacts(0, "GPU-a"), GpuFacts(1, "GPU-b")))
    log.set_gpus("gpu-1", (GpuFacts(0, "GPU-a"), GpuFacts(1, "GPU-d")))
    log.add_samples([Sample("a", NOW - 3, "gpu-0", 0, "GPU-a", Dimension.COMPUTE, 1.0)])
    assert gpu_rows(log) == [(0, NOW - 3)]


def test_a_node_that_claims_anothers_gpu_takes_nothing_from_it() -> None:
    log = EvidenceLog()
    log.set_gpus("gpu-0", (GpuFacts(0, "GPU-a"), GpuFacts(1, "GPU-b")))
    log.set_gpus("gpu-1", (GpuFacts(0, "GPU-x"), GpuFacts(1, "GPU-b")))
    log.add_samples([Sample(n, NOW - 3, n, 1, "GPU-b", Dimension.COMPUTE, 1.0) for n in ("gpu-0", "gpu-1")])
    assert gpu_rows(log) == [(1, NOW - 3), (3, NOW - 3)]


def test_a_gpu_that_was_exchanged_leaves_its_samples_behind() -> None:
    log = EvidenceLog()
    log.set_gpus("gpu-0", (GpuFacts(0, "GPU-a"), GpuFacts(1, "GPU-b")))
    log.add_samples([Sample("a", NOW - 3, "gpu-0", 0, "GPU-a", Dimension.COMPUTE, 1.0)])
    assert gpu_rows(log) == [(0, NOW - 3)]
    log.set_gpus("gpu-0", (GpuFacts(0, "GPU-new"), GpuFacts(1, "GPU-b")))
    assert gpu_rows(log) == []


def test_a_whole_nodes_sample_counts_for_each_of_its_gpus() -> None:
    log = EvidenceLog()
    log.add_samples(
        [sample("a", NOW - 3, "gpu-1", -1), sample("b", NOW - 2, "gpu-0", 0), sample("c", NOW - 1, "gpu-0", -1)]
    )
    assert gpu_rows(log) == [(2, NOW - 3), (3, NOW - 3), (0, NOW - 2), (0, NOW - 1), (1, NOW - 1)]


def test_a_tagged_sample_never_passes_for_a_plain_one() -> None:
    log = EvidenceLog()
    log.add_samples([sample("a", NOW - 3), sample("b", NOW - 2, run="r1"), sample("c", NOW - 1)])
    before = log.evidence(NOW, NODES)
    assert before.samples.at.tolist() == [NOW - 3, NOW - 1]
    assert before.dropped == {"sample-of-unknown-run": 1}
    log.add_runs([Run("r0", "gpu-1", "k", (), RunPhase.ACTIVE, NOW), Run("r1", "gpu-0", "k", (), RunPhase.ACTIVE, NOW)])
    after = log.evidence(NOW, NODES)
    assert after.samples.run.tolist() == [-1, 1, -1]
    assert after.runs[1].id == "r1"
    log.add_runs([Run("r1", "gpu-0", "k", (), RunPhase.REVERTED, NOW, NOW)])
    assert log.evidence(NOW, NODES).runs[1].phase is RunPhase.REVERTED


def test_nothing_new_means_the_same_columns() -> None:
    log = EvidenceLog()
    log.add_samples([sample("a", NOW - 3)])
    assert log.evidence(NOW, NODES).samples is log.evidence(NOW + 1, NODES).samples


def test_a_snapshot_never_changes() -> None:
    log = EvidenceLog()
    log.add_samples([sample(f"a{i}", NOW - 1000 + i) for i in range(100)])
    first = log.evidence(NOW, NODES).samples
    kept = first.at.copy()
    for i in range(50):
        log.add_samples([sample(f"b{i}{j}", NOW - 2000 + i, value=2.0) for j in range(100)])
        log.evidence(NOW, NODES)
    assert np.array_equal(first.at, kept)
    assert (first.value == 700.0).all()


def test_missing_gpus_have_rows_but_slices_do_not() -> None:
    log = EvidenceLog()
    log.set_gpus("gpu-0", (GpuFacts(0, "GPU-a"),))
    log.set_gpus("mig", (GpuFacts(0, "GPU-m"),))
    nodes = {**NODES, "mig": NodeRecord("mig", gpus=56), "new": NodeRecord("new", gpus=4, product="H100")}
    facts = {n.name: n for n in log.evidence(NOW, nodes).nodes}
    assert [g.uuid for g in facts["gpu-0"].gpus] == ["GPU-a", ""]
    assert (len(facts["mig"].gpus), facts["mig"].offered) == (1, 56)
    assert [g.product for g in facts["new"].gpus] == ["H100"] * 4


def test_the_old_is_forgotten() -> None:
    log = EvidenceLog(retention_s=100)
    log.add_samples([sample("a", NOW - 300, "gpu-0"), sample("b", NOW - 50, "gpu-1")])
    failed = Run("failed", "gpu-0", "k", (), RunPhase.FAILED_REVERT, NOW - 400, NOW - 300)
    log.add_runs([Run("old", "gpu-0", "k", (), RunPhase.REVERTED, NOW - 400, NOW - 300), failed])
    log.add_kernel([KernelMessage("gpu-0", NOW - 300, "old"), KernelMessage("gpu-0", NOW, "new")])
    found = log.evidence(NOW, NODES)
    assert gpu_rows(log) == [(2, NOW - 50)]
    assert found.runs == (failed,)
    assert [m.text for m in found.kernel] == ["new"]
    log.add_samples([sample("c", NOW - 1, "gpu-0")])
    assert gpu_rows(log) == [(2, NOW - 50), (0, NOW - 1)]


def test_memory_is_bounded() -> None:
    log = EvidenceLog(max_samples=100)
    log.add_samples(sample(f"a{i}", NOW - 1000 + i) for i in range(150))
    assert len(gpu_rows(log)) == 90
    assert min(at for _, at in gpu_rows(log)) == NOW - 1000 + 60


def test_one_nodes_kernel_log_does_not_drown_the_others() -> None:
    log = EvidenceLog()
    log.add_kernel([KernelMessage("gpu-1", NOW - 9000, "quiet")])
    log.add_kernel(KernelMessage("gpu-0", NOW - 5000 + i, f"line {i}") for i in range(5000))
    kernel = log.evidence(NOW, NODES).kernel
    assert kernel[0].text == "quiet"
    assert len(kernel) == 1001
    assert kernel[-1].text == "line 4999"


SAMPLES = st.lists(
    st.tuples(
        st.sampled_from(["gpu-0", "gpu-1"]),
        st.integers(-1, 1),
        st.sampled_from([Dimension.COMPUTE, Dimension.PCIE]),
        st.integers(1, 50),
        st.sampled_from(["", "r"]),
    ),
    max_size=60,
)


def test_one_nodes_runs_do_not_drown_the_others() -> None:
    def run(node: str, i: int, phase: RunPhase) -> Run:
        return Run(f"{node}-{i}", node, "k", (), phase, NOW - 5000 + i, NOW - 4990 + i)

    log = EvidenceLog()
    log.add_runs([run("gpu-1", 0, RunPhase.REVERTED)])
    log.add_runs([run("gpu-0", i, RunPhase.REVERTED if i else RunPhase.ACTIVE) for i in range(1500)])
    log.add_runs([run("gpu-0", 1499, RunPhase.FAILED_REVERT)])
    kept = {r.id: r.phase for r in log.evidence(NOW, NODES).runs}
    newest = {f"gpu-0-{i}" for i in range(501, 1500)}
    assert kept.keys() == newest | {"gpu-0-0", "gpu-1-0"}
    assert kept["gpu-0-1499"] is RunPhase.FAILED_REVERT


@given(st.lists(SAMPLES, max_size=4))
def test_however_they_arrive_they_stand_in_time_order(batches: Any) -> None:
    log = EvidenceLog()
    log.add_runs([Run("r", "gpu-0", "k", (), RunPhase.ACTIVE, NOW)])
    want: list[tuple[int, int, float, int]] = []
    for rows in batches:
        log.add_rows(
            [
                (n, g, "", int(d), NOW - 100 + t, None if t % 7 == 0 else float(t), 0, r, 1000.0 + t if t % 5 else None)
                for n, g, d, t, r in rows
            ]
        )
        for node, gpu, dimension, t, run in rows:
            base = 2 * int(node[-1])
            rows_of = [base, base + 1] if gpu < 0 else [base + gpu]
            want.extend((row, int(dimension), NOW - 100 + t, 0 if run else -1) for row in rows_of)
        found = log.evidence(NOW, NODES).samples
        got = list(
            zip(found.gpu.tolist(), found.dimension.tolist(), found.at.tolist(), found.run.tolist(), strict=True)
        )
        assert sorted(got) == sorted(want)
        for row in range(4):
            for dimension in (Dimension.COMPUTE, Dimension.PCIE):
                times = found.at[(found.gpu == row) & (found.dimension == dimension)]
                assert (np.diff(times) >= 0).all()
        clocks = [1000 + round(at - NOW + 100) if (at - NOW + 100) % 5 else None for at in found.at]
        assert [None if math.isnan(c) else c for c in found.sm_clock.tolist()] == clocks
        assert all(math.isnan(v) == ((at - NOW + 100) % 7 == 0) for v, at in zip(found.value, found.at, strict=True))


def test_time_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1 / 0)
    log = EvidenceLog()
    log.add_samples([sample("a", NOW)])
    assert gpu_rows(log) == [(0, NOW)]
