import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FilterRequest(_message.Message):
    __slots__ = ("pod_json", "node_names")
    POD_JSON_FIELD_NUMBER: _ClassVar[int]
    NODE_NAMES_FIELD_NUMBER: _ClassVar[int]
    pod_json: bytes
    node_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pod_json: _Optional[bytes] = ..., node_names: _Optional[_Iterable[str]] = ...) -> None: ...

class Reason(_message.Message):
    __slots__ = ("text", "unresolvable")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    UNRESOLVABLE_FIELD_NUMBER: _ClassVar[int]
    text: str
    unresolvable: bool
    def __init__(self, text: _Optional[str] = ..., unresolvable: bool = ...) -> None: ...

class FilterResponse(_message.Message):
    __slots__ = ("verdicts", "reasons", "decision_id", "warnings")
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedScalarFieldContainer[int]
    reasons: _containers.RepeatedCompositeFieldContainer[Reason]
    decision_id: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, verdicts: _Optional[_Iterable[int]] = ..., reasons: _Optional[_Iterable[_Union[Reason, _Mapping]]] = ..., decision_id: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("pod_json", "node_names")
    POD_JSON_FIELD_NUMBER: _ClassVar[int]
    NODE_NAMES_FIELD_NUMBER: _ClassVar[int]
    pod_json: bytes
    node_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pod_json: _Optional[bytes] = ..., node_names: _Optional[_Iterable[str]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("scores", "decision_id", "warnings")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedScalarFieldContainer[int]
    decision_id: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, scores: _Optional[_Iterable[int]] = ..., decision_id: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class PlaceRequest(_message.Message):
    __slots__ = ("gpus", "pods", "job_type", "sensitivity", "exclude", "product")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    JOB_TYPE_FIELD_NUMBER: _ClassVar[int]
    SENSITIVITY_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    PRODUCT_FIELD_NUMBER: _ClassVar[int]
    gpus: int
    pods: int
    job_type: str
    sensitivity: str
    exclude: _containers.RepeatedScalarFieldContainer[str]
    product: str
    def __init__(self, gpus: _Optional[int] = ..., pods: _Optional[int] = ..., job_type: _Optional[str] = ..., sensitivity: _Optional[str] = ..., exclude: _Optional[_Iterable[str]] = ..., product: _Optional[str] = ...) -> None: ...

class PlaceResponse(_message.Message):
    __slots__ = ("assignments", "predicted_relative_time", "blind_relative_time", "level", "domain", "locality_factor", "job_type", "sensitivity", "infeasible", "warnings")
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_RELATIVE_TIME_FIELD_NUMBER: _ClassVar[int]
    BLIND_RELATIVE_TIME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    LOCALITY_FACTOR_FIELD_NUMBER: _ClassVar[int]
    JOB_TYPE_FIELD_NUMBER: _ClassVar[int]
    SENSITIVITY_FIELD_NUMBER: _ClassVar[int]
    INFEASIBLE_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    predicted_relative_time: float
    blind_relative_time: float
    level: str
    domain: str
    locality_factor: float
    job_type: str
    sensitivity: str
    infeasible: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., predicted_relative_time: _Optional[float] = ..., blind_relative_time: _Optional[float] = ..., level: _Optional[str] = ..., domain: _Optional[str] = ..., locality_factor: _Optional[float] = ..., job_type: _Optional[str] = ..., sensitivity: _Optional[str] = ..., infeasible: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("node", "pods", "slowdown", "grade", "reasons")
    NODE_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    GRADE_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    node: str
    pods: int
    slowdown: float
    grade: str
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node: _Optional[str] = ..., pods: _Optional[int] = ..., slowdown: _Optional[float] = ..., grade: _Optional[str] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class ExplainDecisionRequest(_message.Message):
    __slots__ = ("decision_id",)
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    def __init__(self, decision_id: _Optional[str] = ...) -> None: ...

class ExplainDecisionResponse(_message.Message):
    __slots__ = ("decision_id", "verb", "pod", "job_type", "sensitivity", "mode", "board_version", "view_version", "nodes", "warnings")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    VERB_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    JOB_TYPE_FIELD_NUMBER: _ClassVar[int]
    SENSITIVITY_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    BOARD_VERSION_FIELD_NUMBER: _ClassVar[int]
    VIEW_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    verb: str
    pod: str
    job_type: str
    sensitivity: str
    mode: str
    board_version: int
    view_version: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeDecision]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, decision_id: _Optional[str] = ..., verb: _Optional[str] = ..., pod: _Optional[str] = ..., job_type: _Optional[str] = ..., sensitivity: _Optional[str] = ..., mode: _Optional[str] = ..., board_version: _Optional[int] = ..., view_version: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeDecision, _Mapping]]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class NodeDecision(_message.Message):
    __slots__ = ("node", "passed", "score", "reason")
    NODE_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    node: str
    passed: bool
    score: int
    reason: str
    def __init__(self, node: _Optional[str] = ..., passed: bool = ..., score: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ListDecisionsRequest(_message.Message):
    __slots__ = ("pod", "limit")
    POD_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    pod: str
    limit: int
    def __init__(self, pod: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListDecisionsResponse(_message.Message):
    __slots__ = ("pod", "decisions", "now")
    POD_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    pod: str
    decisions: _containers.RepeatedCompositeFieldContainer[DecisionSummary]
    now: _timestamp_pb2.Timestamp
    def __init__(self, pod: _Optional[str] = ..., decisions: _Optional[_Iterable[_Union[DecisionSummary, _Mapping]]] = ..., now: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DecisionSummary(_message.Message):
    __slots__ = ("decision_id", "verb", "at", "job_type", "sensitivity", "mode", "board_version", "view_version", "asked", "passed", "best", "refused", "neutral", "warnings")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    VERB_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    JOB_TYPE_FIELD_NUMBER: _ClassVar[int]
    SENSITIVITY_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    BOARD_VERSION_FIELD_NUMBER: _ClassVar[int]
    VIEW_VERSION_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    NEUTRAL_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    verb: str
    at: _timestamp_pb2.Timestamp
    job_type: str
    sensitivity: str
    mode: str
    board_version: int
    view_version: int
    asked: int
    passed: int
    best: _containers.RepeatedCompositeFieldContainer[NodeDecision]
    refused: _containers.RepeatedCompositeFieldContainer[Refusal]
    neutral: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, decision_id: _Optional[str] = ..., verb: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., job_type: _Optional[str] = ..., sensitivity: _Optional[str] = ..., mode: _Optional[str] = ..., board_version: _Optional[int] = ..., view_version: _Optional[int] = ..., asked: _Optional[int] = ..., passed: _Optional[int] = ..., best: _Optional[_Iterable[_Union[NodeDecision, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., neutral: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "nodes")
    REASON_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    reason: str
    nodes: int
    def __init__(self, reason: _Optional[str] = ..., nodes: _Optional[int] = ...) -> None: ...
