"""Filter and score: modes, bands, unknown, neutrality, reasons."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.model.cluster import BoundPod, GangKey
from scorer.model.errors import RequestError
from scorer.model.grade import Grade
from scorer.model.policy import GradingPolicy, Mode, PlacementPolicy, UnknownPolicy
from scorer.placement import PodFacts, PodRequest, World, filter_nodes, request_of, resolve_pod, score_nodes
from tests.placement_worlds import NOW, board_of, gang_facts, pod_facts, racks, view_of, world_of

FLEET = {"fast": 0.97, "typical": 1.0, "slow": 1.08, "awful": 1.3, "dark": float("nan")}


def request(world: World, facts: PodFacts) -> PodRequest:
    return resolve_pod(facts, world.grading, world.policy)


def scores(world: World, facts: PodFacts, names: list[str]) -> dict[str, int]:
    answer = score_nodes(world, request(world, facts), names, NOW)
    return dict(zip(names, answer.scores.tolist(), strict=True))


def passing(world: World, facts: PodFacts, names: list[str]) -> list[str]:
    answer = filter_nodes(world, request(world, facts), names, NOW)
    return [n for n, code in zip(names, answer.codes.tolist(), strict=True) if not code]


def test_enforce_removes_red_for_this_job_only() -> None:
    world = world_of(FLEET)
    assert passing(world, pod_facts(8), list(FLEET)) == ["fast", "typical", "slow", "dark"]
    critical = pod_facts(8, {"gpugrade.dev/sensitivity": "critical"})
    assert passing(world, critical, list(FLEET)) == ["fast", "typical", "dark"]
    assert passing(world, pod_facts(1), list(FLEET)) == list(FLEET)


def test_reasons_are_few_and_name_no_node() -> None:
    world = world_of({**FLEET, "broken": 1.0}, grades={"broken": Grade.RED})
    answer = filter_nodes(world, request(world, pod_facts(8)), ["broken", "awful", "fast"], NOW)
    assert answer.codes.tolist() == [2, 1, 0]
    assert [r.text for r in answer.reasons] == [
        "gpugrade: GPUs too slow for train-node (sensitive)",
        "gpugrade: GPU fault, red for train-node (sensitive)",
    ]
    assert all(r.unresolvable for r in answer.reasons)


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ADVISE])
def test_only_enforce_filters_but_all_count(mode: Mode) -> None:
    world = world_of(FLEET, mode=mode)
    answer = filter_nodes(world, request(world, pod_facts(8)), list(FLEET), NOW)
    assert not answer.codes.any()
    assert answer.would == {"too_slow": 1}


def test_observe_scores_neutrally() -> None:
    assert set(scores(world_of(FLEET, mode=Mode.OBSERVE), pod_facts(8), list(FLEET)).values()) == {50}


def test_sensitive_jobs_get_the_fastest_first_and_unknown_as_yellow() -> None:
    found = scores(world_of(FLEET, mode=Mode.ADVISE), pod_facts(8), list(FLEET))
    assert found["fast"] > found["typical"] > found["slow"] > found["awful"] == 0
    assert 30 <= found["dark"] <= 60


def test_unknown_scores_below_yellow_for_critical() -> None:
    labels = {"gpugrade.dev/sensitivity": "critical"}
    found = scores(world_of({"yellow": 1.03, "dark": float("nan")}), pod_facts(8, labels), ["yellow", "dark"])
    assert 0 < found["dark"] < found["yellow"]


def test_tolerant_jobs_leave_fast_and_whole_nodes_free() -> None:
    nodes = {"fast": 0.97, "slow": 1.15, "slow-partial": 1.15}
    found = scores(world_of(nodes, free={"slow-partial": 2}), pod_facts(1), list(nodes))
    assert found["slow-partial"] > found["slow"] > found["fast"] >= 70


def test_tolerant_jobs_take_first_what_stricter_jobs_cannot_use() -> None:
    nodes = {"dark": float("nan"), "fast": 0.97, "slower": 1.04, "warned": 1.08, "spoilt": 1.16, "used": 0.97}
    found = scores(world_of(nodes, free={"used": 2}), pod_facts(1), list(nodes))
    order = sorted(nodes, key=lambda n: -found[n])
    assert order[:1] == ["spoilt"]
    assert set(order[1:3]) == {"warned", "used"}
    assert order[3:] == ["slower", "dark", "fast"]
    # As the scheduler's door tells them apart.
    assert {n: s // 10 for n, s in found.items()} == {
        "spoilt": 9,
        "warned": 8,
        "used": 8,
        "slower": 7,
        "dark": 7,
        "fast": 7,
    }


def test_for_tolerant_jobs_unknown_counts_as_typical_whole_or_in_part() -> None:
    nodes = {"typical": 1.0, "dark": float("nan"), "used": 1.0, "dark-used": float("nan"), "yellow": 1.3}
    found = scores(world_of(nodes, free={"used": 2, "dark-used": 2}), pod_facts(1), list(nodes))
    assert found["dark"] == found["typical"]
    assert found["dark-used"] == found["used"]
    assert found["yellow"] < found["dark"]


def test_partial_nodes_come_before_whole_ones_among_equals() -> None:
    found = scores(world_of({"whole": 1.0, "partial": 1.0}, free={"partial": 4}), pod_facts(2), ["whole", "partial"])
    assert found["partial"] > found["whole"]


def test_unknown_names_pass_with_a_neutral_score() -> None:
    world = world_of(FLEET)
    answer = filter_nodes(world, request(world, pod_facts(8)), ["template-1", "awful"], NOW)
    assert (answer.codes.tolist(), answer.asked.unknown) == ([0, 1], 1)
    assert scores(world, pod_facts(8), ["template-1", "fast"])["template-1"] == 50


@pytest.mark.parametrize(("dark", "removed"), [(1, True), (2, True), (3, False)])
def test_reject_holds_only_while_at_most_a_fifth_is_unknown(dark: int, removed: bool) -> None:
    fleet = {f"n{i}": float("nan") if i < dark else 1.0 for i in range(10)}
    world = world_of(fleet, policy=PlacementPolicy(mode=Mode.ENFORCE, unknown_policy=UnknownPolicy.REJECT))
    assert ("n0" not in passing(world, pod_facts(8), list(fleet))) is removed


def test_allow_never_removes_unknown() -> None:
    assert passing(world_of({"a": 1.0, "dark": float("nan")}), pod_facts(8), ["dark"]) == ["dark"]


@pytest.mark.parametrize(("at", "why"), [(NOW - 901, "stale-board"), (None, "no-board")])
def test_stale_or_no_board_is_neutral(at: float | None, why: str) -> None:
    board = board_of(FLEET, at=at) if at is not None else None
    world = World.build(board, view_of(tuple(FLEET)), PlacementPolicy(mode=Mode.ENFORCE), GradingPolicy())
    filtered = filter_nodes(world, request(world, pod_facts(8)), list(FLEET), NOW)
    scored = score_nodes(world, request(world, pod_facts(8)), list(FLEET), NOW)
    assert (filtered.neutral, scored.neutral) == (why, why)
    assert not filtered.codes.any()
    assert set(scored.scores.tolist()) == {50}


def test_a_pod_without_gpus_is_answered_neutrally() -> None:
    world = world_of(FLEET)
    answer = filter_nodes(world, request(world, pod_facts(0)), ["awful"], NOW)
    assert (answer.neutral, answer.codes.tolist()) == ("no-gpu", [0])


def test_never_for_lack_of_free_gpus() -> None:
    world = world_of({"full": 1.0}, free={"full": 0})
    assert passing(world, pod_facts(8), ["full"]) == ["full"]


@pytest.mark.parametrize("names", [["fast", "slow", "fast"], ["x", "fast", "x"]])
def test_a_name_given_twice_is_refused_by_name(names: list[str]) -> None:
    world = world_of(FLEET)
    with pytest.raises(RequestError, match=f"'{names[0]}' is given twice"):
        filter_nodes(world, request(world, pod_facts(8)), names, NOW)


def test_too_many_names_are_refused() -> None:
    world = world_of(FLEET)
    with pytest.raises(RequestError, match="at most"):
        score_nodes(world, request(world, pod_facts(8)), ["x"] * 50_001, NOW)


def test_no_names_no_answers() -> None:
    world = world_of(FLEET)
    assert filter_nodes(world, request(world, pod_facts(8)), [], NOW).codes.tolist() == []
    assert score_nodes(world, request(world, pod_facts(8)), [], NOW).scores.tolist() == []


def test_decision_id_tells_requests_apart_and_repeats() -> None:
    world = world_of(FLEET)
    pod = request(world, pod_facts(8))
    first = filter_nodes(world, pod, ["fast", "x"], NOW).asked.decision_id
    assert first == filter_nodes(world, pod, ["fast", "x"], NOW + 1).asked.decision_id
    others = {
        filter_nodes(world, pod, ["x", "fast"], NOW).asked.decision_id,
        filter_nodes(world, pod, ["fast", "y"], NOW).asked.decision_id,
        score_nodes(world, pod, ["fast", "x"], NOW).asked.decision_id,
        filter_nodes(world_of(FLEET, mode=Mode.ADVISE), pod, ["fast", "x"], NOW).asked.decision_id,
        filter_nodes(world, request(world, pod_facts(8, name="other")), ["fast", "x"], NOW).asked.decision_id,
    }
    assert first not in others
    assert len(others) == 5


def test_a_node_of_the_view_that_the_board_lacks_is_unknown() -> None:
    view = view_of(("fast", "new"))
    world = World.build(board_of({"fast": 1.0}), view, PlacementPolicy(mode=Mode.ENFORCE), GradingPolicy())
    assert Grade(int(world.grade[0, 0, 0, 1])) is Grade.UNKNOWN
    assert passing(world, pod_facts(8), ["new"]) == ["new"]


def test_required_domain_binds_once_a_member_is_bound() -> None:
    labels = racks(4, 2)
    fleet = dict.fromkeys(labels, 1.0)
    level = {"kueue.x-k8s.io/podset-required-topology": "example.dev/rack"}
    facts = gang_facts(2, 1)
    facts = replace(facts, annotations={**facts.annotations, **level})
    bound = BoundPod("uid-big-0", "ml", "big-0", "r2-n1", 8, GangKey("kueue-pod-group", "ml", "big"))
    assert passing(world_of(fleet, labels=labels), facts, list(fleet)) == list(fleet)
    world = world_of(fleet, labels=labels, pods=[bound])
    answer = filter_nodes(world, request(world, facts), list(fleet), NOW)
    assert [n for n, c in zip(fleet, answer.codes, strict=True) if not c] == ["r2-n1", "r2-n2"]
    assert [r.text for r in answer.reasons] == ["gpugrade: outside the domain that the gang requires"]


def test_a_required_level_that_no_tree_has_is_told_and_left_out() -> None:
    labels = racks(2, 2)
    world = world_of(dict.fromkeys(labels, 1.0), labels=labels)
    facts = gang_facts(2, 0)
    pod = request_of(world, replace(facts, annotations={**facts.annotations, "gpugrade.dev/topology-level": "cage"}))
    assert pod.required_level == ""
    assert "'cage'; there are example.dev/rack, network.topology.nvidia.com/leaf" in pod.warnings[0]
    assert filter_nodes(world, pod, list(labels), NOW).codes.tolist() == [0] * 4


slowdowns = st.lists(
    st.one_of(st.floats(0.8, 3.0), st.just(float("nan"))).map(lambda x: round(x, 4)), min_size=1, max_size=12
)


@given(slowdowns, st.sampled_from(["critical", "sensitive"]), st.data())
def test_strict_jobs_never_rank_a_worse_grade_higher(
    values: list[float], sensitivity: str, data: st.DataObject
) -> None:
    fleet = {f"n{i}": v for i, v in enumerate(values)}
    free = {n: data.draw(st.integers(0, 8)) for n in fleet}
    world = world_of(fleet, free=free, mode=Mode.ADVISE)
    pod = request(world, pod_facts(8, {"gpugrade.dev/sensitivity": sensitivity}))
    answer = score_nodes(world, pod, list(fleet), NOW)
    grade = world.grade[answer.asked.key].take(answer.asked.rows)
    order = [Grade.GREEN, Grade.YELLOW, Grade.RED]
    for better, worse in pairwise(order):
        high, low = answer.scores[grade == better], answer.scores[grade == worse]
        assert not len(high) or not len(low) or high.min() > low.max()
    known = np.isfinite(np.array(values))
    same_free = np.array([free[n] == 8 for n in fleet])
    rows = np.flatnonzero(known & same_free)
    by_speed = rows[np.argsort(np.array(values)[rows], kind="stable")]
    assert (np.diff(answer.scores[by_speed].astype(int)) <= 0).all()
    assert answer.scores.max() <= 100
