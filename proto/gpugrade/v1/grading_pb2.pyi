import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Grade(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRADE_UNSPECIFIED: _ClassVar[Grade]
    GRADE_GREEN: _ClassVar[Grade]
    GRADE_UNKNOWN: _ClassVar[Grade]
    GRADE_YELLOW: _ClassVar[Grade]
    GRADE_RED: _ClassVar[Grade]
GRADE_UNSPECIFIED: Grade
GRADE_GREEN: Grade
GRADE_UNKNOWN: Grade
GRADE_YELLOW: Grade
GRADE_RED: Grade

class ListNodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ("board_version", "board_at", "nodes")
    BOARD_VERSION_FIELD_NUMBER: _ClassVar[int]
    BOARD_AT_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    board_version: int
    board_at: _timestamp_pb2.Timestamp
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    def __init__(self, board_version: _Optional[int] = ..., board_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("name", "grade", "grades", "gpus", "free", "age_s", "reasons", "product", "labels", "slowdowns", "active_runs")
    class GradesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Grade
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Grade, str]] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SlowdownsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    GRADE_FIELD_NUMBER: _ClassVar[int]
    GRADES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    PRODUCT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWNS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_RUNS_FIELD_NUMBER: _ClassVar[int]
    name: str
    grade: Grade
    grades: _containers.ScalarMap[str, Grade]
    gpus: int
    free: int
    age_s: float
    reasons: _containers.RepeatedScalarFieldContainer[str]
    product: str
    labels: _containers.ScalarMap[str, str]
    slowdowns: _containers.ScalarMap[str, float]
    active_runs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., grade: _Optional[_Union[Grade, str]] = ..., grades: _Optional[_Mapping[str, Grade]] = ..., gpus: _Optional[int] = ..., free: _Optional[int] = ..., age_s: _Optional[float] = ..., reasons: _Optional[_Iterable[str]] = ..., product: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., slowdowns: _Optional[_Mapping[str, float]] = ..., active_runs: _Optional[_Iterable[str]] = ...) -> None: ...

class ExplainNodeRequest(_message.Message):
    __slots__ = ("node", "job_type", "sensitivity")
    NODE_FIELD_NUMBER: _ClassVar[int]
    JOB_TYPE_FIELD_NUMBER: _ClassVar[int]
    SENSITIVITY_FIELD_NUMBER: _ClassVar[int]
    node: str
    job_type: str
    sensitivity: str
    def __init__(self, node: _Optional[str] = ..., job_type: _Optional[str] = ..., sensitivity: _Optional[str] = ...) -> None: ...

class ExplainNodeResponse(_message.Message):
    __slots__ = ("node", "at", "job_types", "gpus", "findings", "bad_gpus", "action")
    NODE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    JOB_TYPES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    BAD_GPUS_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    node: Node
    at: _timestamp_pb2.Timestamp
    job_types: _containers.RepeatedCompositeFieldContainer[JobTypeGrade]
    gpus: _containers.RepeatedCompositeFieldContainer[GpuGrade]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    bad_gpus: _containers.RepeatedScalarFieldContainer[int]
    action: str
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., job_types: _Optional[_Iterable[_Union[JobTypeGrade, _Mapping]]] = ..., gpus: _Optional[_Iterable[_Union[GpuGrade, _Mapping]]] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., bad_gpus: _Optional[_Iterable[int]] = ..., action: _Optional[str] = ...) -> None: ...

