"""Probes of an evidence bundle: one measurement a line."""

import re
from dataclasses import dataclass
from pathlib import Path

from scorer.model.dimension import Dimension
from scorer.model.errors import BundleError
from scorer.model.evidence import SampleStatus
from scorer.sources.bundle_text import number_of, object_of, parse_json, parse_time, read_text

_REJECTED = re.compile(r"UnexpectedAdmissionError|admission|pod rejected", re.IGNORECASE)
_STATUS = {"ok": SampleStatus.OK, "failed": SampleStatus.FAILED, "timeout": SampleStatus.TIMEOUT}


@dataclass(frozen=True, slots=True)
class Probe:
    """One measurement.

    Attributes:
        at: Unix seconds.
        gpu: index or UUID, as written.
        dimension: what was measured.
        value: in the dimension's unit; NaN unless the status is OK.
        status: how it ended.
        detail: free text.
    """

    at: float
    gpu: str
    dimension: Dimension
    value: float
    status: SampleStatus
    detail: str

    @property
    def was_rejected(self) -> bool:
        """Whether its pod never ran: that says something of the kubelet, nothing of the GPU."""
        return self.status is SampleStatus.FAILED and bool(_REJECTED.search(self.detail))


def read_probes(path: Path) -> list[Probe]:
    """Read ``probes.jsonl``.

    Raises:
        BundleError: if a line is damaged or says what cannot be.
    """
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        rows.append(_probe(object_of(parse_json(line, where), where), where))
    return rows


def _probe(row: dict[str, object], where: str) -> Probe:
    """Check one probe's row."""
    status = _STATUS.get(str(row.get("status", "ok")))
    if status is None:
        raise BundleError(f"{where}: status {row.get('status')!r} is none of {', '.join(_STATUS)}")
    try:
        dimension = Dimension.parse(str(row.get("dimension", "")))
    except ValueError as error:
        raise BundleError(f"{where}: {error}") from None
    if row.get("unit", dimension.unit) != dimension.unit:
        raise BundleError(f"{where}: {dimension.label} is measured in {dimension.unit}, not {row.get('unit')!r}")
    if row.get("gpu") is None:
        raise BundleError(f"{where}: the GPU is missing; give its index or UUID")
    value = number_of(row.get("value"), f"{where}: value") if status is SampleStatus.OK else float("nan")
    return Probe(
        parse_time(row.get("at"), where), str(row["gpu"]), dimension, value, status, str(row.get("detail") or "")
    )
