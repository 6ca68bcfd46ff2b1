"""What ``dcgmi`` prints: health and diagnostic reports as JSON, the list of GPUs as text."""

import re
from dataclasses import replace
from pathlib import Path

from scorer.model.evidence import GpuFacts
from scorer.sources.bundle_text import is_index, list_of, object_of, read_json, read_text

#: Per GPU index: what a system says, as ``<verdict>: <text>``.
Verdicts = dict[int, dict[str, str]]

_CELL = re.compile(r"^\|\s*(\d*)\s*\|\s*(Name|PCI Bus ID|Device UUID):\s*(\S.*?)\s*\|\s*$")


def read_health(path: Path) -> Verdicts:
    """Read ``dcgmi health -c -j`` (or ``-f -j``, which prints a plain line first).

    A system of a name that nobody knows is kept under that name. A report without watches holds nothing.

    Raises:
        BundleError: if the file is damaged.
    """
    if "{" not in read_text(path):
        return {}
    body = object_of(read_json(path).get("body"), f"{path}: body")
    gpus = object_of(object_of(body.get("GPU"), f"{path}: body.GPU").get("children"), f"{path}: body.GPU.children")
    found: Verdicts = {}
    for name, report in gpus.items():
        where = f"{path}: GPU {name}"
        children = object_of(object_of(report, where).get("children"), where)
        systems = object_of(object_of(children.get("Errors"), where).get("children"), where)
        for system, verdict in systems.items():
            entry = object_of(verdict, f"{where}, {system}")
            lines = " ".join(map(str, list_of(entry.get("overflow"), f"{where}, {system}")))
            if is_index(name):
                found.setdefault(int(name), {})[system] = f"{entry.get('value', 'Unknown')}: {lines}"
    return found


def read_diag(path: Path) -> Verdicts:
    """Read ``dcgmi diag -j`` of DCGM 3 or 4: the tests that failed or warned, by GPU.

    Raises:
        BundleError: if the file is damaged.
    """
    report = read_json(path)
    root = object_of(report.get("DCGM Diagnostic") or report.get("DCGM GPU Diagnostic"), f"{path}: root")
    found: Verdicts = {}
    for category in list_of(root.get("test_categories"), f"{path}: test_categories"):
        for test in list_of(object_of(category, f"{path}: category").get("tests"), f"{path}: tests"):
            entry = object_of(test, f"{path}: test")
            name = f"diag {entry.get('name', '')}"
            for result in list_of(entry.get("results"), f"{path}: {name}"):
                row = object_of(result, f"{path}: {name}")
                verdict = str(row.get("status", "")).lower()
                if verdict not in ("fail", "warn"):
                    continue
                texts = [
                    str(object_of(w, f"{path}: {name}").get("warning", "")) for w in list_of(row.get("warnings"), name)
                ]
                for gpu in _diag_gpus(row):
                    word = "Failure" if verdict == "fail" else "Warning"
                    found.setdefault(gpu, {})[name] = f"{word}: {' '.join(texts)}"
    return found


def _diag_gpus(row: dict[str, object]) -> list[int]:
    """GPU indices of a result: DCGM 3 lists them in a string, DCGM 4 names one entity."""
    if "gpu_ids" in row:
        return [int(x) for x in str(row["gpu_ids"]).split(",") if is_index(x.strip())]
    entity = row.get("entity_id")
    return [entity] if isinstance(entity, int) and row.get("entity_group", "GPU") == "GPU" else []


def read_discovery(path: Path) -> dict[int, GpuFacts]:
    """Read the GPUs of ``dcgmi discovery -l``.

    Raises:
        BundleError: if the file cannot be read.
    """
    found: dict[int, GpuFacts] = {}
    index = -1
    for line in read_text(path).splitlines():
        cell = _CELL.match(line)
        if not cell:
            continue
        index = int(cell.group(1)) if cell.group(1) else index
        if index >= 0:
            found[index] = _with(found.get(index, GpuFacts(index)), cell.group(2), cell.group(3))
    return found


def _with(facts: GpuFacts, name: str, value: str) -> GpuFacts:
    if name == "Name":
        return replace(facts, product=value)
    return replace(facts, pci_bus_id=value) if name == "PCI Bus ID" else replace(facts, uuid=value)
