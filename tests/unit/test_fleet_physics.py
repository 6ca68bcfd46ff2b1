"""The physical model: published distributions, effects that couple, and the same answer every time."""

import math
import statistics
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.fleet import physics
from tools.fleet.chance import normal, quantile, unit
from tools.fleet.episodes import WEEK_S, episode_at, week
from tools.fleet.faults import KINDS
from tools.fleet.inventory import Fault, Gpu, Node, build
from tools.fleet.physics import Settings
from tools.fleet.products import A100, DIMENSIONS, H100, PRODUCTS, Product
from tools.fleet.quality import (
    COMPUTE,
    EPISODE_MEAN_S,
    EPISODE_SHARE,
    MEMORY,
    NOISE,
    SLOW_RANGE,
    quality,
)

NOW = 1_796_000_000.0
Table: TypeAlias = tuple[tuple[float, float], ...]
WEIGHTS = {"compute": 0.6, "memory": 0.15, "nvlink": 0.1, "fabric": 0.1, "pcie": 0.05}


@pytest.fixture(scope="module")
def fleet() -> list[Node]:
    return build(seed=1, nodes=64, gpus=8, created=NOW)[0]


def plain(nodes: list[Node], product: Product) -> tuple[Node, Gpu]:
    """A GPU of a model that is not slow, and its node."""
    return next((n, g) for n in nodes if n.product is product for g in n.gpus if g.slow is None and not n.silent)


def default(node: Node) -> Settings:
    return Settings(None, node.product.power_w[0])


@pytest.mark.parametrize(("dimension", "table"), [("compute", COMPUTE), ("memory", MEMORY)])
def test_quality_has_the_published_percentiles(dimension: str, table: Table) -> None:
    values = sorted(quality(3, f"n{n}", g, dimension) for n in range(500) for g in range(8))
    for percent, expected in table[1:-1]:
        found = values[round(percent / 100 * (len(values) - 1))]
        assert found == pytest.approx(expected, abs=0.0035), percent


def test_qualities_of_one_gpu_are_uncorrelated() -> None:
    draws = [[quality(5, f"n{n}", n % 8, d) for n in range(3000)] for d in DIMENSIONS]
    for i in range(len(draws)):
        for j in range(i):
            assert abs(statistics.correlation(draws[i], draws[j])) < 0.08, (DIMENSIONS[i], DIMENSIONS[j])


def test_fabric_numa_and_host_belong_to_the_node() -> None:
    for dimension in ("fabric", "numa", "host"):
        within = [statistics.pstdev(quality(5, f"n{n}", g, dimension) for g in range(8)) for n in range(50)]
        between = statistics.pstdev(
            statistics.fmean(quality(5, f"n{n}", g, dimension) for g in range(8)) for n in range(50)
        )
        assert between > 2 * statistics.fmean(within)


def test_noise_has_the_stated_spread(fleet: list[Node]) -> None:
    node, gpu = plain(fleet, H100)
    for dimension in DIMENSIONS:
        ratios = [
            math.log(
                physics.measure(node, gpu, dimension, NOW + t, default(node))
                * physics.slowdown(node, gpu, dimension, NOW + t, default(node))
                / node.product.typical[dimension]
            )
            for t in range(2000)
        ]
        assert statistics.pstdev(ratios) == pytest.approx(NOISE[dimension], rel=0.1)
        assert abs(statistics.fmean(ratios)) < NOISE[dimension] * 0.1


@given(
    st.integers(0, 10**6),
    st.sampled_from(DIMENSIONS),
    st.floats(1.7e9, 1.9e9),
    st.integers(0, 3),
    st.integers(0, 7),
)
def test_the_same_question_has_the_same_answer_in_any_order(
    seed: int, dimension: str, at: float, n: int, g: int
) -> None:
    one, other = build(seed, 4, 8, NOW)[0], build(seed, 4, 8, NOW)[0]
    first = physics.measure(one[n], one[n].gpus[g], dimension, at, default(one[n]))
    physics.measure(other[n], other[n].gpus[g], dimension, at + 1, default(one[n]))
    again = physics.measure(other[n], other[n].gpus[g], dimension, at, default(other[n]))
    assert first == again
    assert math.isfinite(first)
    assert first > 0


