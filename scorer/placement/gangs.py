"""Which gang a pod belongs to: one table, first match wins, a new framework is one row."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from scorer.model.cluster import GangKey

#: Says the size of a gang for frameworks that keep it in an object of their own, and wins over every other source.
SIZE_ANNOTATION = "gpugrade.dev/gang-size"

_NUMBER = re.compile(r"\d{1,9}")
_ORDINAL = re.compile(r"-(\d{1,9})$")


@dataclass(frozen=True, slots=True)
class Resources:
    """What one container asks for.

    Attributes:
        requests: quantities by resource name, as they were sent.
        limits: likewise.
        sidecar: an init container that goes on running.
    """

    requests: Mapping[str, object] = field(default_factory=dict)
    limits: Mapping[str, object] = field(default_factory=dict)
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class PodFacts:
    """The parts of a pod that placement reads.

    Attributes:
        name: of the pod.
        namespace: of the pod.
        uid: may be empty.
        labels: of the pod.
        annotations: of the pod.
        containers: what each asks for.
        init_containers: likewise.
        scheduling_group: ``spec.schedulingGroup.podGroupName``.
        workload_ref: ``spec.workloadRef.name``.
    """

    name: str
    namespace: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[Resources, ...] = ()
    init_containers: tuple[Resources, ...] = ()
    scheduling_group: str = ""
    workload_ref: str = ""


class Place(StrEnum):
    """Where on a pod a value stands."""

    LABEL = "label"
    ANNOTATION = "annotation"
    SPEC = "spec"


@dataclass(frozen=True, slots=True)
class GangRow:
    """One framework's way to mark the pods of a gang.

    Attributes:
        kind: as in :class:`GangKey`.
        name: all of these must be there; together they are the gang's name.
        size: the first that is there is the number of pods.
        index: the first that is there is the pod's rank.
    """

    kind: str
    name: tuple[tuple[Place, str], ...]
    size: tuple[tuple[Place, str], ...] = ()
    index: tuple[tuple[Place, str], ...] = ()


def _labels(*keys: str) -> tuple[tuple[Place, str], ...]:
    return tuple((Place.LABEL, key) for key in keys)


def _annotations(*keys: str) -> tuple[tuple[Place, str], ...]:
    return tuple((Place.ANNOTATION, key) for key in keys)


_KOORDINATOR = "gang.scheduling.koordinator.sh"
_LIGHT = "pod-group.scheduling.sigs.k8s.io"
_LWS = "leaderworkerset.sigs.k8s.io"
_COMPLETION = "batch.kubernetes.io/job-completion-index"

GANG_ROWS: tuple[GangRow, ...] = (
    GangRow("pod-group", ((Place.SPEC, "schedulingGroup"),)),
    GangRow("workload", ((Place.SPEC, "workloadRef"),)),
    GangRow("x-pod-group", _labels("scheduling.x-k8s.io/pod-group")),
    GangRow(
        "volcano",
        _annotations("scheduling.k8s.io/group-name"),
        index=_annotations("volcano.sh/task-index") + _labels("volcano.sh/task-index"),
    ),
    GangRow(
        "kueue-pod-group",
        _labels("kueue.x-k8s.io/pod-group-name"),
        size=_annotations("kueue.x-k8s.io/pod-group-total-count"),
        index=_labels("kueue.x-k8s.io/pod-group-pod-index"),
    ),
    GangRow(
        "kueue-pod-group",
        _annotations("kueue.x-k8s.io/pod-group-name"),
        size=_annotations("kueue.x-k8s.io/pod-group-total-count"),
        index=_labels("kueue.x-k8s.io/pod-group-pod-index"),
    ),
    GangRow(
        "leader-worker-set",
        _labels(f"{_LWS}/name", f"{_LWS}/group-index"),
        size=_annotations(f"{_LWS}/size"),
        index=_labels(f"{_LWS}/worker-index"),
    ),
    GangRow(
        "jobset",
        _labels("jobset.sigs.k8s.io/jobset-name"),
        size=_annotations("jobset.sigs.k8s.io/global-replicas") + _labels("jobset.sigs.k8s.io/global-replicas"),
        index=_labels("jobset.sigs.k8s.io/job-global-index") + _annotations("jobset.sigs.k8s.io/job-global-index"),
    ),
    GangRow(
        "kubeflow", _labels("training.kubeflow.org/job-name"), index=_labels("training.kubeflow.org/replica-index")
    ),
    GangRow("ray", _labels("ray.io/cluster"), index=_labels("ray.io/replica-host-index")),
    GangRow("job", _labels("batch.kubernetes.io/job-name"), index=_labels(_COMPLETION) + _annotations(_COMPLETION)),
    GangRow("job", _labels("job-name"), index=_labels(_COMPLETION) + _annotations(_COMPLETION)),
    GangRow(
        "koordinator",
        _annotations(f"{_KOORDINATOR}/name"),
        size=_annotations(f"{_KOORDINATOR}/min-available"),
        index=_annotations(f"{_KOORDINATOR}/network-topology-index"),
    ),
    GangRow("koordinator", _labels(f"{_KOORDINATOR}/name"), size=_labels(f"{_KOORDINATOR}/min-available")),
    GangRow("light-pod-group", _labels(f"{_LIGHT}/name"), size=_labels(f"{_LIGHT}/min-available")),
)

#: The kinds that a :class:`GangKey` may have, in the order of the table.
GANG_KINDS: tuple[str, ...] = tuple(dict.fromkeys(row.kind for row in GANG_ROWS))


@dataclass(frozen=True, slots=True)
class Membership:
    """A pod's place in its gang.

    Attributes:
        key: the gang.
        size: pods of the gang; 1 where the pod does not tell.
        index: the pod's rank; ``None`` where it does not tell.
    """

    key: GangKey
    size: int
    index: int | None


def find_gang(facts: PodFacts, problems: list[tuple[str, str]]) -> Membership | None:
    """Find the gang of a pod.

    Args:
        facts: the pod.
        problems: gets (key, text) for every size or rank that is not a whole number.

    Returns:
        ``None`` where no row matches.
    """
    for row in GANG_ROWS:
        parts = [_value(facts, where) for where in row.name]
        if not all(parts):
            continue
        size = _number(facts, (*_annotations(SIZE_ANNOTATION), *_labels(SIZE_ANNOTATION), *row.size), problems)
        index = _number(facts, row.index, problems)
        if index is None and (ordinal := _ORDINAL.search(facts.name)):
            index = int(ordinal[1])
        return Membership(GangKey(row.kind, facts.namespace, "/".join(parts)), max(1, size or 1), index)
    return None


def _value(facts: PodFacts, where: tuple[Place, str]) -> str:
    place, key = where
    if place is Place.LABEL:
        return facts.labels.get(key, "")
    if place is Place.ANNOTATION:
        return facts.annotations.get(key, "")
    return facts.scheduling_group if key == "schedulingGroup" else facts.workload_ref


def _number(facts: PodFacts, sources: tuple[tuple[Place, str], ...], problems: list[tuple[str, str]]) -> int | None:
    for where in sources:
        text = _value(facts, where)
        if not text:
            continue
        if _NUMBER.fullmatch(text):
            return int(text)
        problems.append((where[1], f"{where[1]}: {text[:63]!r} is not a whole number; it was left out"))
    return None
