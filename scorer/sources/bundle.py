"""Evidence bundles: a directory that holds what is known of one node, every file optional."""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from scorer.grading.state_faults import KUBELET, NVIDIA_SMI
from scorer.model.dimension import Dimension
from scorer.model.errors import BundleError, InputError
from scorer.model.evidence import (
    Evidence,
    GpuFacts,
    KernelMessage,
    LinkState,
    NodeFacts,
    PeerFigures,
    SampleColumns,
)
from scorer.sources.bundle_probes import Probe, read_probes
from scorer.sources.bundle_text import is_index, number_of, object_of, parse_time, read_csv, read_json, read_text
from scorer.sources.dcgmi_output import Verdicts, read_diag, read_discovery, read_health
from scorer.sources.exposition import parse_scrape
from scorer.sources.nvidia_smi import Query, read_query
from scorer.sources.telemetry import TelemetryTracker

_NEVER = float("-inf")
_GPU_RESOURCE = "nvidia.com/gpu"
_MAX_GPUS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """A bundle that was read.

    Attributes:
        evidence: of the one node.
        now: Unix seconds at which it is to be judged.
        node: its name.
    """

    evidence: Evidence
    now: float
    node: str


@dataclass(slots=True)
class _Reader:
    """Parts of the bundle while it is read."""

    path: Path
    case: dict[str, object] = field(default_factory=dict)
    node: dict[str, object] = field(default_factory=dict)
    name: str = ""
    newest: float = _NEVER
    health: Verdicts = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)

    def file(self, name: str) -> Path | None:
        """The file of that name, if the bundle has it."""
        path = self.path / name
        return path if path.is_file() else None

    def saw(self, at: float) -> float:
        """Note a time, so that a bundle without a clock is judged as of its newest evidence."""
        self.newest = max(self.newest, at)
        return at


def load_bundle(path: Path) -> Bundle:
    """Read an evidence bundle.

    Args:
        path: the directory.

    Raises:
        BundleError: if it is no directory, holds nothing, or a file in it is damaged; the text names file and line.
    """
    if not path.is_dir():
        raise BundleError(f"{path}: no such directory; give the directory of an evidence bundle")
    reader = _Reader(path)
    if case := reader.file("case.json"):
        reader.case = read_json(case)
    if node := reader.file("node.json"):
        reader.node = read_json(node)
    tracker, scraped_gpus, hostname = _scrapes(reader)
    reader.name = _node_name(reader, hostname)
    kernel = _kernel(reader)
    links = _links(reader)
    probes = _probes(reader)
    now = _now(reader)
    smi = _nvidia_smi(reader, now)
    _merge_health(reader, smi, probes, now)
    gpus = _gpus(reader, scraped_gpus, smi, probes)
    facts = NodeFacts(reader.name, gpus, _offered(reader), _expected(reader))
    readings = tuple(replace(r, node=reader.name) for r in tracker.readings) + smi.readings
    if not (readings or kernel or links or probes or reader.health or reader.node or gpus):
        raise BundleError(
            f"{path}: holds no evidence; a bundle has files such as probes.jsonl, kmsg.log or metrics/*.prom"
        )
    evidence = Evidence(
        nodes=(facts,),
        samples=_columns(reader, probes, gpus),
        readings=readings,
        kernel=kernel,
        links=links,
        health={reader.name: reader.health} if reader.health else {},
        peers=_peers(reader),
        scraped={} if math.isnan(tracker.scraped) else {reader.name: tracker.scraped},
        dropped=dict(reader.dropped),
    )
    return Bundle(evidence, now, reader.name)


