"""Topology trees from labels, and the factor of each level."""

import numpy as np
import pytest

from scorer.placement.levels import build_levels, find_level, span_factors, span_of
from scorer.placement.topology import MAX_PROBLEMS, build_trees, natural_key
from tests.placement_worlds import LEAF, RACK, SPINE, TOPOLOGY, racks, view_of


def test_levels_of_a_configured_tree_are_nested_and_named() -> None:
    labels = racks(4, 2)
    trees, problems = build_trees(tuple(labels), tuple(labels.values()), TOPOLOGY)
    (tree,) = trees
    assert problems == ()
    assert tree.keys == (RACK, LEAF, SPINE)
    assert tree.domain.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 0, 1, 1, 1, 1], [0] * 8]
    assert tree.names == (("r1", "r2", "r3", "r4"), ("l0", "l1"), ("s0",))


def test_missing_labels_are_minus_one() -> None:
    trees, problems = build_trees(("a", "b"), ({RACK: "r1"}, {}), TOPOLOGY)
    assert trees[0].domain.tolist() == [[0, -1]]
    assert len(problems) == 1
    assert LEAF in problems[0]


def test_a_value_in_two_parents_is_reported_and_split() -> None:
    labels = ({RACK: "r1", LEAF: "a"}, {RACK: "r1", LEAF: "b"}, {RACK: "r2", LEAF: "b"}, {RACK: "r2"})
    trees, problems = build_trees("wxyz", labels, (("fabric", (RACK, LEAF)),))
    assert trees[0].domain[0].tolist() == [0, 1, 2, 2]
    assert trees[0].names[0] == ("r1", "r1", "r2")
    assert len(problems) == 1
    assert "1 values of example.dev/rack lie in more than one" in problems[0]


def test_problems_are_bounded() -> None:
    configured = tuple((f"t{i}", (f"example.dev/none-{i}",)) for i in range(50))
    _, problems = build_trees(("a",), ({},), configured)
    assert len(problems) == MAX_PROBLEMS + 1
    assert "30 more" in problems[-1]


@pytest.mark.parametrize(
    ("labels", "keys"),
    [
        (
            {
                "fabric.topograph.run/tier-1": "b",
                "fabric.topograph.run/tier-0": "a",
                "topology.kubernetes.io/zone": "z",
            },
            ("fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1", "topology.kubernetes.io/zone"),
        ),
        ({SPINE: "s", LEAF: "l"}, (LEAF, SPINE)),
        (
            {f"topology.k8s.aws/network-node-layer-{i}": f"n{i}" for i in (1, 2, 3)},
            tuple(f"topology.k8s.aws/network-node-layer-{i}" for i in (3, 2, 1)),
        ),
        ({"topology.kubernetes.io/zone": "z"}, ("topology.kubernetes.io/zone",)),
    ],
)
def test_presets_are_detected(labels: dict[str, str], keys: tuple[str, ...]) -> None:
    trees, problems = build_trees(("a",), (labels,))
    assert [t.keys for t in trees] == [keys]
    assert problems == ()


def test_accelerator_tree_stands_beside_the_fabric_tree() -> None:
    trees, _ = build_trees(("a",), ({LEAF: "l", "nvidia.com/gpu.clique": "u.1"},))
    assert [t.name for t in trees] == ["fabric", "accelerator"]


def test_no_labels_no_trees() -> None:
    assert build_trees(("a",), ({},)) == ((), ())
    assert build_trees((), ()) == ((), ())


def test_natural_order() -> None:
    assert sorted(["n10", "n2", "n", "m3", "n2b"], key=natural_key) == ["m3", "n", "n2", "n2b", "n10"]


def test_level_factors_lie_between_their_neighbours() -> None:
    labels = racks(4, 2)
    levels = build_levels(view_of(tuple(labels), labels), {"node": 1.0, "rack": 1.0, "leaf": 1.1, "across": 1.7})
    found = {level.name: level.factor for level in levels}
    assert found == pytest.approx({"node": 1.0, "rack": 1.0, "leaf": 1.1, "spine": 1.4, "across": 1.7})
    assert [level.name for level in levels] == ["node", "rack", "leaf", "spine", "across"]
    assert find_level(levels, LEAF) is find_level(levels, "leaf")
    assert find_level(levels, "node") is None


def test_span_of_members_and_of_those_who_would_join() -> None:
    labels = racks(4, 2)
    view = view_of(tuple(labels), labels)
    levels = build_levels(view, {"node": 1.0, "rack": 1.05, "leaf": 1.1, "across": 1.7})
    level, domain = span_of(levels, np.array([0, 1], np.int32))
    assert (level.name, domain) == ("rack", "r1")
    assert span_of(levels, np.array([0, 3], np.int32))[1] == "l0"
    factors = span_factors(levels, np.array([0], np.int32), np.array([0, 1, 2, 7, -1], np.int32))
    assert factors.tolist() == pytest.approx([1.0, 1.05, 1.1, 1.4, 1.7])
