"""``dcgmi`` of an emulated node, with the habits that trip people.

``-g`` is a group and is refused by ``test --inject``; ``--gpuid`` is 1 where it is not given; a value that is no number
is taken for 0; samples are put one second into the future unless ``--offset`` says otherwise.
"""

import re
import sys
import time
from collections.abc import Callable, Sequence

from tools.fleet import diag, health
from tools.fleet.fields import FIELDS, TAGS, Live, text
from tools.fleet.hostengine import inject, latest
from tools.fleet.node import Here, fail, now, speed
from tools.fleet.options import Options, RefusedError
from tools.fleet.state import FleetError, State
from tools.fleet.tree import Branch, columns

#: Exit status of a command that DCGM refused or failed.
FAILED = 255
NOT_ENABLED = "Error: Health watches not enabled. Please enable watches. "
#: How ``health -f`` names the systems, and the letter of each; no letter sets SM, and ConnectX is not shown.
FETCHED = (
    ("PCIe", "p"),
    ("NVLINK", "n"),
    ("Memory", "m"),
    ("InfoROM", "i"),
    ("Thermal", "t"),
    ("Power", "t"),
    ("Driver", "d"),
    ("SM", ""),
)
MAX_SAMPLES = 100_000


def _leading(value: str, pattern: str) -> float:
    """What atol and atof read: the number at the beginning, 0 where there is none."""
    found = re.match(pattern, value)
    return float(found.group()) if found else 0.0


def _field(value: str) -> int:
    number = TAGS.get(value.strip().lower(), 0) or int(_leading(value, r"\s*\d+"))
    if number not in FIELDS:
        raise RefusedError(f"Error: Unable to inject info. Return: Unknown field ({value})")
    return number


def discovery(here: Here, arguments: Sequence[str]) -> str:
    """``discovery -l``."""
    if not Options(arguments, frozenset({"-l", "--list"}), frozenset({"--host"})).has("-l", "--list"):
        raise RefusedError("The emulated dcgmi discovery knows -l.")
    machine, at = here.machine(), now()
    gpus = [g for g in here.facts.gpus if not machine.lost(g, at)]
    groups: list[list[tuple[str, ...]]] = [
        [
            (str(g.index), f"Name: {here.facts.product_name}"),
            ("", f"PCI Bus ID: {g.pci_bus_id}"),
            ("", f"Device UUID: {g.uuid}"),
        ]
        for g in gpus
    ]
    return "\n".join(
        [
            f"{len(gpus)} GPUs found.",
            columns((6, 68), ("GPU ID", "Device Information"), groups),
            "0 NvSwitches found.",
            columns((9,), ("Switch ID",), []),
            "0 ConnectX found.",
            columns((8,), ("ConnectX",), []),
            "0 CPUs found.",
            columns((6, 68), ("CPU ID", "Device Information"), []),
        ]
    )


def health_command(here: Here, arguments: Sequence[str]) -> str:
    """``health -s|-c|-f|--clear``."""
    flags = frozenset({"-c", "--check", "-f", "--fetch", "--clear", "-j", "--json"})
    valued = frozenset({"-s", "--set", "-g", "--group", "-u", "--update-interval", "-m", "--max-keep-age", "--host"})
    options = Options(arguments, flags, valued)
    letters = options.get("-s", "--set")
    if letters is not None:
        systems = health.ALL if letters == "a" else letters
        if not systems or set(systems) - set(health.SYSTEMS) or len(set(systems)) < len(systems):
            text = "a alone, or d i m n p t x, each once"
            raise RefusedError(f"Error: Invalid health watch(es) {letters!r}: letters are {text}.")
        at = now()

        def watch(state: State) -> None:
            state["dcgm"]["watches"] = {"systems": systems, "at": at}

        here.fleet.change(here.name, watch)
        return "Health monitor systems set successfully."
    if options.has("--clear"):

        def clear(state: State) -> None:
            state["dcgm"]["watches"] = None

        here.fleet.change(here.name, clear)
        return "Health monitor systems cleared successfully."
    json_wanted = options.has("-j", "--json")
    if options.has("-f", "--fetch"):
        return _fetch(here, json_wanted)
    if options.has("-c", "--check"):
        return _check(here, json_wanted)
    raise RefusedError("PARSE ERROR: one of -s, -c, -f and --clear is needed")


def _fetch(here: Here, json_wanted: bool) -> str:
    watches = here.machine().state["dcgm"]["watches"]
    letters = watches["systems"] if watches else ""
    tree = Branch("Health monitor systems report")
    for name, letter in FETCHED:
        tree.add(name, "On" if letter and letter in letters else "Off")
    if not json_wanted:
        return tree.as_text()
    # The tool prints the title in plain text before the JSON, which has no header then.
    return f"{tree.label}\n{tree.as_json(header=False)}"


