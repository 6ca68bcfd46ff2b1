"""Probe reports from the wire, checked record by record."""

import hashlib
import hmac
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from gpugrade.v1 import probe_pb2 as pb

from scorer.model.dimension import Dimension
from scorer.model.errors import RequestError
from scorer.model.evidence import GpuFacts, KernelMessage, Residue, Run, RunPhase, Sample, SampleStatus

MAX_SAMPLES = 10_000
MAX_RUNS = 1_000
MAX_KERNEL = 5_000
MAX_GPUS = 256
_MAX_RESIDUES = 256
_MAX_INDEX = 1023
_MAX_ID = 128
_MAX_NAME = 128
_MAX_TEXT = 2048
#: Clocks of nodes differ; beyond this a time is wrong.
_MAX_AHEAD_S = 300.0
#: No GPU does a million TFLOP/s or GB/s.
_MAX_VALUE = 1e6

_STATUS = {
    pb.SAMPLE_STATUS_OK: SampleStatus.OK,
    pb.SAMPLE_STATUS_FAILED: SampleStatus.FAILED,
    pb.SAMPLE_STATUS_TIMEOUT: SampleStatus.TIMEOUT,
}
_PHASE = {
    pb.RUN_PHASE_ACTIVE: RunPhase.ACTIVE,
    pb.RUN_PHASE_REVERTED: RunPhase.REVERTED,
    pb.RUN_PHASE_FAILED_REVERT: RunPhase.FAILED_REVERT,
}

M = TypeVar("M")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ParsedReport:
    """A report in the scorer's words.

    Attributes:
        gpus: the node's GPUs by ascending index; ``None`` where the report says that nothing changed.
        samples: those that are right; impossible values among them as failed measurements.
        runs: those that are right.
        kernel: those that are right.
        rejections: (id, reason) of the records that are not.
        impossible: how many samples claimed an impossible value.
    """

    gpus: tuple[GpuFacts, ...] | None
    samples: tuple[Sample, ...]
    runs: tuple[Run, ...]
    kernel: tuple[KernelMessage, ...]
    rejections: tuple[tuple[str, str], ...]
    impossible: int


def token_matches(token: str, sha256_hex: str) -> bool:
    """Whether ``token`` has that hash, compared in constant time."""
    return hmac.compare_digest(hashlib.sha256(token.encode()).hexdigest(), sha256_hex)


def parse_report(report: pb.ReportRequest, now: float, oldest: float) -> ParsedReport:
    """Check a report. A record that is wrong is refused by itself, with its reason.

    A value that cannot be (NaN, infinite, zero, negative, beyond physics) with status OK is evidence of a fault, not a
    measurement: it is kept as a failed measurement that says so.

    Args:
        report: as received; its node is taken as true.
        now: Unix seconds; times more than five minutes ahead are refused.
        oldest: Unix seconds; older records are refused, since they would be removed at once.

    Raises:
        RequestError: if the batch is too large.
    """
    for count, bound, what in (
        (len(report.samples), MAX_SAMPLES, "samples"),
        (len(report.runs), MAX_RUNS, "runs"),
        (len(report.kernel_messages), MAX_KERNEL, "kernel messages"),
        (len(report.gpus), MAX_GPUS, "GPUs"),
    ):
        if count > bound:
            raise RequestError(f"{count} {what} in one report; send at most {bound}")
    checks = _Checks(report.node, now, oldest)
    rejections: list[tuple[str, str]] = []
    samples = _keep(report.samples, checks.sample, lambda s: s.id, rejections)
    runs = _keep(report.runs, checks.run, lambda r: r.id, rejections)
    kernel = _keep(report.kernel_messages, checks.kernel, lambda _: "", rejections)
    gpus = _keep(report.gpus, checks.gpu, lambda g: g.uuid, rejections)
    by_index = {gpu.index: gpu for gpu in gpus}
    if len(by_index) < len(gpus):
        rejections.append(("", "two GPUs with the same index; the later one counts"))
    return ParsedReport(
        gpus=tuple(by_index[i] for i in sorted(by_index)) if by_index else None,
        samples=tuple(samples),
        runs=tuple(runs),
        kernel=tuple(kernel),
        rejections=tuple(rejections),
        impossible=checks.impossible,
    )


def _keep(
    records: Iterable[M], check: Callable[[M], R], name: Callable[[M], str], rejections: list[tuple[str, str]]
) -> list[R]:
    kept: list[R] = []
    for record in records:
        try:
            kept.append(check(record))
        except RequestError as error:
            rejections.append((name(record)[:_MAX_ID], str(error)))
    return kept


