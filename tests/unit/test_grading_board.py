"""The fold as a whole: measurement to grades."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.grading import explain_node, fold, overall, untold
from scorer.model.dimension import Dimension
from scorer.model.evidence import Evidence, GpuFacts, NodeFacts, SampleColumns, SampleStatus
from scorer.model.grade import Grade, Sensitivity
from scorer.model.policy import GradingPolicy
from tests.grading_fleet import NOW, TYPICAL, Fleet

POLICY = GradingPolicy()


def grades(evidence: Evidence, row: int = 0, now: float = NOW) -> dict[str, Grade]:
    return {j.job_type: j.grade for j in explain_node(fold(evidence, POLICY, now), row, POLICY).jobs}


def slow_gpu(slowdown: float, probes: int = 6, gpu: int = 6) -> Fleet:
    fleet = Fleet().quiet(skip=[(0, gpu)])
    for d in Dimension:
        for i in range(probes):
            fleet.sample(0, gpu, d, slowdown if d is Dimension.COMPUTE else 1.0, age_h=2 + 12 * i)
    return fleet


def test_a_typical_fleet_is_green() -> None:
    board = fold(Fleet().quiet().evidence(), POLICY, NOW)
    assert set(overall(board, POLICY).tolist()) == {Grade.GREEN}
    assert board.version == 1
    assert board.evidence_at == pytest.approx(np.full(6, NOW - 2 * 3600))
    assert board.slowdown == pytest.approx(np.ones_like(board.slowdown), abs=0.02)
    assert float(board.confidence[:, :, :, Sensitivity.SENSITIVE].min()) > 0.9


@pytest.mark.parametrize(
    ("slowdown", "train", "infer"),
    [(1.12, Grade.YELLOW, Grade.GREEN), (1.30, Grade.RED, Grade.GREEN), (3.5, Grade.RED, Grade.RED)],
)
def test_a_slow_gpu_that_repeats_costs_what_its_share_of_the_step_time_says(
    slowdown: float, train: Grade, infer: Grade
) -> None:
    found = explain_node(fold(slow_gpu(slowdown).evidence(), POLICY, NOW), 0, POLICY)
    by_type = {j.job_type: j for j in found.jobs}
    assert by_type["train-multi"].grade is train
    assert by_type["infer-gpu"].grade is infer
    assert by_type["train-multi"].slowdown == pytest.approx(1 + 0.6 * (slowdown - 1), rel=0.02)
    assert found.bad_gpus == (6,)
    assert f"GPU 6 compute {slowdown:.2f}x slower than 40 peers in 6 probes" in " ".join(by_type["train-multi"].reasons)


def test_a_node_is_never_its_own_standard() -> None:
    """All eight GPUs of a node equally slow: the peers are those of the other nodes."""
    fleet = Fleet().quiet(skip=[(0, g) for g in range(8)])
    for gpu in range(8):
        for d in Dimension:
            for age in (26, 14, 2):
                fleet.sample(0, gpu, d, 1.3, age)
    found = explain_node(fold(fleet.evidence(), POLICY, NOW), 0, POLICY)
    assert {j.grade for j in found.jobs if j.job_type.startswith("train")} == {Grade.RED}
    assert found.bad_gpus == tuple(range(8))


def only_the_host(nodes: int, gpus: int, age_h: float = 0.002) -> Fleet:
    """A quiet fleet with another node at the end, of which probes have seen the host alone."""
    fleet = Fleet(count=nodes + 1, gpus=gpus)
    rows = Fleet(count=nodes, gpus=gpus).quiet().rows
    fleet.rows = [r for r in rows if r[1] != Dimension.HOST]
    for gpu in range(gpus):
        fleet.sample(nodes, gpu, Dimension.HOST, age_h=age_h)
    return fleet


@pytest.mark.parametrize(
    ("gpus", "text"), [(1, "no evidence: GPU 0 was never measured"), (2, "no evidence: GPUs 0, 1 were never measured")]
)
def test_a_look_at_the_host_is_none_at_its_gpus(gpus: int, text: str) -> None:
    board = fold(only_the_host(12, gpus).evidence(), POLICY, NOW)
    found = explain_node(board, 12, POLICY)
    assert [f.text for f in found.findings] == [text]
    assert np.isnan(board.evidence_at[12])
    assert {j.grade for j in found.jobs if j.job_type != "batch-io"} == {Grade.UNKNOWN}
    assert untold(board, 12, Grade.UNKNOWN) == "no good probe yet"


def test_gpus_that_were_last_measured_long_ago_are_not_called_fresh_for_their_host_s_sake() -> None:
    fleet = only_the_host(12, 1)
    fleet.sample(12, 0, Dimension.PCIE, age_h=96)
    fleet.rows = [r for r in fleet.rows if r[1] != Dimension.PCIE or r[0] == 12]
    board = fold(fleet.evidence(), POLICY, NOW)
    (finding,) = explain_node(board, 12, POLICY).findings
    assert finding.text == "no recent evidence: the newest good probe of GPU 0 is 4.0 days old, older than 3.0 days"
    assert board.evidence_at[12] == NOW - 96 * 3600


@pytest.mark.parametrize(
    ("gpus", "text"), [(1, "GPU 0 has too few peers to compare with"), (2, "GPUs 0, 1 have too few peers")]
)
def test_too_few_peers_is_said_of_one_and_of_several(gpus: int, text: str) -> None:
    (finding,) = explain_node(fold(Fleet(count=2, gpus=gpus).quiet().evidence(), POLICY, NOW), 0, POLICY).findings
    assert finding.text.startswith(text)


def test_one_slow_first_probe_makes_no_red_and_two_do() -> None:
    lone, pair = slow_gpu(1.4, probes=1), slow_gpu(1.4, probes=2)
    assert grades(lone.evidence())["train-multi"] is Grade.UNKNOWN
    assert grades(pair.evidence())["train-multi"] is Grade.RED


def test_one_transient_among_normal_probes_changes_nothing_and_a_second_does() -> None:
    fleet = Fleet().quiet(ages_h=(60, 50, 40, 30, 20))
    assert grades(fleet.evidence())["train-multi"] is Grade.GREEN
    fleet.sample(0, 3, Dimension.COMPUTE, 1.6, age_h=2)
    assert grades(fleet.evidence())["train-multi"] is Grade.GREEN
    fleet.sample(0, 3, Dimension.COMPUTE, 1.6, age_h=1)
    assert grades(fleet.evidence())["train-multi"] is Grade.RED


def test_a_gpu_whose_samples_do_not_repeat_is_not_called_red() -> None:
    fleet = Fleet().quiet(skip=[(0, 2)])
    for i, slowdown in enumerate((1.0, 1.5, 1.0, 1.5, 1.0, 1.5, 1.0, 1.5)):
        for d in Dimension:
            fleet.sample(0, 2, d, slowdown if d is Dimension.COMPUTE else 1.0, age_h=2 + 6 * i)
    assert grades(fleet.evidence())["train-multi"] in (Grade.GREEN, Grade.UNKNOWN)


def test_a_repaired_gpu_restarts_at_its_new_level() -> None:
    fleet = Fleet().quiet(skip=[(0, 1)])
    for d in Dimension:
        for i in range(12):
            fleet.sample(0, 1, d, 1.3 if d is Dimension.COMPUTE and i >= 3 else 1.0, age_h=2 + 6 * i)
    board = fold(fleet.evidence(), POLICY, NOW)
    assert board.gpu_samples[1, Dimension.COMPUTE] == 3
    assert overall(board, POLICY)[0] == Grade.GREEN


def test_too_few_peers_is_unknown_and_says_so() -> None:
    found = explain_node(fold(Fleet(count=3).quiet().evidence(), POLICY, NOW), 0, POLICY)
    assert {j.grade for j in found.jobs} == {Grade.UNKNOWN}
    assert "too few peers" in found.jobs[0].reasons[0]


def test_a_group_of_another_driver_branch_is_no_reference() -> None:
    evidence = Fleet().quiet().evidence()
    first = evidence.nodes[0]
    other = NodeFacts(first.name, tuple(GpuFacts(g.index, g.uuid, g.product, driver="580.9") for g in first.gpus))
    mixed = Evidence((other, *evidence.nodes[1:]), evidence.samples)
    assert set(grades(mixed).values()) == {Grade.UNKNOWN}
    assert set(grades(mixed, row=1).values()) == {Grade.GREEN}


def test_old_evidence_is_unknown_and_says_how_old() -> None:
    found = explain_node(fold(Fleet().quiet(ages_h=(120, 103)).evidence(), POLICY, NOW), 0, POLICY)
    assert {j.grade for j in found.jobs} == {Grade.UNKNOWN}
    assert "no recent evidence" in found.jobs[0].reasons[0]
    assert "4.3 days" in found.jobs[0].reasons[0]
    assert found.bad_gpus == ()


def test_a_fresh_probe_of_something_else_keeps_no_grade_alive() -> None:
    fleet = Fleet().quiet(ages_h=(120, 103))
    for node in range(6):
        for gpu in range(8):
            fleet.sample(node, gpu, Dimension.HOST, 1.0, age_h=1)
    found = {j.job_type: j for j in explain_node(fold(fleet.evidence(), POLICY, NOW), 0, POLICY).jobs}
    assert {name: job.grade for name, job in found.items()} == {
        "train-multi": Grade.UNKNOWN,
        "train-node": Grade.UNKNOWN,
        "infer-gpu": Grade.UNKNOWN,
        "batch-io": Grade.GREEN,
    }
    assert found["train-multi"].reasons == ("no recent probe of anything that this job type needs",)


def test_one_gpu_without_a_recent_probe_leaves_the_node_unknown() -> None:
    found = explain_node(fold(Fleet().quiet(skip=[(0, 4)]).evidence(), POLICY, NOW), 0, POLICY)
    assert {j.grade for j in found.jobs} == {Grade.UNKNOWN}
    assert "GPU 4 was never measured" in found.jobs[0].reasons[0]


def test_a_dimension_never_measured_counts_as_typical_and_widens() -> None:
    fleet = Fleet().quiet()
    whole = fold(fleet.evidence(), POLICY, NOW)
    fleet.rows = [r for r in fleet.rows if r[1] != Dimension.FABRIC]
    part = fold(fleet.evidence(), POLICY, NOW)
    assert overall(part, POLICY)[0] == Grade.GREEN
    assert part.high[0, 0, 3] - part.low[0, 0, 3] > whole.high[0, 0, 3] - whole.low[0, 0, 3]
    assert np.isnan(part.gpu_slowdown[:, Dimension.FABRIC]).all()


def test_impossible_values_are_no_measurements() -> None:
    evidence = Fleet().quiet().evidence()
    for value in (0.0, -5.0, np.nan, np.inf):
        changed = evidence.samples.value.copy()
        changed[:21] = value  # all of the first GPU
        s = evidence.samples
        board = fold(
            Evidence(evidence.nodes, SampleColumns(s.gpu, s.dimension, s.at, changed, s.status, s.run)), POLICY, NOW
        )
        assert overall(board, POLICY)[0] >= Grade.UNKNOWN


def test_since_is_kept_while_a_grade_holds() -> None:
    evidence = Fleet().quiet().evidence()
    first = fold(evidence, POLICY, NOW)
    second = fold(evidence, POLICY, NOW + 60, first)
    assert second.version == 2
    assert (second.since == NOW).all()
    fallen = slow_gpu(1.4).evidence()
    third = fold(fallen, POLICY, NOW + 120, second)
    v = POLICY.job_types[0].shape.variant
    assert third.grade[0, 0, v, Sensitivity.SENSITIVE] == Grade.RED
    assert third.since[0, 0, v, Sensitivity.SENSITIVE] == NOW + 120
    assert third.since[1, 0, v, Sensitivity.SENSITIVE] == NOW


def test_a_rise_waits_for_a_second_good_probe() -> None:
    fleet = slow_gpu(1.4, probes=2)
    slow = fold(fleet.evidence(), POLICY, NOW)
    v, s = POLICY.job_types[0].shape.variant, Sensitivity.SENSITIVE
    assert slow.grade[0, 0, v, s] == Grade.RED
    fleet.sample(0, 6, Dimension.COMPUTE, 1.0, age_h=1)
    held = fold(fleet.evidence(), POLICY, NOW, slow)
    assert held.grade[0, 0, v, s] == Grade.RED
    assert any("when a second agrees" in f.text for f in held.findings[0])
    fleet.sample(0, 6, Dimension.COMPUTE, 1.0, age_h=0.5)
    assert fold(fleet.evidence(), POLICY, NOW, held).grade[0, 0, v, s] == Grade.GREEN


def test_empty_evidence_and_nodes_without_gpus() -> None:
    assert fold(Evidence((), SampleColumns.empty()), POLICY, NOW).nodes == ()
    board = fold(Evidence((NodeFacts("bare", ()),), SampleColumns.empty()), POLICY, NOW)
    assert overall(board, POLICY).tolist() == [Grade.UNKNOWN]
    found = explain_node(board, 0, POLICY)
    assert "no evidence" in found.jobs[0].reasons[0]
    assert np.isnan(found.jobs[0].slowdown)


def test_explain_refuses_a_job_type_that_does_not_exist() -> None:
    board = fold(Fleet().quiet().evidence(), POLICY, NOW)
    with pytest.raises(ValueError, match="there are train-multi, train-node"):
        explain_node(board, 0, POLICY, job_type="training")
    one = explain_node(board, 0, POLICY, "infer-gpu", Sensitivity.CRITICAL)
    assert [(j.job_type, j.sensitivity) for j in one.jobs] == [("infer-gpu", Sensitivity.CRITICAL)]


QUIET = Fleet(count=5, gpus=4).quiet()


@settings(max_examples=20)
@given(scale=st.floats(1e-3, 1e3))
def test_grades_do_not_depend_on_the_unit(scale: float) -> None:
    fleet = Fleet(count=5, gpus=4, rows=list(QUIET.rows))
    fleet.sample(0, 0, Dimension.COMPUTE, 1.3, 1.5)
    fleet.sample(0, 0, Dimension.COMPUTE, 1.3, 1.0)
    a, b = fold(fleet.evidence(), POLICY, NOW), fold(fleet.evidence(scale=scale), POLICY, NOW)
    assert (a.grade == b.grade).all()
    assert a.slowdown == pytest.approx(b.slowdown, rel=1e-5)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_order_of_samples_is_irrelevant(seed: int) -> None:
    fleet = Fleet(count=5, gpus=4, rows=list(QUIET.rows))
    fleet.rows.append(fleet.rows[0])  # the same moment twice
    fleet.sample(0, 0, Dimension.COMPUTE, 1.2, 26)
    order = np.random.default_rng(seed).permutation(len(fleet.rows)).tolist()
    a, b = fold(fleet.evidence(), POLICY, NOW), fold(fleet.evidence(order), POLICY, NOW)
    assert (a.grade == b.grade).all()
    assert np.array_equal(a.gpu_slowdown, b.gpu_slowdown, equal_nan=True)


@settings(max_examples=100)
@given(
    level=st.floats(0.97, 1.6),
    scatter=st.lists(st.floats(0.99, 1.01), min_size=1, max_size=8),
    worse=st.floats(1.0, 2.5),
    sensitivity=st.sampled_from(Sensitivity),
)
def test_another_slow_sample_never_improves_a_gpu_that_repeats(
    level: float, scatter: list[float], worse: float, sensitivity: Sensitivity
) -> None:
    """Slow: at least as slow as the slowest before, and beyond what scatter alone brings."""
    history = [level * s for s in scatter]
    fleet = Fleet(count=5, gpus=4, rows=[r for r in QUIET.rows if not (r[0] == 0 and r[1] == Dimension.COMPUTE)])
    for i, slowdown in enumerate(history):
        fleet.sample(0, 0, Dimension.COMPUTE, slowdown, 2 + 4 * (len(history) - i))
    before = fold(fleet.evidence(), POLICY, NOW)
    fleet.sample(0, 0, Dimension.COMPUTE, max(*history, 1.1) * worse, 1)
    after = fold(fleet.evidence(), POLICY, NOW)
    v = POLICY.job_types[0].shape.variant
    was, now = before.gpu_grade[0, 0, v, sensitivity], after.gpu_grade[0, 0, v, sensitivity]
    assert now >= was or (was == Grade.UNKNOWN and now > Grade.GREEN)
    # How much faster than typical a GPU is costs no grade; how much slower must not shrink.
    was_slow, now_slow = (max(1.0, float(b.gpu_slowdown[0, Dimension.COMPUTE])) for b in (before, after))
    assert now_slow >= was_slow * 0.99  # the scatter itself is one percent


@settings(max_examples=40)
@given(keep=st.lists(st.sampled_from(list(Dimension)), unique=True), status=st.sampled_from(SampleStatus))
def test_missing_is_never_green(keep: list[Dimension], status: SampleStatus) -> None:
    """A job type of which nothing was measured well is not green, whatever else was."""
    fleet = Fleet(count=5, gpus=4, rows=[r for r in QUIET.rows if r[0] != 0 or Dimension(r[1]) in keep])
    if status is not SampleStatus.OK:
        fleet.sample(0, 0, Dimension.COMPUTE, status=status)
    found = explain_node(fold(fleet.evidence(), POLICY, NOW), 0, POLICY)
    for job, policy in zip(found.jobs, POLICY.job_types, strict=True):
        if not any(policy.weights_for(policy.shape.variant)[d] > 0 for d in keep):
            assert job.grade is not Grade.GREEN


def test_typical_values_cover_every_dimension() -> None:
    assert set(TYPICAL) == set(Dimension)


def test_the_most_demanding_class_hears_which_gpu_it_is_and_nobody_is_blamed() -> None:
    board = fold(slow_gpu(1.06).evidence(), POLICY, NOW)
    found = explain_node(board, 0, POLICY, "train-node", Sensitivity.CRITICAL)
    assert found.jobs[0].grade is Grade.YELLOW
    assert "GPU 6 compute 1.06x slower" in found.jobs[0].reasons[0]
    assert explain_node(board, 0, POLICY).jobs[1].grade is Grade.GREEN
    assert found.bad_gpus == ()


def test_a_job_type_of_which_nothing_was_measured_says_so() -> None:
    fleet = Fleet().quiet()
    fleet.rows = [r for r in fleet.rows if r[1] == Dimension.FABRIC]
    by_type = {j.job_type: j for j in explain_node(fold(fleet.evidence(), POLICY, NOW), 0, POLICY).jobs}
    assert by_type["infer-gpu"].grade is Grade.UNKNOWN
    assert "nothing that this job type needs was ever measured" in by_type["infer-gpu"].reasons
    assert by_type["train-multi"].grade is not Grade.RED
