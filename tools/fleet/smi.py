"""``nvidia-smi`` of an emulated node.

What is set with ``-lgc`` cannot be queried, as on real hardware: no field returns the locked range (``clocks.max.sm``
stays the hardware's), so the way back is ``-rgc``. Set power limits show in ``power.limit``.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tools.fleet.inventory import Gpu
from tools.fleet.node import Here, Machine, fail, now, pick
from tools.fleet.smi_fields import ALIASES, APP_FIELDS, FIELDS, Field, Row
from tools.fleet.state import FleetError, State

# Return values of the real program.
BAD_ARGUMENT, NO_OBJECT = 2, 6
UNREADABLE = "[Unknown Error]"


class UsageError(Exception):
    """What was asked is refused: the text, and the exit status of the real program."""

    def __init__(self, text: str, status: int = BAD_ARGUMENT) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True)
class Request:
    """A parsed command line."""

    gpus: list[str] | None = None
    query: str | None = None
    apps: str | None = None
    format: tuple[str, ...] = ()
    listing: bool = False
    lock: tuple[float, float] | None = None
    unlock: bool = False
    power: float | None = None


def parse(arguments: Sequence[str]) -> Request:
    """Read a command line.

    Raises:
        UsageError: for what the emulated program does not know, or a value that is not one.
    """
    request = Request()
    queue = list(arguments)
    while queue:
        name, glued, value = queue.pop(0).partition("=")
        if name in {"-L", "--list-gpus"}:
            request.listing = True
        elif name in {"-rgc", "--reset-gpu-clocks"}:
            request.unlock = True
        elif name not in VALUED:
            raise UsageError(f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help. ({name})")
        elif not glued and not queue:
            raise UsageError(f"Option \"{name}\" needs a value. Please run 'nvidia-smi -h' for help.")
        else:
            _take(request, VALUED[name], value if glued else queue.pop(0))
    return request


#: Options with a value, and the part of a request that each fills.
VALUED = {
    "-i": "gpus",
    "--id": "gpus",
    "--query-gpu": "query",
    "--query-compute-apps": "apps",
    "--query-apps": "apps",
    "--format": "format",
    "-lgc": "lock",
    "--lock-gpu-clocks": "lock",
    "-pl": "power",
    "--power-limit": "power",
}


def _take(request: Request, part: str, value: str) -> None:
    match part:
        case "gpus":
            request.gpus = value.split(",")
        case "query":
            request.query = value
        case "apps":
            request.apps = value
        case "format":
            request.format = tuple(word.strip() for word in value.split(","))
        case "lock":
            request.lock = _range(value)
        case _:
            request.power = _number(value)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1e9:
        raise UsageError(f"Invalid argument: {text!r} is not a number. Please run 'nvidia-smi -h' for help.")
    return value


def _range(text: str) -> tuple[float, float]:
    low, _, high = text.partition(",")
    pair = _number(low), _number(high or low)
    if pair[0] > pair[1]:
        raise UsageError(f"Invalid GPU clocks {text!r}: the minimum is above the maximum.")
    return pair


def _chosen(here: Here, wanted: list[str] | None) -> list[Gpu]:
    if wanted is None:
        return list(here.facts.gpus)
    found = [pick(here.facts.gpus, text.strip()) for text in wanted]
    if None in found:
        raise UsageError("No devices were found", NO_OBJECT)
    return sorted((g for g in found if g is not None), key=lambda g: g.index)


def _table(header: list[str], rows: list[list[str]], wanted: tuple[str, ...]) -> list[str]:
    if "csv" not in wanted:
        raise UsageError("\"--format=\" is missing or does not say csv. Please run 'nvidia-smi -h' for help.")
    unknown = set(wanted) - {"csv", "noheader", "nounits"}
    if unknown:
        raise UsageError(f'Option "{min(unknown)}" is not a valid format.')
    lines = [] if "noheader" in wanted else [", ".join(header)]
    return lines + [", ".join(row) for row in rows]


def query(machine: Machine, gpus: Sequence[Gpu], names: str, wanted: tuple[str, ...], at: float) -> list[str]:
    """Answer ``--query-gpu``: the lines of the table.

    Raises:
        UsageError: for a field that does not exist.
    """
    columns: list[Field] = []
    for given in names.split(","):
        name = given.strip()
        name = ALIASES.get(name, name)
        if name not in FIELDS:
            raise UsageError(f'Field "{given.strip()}" is not a valid field to query.')
        columns.append(FIELDS[name])
    units = "nounits" not in wanted
    rows = []
    for gpu in gpus:
        row = Row(machine, gpu, machine.sensors(gpu, at), at)
        lost = machine.lost(gpu, at)
        rows.append(
            [
                UNREADABLE
                if lost and name not in {"timestamp", "index"}
                else f"{value(row)} {unit}"
                if unit and units
                else value(row)
                for name, unit, value in columns
            ]
        )
    header = [f"{name} [{unit}]" if unit and units else name for name, unit, _ in columns]
    return _table(header, rows, wanted)


def query_apps(machine: Machine, gpus: Sequence[Gpu], names: str, wanted: tuple[str, ...], at: float) -> list[str]:
    """Answer ``--query-compute-apps``: declared processes, and burns that run now."""
    columns = [name.strip() for name in names.split(",")]
    for name in columns:
        if name not in APP_FIELDS:
            raise UsageError(f'Field "{name}" is not a valid field to query.')
    units = "nounits" not in wanted
    running = list(machine.state["processes"])
    for burn in machine.burns(at):
        running += [{"gpu": g, "pid": burn["pid"], "name": "gpu_burn", "mib": 72360} for g in burn["gpus"]]
    rows = []
    for gpu in gpus:
        for process in (p for p in running if p["gpu"] == gpu.index):
            memory = f"{process['mib']} MiB" if units else str(process["mib"])
            cells = {
                "gpu_name": machine.facts.product_name,
                "gpu_uuid": gpu.uuid,
                "gpu_bus_id": gpu.pci_bus_id,
                "gpu_serial": gpu.serial,
                "pid": str(process["pid"]),
                "process_name": process["name"],
                "name": process["name"],
                "used_gpu_memory": memory,
                "used_memory": memory,
            }
            rows.append([cells[name] for name in columns])
    header = [APP_FIELDS[name] if units else APP_FIELDS[name].partition(" ")[0] for name in columns]
    return _table(header, rows, wanted)


def change(here: Here, gpus: Sequence[Gpu], request: Request) -> list[str]:
    """Lock or reset clocks, set power limits.

    Raises:
        UsageError: for a power limit that the product does not allow; then nothing is changed.
    """
    product = here.facts.product
    _, low, high = product.power_w
    lines: list[str] = []
    watts = request.power
    if watts is not None and not low <= watts <= high:
        raise UsageError(
            f"Provided power limit {watts:.2f} W is not a valid power limit which should be between "
            f"{low:.2f} W and {high:.2f} W for GPU {gpus[0].pci_bus_id}\nTerminating early due to previous errors."
        )

    def alter(state: State) -> None:
        for gpu in gpus:
            mine = state["gpus"][str(gpu.index)]
            if request.unlock:
                mine["lock"] = None
            if request.lock is not None:
                bounds = [min(max(mhz, product.min_sm_mhz), product.max_sm_mhz) for mhz in request.lock]
                mine["lock"] = bounds
                low_mhz, high_mhz = request.lock
                text = f"(gpuClkMin {low_mhz:.0f}, gpuClkMax {high_mhz:.0f})"
                lines.append(f'GPU clocks set to "{text}" for GPU {gpu.pci_bus_id}')
            if watts is not None:
                before = mine["power_limit"]
                mine["power_limit"] = watts
                lines.append(f"Power limit for GPU {gpu.pci_bus_id} was set to {watts:.2f} W from {before:.2f} W.")

    here.fleet.change(here.name, alter)
    return [*lines, "All done."]


def run(here: Here, arguments: Sequence[str]) -> list[str]:
    """Do what a command line asks; the lines to print.

    Raises:
        UsageError: as the real program refuses.
    """
    request = parse(arguments)
    gpus = _chosen(here, request.gpus)
    at = now()
    machine = here.machine()
    if request.lock is not None or request.unlock or request.power is not None:
        if any(machine.lost(gpu, at) for gpu in gpus):
            raise UsageError(f"Unable to determine the device handle for GPU {gpus[0].pci_bus_id}: Unknown Error", 15)
        return change(here, gpus, request)
    if request.listing:
        name = machine.facts.product_name
        return [
            f"Unable to determine the device handle for gpu {g.pci_bus_id}: Unknown Error"
            if machine.lost(g, at)
            else f"GPU {g.index}: {name} (UUID: {g.uuid})"
            for g in gpus
        ]
    if request.query is not None:
        return query(machine, gpus, request.query, request.format, at)
    if request.apps is not None:
        return query_apps(machine, gpus, request.apps, request.format, at)
    raise UsageError("The emulated nvidia-smi knows -L, --query-gpu, --query-compute-apps, -lgc, -rgc, -pl and -i.")


def main() -> int:
    """Entry of the executable."""
    try:
        print("\n".join(run(Here.find(), sys.argv[1:])))
    except UsageError as error:
        print(error)
        return error.status
    except FleetError as error:
        return fail("nvidia-smi", error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
