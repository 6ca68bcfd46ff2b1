"""What the scheduler asks: decoding its JSON, whatever the case of the keys."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from scorer.model.errors import RequestError
from scorer.placement import PodFacts, Resources
from scorer.serve.names import Found

# Field names of the structs in this file are the wire's own.
# ruff: noqa: N815


class _Meta(Struct, frozen=True):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Amounts(Struct, frozen=True):
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class _Container(Struct, frozen=True):
    resources: _Amounts | None = None
    restartPolicy: str | None = None


class _SchedulingGroup(Struct, frozen=True):
    podGroupName: str | None = None


class _WorkloadRef(Struct, frozen=True):
    name: str | None = None


class _Spec(Struct, frozen=True):
    containers: list[_Container] | None = None
    initContainers: list[_Container] | None = None
    schedulingGroup: _SchedulingGroup | None = None
    workloadRef: _WorkloadRef | None = None


class _Pod(Struct, frozen=True):
    """The parts of a v1.Pod that are read; the rest is skipped unparsed."""

    metadata: _Meta | None = None
    spec: _Spec | None = None


class _NodeList(Struct, frozen=True):
    items: list[Raw] | None = None


class _NodeMeta(Struct, frozen=True):
    name: str


class _Node(Struct, frozen=True):
    metadata: _NodeMeta


#: Raw takes part in no union; this stands for a field that was not there.
_ABSENT = Raw(b"")


class _Args(Struct, frozen=True):
    Pod: _Pod | UnsetType | None = UNSET
    Nodes: _NodeList | UnsetType | None = UNSET
    NodeNames: Raw = _ABSENT


class _Uid(Struct, frozen=True):
    UID: str = ""


class _MetaVictims(Struct, frozen=True):
    Pods: list[_Uid | None] | None = None
    NumPDBViolations: int = 0


class _Victims(Struct, frozen=True):
    Pods: list[_Pod | None] | None = None
    NumPDBViolations: int = 0


class _PreemptArgs(Struct, frozen=True):
    Pod: _Pod | None = None
    NodeNameToVictims: dict[str, _Victims | None] | None = None
    NodeNameToMetaVictims: dict[str, _MetaVictims | None] | None = None


@dataclass(frozen=True, slots=True)
class ExtenderCall:
    """What filter and prioritize are asked.

    Attributes:
        pod: the parts that are read.
        names: of the nodes.
        items: the Node objects as they came, where whole objects were sent; else ``None``.
        found: the list of names as it was looked up, if it was; then ``names`` are from there.
    """

    pod: PodFacts
    names: Sequence[str]
    items: list[Raw] | None
    found: Found | None = None


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods that would be preempted on a node.

    Attributes:
        uids: of the pods.
        violations: disruption budgets that it would violate.
    """

    uids: tuple[str, ...]
    violations: int


@dataclass(frozen=True, slots=True)
class PreemptCall:
    """What preempt is asked.

    Attributes:
        pod: the parts that are read.
        victims: by node name.
    """

    pod: PodFacts
    victims: Mapping[str, Victims]


_ARGS = msgspec.json.Decoder(_Args)
_PREEMPT = msgspec.json.Decoder(_PreemptArgs)
_POD = msgspec.json.Decoder(_Pod)
_NAMES = msgspec.json.Decoder(list[str])
_NODE = msgspec.json.Decoder(_Node)
_NODE_LIST = msgspec.json.Decoder(_NodeList)
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_LIST = msgspec.json.Decoder(list[Raw])
_ENCODER = msgspec.json.Encoder()
#: How to say to a caller that the body was not what it should be.
_SEND = "send the JSON of an ExtenderArgs object"


def decode_call(body: bytes, recall: Callable[[bytes], Found | None] | None = None) -> ExtenderCall:
    """Decode the arguments of filter and prioritize.

    Args:
        body: JSON of ``ExtenderArgs``, with keys in any case.
        recall: looks up the JSON of a list of names, or says ``None`` where it cannot.

    Raises:
        RequestError: truncated or wrong JSON, no pod, no nodes; the text says which.
    """
    try:
        args = _ARGS.decode(body)
        if args.Pod is UNSET or args.Nodes is UNSET or args.NodeNames is _ABSENT:
            # Not what kube-scheduler sends, so it may be spelt otherwise.
            args = _ARGS.decode(_respelt(body, ("Pod", "Nodes", "NodeNames")))
        pod = _pod_facts(args.Pod)
        if args.NodeNames is not _ABSENT and not _is_null(args.NodeNames):
            raw = bytes(args.NodeNames)
            found = recall(raw) if recall is not None else None
            return ExtenderCall(pod, _names(raw) if found is None else found.names, None, found)
        if isinstance(args.Nodes, _NodeList):
            items = args.Nodes.items
            if items is None:
                items = _NODE_LIST.decode(_respelt(_respelt_value(body, "nodes"), ("items",))).items or []
            return ExtenderCall(pod, [_NODE.decode(item).metadata.name for item in items], items)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(_wrong_json(error, _SEND)) from error
    raise RequestError(f"no nodes: both Nodes and NodeNames are missing or null; {_SEND} that has one of them")


