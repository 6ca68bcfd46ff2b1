"""The nouns of the probes: GPUs, vital signs, samples, steps, residues and outcomes of runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import uuid4

UNITS: Mapping[str, str] = {
    "compute": "TFLOP/s",
    "memory": "GB/s",
    "pcie": "GB/s",
    "nvlink": "GB/s",
    "fabric": "GB/s",
    "numa": "ratio",
    "host": "GB/s",
}
"""Every dimension and the unit of its samples; for each of them a higher value is faster."""

WHOLE_NODE = -1
"""Index of a record that is about the node and not about one GPU."""


def rfc3339(at: float) -> str:
    """Return Unix seconds as RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class SampleStatus(StrEnum):
    """How a measurement ended."""

    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"


class RunPhase(StrEnum):
    """Where a run that injects stands."""

    ACTIVE = "active"
    REVERTED = "reverted"
    FAILED_REVERT = "failed-revert"


class StepStatus(StrEnum):
    """How a step of a run ended."""

    OK = "ok"
    FAILED = "failed"
    REFUSED = "refused"
    HALTED = "halted"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a GPU is. Texts are empty and numbers 0 where the driver does not say.

    Attributes:
        index: its number on the node, as ``nvidia-smi`` counts.
        uuid: ``GPU-...``.
        product: as the driver names it.
        pci_bus_id: such as ``00000000:18:00.0``.
        memory_mib: frame buffer in MiB.
        default_power_limit_w: watts.
        driver: full driver version.
    """

    index: int
    uuid: str = ""
    product: str = ""
    pci_bus_id: str = ""
    memory_mib: int = 0
    default_power_limit_w: float = 0.0
    driver: str = ""


@dataclass(frozen=True, slots=True)
class Vitals:
    """Vital signs of a GPU at one moment; ``None`` where it does not say.

    Attributes:
        temperature_c: degrees Celsius.
        power_w: drawn now, watts.
        power_limit_w: limit that was set, watts.
        sm_clock_mhz: clock of the multiprocessors, MHz.
        reasons: bits of why the clock is what it is (``clocks_event_reasons.active``).
    """

    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: float | None = None
    reasons: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured value of one dimension of one GPU (or of the node) at one time.

    Attributes:
        at: Unix seconds.
        gpu: index on the node, or -1 for the node.
        uuid: of the GPU; may be empty.
        dimension: a key of :data:`UNITS`.
        value: in the dimension's unit; ``None`` unless the status is OK.
        status: how the measurement ended.
        run: the run that had a fault injected meanwhile; empty for a plain measurement.
        source: the experiment that measured.
        detail: for people.
        vitals: median vital signs while it was measured.
        driver: full driver version; may be empty.
        id: unique; the same sample sent twice is one.
    """

    at: float
    gpu: int
    uuid: str
    dimension: str
    value: float | None
    status: SampleStatus = SampleStatus.OK
    run: str = ""
    source: str = ""
    detail: str = ""
    vitals: Vitals = field(default_factory=Vitals)
    driver: str = ""
    id: str = field(default_factory=lambda: uuid4().hex)

    def to_json(self, node: str) -> dict[str, Any]:
        """Return the shape that ``chaos-probe run -o json`` prints; it also fits a bundle's ``probes.jsonl``."""
        return {
            "id": self.id,
            "at": rfc3339(self.at),
            "node": node,
            "gpu": self.gpu,
            "uuid": self.uuid,
            "dimension": self.dimension,
            "value": self.value,
            "unit": UNITS[self.dimension],
            "status": str(self.status),
            "run": self.run,
            "source": self.source,
            "detail": self.detail,
            "context": {
                "driver": self.driver,
                "power_limit_w": self.vitals.power_limit_w,
                "sm_clock_mhz": self.vitals.sm_clock_mhz,
                "temperature_c": self.vitals.temperature_c,
                "power_w": self.vitals.power_w,
            },
        }


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured number that is no dimension of its own, such as the CPU's GFLOP/s: context for people."""

    name: str
    value: float
    unit: str

    def to_json(self) -> dict[str, Any]:
        """Return it as ``{"name", "value", "unit"}``."""
        return {"name": self.name, "value": self.value, "unit": self.unit}


@dataclass(frozen=True, slots=True)
class Residue:
    """What a run leaves and no revert takes away.

    Attributes:
        surface: ``dcgm``, ``exporter``, ``kmsg``, ...
        code: such as ``xid:79`` or ``field:310``.
        gpu: index, or -1 for the node.
        detail: how it goes away after all.
    """

    surface: str
    code: str
    gpu: int
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"surface": self.surface, "code": self.code, "gpu": self.gpu, "detail": self.detail}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Residue":
        """Return the residue that :meth:`to_json` wrote."""
        return cls(str(data["surface"]), str(data["code"]), int(data["gpu"]), str(data.get("detail", "")))


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is reported of a run that injects.

    Attributes:
        id: unique.
        kind: the experiment.
        gpus: indices that it touches; empty means the whole node.
        phase: where it stands.
        started: Unix seconds of the injection.
        ended: Unix seconds of the verified revert; ``None`` while active.
        residues: what stays visible.
        detail: for people.
    """

    id: str
    kind: str
    gpus: tuple[int, ...]
    phase: RunPhase
    started: float
    ended: float | None = None
    residues: tuple[Residue, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a run, as it was done."""

    step: str
    at: float
    status: StepStatus
    detail: str

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"step": self.step, "at": rfc3339(self.at), "status": str(self.status), "detail": self.detail}


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a run did.

    Attributes:
        run: its id.
        kind: the experiment.
        node: node name.
        gpus: what it was aimed at; empty for the host.
        steps: in the order in which they were done.
        samples: what was measured.
        figures: other numbers.
        residues: what stays visible.
        reverted: nothing that was injected is left (true where nothing was injected).
        verified: and it was read back.
        interrupted: a signal ended it early.
    """

    run: str
    kind: str
    node: str
    gpus: tuple[Gpu, ...]
    steps: tuple[Step, ...]
    samples: tuple[Sample, ...] = ()
    figures: tuple[Figure, ...] = ()
    residues: tuple[Residue, ...] = ()
    reverted: bool = True
    verified: bool = True
    interrupted: bool = False

    @property
    def good(self) -> bool:
        """Whether the answer is good: all steps done, everything measured, nothing left behind.

        A run that a person interrupted and that reverted cleanly is not bad news.
        """
        if not (self.reverted and self.verified):
            return False
        if self.interrupted:
            return True
        bad = {StepStatus.FAILED, StepStatus.REFUSED, StepStatus.HALTED}
        return not any(s.status in bad for s in self.steps) and all(s.status is SampleStatus.OK for s in self.samples)

    def to_json(self) -> dict[str, Any]:
        """Return the documented shape of ``chaos-probe run -o json``."""
        return {
            "run": self.run,
            "kind": self.kind,
            "target": {"node": self.node, "gpus": [{"index": g.index, "uuid": g.uuid} for g in self.gpus]},
            "steps": [s.to_json() for s in self.steps],
            "samples": [s.to_json(self.node) for s in self.samples],
            "figures": [f.to_json() for f in self.figures],
            "residues": [r.to_json() for r in self.residues],
            "reverted": self.reverted,
            "verified": self.verified,
            "interrupted": self.interrupted,
        }
