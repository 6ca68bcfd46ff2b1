import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SampleStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SAMPLE_STATUS_UNSPECIFIED: _ClassVar[SampleStatus]
    SAMPLE_STATUS_OK: _ClassVar[SampleStatus]
    SAMPLE_STATUS_FAILED: _ClassVar[SampleStatus]
    SAMPLE_STATUS_TIMEOUT: _ClassVar[SampleStatus]

class RunPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_PHASE_UNSPECIFIED: _ClassVar[RunPhase]
    RUN_PHASE_ACTIVE: _ClassVar[RunPhase]
    RUN_PHASE_REVERTED: _ClassVar[RunPhase]
    RUN_PHASE_FAILED_REVERT: _ClassVar[RunPhase]
SAMPLE_STATUS_UNSPECIFIED: SampleStatus
SAMPLE_STATUS_OK: SampleStatus
SAMPLE_STATUS_FAILED: SampleStatus
SAMPLE_STATUS_TIMEOUT: SampleStatus
RUN_PHASE_UNSPECIFIED: RunPhase
RUN_PHASE_ACTIVE: RunPhase
RUN_PHASE_REVERTED: RunPhase
RUN_PHASE_FAILED_REVERT: RunPhase

class ReportRequest(_message.Message):
    __slots__ = ("node", "agent_version", "gpus", "samples", "runs", "kernel_messages")
    NODE_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    KERNEL_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    node: str
    agent_version: str
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    kernel_messages: _containers.RepeatedCompositeFieldContainer[KernelMessage]
    def __init__(self, node: _Optional[str] = ..., agent_version: _Optional[str] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., kernel_messages: _Optional[_Iterable[_Union[KernelMessage, _Mapping]]] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("index", "uuid", "product", "pci_bus_id", "memory_mib", "default_power_limit_w", "driver")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    PRODUCT_FIELD_NUMBER: _ClassVar[int]
    PCI_BUS_ID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_POWER_LIMIT_W_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    index: int
    uuid: str
    product: str
    pci_bus_id: str
    memory_mib: int
    default_power_limit_w: float
    driver: str
    def __init__(self, index: _Optional[int] = ..., uuid: _Optional[str] = ..., product: _Optional[str] = ..., pci_bus_id: _Optional[str] = ..., memory_mib: _Optional[int] = ..., default_power_limit_w: _Optional[float] = ..., driver: _Optional[str] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("id", "at", "node", "gpu_index", "gpu_uuid", "dimension", "value", "unit", "status", "run", "source", "detail", "context")
    ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    GPU_INDEX_FIELD_NUMBER: _ClassVar[int]
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    id: str
    at: _timestamp_pb2.Timestamp
    node: str
    gpu_index: int
    gpu_uuid: str
    dimension: str
    value: float
    unit: str
    status: SampleStatus
    run: str
    source: str
    detail: str
    context: SampleContext
    def __init__(self, id: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., node: _Optional[str] = ..., gpu_index: _Optional[int] = ..., gpu_uuid: _Optional[str] = ..., dimension: _Optional[str] = ..., value: _Optional[float] = ..., unit: _Optional[str] = ..., status: _Optional[_Union[SampleStatus, str]] = ..., run: _Optional[str] = ..., source: _Optional[str] = ..., detail: _Optional[str] = ..., context: _Optional[_Union[SampleContext, _Mapping]] = ...) -> None: ...

class SampleContext(_message.Message):
    __slots__ = ("driver", "power_limit_w", "sm_clock_mhz", "temperature_c", "power_w")
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    POWER_LIMIT_W_FIELD_NUMBER: _ClassVar[int]
    SM_CLOCK_MHZ_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    driver: str
    power_limit_w: float
    sm_clock_mhz: float
    temperature_c: float
    power_w: float
    def __init__(self, driver: _Optional[str] = ..., power_limit_w: _Optional[float] = ..., sm_clock_mhz: _Optional[float] = ..., temperature_c: _Optional[float] = ..., power_w: _Optional[float] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("id", "kind", "gpu_indices", "phase", "started", "ended", "residues", "detail")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    GPU_INDICES_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    RESIDUES_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: str
    gpu_indices: _containers.RepeatedScalarFieldContainer[int]
    phase: RunPhase
    started: _timestamp_pb2.Timestamp
    ended: _timestamp_pb2.Timestamp
    residues: _containers.RepeatedCompositeFieldContainer[Residue]
    detail: str
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[str] = ..., gpu_indices: _Optional[_Iterable[int]] = ..., phase: _Optional[_Union[RunPhase, str]] = ..., started: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., residues: _Optional[_Iterable[_Union[Residue, _Mapping]]] = ..., detail: _Optional[str] = ...) -> None: ...

class Residue(_message.Message):
    __slots__ = ("surface", "code", "gpu_index")
    SURFACE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    GPU_INDEX_FIELD_NUMBER: _ClassVar[int]
    surface: str
    code: str
    gpu_index: int
    def __init__(self, surface: _Optional[str] = ..., code: _Optional[str] = ..., gpu_index: _Optional[int] = ...) -> None: ...

class KernelMessage(_message.Message):
    __slots__ = ("at", "text")
    AT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    at: _timestamp_pb2.Timestamp
    text: str
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., text: _Optional[str] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ("accepted", "duplicates", "rejections")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    REJECTIONS_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    duplicates: int
    rejections: _containers.RepeatedCompositeFieldContainer[Rejection]
    def __init__(self, accepted: _Optional[int] = ..., duplicates: _Optional[int] = ..., rejections: _Optional[_Iterable[_Union[Rejection, _Mapping]]] = ...) -> None: ...

class Rejection(_message.Message):
    __slots__ = ("id", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: str
    reason: str
    def __init__(self, id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