def test_another_seed_is_another_fleet() -> None:
    one, other = build(1, 8, 8, NOW)[0], build(2, 8, 8, NOW)[0]
    assert one[0].gpus[0].uuid != other[0].gpus[0].uuid
    assert quality(1, "n", 0, "compute") != quality(2, "n", 0, "compute")


def test_two_products_and_eight_racks(fleet: list[Node]) -> None:
    assert {n.product_name for n in fleet} == set(PRODUCTS)
    assert len({n.rack for n in fleet}) == 8
    assert len({g.uuid for n in fleet for g in n.gpus}) == 512
    # Racks nest in leaves, leaves in spines.
    for inner, outer in (("rack", "leaf"), ("leaf", "spine")):
        assert len({(getattr(n, inner), getattr(n, outer)) for n in fleet}) == len({getattr(n, inner) for n in fleet})


@pytest.mark.parametrize("seed", range(8))
def test_slow_gpus_are_few_and_many_of_them_show_no_sign(seed: int) -> None:
    nodes = build(seed, 64, 8, NOW)[0]
    slow = [g.slow for n in nodes for g in n.gpus if g.slow is not None]
    assert 6 <= len(slow) <= 12
    assert sum(s.sign == "hidden" for s in slow) >= 0.3 * len(slow)
    assert sum(s.sign != "hidden" for s in slow) >= 1
    assert all(SLOW_RANGE[0] <= s.slowdown <= SLOW_RANGE[1] for s in slow)


def test_a_hidden_slow_gpu_looks_like_its_peers_and_a_visible_one_does_not(fleet: list[Node]) -> None:
    for node in fleet:
        for gpu in node.gpus:
            if gpu.slow is None:
                continue
            settings = physics.initial_settings(node, gpu)
            shown = physics.sensors(node, gpu, NOW, settings, 1.0)
            usual = node.product.load_sm_mhz
            if gpu.slow.sign == "hidden":
                assert shown.sm_mhz > 0.97 * usual
                assert shown.gpu_c < node.product.slow_c - 15
                assert settings.power_limit == node.product.power_w[0]
            else:
                assert shown.sm_mhz < 0.96 * usual
            if gpu.slow.sign == "heat":
                assert shown.gpu_c > node.product.load_c + 20
                assert shown.reasons & 0x20
            if gpu.slow.sign == "power-limit":
                assert shown.power_w <= settings.power_limit < node.product.power_w[0]
            true = physics.slowdown(node, gpu, gpu.slow.dimension, NOW, settings)
            own = quality(node.seed, node.name, gpu.index, gpu.slow.dimension)
            assert true / own == pytest.approx(gpu.slow.slowdown, abs=0.02)


def test_most_of_the_default_fleet_is_well_and_some_of_it_is_not(fleet: list[Node]) -> None:
    calm = NOW
    worst = [
        max(
            sum(w * physics.slowdown(n, g, d, calm, physics.initial_settings(n, g)) for d, w in WEIGHTS.items())
            for g in n.gpus
        )
        for n in fleet
        if episode_at(n.seed, n.name, calm) is None
    ]
    assert sum(w < 1.05 for w in worst) >= 0.75 * len(worst)
    assert sum(1.05 <= w < 1.15 for w in worst) >= 2
    assert sum(w >= 1.16 for w in worst) >= 2
    assert sum(n.silent for n in fleet) == 1


def test_episodes_take_the_published_share_and_end() -> None:
    episodes = [e for n in range(300) for e in week(11, f"n{n}", 2900)]
    share = sum(e.end - e.start for e in episodes) / (300 * WEEK_S)
    assert share == pytest.approx(EPISODE_SHARE, rel=0.15)
    assert statistics.fmean(e.end - e.start for e in episodes) == pytest.approx(EPISODE_MEAN_S, rel=0.15)
    assert all(1.15 <= e.slowdown <= 2.8 for e in episodes)
    assert min(e.slowdown for e in episodes) < 1.2
    assert max(e.slowdown for e in episodes) > 2.5


def test_an_episode_slows_the_whole_node_while_it_lasts(fleet: list[Node]) -> None:
    node, episode = next((n, e) for n in fleet for e in week(n.seed, n.name, 2969) if e.start % WEEK_S > 3600)
    hit = max(episode.reach, key=lambda d: episode.reach[d])
    for gpu in node.gpus:
        before = physics.slowdown(node, gpu, hit, episode.start - 1, default(node))
        during = physics.slowdown(node, gpu, hit, episode.start + 1, default(node))
        assert during / before == pytest.approx(episode.slowdown, rel=0.01)
    assert episode_at(node.seed, node.name, episode.start - 1) is None