class _Checks:
    """The checks of one report's records; each raises :class:`RequestError` with the reason."""

    def __init__(self, node: str, now: float, oldest: float) -> None:
        self._node = node
        self._now = now
        self._oldest = oldest
        self.impossible = 0

    def sample(self, s: pb.Sample) -> Sample:
        """A sample."""
        if s.node and s.node != self._node:
            raise RequestError(f"it is of node {s.node!r}; {self._node!r} may report only its own")
        try:
            dimension = Dimension.parse(_bounded("dimension", s.dimension))
        except ValueError as error:
            raise RequestError(str(error)) from None
        status = _STATUS.get(s.status)
        if status is None:
            raise RequestError("its status is not one of OK, FAILED, TIMEOUT")
        value, status, detail = self._value(s, dimension, status)
        context = s.context
        return Sample(
            id=_identity(s.id),
            at=self._time("at", s, "at"),
            node=self._node,
            gpu_index=_index(s.gpu_index, lowest=-1),
            gpu_uuid=_bounded("gpu_uuid", s.gpu_uuid),
            dimension=dimension,
            value=value,
            status=status,
            run=_bounded("run", s.run),
            source=_bounded("source", s.source),
            detail=_cut(detail),
            sm_clock_mhz=_context(context, "sm_clock_mhz"),
            temperature_c=_context(context, "temperature_c"),
            power_limit_w=_context(context, "power_limit_w"),
            driver=_bounded("driver", context.driver),
        )

    def _value(self, s: pb.Sample, dimension: Dimension, status: SampleStatus) -> tuple[float, SampleStatus, str]:
        if status is not SampleStatus.OK:
            return math.nan, status, s.detail
        if not s.HasField("value"):
            raise RequestError("its status is OK but it has no value")
        if s.unit != dimension.unit:
            raise RequestError(f"its unit is {s.unit!r}; {dimension.label} is measured in {dimension.unit}")
        if math.isfinite(s.value) and 0 < s.value <= _MAX_VALUE:
            return s.value, status, s.detail
        self.impossible += 1
        told = f"impossible value {s.value:g} {s.unit} with status OK"
        return math.nan, SampleStatus.FAILED, f"{told}; {s.detail}" if s.detail else told

    def run(self, r: pb.Run) -> Run:
        """A run."""
        phase = _PHASE.get(r.phase)
        if phase is None:
            raise RequestError("its phase is not one of ACTIVE, REVERTED, FAILED_REVERT")
        if len(r.residues) > _MAX_RESIDUES or len(r.gpu_indices) > MAX_GPUS:
            raise RequestError(f"more than {_MAX_RESIDUES} residues or {MAX_GPUS} GPUs")
        if not r.kind:
            raise RequestError("it does not say its kind")
        started = self._time("started", r, "started", bounded_past=False)
        ended = math.nan
        if phase is not RunPhase.ACTIVE:
            ended = self._time("ended", r, "ended", bounded_past=False)
            if ended < started:
                raise RequestError("it ended before it started")
        return Run(
            id=_identity(r.id),
            node=self._node,
            kind=_bounded("kind", r.kind),
            gpus=tuple(sorted({_index(i, lowest=0) for i in r.gpu_indices})),
            phase=phase,
            started=started,
            ended=ended,
            residues=tuple(
                Residue(_bounded("surface", x.surface), _bounded("code", x.code), _index(x.gpu_index, lowest=-1))
                for x in r.residues
            ),
        )

    def kernel(self, m: pb.KernelMessage) -> KernelMessage:
        """A kernel message."""
        if not m.text:
            raise RequestError("a kernel message without text")
        return KernelMessage(self._node, self._time("at", m, "at"), _cut(m.text))

    def gpu(self, g: pb.Gpu) -> GpuFacts:
        """A GPU of the node."""
        limit = g.default_power_limit_w
        return GpuFacts(
            index=_index(g.index, lowest=0),
            uuid=_bounded("uuid", g.uuid),
            product=_bounded("product", g.product),
            pci_bus_id=_bounded("pci_bus_id", g.pci_bus_id),
            memory_mib=min(g.memory_mib, 1 << 40),
            default_power_limit_w=limit if math.isfinite(limit) and limit > 0 else 0.0,
            driver=_bounded("driver", g.driver),
        )

    def _time(
        self, what: str, message: pb.Sample | pb.Run | pb.KernelMessage, field: str, bounded_past: bool = True
    ) -> float:
        if not message.HasField(field):
            raise RequestError(f"it has no {what}")
        stamp = getattr(message, field)
        at: float = stamp.seconds + stamp.nanos / 1e9
        if at > self._now + _MAX_AHEAD_S:
            raise RequestError(f"its time ({what}) is {at - self._now:.0f} s ahead of the server; set the node's clock")
        if at <= 0 or (bounded_past and at < self._oldest):
            raise RequestError(f"its time ({what}) is older than what is kept")
        return at


def _identity(text: str) -> str:
    if not text:
        raise RequestError("it has no id")
    return _bounded("id", text, _MAX_ID)


def _bounded(what: str, text: str, most: int = _MAX_NAME) -> str:
    if len(text) > most:
        raise RequestError(f"its {what} has {len(text)} characters; at most {most} are taken")
    return text


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def _index(index: int, lowest: int) -> int:
    if not lowest <= index <= _MAX_INDEX:
        raise RequestError(f"GPU index {index} is not between {lowest} and {_MAX_INDEX}")
    return index


def _context(context: pb.SampleContext, name: str) -> float:
    """A figure of the context; one that cannot be is as good as none."""
    if not context.HasField(name):
        return math.nan
    value = float(getattr(context, name))
    return value if math.isfinite(value) else math.nan