def _names(raw: bytes) -> list[str]:
    try:
        return _NAMES.decode(raw)
    except msgspec.ValidationError as error:
        raise RequestError(_wrong_json(error, f"NodeNames is a list of strings; {_SEND}")) from error


def decode_preempt(body: bytes) -> PreemptCall:
    """Decode the arguments of preempt.

    Args:
        body: JSON of ``ExtenderPreemptionArgs``, with keys in any case. Null and empty lists are no error.

    Raises:
        RequestError: truncated or wrong JSON, no pod; the text says which.
    """
    send = "send the JSON of an ExtenderPreemptionArgs object"
    fields = ("Pod", "NodeNameToVictims", "NodeNameToMetaVictims")
    try:
        # Preemption is rare and its bodies are small: the spelling is put right whatever it was.
        args = _PREEMPT.decode(_respelt_victims(_respelt(body, fields)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(_wrong_json(error, send)) from error
    victims: dict[str, Victims] = {}
    if args.NodeNameToMetaVictims:
        for node, meta in args.NodeNameToMetaVictims.items():
            pods = (meta.Pods if meta else None) or ()
            victims[node] = Victims(tuple(p.UID for p in pods if p is not None), meta.NumPDBViolations if meta else 0)
    elif args.NodeNameToVictims:
        for node, whole in args.NodeNameToVictims.items():
            metas = [p.metadata for p in (whole.Pods if whole else None) or () if p is not None]
            uids = tuple(m.uid for m in metas if m is not None and m.uid)
            victims[node] = Victims(uids, whole.NumPDBViolations if whole else 0)
    return PreemptCall(_pod_facts(args.Pod), victims)


def decode_pod(body: bytes) -> PodFacts:
    """Decode a v1.Pod.

    Raises:
        RequestError: it is not the JSON of one.
    """
    try:
        return _pod_facts(_POD.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(_wrong_json(error, "send the JSON of a v1.Pod")) from error


def _pod_facts(pod: _Pod | UnsetType | None) -> PodFacts:
    if not isinstance(pod, _Pod) or (pod.metadata is None and pod.spec is None):
        raise RequestError("no pod: Pod is missing, null or empty; send the v1.Pod that is to be placed")
    meta, spec = pod.metadata or _Meta(), pod.spec or _Spec()
    return PodFacts(
        name=meta.name or "",
        namespace=meta.namespace or "",
        uid=meta.uid or "",
        labels=meta.labels or {},
        annotations=meta.annotations or {},
        containers=tuple(map(_resources, spec.containers or ())),
        init_containers=tuple(map(_resources, spec.initContainers or ())),
        scheduling_group=(spec.schedulingGroup.podGroupName if spec.schedulingGroup else "") or "",
        workload_ref=(spec.workloadRef.name if spec.workloadRef else "") or "",
    )


def _resources(container: _Container) -> Resources:
    amounts = container.resources or _Amounts()
    return Resources(amounts.requests or {}, amounts.limits or {}, sidecar=container.restartPolicy == "Always")


def _respelt(body: bytes, fields: Iterable[str]) -> bytes:
    """The same object with the given keys spelt as in ``fields``, whatever their case was."""
    spelling = {field.lower(): field for field in fields}
    return _ENCODER.encode({spelling.get(key.lower(), key): value for key, value in _OBJECT.decode(body).items()})


def _respelt_value(body: bytes, key: str) -> bytes:
    return next((bytes(value) for name, value in _OBJECT.decode(body).items() if name.lower() == key), b"{}")


def _respelt_victims(body: bytes) -> bytes:
    outer: dict[str, object] = dict(_OBJECT.decode(body))
    for field in ("NodeNameToVictims", "NodeNameToMetaVictims"):
        value = outer.get(field)
        if isinstance(value, Raw) and not _is_null(value):
            nodes = _OBJECT.decode(value)
            outer[field] = {node: one if _is_null(one) else _respelt_one(one) for node, one in nodes.items()}
    return _ENCODER.encode(outer)


def _respelt_one(victims: Raw) -> dict[str, object]:
    inner: dict[str, object] = dict(_OBJECT.decode(_respelt(bytes(victims), ("Pods", "NumPDBViolations"))))
    pods = inner.get("Pods")
    if isinstance(pods, Raw) and not _is_null(pods):
        inner["Pods"] = [pod if _is_null(pod) else Raw(_respelt(bytes(pod), ("UID",))) for pod in _LIST.decode(pods)]
    return inner


def _is_null(value: Raw) -> bool:
    return bytes(value).strip() == b"null"


def _wrong_json(error: Exception, send: str) -> str:
    if isinstance(error, msgspec.ValidationError):
        return f"the body has a wrong type: {error}; {send}"
    return f"the body is not JSON: {error or type(error).__name__}; {send}"
