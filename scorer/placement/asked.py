"""What a request asks, on the rows of the world that answers it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from scorer.model.errors import RequestError
from scorer.placement.gang import variant_of
from scorer.placement.pod import PodRequest
from scorer.placement.world import World

#: Nodes of one request; three times the largest cluster that Kubernetes supports.
MAX_NAMES = 50_000


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What a request is about, on the rows of its world.

    Attributes:
        names: as they were given.
        rows: int32 (n,): row of each; -1 for an unknown one.
        unknown: how many are unknown.
        key: (j, v, s) of the pod.
        decision_id: equal for equal snapshot and request.
    """

    names: Sequence[str]
    rows: NDArray[np.int32]
    unknown: int
    key: tuple[int, int, int]
    decision_id: str


def key_of(world: World, pod: PodRequest) -> tuple[int, int, int]:
    """The (j, v, s) of a request."""
    return world.types[pod.job_type], variant_of(pod), int(pod.sensitivity)


def ask_world(
    world: World, pod: PodRequest, names: Sequence[str], verb: str, rows: NDArray[np.int32] | None = None
) -> Asked:
    """Put a request on the rows of a world, and give its decision an id.

    Args:
        world: the snapshot.
        pod: what is to be placed.
        names: of nodes.
        verb: ``filter`` or ``score``.
        rows: of the names, where they have been looked up in this world's view already.

    Raises:
        RequestError: a name is given twice, or there are too many.
    """
    if len(names) > MAX_NAMES:
        raise RequestError(f"{len(names)} node names; at most {MAX_NAMES} are answered in one request")
    if rows is None:
        rows = locate(world, names)
    unknown = _count_unknown(names, rows)
    digest = hashlib.blake2b(digest_size=8)
    gang = "" if pod.gang is None else f"{pod.gang.kind}/{pod.gang.namespace}/{pod.gang.name}"
    # Length-prefixed by repr, so that no two different requests read the same.
    facts = (
        world.board_version,
        world.view.version,
        str(world.policy.mode),
        verb,
        pod.uid,
        pod.namespace,
        pod.name,
        pod.job_type,
        pod.sensitivity.label,
        pod.gpus,
        gang,
        pod.gang_size,
        pod.gang_index,
        pod.required_level,
    )
    digest.update(repr(facts).encode("utf-8", "surrogatepass"))
    digest.update(rows.tobytes())
    if unknown:
        digest.update(repr([names[i] for i in np.flatnonzero(rows < 0).tolist()]).encode("utf-8", "surrogatepass"))
    return Asked(names, rows, unknown, key_of(world, pod), digest.hexdigest())


def locate(world: World, names: Sequence[str]) -> NDArray[np.int32]:
    """Find the rows of names: int32 (n,), -1 for each unknown one."""
    return np.fromiter(map(world.view.row.get, names, repeat(-1)), np.int32, len(names))


def _count_unknown(names: Sequence[str], rows: NDArray[np.int32]) -> int:
    """How many names are unknown.

    Raises:
        RequestError: a name is given twice.
    """
    # Row -1 is counted first.
    times = np.bincount(rows + 1, minlength=1)
    unknown = int(times[0])
    strangers = {names[i] for i in np.flatnonzero(rows < 0).tolist()} if unknown else ()
    if len(strangers) < unknown or (times[1:] > 1).any():
        raise RequestError(f"node name {_first_twice(names)!r} is given twice; each node is asked about once")
    return unknown


def _first_twice(names: Sequence[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""
