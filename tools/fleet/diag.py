"""``dcgmi diag`` in the JSON of DCGM 4."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from tools.fleet.faults import KINDS, active
from tools.fleet.inventory import Gpu
from tools.fleet.node import Here, Machine, now
from tools.fleet.options import Options, RefusedError
from tools.fleet.products import DRIVER

VERSION = "4.5.0"
#: What each level runs.
LEVELS = {
    "1": ("software",),
    "2": ("software", "memory", "pcie"),
    "3": ("software", "memory", "pcie", "diagnostic", "targeted_power"),
    "4": ("software", "memory", "pcie", "diagnostic", "targeted_power", "memtest"),
}
CATEGORIES = {
    "software": "Deployment",
    "memory": "Hardware",
    "memtest": "Hardware",
    "diagnostic": "Hardware",
    "pcie": "Integration",
    "targeted_power": "Stress",
}
NOT_FOUND = "Error: unable to run the diagnostic: requested tests were not found."
Result = dict[str, Any]


def _warning(text: str, error_id: int, category: int, severity: int) -> Result:
    return {"error_category": category, "error_id": error_id, "error_severity": severity, "warning": text}


def _pcie(machine: Machine, gpu: Gpu, at: float) -> Result:
    width = machine.sensors(gpu, at).pcie_width
    if width < 16:
        text = f"GPU {gpu.index} is running at PCI link width {width}X, "
        text += "which is below the minimum allowed link width of 16"
        return {"status": "Fail", "warnings": [_warning(text, 48, 13, 2)]}
    speed = machine.measure(gpu, "pcie", at)
    return {"info": [f"GPU to Host bandwidth:\t\t{speed:.1f} GB/s"], "status": "Pass"}


def _software(machine: Machine, gpu: Gpu, at: float) -> Result:
    for fault in active(machine.faults, gpu.index, at):
        counters = KINDS[fault.kind].counters
        if 395 in counters:
            text = f"GPU {gpu.index} had uncorrectable memory errors and row remapping failed."
            return {"status": "Fail", "warnings": [_warning(text, 83, 10, 2)]}
        if 396 in counters:
            text = f"GPU {gpu.index} had memory errors and row remappings are pending"
            return {"status": "Fail", "warnings": [_warning(text, 82, 10, 6)]}
    return {"status": "Pass"}


def _memory(machine: Machine, gpu: Gpu, at: float) -> Result:
    if any(311 in KINDS[f.kind].counters for f in active(machine.faults, gpu.index, at)):
        text = f"Detected 1 volatile double-bit ECC error(s) in GPU {gpu.index}."
        return {"status": "Fail", "warnings": [_warning(text, 9, 10, 2)]}
    return {"status": "Pass"}


def _passes(machine: Machine, gpu: Gpu, at: float) -> Result:
    del machine, gpu, at
    return {"status": "Pass"}


TESTS: dict[str, Callable[[Machine, Gpu, float], Result]] = {
    "software": _software,
    "pcie": _pcie,
    "memory": _memory,
    "memtest": _memory,
    "diagnostic": _passes,
    "targeted_power": _passes,
}


def _requested(text: str, gpus: Sequence[Gpu]) -> list[str]:
    if not gpus:
        raise RefusedError("Error: unable to run the diagnostic: no GPU of that id was found.")
    names = [test for part in text.split(",") for test in LEVELS.get(part.strip(), (part.strip(),))]
    unknown = [name for name in names if name not in TESTS]
    if unknown or not names:
        raise RefusedError(NOT_FOUND)
    return list(dict.fromkeys(names))


def report(machine: Machine, gpus: Sequence[Gpu], tests: Sequence[str], at: float) -> dict[str, Any]:
    """The diagnostic's JSON.

    Args:
        machine: the node.
        gpus: which to test.
        tests: names in :data:`TESTS`.
        at: Unix seconds.
    """
    categories: dict[str, list[Result]] = {}
    for name in tests:
        results = []
        for gpu in gpus:
            entity = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu.index}
            results.append({**entity, **TESTS[name](machine, gpu, at)})
        failed = [r for r in results if r["status"] == "Fail"]
        summary: Result = {"status": "Fail" if failed else "Pass"}
        if failed:
            summary["warnings"] = [w for r in failed for w in r["warnings"]]
        categories.setdefault(CATEGORIES[name], []).append({"name": name, "results": results, "test_summary": summary})
    device = machine.facts.product.device_id
    return {
        "DCGM Diagnostic": {"test_categories": [{"category": c, "tests": t} for c, t in categories.items()]},
        "entity_groups": [
            {
                "entities": [{"device_id": device, "entity_id": g.index, "serial_num": g.serial} for g in gpus],
                "entity_group": "GPU",
                "entity_group_id": 1,
            }
        ],
        "metadata": {"Driver Version Detected": DRIVER, "version": VERSION},
    }


def _table(found: dict[str, Any]) -> str:
    rule = "+---------------------------+------------------------------------------------+"
    lines = ["Successfully ran diagnostic for group.", rule]
    lines += [f"| {'Diagnostic':<25} | {'Result':<46} |", rule.replace("-", "=")]
    for category in found["DCGM Diagnostic"]["test_categories"]:
        lines.append(f"|-----  {category['category']}  ".ljust(28, "-") + "+" + "-" * 48 + "|")
        for test in category["tests"]:
            lines.append(f"| {test['name']:<25} | {test['test_summary']['status']:<46} |")
            for result in test["results"]:
                lines.append(f"| {'':<25} | {'GPU' + str(result['entity_id']) + ': ' + result['status']:<46} |")
    return "\n".join([*lines, rule])


def command(here: Here, arguments: Sequence[str]) -> str:
    """``diag -r LEVEL|NAMES [-i GPUS] [-j]``.

    Raises:
        RefusedError: where tests were not found and JSON was not asked for.
    """
    flags = frozenset({"-j", "--json", "-v", "--verbose"})
    valued = frozenset(
        {
            "-r",
            "--run",
            "-i",
            "--entity-id",
            "-p",
            "--parameters",
            "-t",
            "--timeout",
            "--timeoutSeconds",
            "--host",
            "-g",
        }
    )
    options = Options(arguments, flags, valued)
    json_wanted = options.has("-j", "--json")
    machine, at = here.machine(), now()
    wanted = (options.get("-i", "--entity-id") or "").replace("gpu:", "").split(",")
    gpus = [g for g in here.facts.gpus if not machine.lost(g, at) and (wanted == [""] or str(g.index) in wanted)]
    try:
        tests = _requested(options.get("-r", "--run") or "1", gpus)
    except RefusedError as error:
        if not json_wanted:
            raise
        return json.dumps({"DCGM Diagnostic": {"runtime_error": str(error)}}, indent=2)
    found = report(machine, gpus, tests, at)
    return json.dumps(found, indent=2) if json_wanted else _table(found)