def _scrapes(reader: _Reader) -> tuple[TelemetryTracker, dict[int, GpuFacts], str]:
    """Read all scrapes in the order of their times; GPU facts are the newest scrape's."""
    tracker = TelemetryTracker("")
    gpus: dict[int, GpuFacts] = {}
    hostname = ""
    files = []
    for path in (reader.path / "metrics").glob("*.prom"):
        if not (path.stem.isascii() and path.stem.isdigit()):
            raise BundleError(f"{path}: the name must be the scrape's time in Unix seconds, such as 1795175970.prom")
        files.append((int(path.stem), path))
    for at, path in sorted(files):
        try:
            scrape = parse_scrape(read_text(path))
        except BundleError:
            raise
        except InputError as error:
            raise BundleError(f"{path}: {error}") from error
        tracker.update(float(at), scrape)
        reader.saw(float(at))
        reader.dropped.update(scrape.dropped)
        gpus = dict(scrape.gpus) or gpus
        hostname = hostname or scrape.hostname
    return tracker, gpus, hostname


def _node_name(reader: _Reader, hostname: str) -> str:
    metadata = object_of(reader.node.get("metadata"), f"{reader.path / 'node.json'}: metadata")
    for name in (metadata.get("name"), hostname, reader.case.get("id")):
        if isinstance(name, str) and name:
            return name
    return reader.path.resolve().name


def _kernel(reader: _Reader) -> tuple[KernelMessage, ...]:
    """Read ``kmsg.log``; an indented line belongs to the one before it."""
    path = reader.file("kmsg.log")
    messages: list[KernelMessage] = []
    for number, line in enumerate(read_text(path).splitlines() if path else (), 1):
        if not line.strip():
            continue
        if line[0].isspace() and messages:
            messages[-1] = replace(messages[-1], text=f"{messages[-1].text} {line.strip()}")
            continue
        time, _, text = line.partition(" ")
        at = parse_time(time, f"{path}, line {number}")
        messages.append(KernelMessage(reader.name, reader.saw(at), text.strip()))
    return tuple(sorted(messages, key=lambda m: m.at))


def _links(reader: _Reader) -> tuple[LinkState, ...]:
    path = reader.file("links.csv")
    states = []
    for line, row in read_csv(path, ("at", "gpu", "link", "kind", "state")) if path else ():
        where = f"{path}, line {line}"
        if row["gpu"] and not is_index(row["gpu"]):
            raise BundleError(f"{where}: gpu {row['gpu']!r} is no index; leave it empty for a port of the node")
        gpu = int(row["gpu"]) if row["gpu"] else -1
        at = reader.saw(parse_time(row["at"], where))
        states.append(
            LinkState(
                reader.name, at, gpu, row["link"], row["kind"].lower(), row["state"].lower(), row.get("detail", "")
            )
        )
    return tuple(sorted(states, key=lambda s: s.at))


def _probes(reader: _Reader) -> list[Probe]:
    path = reader.file("probes.jsonl")
    probes = read_probes(path) if path else []
    for p in probes:
        reader.saw(p.at)
    return probes


def _now(reader: _Reader) -> float:
    if "now" in reader.case:
        return parse_time(reader.case["now"], f"{reader.path / 'case.json'}: now")
    return reader.newest if math.isfinite(reader.newest) else 0.0


def _nvidia_smi(reader: _Reader, now: float) -> Query:
    path = reader.file("nvidia-smi.csv")
    return read_query(path, reader.name, now) if path else Query({}, (), {})


def _merge_health(reader: _Reader, smi: Query, probes: list[Probe], now: float) -> None:
    """Put together what health checks, diagnostics, nvidia-smi and the kubelet say of each GPU."""
    for name, read in (("dcgmi-health.json", read_health), ("dcgmi-diag.json", read_diag)):
        path = reader.file(name)
        for gpu, verdicts in (read(path) if path else {}).items():
            reader.health.setdefault(gpu, {}).update(verdicts)
    for gpu, words in smi.lost.items():
        reader.health.setdefault(gpu, {})[NVIDIA_SMI] = f"Failure: {words}: the driver cannot read this GPU"
    for p in probes:
        if p.was_rejected and is_index(p.gpu) and now - p.at <= 24 * 3600.0:
            reader.health.setdefault(int(p.gpu), {})[KUBELET] = f"Failure: {p.detail}"


