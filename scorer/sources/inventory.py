"""Nodes and their GPUs as one snapshot numbers them, and which row a sample belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scorer.model.evidence import GpuFacts, NodeFacts
from scorer.sources.cluster import NodeRecord

#: In place of a row: a sample of a whole node, and one of a GPU that is not known.
WHOLE_NODE = -1
DROPPED = -2
#: No machine holds more physical GPUs; above, what the kubelet offers are slices.
_MAX_PHYSICAL = 16


@dataclass(frozen=True, slots=True, eq=False)
class Inventory:
    """Nodes and their GPUs, numbered node after node.

    Attributes:
        nodes: in the order of the cluster.
        by_uuid: row of a GPU by (node, UUID). Nodes report their GPUs themselves, so that none may claim another's.
        by_index: row and UUID of a GPU by (node, index); the UUID is empty where not known.
        uuids: all that are known.
        span: first and one-past-last row of each node.
    """

    nodes: tuple[NodeFacts, ...]
    by_uuid: Mapping[tuple[str, str], int]
    by_index: Mapping[tuple[str, int], tuple[int, str]]
    uuids: frozenset[str]
    span: Mapping[str, tuple[int, int]]


def take_inventory(
    nodes: Mapping[str, NodeRecord],
    reported: Mapping[str, tuple[GpuFacts, ...]],
    suggested: Mapping[str, Mapping[int, GpuFacts]],
) -> Inventory:
    """Number the GPUs of all nodes.

    Args:
        nodes: the cluster's, in the order of rows.
        reported: GPUs by node, as its agent said.
        suggested: GPUs by node and index, as its exporter's labels say; used where no agent has reported.
    """
    facts = tuple(
        NodeFacts(r.name, _gpus(r, reported.get(r.name, ()), suggested.get(r.name, {})), r.gpus, r.expected_gpus)
        for r in nodes.values()
    )
    by_uuid: dict[tuple[str, str], int] = {}
    by_index: dict[tuple[str, int], tuple[int, str]] = {}
    span: dict[str, tuple[int, int]] = {}
    row = 0
    for node in facts:
        span[node.name] = (row, row + len(node.gpus))
        for gpu in node.gpus:
            by_index[node.name, gpu.index] = (row, gpu.uuid)
            if gpu.uuid:
                by_uuid[node.name, gpu.uuid] = row
            row += 1
    return Inventory(facts, by_uuid, by_index, frozenset(uuid for _, uuid in by_uuid), span)


def _gpus(
    record: NodeRecord, reported: tuple[GpuFacts, ...], suggested: Mapping[int, GpuFacts]
) -> tuple[GpuFacts, ...]:
    """GPUs that were reported, and plain entries for those that should be there but were not."""
    known = {gpu.index: gpu for gpu in reported} or dict(suggested)
    count = record.gpus if record.expected_gpus is None else record.expected_gpus
    if not known or count <= _MAX_PHYSICAL:
        for index in range(count):
            known.setdefault(index, GpuFacts(index, product=record.product))
    return tuple(known[index] for index in sorted(known))


def rows_of_keys(
    keys: Mapping[tuple[str, int, str], int], inventory: Inventory
) -> tuple[NDArray[np.int32], dict[int, tuple[int, int]]]:
    """Find the GPU row of each (node, index, UUID).

    Args:
        keys: number of each, from zero on.
        inventory: where GPUs stand.

    Returns:
        int32 (keys,): the row, :data:`WHOLE_NODE` or :data:`DROPPED`; and the rows of each key that is a whole node's.
    """
    rows = np.full(len(keys), DROPPED, np.int32)
    whole: dict[int, tuple[int, int]] = {}
    for (node, index, uuid), key in keys.items():
        own = inventory.by_uuid.get((node, uuid)) if uuid else None
        if own is not None:
            rows[key] = own
        elif index >= 0:
            at_index = inventory.by_index.get((node, index))
            # Where the slot's GPU is known and another one, or the GPU is another node's, it is gone from here.
            if at_index is not None and not (uuid and (at_index[1] or uuid in inventory.uuids)):
                rows[key] = at_index[0]
        elif not uuid and node in inventory.span:
            rows[key] = WHOLE_NODE
            whole[key] = inventory.span[node]
    return rows, whole
