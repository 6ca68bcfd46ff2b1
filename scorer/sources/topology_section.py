"""Topology trees as both configuration files write them."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from scorer.sources.cluster import Topology
from scorer.sources.yaml_file import Strict

LabelKey = Annotated[str, Meta(min_length=1, max_length=317)]


class TreeRow(Strict, frozen=True):
    """One tree: a name, and label keys nearest the node first."""

    name: Annotated[str, Meta(min_length=1, max_length=63)]
    keys: Annotated[tuple[LabelKey, ...], Meta(min_length=1, max_length=16)]


def trees_of(rows: Sequence[TreeRow], place: str) -> Topology:
    """Check trees and return them as (name, keys).

    Args:
        rows: as the file has them.
        place: of the list in the file, named in errors.

    Raises:
        ValueError: if a tree's name or a key within a tree is given twice.
    """
    names: set[str] = set()
    for i, tree in enumerate(rows):
        if tree.name in names:
            raise ValueError(f"{place}[{i}].name: {tree.name!r} is given twice")
        names.add(tree.name)
        if len(set(tree.keys)) != len(tree.keys):
            raise ValueError(f"{place}[{i}].keys: a label key is listed twice")
    return tuple((tree.name, tree.keys) for tree in rows)
