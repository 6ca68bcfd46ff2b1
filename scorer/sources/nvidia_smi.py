"""What ``nvidia-smi --query-gpu=... --format=csv`` prints: facts, readings, and GPUs that cannot be read."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from scorer.grading import metrics as m
from scorer.model.evidence import GpuFacts, Reading
from scorer.sources.bundle_text import index_of, parse_time, read_csv

#: Column, without its unit, to DCGM field id.
_COLUMNS = {
    "pcie.link.gen.current": m.PCIE_GEN,
    "pcie.link.gen.max": m.PCIE_MAX_GEN,
    "pcie.link.width.current": m.PCIE_WIDTH,
    "pcie.link.width.max": m.PCIE_MAX_WIDTH,
    "clocks_event_reasons.active": m.EVENT_REASONS,
    "clocks_throttle_reasons.active": m.EVENT_REASONS,
    "clocks.current.sm": m.SM_CLOCK,
    "clocks.sm": m.SM_CLOCK,
    "temperature.gpu": m.TEMPERATURE,
    "utilization.gpu": m.GPU_UTIL,
    "power.draw": m.POWER,
    "power.limit": m.POWER_LIMIT,
    "enforced.power.limit": m.ENFORCED_LIMIT,
    "ecc.errors.uncorrected.volatile.total": m.DBE_VOLATILE,
    "remapped_rows.pending": m.REMAP_PENDING,
    "remapped_rows.failure": m.REMAP_FAILURE,
}
#: No longer than any that nvidia-smi prints; the rest is damage.
_NUMBER = re.compile(r"^(0x[0-9a-fA-F]{1,16}|-?[0-9]{1,18}(?:\.[0-9]{1,18})?)\b")
_UNIT = re.compile(r"\s*\[.*\]$")
_UNREADABLE = ("[Unknown Error]", "[GPU is lost]", "[GPU requires reset]")


@dataclass(frozen=True, slots=True)
class Query:
    """One answer of nvidia-smi.

    Attributes:
        gpus: facts by index.
        readings: values, in the units of the DCGM fields.
        lost: indices of GPUs that it could not read, and what it said of them.
    """

    gpus: dict[int, GpuFacts]
    readings: tuple[Reading, ...]
    lost: dict[int, str]


def read_query(path: Path, node: str, now: float) -> Query:
    """Read the CSV form, header included; unknown columns are passed over.

    Args:
        path: the file.
        node: the node's name.
        now: Unix seconds, where the rows carry no time of their own.

    Raises:
        BundleError: if the file is damaged.
    """
    gpus: dict[int, GpuFacts] = {}
    readings: list[Reading] = []
    lost: dict[int, str] = {}
    for count, (line, raw) in enumerate(read_csv(path, ())):
        row = {_UNIT.sub("", name): cell for name, cell in raw.items()}
        given = index_of(row.get("index", ""))
        index = count if given is None else given
        at = parse_time(row["timestamp"], f"{path}, line {line}") if row.get("timestamp", "").startswith("2") else now
        values = [cell for name, cell in row.items() if name not in ("index", "timestamp")]
        if values and all(cell in _UNREADABLE for cell in values):
            lost[index] = values[0].strip("[]")
            gpus[index] = GpuFacts(index)
            continue
        gpus[index] = _facts(index, row)
        for name, cell in row.items():
            value = _value(_COLUMNS.get(name), cell)
            if value is not None:
                readings.append(
                    Reading(node, index, gpus[index].uuid, _COLUMNS[name], value, at, at, source="nvidia-smi")
                )
    return Query(gpus, tuple(readings), lost)


def _facts(index: int, row: dict[str, str]) -> GpuFacts:
    def text(name: str) -> str:
        cell = row.get(name, "")
        return "" if cell.startswith("[") else cell

    return GpuFacts(
        index=index,
        uuid=text("uuid"),
        product=text("name"),
        pci_bus_id=text("pci.bus_id"),
        memory_mib=int(_plain(row.get("memory.total", "")) or 0),
        default_power_limit_w=_plain(row.get("power.default_limit", "")) or 0.0,
        driver=text("driver_version"),
    )


def _plain(cell: str) -> float | None:
    found = _NUMBER.match(cell)
    if not found:
        return None
    try:
        number = float(int(found.group(1), 16)) if cell.startswith("0x") else float(found.group(1))
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _value(field: int | None, cell: str) -> float | None:
    if field is None:
        return None
    if cell in ("Yes", "No"):
        return float(cell == "Yes")
    value = _plain(cell)
    if value is None:
        return None
    cleaned = m.clean(m.BY_ID[field], value)
    return None if cleaned != value else value