def _gpus(reader: _Reader, scraped: dict[int, GpuFacts], smi: Query, probes: list[Probe]) -> tuple[GpuFacts, ...]:
    """Put GPU facts together: nvidia-smi says which there are now, then the newest scrape, then discovery."""
    path = reader.file("dcgmi-discovery.txt")
    listed = read_discovery(path) if path else {}
    present = smi.gpus or scraped or listed
    if not present:
        present = {int(p.gpu): GpuFacts(int(p.gpu)) for p in probes if is_index(p.gpu) and int(p.gpu) < _MAX_GPUS}
    if not present and (count := _expected(reader)):
        present = {i: GpuFacts(i) for i in range(count)}
    product = reader.case.get("product")
    fallback = GpuFacts(-1, product=product if isinstance(product, str) else "")
    return tuple(
        _fill(present[i], scraped.get(i, fallback), listed.get(i, fallback), fallback) for i in sorted(present)
    )


def _fill(facts: GpuFacts, *others: GpuFacts) -> GpuFacts:
    """Fill what a source does not know from the next one."""
    for other in others:
        facts = replace(
            facts,
            uuid=facts.uuid or other.uuid,
            product=facts.product or other.product,
            pci_bus_id=facts.pci_bus_id or other.pci_bus_id,
            driver=facts.driver or other.driver,
        )
    return facts


def _count(value: object, where: str) -> int | None:
    if value is None:
        return None
    text = str(value)
    if not is_index(text) or int(text) > _MAX_GPUS:
        raise BundleError(f"{where}: {value!r} is no number of GPUs")
    return int(text)


def _offered(reader: _Reader) -> int | None:
    """GPUs that the kubelet offers; slices of time-shared ones are counted back to GPUs."""
    where = str(reader.path / "node.json")
    status = object_of(reader.node.get("status"), f"{where}: status")
    allocatable = object_of(status.get("allocatable"), f"{where}: status.allocatable")
    labels = object_of(object_of(reader.node.get("metadata"), where).get("labels"), f"{where}: metadata.labels")
    offered = _count(allocatable.get(_GPU_RESOURCE), f"{where}: allocatable {_GPU_RESOURCE}")
    replicas = _count(labels.get("nvidia.com/gpu.replicas"), f"{where}: label nvidia.com/gpu.replicas") or 1
    return None if offered is None else -(-offered // replicas)


def _expected(reader: _Reader) -> int | None:
    return _count(reader.case.get("gpus"), f"{reader.path / 'case.json'}: gpus")


def _peers(reader: _Reader) -> dict[Dimension, PeerFigures]:
    path = reader.file("peers.json")
    peers = {}
    for name, row in (read_json(path) if path else {}).items():
        where = f"{path}: {name}"
        try:
            dimension = Dimension.parse(name)
        except ValueError as error:
            raise BundleError(f"{where}: {error}") from None
        entry = object_of(row, where)
        median, mad, count = (number_of(entry.get(k), f"{where}.{k}") for k in ("median", "mad", "n"))
        if median <= 0 or mad < 0:
            raise BundleError(f"{where}: the median must be above zero and the mad not below")
        peers[dimension] = PeerFigures(median, mad, int(count))
    return peers


def _columns(reader: _Reader, probes: list[Probe], gpus: tuple[GpuFacts, ...]) -> SampleColumns:
    """Turn probes into columns; those of GPUs that are gone, or whose pod never ran, are counted as dropped."""
    place = {key: i for i, g in enumerate(gpus) for key in (str(g.index), g.uuid) if key}
    rows = []
    for p in probes:
        if p.was_rejected:
            reader.dropped["pod-rejected"] += 1
        elif p.gpu not in place:
            reader.dropped["unknown-gpu"] += 1
        else:
            rows.append((place[p.gpu], p))
    rows.sort(key=lambda r: (r[0], int(r[1].dimension), r[1].at, r[1].value))
    return SampleColumns(
        gpu=np.array([i for i, _ in rows], np.int32),
        dimension=np.array([p.dimension for _, p in rows], np.uint8),
        at=np.array([p.at for _, p in rows], np.float64),
        value=np.array([p.value for _, p in rows], np.float64),
        status=np.array([p.status for _, p in rows], np.uint8),
        run=np.full(len(rows), -1, np.int32),
    )