def _check(here: Here, json_wanted: bool) -> str:
    machine, at = here.machine(), now()
    if not machine.state["dcgm"]["watches"]:
        raise RefusedError(NOT_ENABLED)
    incidents = {gpu.index: health.check(machine, gpu, at) for gpu in here.facts.gpus}
    tree = Branch("Health Monitor Report")
    tree.add("Overall Health", health.worst([i.verdict for found in incidents.values() for i in found]))
    if any(incidents.values()):
        gpus = tree.add("GPU")
        for index, found in incidents.items():
            if not found:
                continue
            errors = gpus.add(str(index), health.worst([i.verdict for i in found])).add("Errors")
            for system in dict.fromkeys(i.system for i in found):
                mine = [i for i in found if i.system == system]
                errors.add(system, health.worst([i.verdict for i in mine]), *(i.text for i in mine))
    return tree.as_json() if json_wanted else tree.as_text()


def test_command(here: Here, arguments: Sequence[str]) -> str:
    """``test --inject``."""
    valued = frozenset({"-g", "--group", "--gpuid", "-f", "--field", "-v", "--value", "--offset", "--host"})
    options = Options(arguments, frozenset({"--inject"}), valued)
    if not options.has("--inject"):
        raise RefusedError("The emulated dcgmi test knows --inject.")
    if options.has("-g", "--group"):
        raise RefusedError("Error: Injection can only be specified for a single GPU")
    name, value = options.get("-f", "--field"), options.get("-v", "--value")
    if name is None:
        raise RefusedError("Error: The -f/--field argument is required for --inject")
    if value is None:
        raise RefusedError("Error: The -v/--value argument is required for --inject")
    offset = float(int(_leading(options.get("--offset") or "1", r"\s*-?\d+")))
    if offset < 0:
        raise RefusedError("Error: The --offset argument must not be negative")
    gpu = int(_leading(options.get("--gpuid") or "1", r"\s*\d+"))
    if gpu not in {g.index for g in here.facts.gpus}:
        raise RefusedError("Error: Unable to inject info. Return: Bad parameter passed to function")
    field = FIELDS[_field(name)]
    number = _leading(value, r"\s*[+-]?\d+" if field.whole else r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
    at = now()
    here.fleet.change(here.name, lambda state: inject(state, gpu, field.number, number, at + offset, at))
    return "Successfully injected field info."


def dmon(here: Here, arguments: Sequence[str]) -> str:
    """``dmon -e IDS [-c N] [-d MS] [-i GPUS]``: prints as it goes, so it returns nothing more to print."""
    options = Options(
        arguments, frozenset(), frozenset({"-e", "--field-id", "-c", "--count", "-d", "--delay", "-i", "--host"})
    )
    given = options.get("-e", "--field-id")
    if given is None:
        raise RefusedError("PARSE ERROR: -e is needed")
    fields = [FIELDS[_field(part)] for part in given.split(",")]
    wanted = (options.get("-i") or "").split(",")
    gpus = [g for g in here.facts.gpus if wanted == [""] or str(g.index) in wanted]
    count = int(_leading(options.get("-c", "--count") or "0", r"\s*\d+")) or MAX_SAMPLES
    delay = max(100.0, _leading(options.get("-d", "--delay") or "1000", r"\s*\d+")) / 1000.0 / speed()

    def line(head: str, cells: list[str]) -> str:
        widths = [13, *(15 for _ in cells[1:])]
        return f"{head:<16}{''.join(f'{c:<{w}}' for c, w in zip(cells, widths, strict=True))}".rstrip()

    print(line("#Entity", [f.short for f in fields]))
    print(line("ID", [f.unit for f in fields]), flush=True)
    for n in range(count):
        if n:
            time.sleep(delay)
        machine, at = here.machine(), now()
        for gpu in gpus:
            live = Live(machine, gpu, machine.sensors(gpu, at), at)
            cells = []
            for field in fields:
                value = latest(machine, gpu, field.number, live)
                # An XID that never came is a blank, not a zero.
                blank = value is None or (field.number == 230 and value == 0)
                cells.append("N/A" if blank or value is None else text(field, value))
            print(line(f"GPU {gpu.index}", cells), flush=True)
    return ""


COMMANDS: dict[str, Callable[[Here, Sequence[str]], str]] = {
    "discovery": discovery,
    "health": health_command,
    "test": test_command,
    "dmon": dmon,
    "diag": diag.command,
}


def main() -> int:
    """Entry of the executable."""
    arguments = sys.argv[1:]
    try:
        if arguments in (["-v"], ["--version"]):
            print(f"Version : {diag.VERSION}")
            return 0
        command = COMMANDS.get(arguments[0]) if arguments else None
        if command is None:
            print(f"The emulated dcgmi knows {', '.join(COMMANDS)}.", file=sys.stderr)
            return 1
        said = command(Here.find(), arguments[1:])
        if said:
            print(said)
    except RefusedError as error:
        print(error)
        return FAILED
    except FleetError as error:
        return fail("dcgmi", error)
    except BrokenPipeError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
