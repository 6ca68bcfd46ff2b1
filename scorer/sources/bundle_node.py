"""The node of an evidence bundle: which GPUs it has, how many it should have, and how many the kubelet offers."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from scorer.model.errors import BundleError
from scorer.model.evidence import GpuFacts
from scorer.sources.bundle_text import index_of, object_of

_GPU_RESOURCE = "nvidia.com/gpu"
_REPLICAS_LABEL = "nvidia.com/gpu.replicas"
_MAX_GPUS = 1024


def merge_gpus(
    present: Mapping[int, GpuFacts],
    scraped: Mapping[int, GpuFacts],
    listed: Mapping[int, GpuFacts],
    probed: Iterable[int],
    expected: int,
    product: str,
) -> tuple[GpuFacts, ...]:
    """Put GPU facts together, by ascending index. The first source that names any says which there are.

    Args:
        present: what nvidia-smi says there is now.
        scraped: what the newest scrape says.
        listed: what discovery says.
        probed: indices that probes name, where nothing else does.
        expected: how many there should be, where not even probes do.
        product: of those whose product no source knows.
    """
    there = present or scraped or listed or {i: GpuFacts(i) for i in probed if i < _MAX_GPUS}
    there = there or {i: GpuFacts(i) for i in range(expected)}
    fallback = GpuFacts(-1, product=product)
    return tuple(_fill(there[i], scraped.get(i, fallback), listed.get(i, fallback), fallback) for i in sorted(there))


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


def offered_gpus(node: Mapping[str, object], where: str) -> int | None:
    """GPUs that the kubelet offers; slices of time-shared ones are counted back to GPUs.

    Args:
        node: the Node object; empty where the bundle has none.
        where: its file, named in errors.

    Raises:
        BundleError: if a count is none.
    """
    status = object_of(node.get("status"), f"{where}: status")
    allocatable = object_of(status.get("allocatable"), f"{where}: status.allocatable")
    labels = object_of(object_of(node.get("metadata"), where).get("labels"), f"{where}: metadata.labels")
    offered = _count(allocatable.get(_GPU_RESOURCE), f"{where}: allocatable {_GPU_RESOURCE}")
    replicas = _count(labels.get(_REPLICAS_LABEL), f"{where}: label {_REPLICAS_LABEL}") or 1
    return None if offered is None else -(-offered // replicas)


def expected_gpus(case: Mapping[str, object], where: str) -> int | None:
    """GPUs that the node should have; ``None`` where the bundle does not say.

    Args:
        case: the case; empty where the bundle has none.
        where: its file, named in errors.

    Raises:
        BundleError: if it is no count.
    """
    return _count(case.get("gpus"), f"{where}: gpus")


def _count(value: object, where: str) -> int | None:
    if value is None:
        return None
    count = index_of(str(value))
    if count is None or count > _MAX_GPUS:
        raise BundleError(f"{where}: {str(value)[:40]!r} is no number of GPUs")
    return count
