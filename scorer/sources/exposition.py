"""dcgm-exporter's scrapes: from text to series by GPU and DCGM field."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample as PromSample

from scorer.grading.metrics import BY_NAME, clean
from scorer.model.errors import InputError
from scorer.model.evidence import GpuFacts

#: More lines than any exporter of one node sends; the rest is not read.
MAX_LINES = 200_000
#: As for probe reports: no node has a GPU beyond it.
_MAX_INDEX = 1023
#: Likewise; partitions carry the UUID of their GPU.
MAX_GPUS = 256
_INDEX_DIGITS = len(str(_MAX_INDEX))
_MAX_LABEL = 128


@dataclass(frozen=True, slots=True)
class Series:
    """One value of one scrape.

    Attributes:
        gpu_index: as the exporter counts; -1 where it does not say.
        gpu_uuid: empty where not given.
        field: DCGM field id.
        value: in the field's unit; NaN where the exporter sent a blank or an impossible number.
    """

    gpu_index: int
    gpu_uuid: str
    field: int
    value: float


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one scrape says.

    Attributes:
        series: one entry for each GPU and field, duplicates merged.
        gpus: what the labels say of each GPU, by index.
        hostname: the node's name as the exporter gives it; empty where it does not.
        dropped: counts of what was not used: ``unknown-metric``, ``bad-line``, ``sentinel``, ``no-gpu``, ``truncated``,
            ``too-many-gpus``.
    """

    series: tuple[Series, ...]
    gpus: Mapping[int, GpuFacts]
    hostname: str = ""
    dropped: Mapping[str, int] = field(default_factory=dict)


def parse_scrape(text: str) -> Scrape:
    """Parse a scrape, direct or as Prometheus stores it (``exported_*`` labels), of any exporter version.

    A line that does not parse is skipped and counted; a last line without its end never becomes a value, as nobody can
    say where it was cut. Repeated series of one GPU (MIG instances, time-slicing) become one: the whole GPU's, or else
    the largest.

    Args:
        text: the body.

    Raises:
        InputError: if nothing in it is a metric, as with an error page in HTML.
    """
    dropped: Counter[str] = Counter()
    whole = _whole_lines(text, dropped)
    values: dict[tuple[int, str, int], tuple[bool, float]] = {}
    gpus: dict[int, GpuFacts] = {}
    seen: set[tuple[int, str]] = set()
    hostname = ""
    parsed = 0
    for sample in _samples(whole, dropped):
        parsed += 1
        known = BY_NAME.get(sample.name.removesuffix("_total"))  # the parser appends it to counters
        if known is None:
            dropped["unknown-metric"] += 1
            continue
        labels = sample.labels
        index, uuid = _index(labels), (labels.get("UUID") or labels.get("gpu_uuid") or "")[:_MAX_LABEL]
        if index < 0 and not uuid:
            dropped["no-gpu"] += 1
            continue
        if len(seen) < MAX_GPUS:
            seen.add((index, uuid))
        elif (index, uuid) not in seen:
            dropped["too-many-gpus"] += 1
            continue
        hostname = hostname or (labels.get("Hostname") or labels.get("hostname") or "")[:_MAX_LABEL]
        if index >= 0 and index not in gpus:
            gpus[index] = _facts(index, uuid, labels)
        value = clean(known, _number(sample.value))
        if math.isnan(value):
            dropped["sentinel"] += 1
        _merge(values, (index, uuid, known.id), part="GPU_I_ID" in labels, value=value)
    if not parsed and whole.strip() and dropped["bad-line"]:
        first = whole.strip().splitlines()[0][:60]
        raise InputError(
            f"not a scrape: no line is a metric (it begins {first!r}); check the exporter's address and port"
        )
    series = tuple(Series(i, u, f, v) for (i, u, f), (_, v) in values.items())
    return Scrape(series, gpus, hostname, dict(dropped))


def _whole_lines(text: str, dropped: Counter[str]) -> str:
    """Cut off a last line that has no end, and anything beyond the bound."""
    if text and not text.endswith("\n"):
        text, _, _ = text.rpartition("\n")
        text += "\n" if text else ""
        dropped["truncated"] += 1
    lines = text.splitlines(keepends=True)
    if len(lines) > MAX_LINES:
        dropped["bad-line"] += len(lines) - MAX_LINES
        text = "".join(lines[:MAX_LINES])
    return text


def _samples(text: str, dropped: Counter[str]) -> Iterator[PromSample]:
    """All samples; where the body as a whole does not parse, those of the lines that do."""
    try:
        yield from [s for family in text_string_to_metric_families(text) for s in family.samples]
    except (ValueError, OverflowError):
        for line in text.splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            try:
                yield from [s for family in text_string_to_metric_families(line + "\n") for s in family.samples]
            except (ValueError, OverflowError):
                dropped["bad-line"] += 1


def _index(labels: Mapping[str, str]) -> int:
    text = labels.get("gpu", "")
    index = int(text) if text.isascii() and text.isdigit() and len(text) <= _INDEX_DIGITS else -1
    return index if index <= _MAX_INDEX else -1


def _number(value: float) -> float:
    """A whole number may have come as an integer of any size."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _facts(index: int, uuid: str, labels: Mapping[str, str]) -> GpuFacts:
    return GpuFacts(
        index=index,
        uuid=uuid,
        product=labels.get("modelName", "")[:_MAX_LABEL],
        pci_bus_id=labels.get("pci_bus_id", "")[:_MAX_LABEL],
        driver=(labels.get("DCGM_FI_DRIVER_VERSION") or labels.get("DCGM_FI_SYSTEM_DRIVER_VERSION") or "")[:_MAX_LABEL],
    )


def _merge(
    values: dict[tuple[int, str, int], tuple[bool, float]], key: tuple[int, str, int], *, part: bool, value: float
) -> None:
    """Keep the whole GPU's value before that of a MIG instance, a number before a blank, the larger of two."""
    old = values.get(key)
    if old is None:
        values[key] = (part, value)
        return
    was_part, before = old
    better = (was_part and not part) if was_part != part else value > before
    if math.isnan(before) or (better and not math.isnan(value)):
        values[key] = (part, value)
