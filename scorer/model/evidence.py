"""What is known: samples, telemetry readings, kernel messages, links, and runs of experiments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray

from scorer.model.dimension import Dimension


class SampleStatus(IntEnum):
    """How a measurement ended."""

    OK = 0
    FAILED = 1
    TIMEOUT = 2


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What a GPU is.

    Attributes:
        index: its number on the node, as ``nvidia-smi`` counts.
        uuid: ``GPU-...``; empty where not known.
        product: as the driver names it, such as ``NVIDIA H100 80GB HBM3``; empty where not known.
        pci_bus_id: such as ``00000000:18:00.0``; empty where not known.
        memory_mib: frame buffer in MiB; 0 where not known.
        default_power_limit_w: watts; 0 where not known. A lowered limit is a reason, not another group.
        driver: full driver version; its first component is the branch.
    """

    index: int
    uuid: str = ""
    product: str = ""
    pci_bus_id: str = ""
    memory_mib: int = 0
    default_power_limit_w: float = 0.0
    driver: str = ""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node is, as far as grading needs it.

    Attributes:
        name: the Kubernetes node name.
        gpus: its GPUs, by ascending index.
        offered: GPUs that the kubelet offers (allocatable); ``None`` where not known.
        expected: GPUs that the node should have; ``None`` where not known.
    """

    name: str
    gpus: tuple[GpuFacts, ...]
    offered: int | None = None
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured value of one dimension of one GPU at one time.

    Attributes:
        id: unique; the same id twice is one sample.
        at: Unix seconds.
        node: node name.
        gpu_index: GPU of the node, or -1 for a value of the whole node.
        gpu_uuid: may be empty; where given it wins over the index.
        dimension: what was measured.
        value: in the dimension's unit; NaN unless the status is OK.
        status: how the measurement ended.
        run: id of the experiment's run in which a fault was injected meanwhile; empty for a plain measurement.
            A sample with a run never enters a baseline.
        source: the experiment or tool, such as ``gpu-burn``.
        detail: free text for people.
        sm_clock_mhz: context; NaN where not known. Likewise the next two.
        temperature_c: degrees Celsius.
        power_limit_w: enforced limit in watts.
        driver: full driver version; may be empty.
    """

    id: str
    at: float
    node: str
    gpu_index: int
    gpu_uuid: str
    dimension: Dimension
    value: float
    status: SampleStatus = SampleStatus.OK
    run: str = ""
    source: str = ""
    detail: str = ""
    sm_clock_mhz: float = float("nan")
    temperature_c: float = float("nan")
    power_limit_w: float = float("nan")
    driver: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class SampleColumns:
    """Samples as parallel columns, ordered by time within each GPU and dimension.

    Attributes:
        gpu: int32 (n,): row of the GPU among all GPUs of the snapshot, counted node after node.
        dimension: uint8 (n,): a :class:`Dimension`.
        at: float64 (n,): Unix seconds.
        value: float64 (n,): in the dimension's unit; NaN unless ok.
        status: uint8 (n,): a :class:`SampleStatus`.
        run: int32 (n,): row in ``runs`` of the snapshot, or -1.
        sm_clock: float32 (n,): MHz of the SM clock while it was measured; NaN where not told. Empty where none tells.
    """

    gpu: NDArray[np.int32]
    dimension: NDArray[np.uint8]
    at: NDArray[np.float64]
    value: NDArray[np.float64]
    status: NDArray[np.uint8]
    run: NDArray[np.int32]
    sm_clock: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))

    @classmethod
    def empty(cls) -> "SampleColumns":
        """No samples."""
        return cls(
            np.empty(0, np.int32),
            np.empty(0, np.uint8),
            np.empty(0, np.float64),
            np.empty(0, np.float64),
            np.empty(0, np.uint8),
            np.empty(0, np.int32),
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """One telemetry series of one GPU: what it says now, and since when it says so.

    Attributes:
        node: node name.
        gpu_index: GPU of the node, or -1 for the node itself.
        gpu_uuid: may be empty.
        field: DCGM field id; the names differ by version, ids do not. See ``scorer.grading.metrics``.
        value: in the field's canonical unit.
        at: Unix seconds of the scrape that said so.
        since: Unix seconds of the first scrape in an unbroken row that gave this value.
        previous: the value before that; NaN where there was none. A gauge that already stood at a value when it was
            first seen has no ``previous``: it may be old news.
        source: such as ``dcgm-exporter`` or ``nvidia-smi``.
    """

    node: str
    gpu_index: int
    gpu_uuid: str
    field: int
    value: float
    at: float
    since: float
    previous: float = float("nan")
    source: str = "dcgm-exporter"


@dataclass(frozen=True, slots=True)
class KernelMessage:
    """One line of a node's kernel log.

    Attributes:
        node: node name.
        at: Unix seconds.
        text: the line without its time.
    """

    node: str
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class LinkState:
    """State, or change of state, of an NVLink, a PCIe link or an InfiniBand port.

    Attributes:
        node: node name.
        at: Unix seconds.
        gpu_index: -1 for a port of the node.
        link: number of the link, or name of the port.
        kind: ``nvlink``, ``pcie`` or ``ib``.
        state: ``active``, ``inactive``, ``down``, ...
        detail: free text.
    """

    node: str
    at: float
    gpu_index: int
    link: str
    kind: str
    state: str
    detail: str = ""


class RunPhase(StrEnum):
    """Where a run of an experiment stands, as far as evidence is concerned."""

    ACTIVE = "active"
    REVERTED = "reverted"
    FAILED_REVERT = "failed-revert"


@dataclass(frozen=True, slots=True)
class Residue:
    """What a run left, and may be masked once it is reverted.

    Attributes:
        surface: ``dcgm``, ``kmsg``, ``nvml``, ``exporter``, ...
        code: such as ``xid:79`` or ``field:312``.
        gpu_index: the GPU it is about, or -1 for the node.
    """

    surface: str
    code: str
    gpu_index: int


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an experiment that injected something.

    Attributes:
        id: unique.
        node: node name.
        kind: experiment, such as ``gpu-throttle``.
        gpus: indices of the GPUs that it touched; empty means the whole node.
        phase: see :class:`RunPhase`.
        started: Unix seconds of the injection.
        ended: Unix seconds of the verified revert; NaN while active.
        residues: what may be masked.
    """

    id: str
    node: str
    kind: str
    gpus: tuple[int, ...]
    phase: RunPhase
    started: float
    ended: float = float("nan")
    residues: tuple[Residue, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """A reference group's figures for one dimension, where they come from outside (a bundle).

    Attributes:
        median: in the dimension's unit.
        mad: median absolute deviation, same unit.
        count: number of GPUs behind them.
    """

    median: float
    mad: float
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """All that is known at one moment: the one input of the grader.

    GPUs are numbered node after node in the order of ``nodes`` and, within a node, of its ``gpus``; that number is the
    GPU's row in every array.

    Attributes:
        nodes: every node, those with no evidence included.
        samples: what was measured.
        runs: experiments that injected something; ``samples.run`` points here.
        readings: telemetry as it stands.
        kernel: kernel messages that may matter, oldest first.
        links: link states, oldest first.
        health: per node what ``dcgmi health`` said, as ``{gpu index: {system: verdict and text}}``.
        peers: reference figures given from outside; empty where the fleet itself is the reference.
        scraped: Unix seconds since when each node's exporter has said nothing: of its last good scrape, or of the
            moment from which one was awaited; absent where it has no exporter.
        dropped: counts of what was not used, by reason (``unknown-metric``, ``sentinel``, ...).
    """

    nodes: tuple[NodeFacts, ...]
    samples: SampleColumns
    runs: tuple[Run, ...] = ()
    readings: tuple[Reading, ...] = ()
    kernel: tuple[KernelMessage, ...] = ()
    links: tuple[LinkState, ...] = ()
    health: Mapping[str, Mapping[int, Mapping[str, str]]] = field(default_factory=dict)
    peers: Mapping[Dimension, PeerFigures] = field(default_factory=dict)
    scraped: Mapping[str, float] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
