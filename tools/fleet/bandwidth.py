"""``nvbandwidth`` of an emulated node: copies within a GPU, to and from the host, and between GPUs."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.fleet.inventory import Gpu
from tools.fleet.node import Here, Machine, fail, now
from tools.fleet.products import CUDA_VERSION, DRIVER
from tools.fleet.state import FleetError

VERSION = "v0.8"
#: The tool counts the bytes copied: a copy within the GPU reads and writes each of them, and moves twice as many.
LOCAL_COPY_SHARE = 0.5
#: Device to host is a little faster than host to device, so that the slower way is the ``pcie`` dimension.
DOWN_SHARE = 1.04
Matrix = list[list[float | None]]


@dataclass(frozen=True, slots=True)
class Testcase:
    """One thing that the tool can measure."""

    summary: str
    description: str
    run: Callable[[Machine, Sequence[Gpu], float], Matrix]


def _each(dimension: str, share: float) -> Callable[[Machine, Sequence[Gpu], float], Matrix]:
    return lambda machine, gpus, at: [[machine.measure(g, dimension, at) * share for g in gpus]]


def _pairs(machine: Machine, gpus: Sequence[Gpu], at: float) -> Matrix:
    # A pair is as fast as the slower of the two.
    own = [machine.measure(g, "nvlink", at) for g in gpus]
    return [[None if a is b else min(own[i], own[j]) for j, b in enumerate(gpus)] for i, a in enumerate(gpus)]


TESTS: dict[str, Testcase] = {
    "host_to_device_memcpy_ce": Testcase(
        "Host to device CE memcpy using cuMemcpyAsync",
        "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
        _each("pcie", 1.0),
    ),
    "device_to_host_memcpy_ce": Testcase(
        "Device to host CE memcpy using cuMemcpyAsync",
        "memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)",
        _each("pcie", DOWN_SHARE),
    ),
    "device_to_device_memcpy_read_ce": Testcase(
        "Reads from each peer GPU over the links between them",
        "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
        _pairs,
    ),
    "device_to_device_memcpy_write_ce": Testcase(
        "Writes to each peer GPU over the links between them",
        "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)",
        _pairs,
    ),
    "device_local_copy": Testcase(
        "Copies between two buffers of the same GPU",
        "memcpy local GPU(column) bandwidth (GB/s)",
        _each("memory", LOCAL_COPY_SHARE),
    ),
}


class SyntaxRefusedError(Exception):
    """The command line is wrong; the text is what the tool prints."""


@dataclass(slots=True)
class Arguments:
    """A parsed command line."""

    tests: list[str] = field(default_factory=list)
    as_json: bool = False
    verbose: bool = False
    listing: bool = False


def parse(words: Sequence[str]) -> Arguments:
    """Read a command line.

    Raises:
        SyntaxRefusedError: for an option that the tool does not know.
    """
    found = Arguments()
    queue = list(words)
    while queue:
        word, glued, value = queue.pop(0).partition("=")
        match word:
            case "-j" | "--json":
                found.as_json = True
            case "-v" | "--verbose":
                found.verbose = True
            case "-l" | "--list":
                found.listing = True
            case "-d" | "--disableAffinity" | "-s" | "--skipVerification" | "-m" | "--useMean":
                pass
            case "-b" | "--bufferSize" | "-i" | "--testSamples" | "--loopCount":
                if not glued and not queue:
                    raise SyntaxRefusedError(f"ERROR: the required argument for option '{word}' is missing")
                if not glued:
                    queue.pop(0)
            case "-t" | "--testcase":
                # The option takes all words up to the next option.
                found.tests += [value] if glued else []
                while queue and not queue[0].startswith("-"):
                    found.tests.append(queue.pop(0))
            case _:
                raise SyntaxRefusedError(f"ERROR: unrecognised option '{word}'")
    names = list(TESTS)
    found.tests = [names[int(t)] if t.isdigit() and int(t) < len(names) else t for t in found.tests]
    return found


def _measured(name: str, machine: Machine, gpus: Sequence[Gpu], at: float, verbose: bool) -> dict[str, Any]:
    if name not in TESTS:
        return {"name": name, "status": "Not Found"}
    if name.startswith("device_to_device") and len(gpus) < 2:
        return {"name": name, "status": "Waived"}
    matrix = TESTS[name].run(machine, gpus, at)
    values = [v for row in matrix for v in row if v is not None]
    found: dict[str, Any] = {
        "bandwidth_description": TESTS[name].description,
        # The tool writes the cells as text with six significant digits, and the sum as a number.
        "bandwidth_matrix": [["N/A" if v is None else f"{v:.6g}" for v in row] for row in matrix],
        "name": name,
        "status": "Passed",
        "sum": sum(values),
    }
    if verbose:
        found |= {"average": sum(values) / len(values), "max": max(values), "min": min(values)}
    return found


def _text(found: dict[str, Any]) -> str:
    name = found["name"]
    if found["status"] == "Not Found":
        return f"ERROR: Testcase {name} not found!"
    if found["status"] == "Waived":
        return f"Waived: {name}"
    rows = found["bandwidth_matrix"]
    head = "  " + "".join(f"{n:>10}" for n in range(len(rows[0])))
    lines = [f"Running {name}.", found["bandwidth_description"], head]
    for n, row in enumerate(rows):
        lines.append(f"{n:>2}" + "".join(f"{c:>10}" if c == "N/A" else f"{float(c):>10.2f}" for c in row))
    return "\n".join([*lines, "", f"SUM {name} {found['sum']:.2f}", ""])


def run(here: Here, arguments: Arguments) -> int:
    """Measure and print; the exit status."""
    if arguments.listing:
        print("Index, Name:\n\tDescription\n=======================")
        for n, (name, test) in enumerate(TESTS.items()):
            print(f"{n}, {name}:\n\t{test.summary}\n")
        return 0
    machine, at = here.machine(), now()
    gpus = machine.visible(at)
    head: dict[str, Any] = {
        "CUDA Runtime Version": CUDA_VERSION,
        "Driver Version": DRIVER,
        "git_version": VERSION,
        "version": VERSION,
    }
    if not gpus:
        head["error"] = "CUDA error: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"
        print(json.dumps({"nvbandwidth": head}, indent="\t") if arguments.as_json else head["error"])
        return 1
    results = [_measured(name, machine, gpus, at, arguments.verbose) for name in arguments.tests or TESTS]
    if arguments.as_json:
        print(json.dumps({"nvbandwidth": {**head, "testcases": results}}, indent="\t"))
    else:
        print(f"nvbandwidth Version: {VERSION}\nBuilt from Git version: {VERSION}\n")
        print(f"CUDA Runtime Version: {CUDA_VERSION}\nCUDA Driver Version: {CUDA_VERSION}\nDriver Version: {DRIVER}\n")
        print("\n".join(f"Device {n}: {machine.facts.product_name} ({g.pci_bus_id})" for n, g in enumerate(gpus)))
        print()
        print("\n".join(_text(found) for found in results))
    return 1 if any(found["status"] == "Not Found" for found in results) else 0


def main() -> int:
    """Entry of the executable."""
    try:
        return run(Here.find(), parse(sys.argv[1:]))
    except SyntaxRefusedError as error:
        print(error, file=sys.stderr)
        return 1
    except FleetError as error:
        return fail("nvbandwidth", error)


if __name__ == "__main__":
    sys.exit(main())