class JobTypeGrade(_message.Message):
    __slots__ = ("job_type", "sensitivity", "grade", "slowdown", "low", "high", "confidence", "reasons", "since")
    JOB_TYPE_FIELD_NUMBER: _ClassVar[int]
    SENSITIVITY_FIELD_NUMBER: _ClassVar[int]
    GRADE_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    job_type: str
    sensitivity: str
    grade: Grade
    slowdown: float
    low: float
    high: float
    confidence: float
    reasons: _containers.RepeatedScalarFieldContainer[str]
    since: _timestamp_pb2.Timestamp
    def __init__(self, job_type: _Optional[str] = ..., sensitivity: _Optional[str] = ..., grade: _Optional[_Union[Grade, str]] = ..., slowdown: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., confidence: _Optional[float] = ..., reasons: _Optional[_Iterable[str]] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GpuGrade(_message.Message):
    __slots__ = ("index", "uuid", "grades", "slowdowns")
    class GradesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Grade
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Grade, str]] = ...) -> None: ...
    class SlowdownsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Prediction
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Prediction, _Mapping]] = ...) -> None: ...
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    GRADES_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWNS_FIELD_NUMBER: _ClassVar[int]
    index: int
    uuid: str
    grades: _containers.ScalarMap[str, Grade]
    slowdowns: _containers.MessageMap[str, Prediction]
    def __init__(self, index: _Optional[int] = ..., uuid: _Optional[str] = ..., grades: _Optional[_Mapping[str, Grade]] = ..., slowdowns: _Optional[_Mapping[str, Prediction]] = ...) -> None: ...

class Prediction(_message.Message):
    __slots__ = ("slowdown", "low", "high", "samples")
    SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    slowdown: float
    low: float
    high: float
    samples: int
    def __init__(self, slowdown: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., samples: _Optional[int] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("rule", "grade", "reach", "gpu_index", "text", "evidence", "source", "action", "first_seen", "last_seen", "run")
    RULE_FIELD_NUMBER: _ClassVar[int]
    GRADE_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    GPU_INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEEN_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    rule: str
    grade: Grade
    reach: str
    gpu_index: int
    text: str
    evidence: str
    source: str
    action: str
    first_seen: _timestamp_pb2.Timestamp
    last_seen: _timestamp_pb2.Timestamp
    run: str
    def __init__(self, rule: _Optional[str] = ..., grade: _Optional[_Union[Grade, str]] = ..., reach: _Optional[str] = ..., gpu_index: _Optional[int] = ..., text: _Optional[str] = ..., evidence: _Optional[str] = ..., source: _Optional[str] = ..., action: _Optional[str] = ..., first_seen: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_seen: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., run: _Optional[str] = ...) -> None: ...

class ListJobTypesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListJobTypesResponse(_message.Message):
    __slots__ = ("job_types", "sensitivities")
    JOB_TYPES_FIELD_NUMBER: _ClassVar[int]
    SENSITIVITIES_FIELD_NUMBER: _ClassVar[int]
    job_types: _containers.RepeatedCompositeFieldContainer[JobType]
    sensitivities: _containers.RepeatedCompositeFieldContainer[SensitivityClass]
    def __init__(self, job_types: _Optional[_Iterable[_Union[JobType, _Mapping]]] = ..., sensitivities: _Optional[_Iterable[_Union[SensitivityClass, _Mapping]]] = ...) -> None: ...

class JobType(_message.Message):
    __slots__ = ("name", "chosen_when", "weights", "waits_for_slowest", "sensitivity")
    class WeightsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_WHEN_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_SLOWEST_FIELD_NUMBER: _ClassVar[int]
    SENSITIVITY_FIELD_NUMBER: _ClassVar[int]
    name: str
    chosen_when: str
    weights: _containers.ScalarMap[str, float]
    waits_for_slowest: bool
    sensitivity: str
    def __init__(self, name: _Optional[str] = ..., chosen_when: _Optional[str] = ..., weights: _Optional[_Mapping[str, float]] = ..., waits_for_slowest: bool = ..., sensitivity: _Optional[str] = ...) -> None: ...

class SensitivityClass(_message.Message):
    __slots__ = ("name", "yellow_from", "red_from", "unknown_scores_as")
    NAME_FIELD_NUMBER: _ClassVar[int]
    YELLOW_FROM_FIELD_NUMBER: _ClassVar[int]
    RED_FROM_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_SCORES_AS_FIELD_NUMBER: _ClassVar[int]
    name: str
    yellow_from: float
    red_from: float
    unknown_scores_as: str
    def __init__(self, name: _Optional[str] = ..., yellow_from: _Optional[float] = ..., red_from: _Optional[float] = ..., unknown_scores_as: _Optional[str] = ...) -> None: ...
