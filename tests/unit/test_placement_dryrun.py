"""The dry run behind ``gpugrade place``."""

import dataclasses
import math

import numpy as np
import pytest

from scorer.model.grade import Grade
from scorer.placement import Placement, World, job_request, place
from tests.placement_worlds import NOW, racks, world_of


def run(world: World, gpus: int, pods: int, *exclude: str, sensitivity: str = "", seed: int = 1) -> Placement:
    job = job_request(gpus, pods, "", sensitivity, world.grading)
    return place(world, job, exclude, rng=np.random.default_rng(seed), now=NOW)


def laggards() -> World:
    labels = racks(4, 4)
    slow = {f"r{r}-n1": 1.3 for r in (1, 2, 3)}
    return world_of({n: slow.get(n, 1.0) for n in labels}, labels=labels)


def test_a_gang_avoids_laggards_and_says_what_blindness_costs() -> None:
    outcome = run(laggards(), 8, 4)
    assert [a.node for a in outcome.assignments] == ["r4-n1", "r4-n2", "r4-n3", "r4-n4"]
    assert (outcome.level, outcome.domain, outcome.locality_factor) == ("rack", "r4", 1.0)
    assert outcome.relative_time == pytest.approx(1.0)
    # Three of the four racks hold a laggard.
    assert 1.15 < outcome.blind_relative_time < 1.3
    assert outcome.assignments[0].reasons == ("green, slowdown 1.000", "8 of 8 GPUs free")


def test_equal_seeds_equal_figures() -> None:
    first, again = run(laggards(), 8, 4), run(laggards(), 8, 4)
    assert first == again
    assert run(laggards(), 8, 4, seed=2).assignments == first.assignments


def test_excluded_nodes_are_left_out_and_strangers_named() -> None:
    outcome = run(laggards(), 8, 4, "r4-n2", "nobody")
    assert "r4-n2" not in {a.node for a in outcome.assignments}
    assert outcome.warnings == ("nobody is to be left out, but is not a node of this cluster",)


def test_a_single_pod_goes_to_the_best_node() -> None:
    world = world_of({"typical": 1.0, "fast": 0.95, "full": 0.9}, free={"full": 0})
    outcome = run(world, 8, 1)
    assert [(a.node, a.pods, a.grade) for a in outcome.assignments] == [("fast", 1, Grade.GREEN)]
    assert outcome.relative_time == pytest.approx(0.95)
    assert outcome.blind_relative_time == pytest.approx(0.975, abs=0.02)


def test_a_node_never_measured_counts_as_typical() -> None:
    outcome = run(world_of({"dark": float("nan")}), 8, 1)
    assert math.isnan(outcome.assignments[0].slowdown)
    assert outcome.relative_time == 1.0


@pytest.mark.parametrize(
    ("gpus", "pods", "text"),
    [
        (8, 17, "no room for 17 pods of 8 GPUs: the free GPUs hold 16 such pods"),
        (8, 14, "the free GPUs hold 16 such pods, but only 13 on nodes that are not red for train-multi (sensitive)"),
        (16, 1, "no room for 16 GPUs"),
    ],
)
def test_infeasible_says_why(gpus: int, pods: int, text: str) -> None:
    outcome = run(laggards(), gpus, pods)
    assert text in outcome.infeasible
    assert outcome.assignments == ()
    assert math.isnan(outcome.relative_time)


def test_an_old_board_is_told() -> None:
    world = laggards()
    job = job_request(8, 1, "", "", world.grading)
    outcome = place(world, job, (), rng=np.random.default_rng(0), now=NOW + 10_000)
    assert "stale-board" in outcome.warnings[0]
    assert outcome.assignments


def test_an_empty_cluster_holds_nothing() -> None:
    assert "hold 0 such pods" in run(world_of({}), 8, 1).infeasible


def test_a_product_narrows_the_choice_and_an_unknown_one_says_which_there_are() -> None:
    world = laggards()
    products = tuple("NVIDIA A100" if name.startswith("r4") else "NVIDIA H100 80GB HBM3" for name in world.view.nodes)
    mixed = World.build(world.board, dataclasses.replace(world.view, product=products), world.policy, world.grading)
    job = job_request(8, 3, "", "", mixed.grading)
    rng = np.random.default_rng(1)
    chosen = place(mixed, job, (), rng=rng, product="h100-80GB")
    assert {a.node[:2] for a in chosen.assignments} <= {"r1", "r2", "r3"}
    missing = place(mixed, job, (), rng=rng, product="B200")
    assert not missing.assignments
    assert "NVIDIA A100, NVIDIA H100 80GB HBM3" in missing.infeasible


def test_a_gang_never_mixes_products_although_the_rack_does() -> None:
    labels = racks(2, 4)
    world = world_of(dict.fromkeys(labels, 1.0), labels=labels)
    products = tuple("A100" if name[-1] in "12" else "H100" for name in world.view.nodes)
    mixed = World.build(world.board, dataclasses.replace(world.view, product=products), world.policy, world.grading)
    rng = np.random.default_rng(1)
    for pods in (2, 3, 4):
        plan = place(mixed, job_request(8, pods, "", "", mixed.grading), (), rng=rng)
        assert len({mixed.view.product[mixed.view.row[a.node]] for a in plan.assignments}) == 1
    assert place(mixed, job_request(8, 2, "", "", mixed.grading), (), rng=rng).level == "rack"
    too_many = place(mixed, job_request(8, 5, "", "", mixed.grading), (), rng=rng)
    assert "one product" in too_many.infeasible


def test_a_blind_choice_is_not_counted_on_a_faulty_node() -> None:
    labels = racks(1, 3)
    world = world_of(dict.fromkeys(labels, 1.0), grades={"r1-n3": Grade.RED}, labels=labels)
    plan = place(world, job_request(8, 2, "", "", world.grading), (), rng=np.random.default_rng(1))
    assert plan.blind_relative_time == pytest.approx(plan.relative_time)