@given(st.floats(0.3, 0.99), st.sampled_from([H100, A100]))
def test_locked_clocks_slow_compute_in_proportion_and_memory_hardly(share: float, product: Product) -> None:
    node, gpu = plain(build(1, 64, 8, NOW)[0], product)
    free = default(node)
    locked = Settings((product.min_sm_mhz, product.load_sm_mhz * share), free.power_limit)
    ratio = physics.slowdown(node, gpu, "compute", NOW, locked) / physics.slowdown(node, gpu, "compute", NOW, free)
    assert ratio == pytest.approx(1 / share, rel=1e-9)
    memory = physics.slowdown(node, gpu, "memory", NOW, locked) / physics.slowdown(node, gpu, "memory", NOW, free)
    assert 1 <= memory < 1.11
    for dimension in ("pcie", "host", "fabric", "numa"):
        assert physics.slowdown(node, gpu, dimension, NOW, locked) == physics.slowdown(node, gpu, dimension, NOW, free)


@given(st.floats(200, 700), st.floats(200, 700))
def test_a_lower_power_limit_is_never_faster(one: float, other: float) -> None:
    node, gpu = plain(build(1, 64, 8, NOW)[0], H100)
    low, high = sorted((one, other))
    assert physics.slowdown(node, gpu, "compute", NOW, Settings(None, low)) >= physics.slowdown(
        node, gpu, "compute", NOW, Settings(None, high)
    )
    assert physics.sensors(node, gpu, NOW, Settings(None, low), 1.0).power_w <= low


def test_half_the_power_costs_about_a_third_of_compute(fleet: list[Node]) -> None:
    node, gpu = plain(fleet, H100)
    halved = Settings(None, 350.0)
    ratio = physics.slowdown(node, gpu, "compute", NOW, halved) / physics.slowdown(
        node, gpu, "compute", NOW, default(node)
    )
    assert 1.3 < ratio < 1.7


def test_air_warms_towards_the_top_of_the_rack(fleet: list[Node]) -> None:
    rack = [n for n in fleet if n.rack == "r01"]
    means = [statistics.fmean(physics.temperature(n, g, NOW, 1.0) for g in n.gpus) for n in rack]
    assert means[-1] - means[0] > 2
    node, gpu = plain(fleet, H100)
    assert physics.temperature(node, gpu, NOW, 1.0) > physics.temperature(node, gpu, NOW, 0.0) + 20


def test_a_fault_counts_from_its_time_on(fleet: list[Node]) -> None:
    node, gpu = plain(fleet, H100)
    faults = [Fault(gpu.index, "pcie-x8", NOW), Fault(gpu.index, "slow", NOW, 1.5)]
    free = default(node)
    for dimension, cost in (("pcie", 2.0), ("compute", 1.5)):
        before = physics.slowdown(node, gpu, dimension, NOW - 1, free, faults)
        after = physics.slowdown(node, gpu, dimension, NOW, free, faults)
        assert after / before == pytest.approx(cost, rel=1e-3)
    assert physics.sensors(node, gpu, NOW, free, 0.0, faults).pcie_width == 8
    assert physics.sensors(node, gpu, NOW - 1, free, 0.0, faults).pcie_width == 16


def test_every_fault_kind_says_what_it_is() -> None:
    for kind in KINDS.values():
        assert kind.summary
        assert bool(kind.text) == bool(kind.xid)


@pytest.mark.parametrize(("nodes", "gpus"), [(0, 8), (4, 0), (4, 9)])
def test_counts_that_make_no_fleet_are_refused(nodes: int, gpus: int) -> None:
    with pytest.raises(ValueError, match="at least one node"):
        build(1, nodes, gpus, NOW)


@given(st.text(max_size=20), st.integers())
def test_draws_stay_in_their_range(text: str, number: int) -> None:
    assert 0 < unit(text, number) < 1
    assert math.isfinite(normal(text, number))


@given(st.floats(0, 1), st.floats(0, 1))
def test_quantiles_grow(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert quantile(COMPUTE, low) <= quantile(COMPUTE, high)
