"""``gpu_burn`` of an emulated node: the arguments, the lines and the exit status of the real program.

It ends with 0 whatever it found, and its "OK" means only that no result differed: callers must read the work done.
Time runs ``GPUGRADE_FLEET_SPEED`` times as fast as printed.
"""

import errno
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType

from tools.fleet.faults import KINDS, active
from tools.fleet.inventory import Gpu
from tools.fleet.node import Here, Machine, fail, now, speed
from tools.fleet.products import Product
from tools.fleet.state import FleetError, State

#: Operations of one 8192 x 8192 product, as the program counts them.
OPS = 1100048498688
RESULT_BYTES = 8192 * 8192 * 4
COMPARE_FILE = "compare.fatbin"
#: Share of free memory that is used where nothing is said.
USEMEM = 0.9
MAX_SECONDS = 30 * 86400


@dataclass(slots=True)
class Arguments:
    """A parsed command line."""

    seconds: int = 10
    timed: bool = False
    doubles: bool = False
    tensors: bool = False
    device: int | None = None
    memory: str = ""
    listing: bool = False
    helping: bool = False


class SyntaxRefusedError(Exception):
    """The command line is wrong; the text is what the program prints."""


def parse(words: Sequence[str]) -> Arguments:
    """Read a command line.

    Raises:
        SyntaxRefusedError: where the program ends with EINVAL.
    """
    found = Arguments()
    queue = list(words)
    while queue:
        word = queue.pop(0)
        match word:
            case "-h":
                found.helping = True
            case "-l":
                found.listing = True
            case "-d":
                found.doubles = True
            case "-tc":
                found.tensors = True
            case "-c" | "-stts":
                _after(queue, word)
            case _ if word.startswith("-i"):
                found.device = _number(word[2:] or _after(queue, "-i"))
            case _ if word.startswith("-m"):
                found.memory = word[2:] or _after(queue, "-m")
                if not found.memory.rstrip("%").isdigit() or int(found.memory.rstrip("%")) == 0:
                    raise SyntaxRefusedError("Syntax error near -m")
            case _:
                found.seconds, found.timed = min(_number(word), MAX_SECONDS), True
    return found


def _after(queue: list[str], option: str) -> str:
    if not queue:
        raise SyntaxRefusedError(f"Syntax error near {option}")
    return queue.pop(0)


def _number(word: str) -> int:
    # atoi: what does not begin with digits is 0.
    digits = word[: len(word) - len(word.lstrip("0123456789"))]
    return int(digits or 0)


def _memory(product: Product, text: str) -> tuple[int, int, int]:
    """MB total, available and used."""
    total, free = product.cuda_mb
    if text.endswith("%"):
        return total, free, free * int(text[:-1]) // 100
    return total, free, min(int(text), free) if text else int(free * USEMEM)


def _initialised(product: Product, found: Arguments) -> str:
    total, free, used = _memory(product, found.memory)
    size = RESULT_BYTES * (2 if found.doubles else 1)
    iterations = max(0, used * 1048576 // size - 2)
    kind = ("using DOUBLES" if found.doubles else "using FLOATS") + (", using Tensor Cores" if found.tensors else "")
    return (
        f"Initialized device {{}} with {total} MB of memory ({free} MB available, using {used} MB of it), {kind}\n"
        f"Results are {size} bytes each, thus performing {iterations} iterations"
    )


def rate(machine: Machine, gpu: Gpu, found: Arguments, at: float) -> float:
    """Gflop/s of one GPU at Unix time ``at``.

    Tensor cores give the ``compute`` dimension itself; plain SGEMM and DGEMM run slower in the same proportion on every
    GPU of a model.
    """
    product = machine.facts.product
    peak = product.typical["compute"]
    if not found.tensors:
        peak = product.fp64 if found.doubles else product.fp32
    return machine.measure(gpu, "compute", at) / product.typical["compute"] * peak * 1000.0


@contextmanager
def _registered(here: Here, gpus: Sequence[Gpu], until: float) -> Iterator[None]:
    """While it burns, sensors and process lists of the node show it."""
    me = {"gpus": [g.index for g in gpus], "pid": os.getpid(), "until": until}

    def begin(state: State) -> None:
        alive = {b["pid"] for b in Machine(here.facts, state).burns(now())}
        state["burns"] = [*(b for b in state["burns"] if b["pid"] in alive), me]

    def end(state: State) -> None:
        state["burns"] = [b for b in state["burns"] if b["pid"] != me["pid"]]

    here.fleet.change(here.name, begin)
    try:
        yield
    finally:
        here.fleet.change(here.name, end)


def _errors(machine: Machine, gpu: Gpu, at: float) -> int:
    # Results differ where memory is broken.
    return 524288 if any(311 in KINDS[f.kind].counters for f in active(machine.faults, gpu.index, at)) else 0


def _progress(share: float, done: list[int], rates: list[float], errors: list[int], temps: list[int]) -> str:
    work = "- ".join(f"{d} ({r:.0f} Gflop/s) " for d, r in zip(done, rates, strict=True))
    notes = [" (DIED!)" if d == -1 else " (WARNING!)" if e else "" for d, e in zip(done, errors, strict=True)]
    wrong = "- ".join(f"{e} {note}" for e, note in zip(errors, notes, strict=True))
    heat = "- ".join(f"{t} C " if t else "-- " for t in temps)
    return f"\r{share:.1f}%  proc'd: {work}  errors: {wrong}  temps: {heat}"


def _burn(here: Here, gpus: Sequence[Gpu], found: Arguments) -> int:
    """Burn, print, and return the exit status."""
    factor = speed()
    seconds = max(found.seconds, 1)
    step = max(1.0, seconds / 20.0)
    begun = now()
    done, errors, faulty = [0] * len(gpus), [0] * len(gpus), [False] * len(gpus)
    next_report, elapsed = 10.0, 0.0
    with _registered(here, gpus, begun + seconds / factor + 5.0):
        while elapsed < seconds:
            span = min(step, seconds - elapsed)
            time.sleep(max(0.0, begun + (elapsed + span) / factor - now()))
            elapsed += span
            machine, at = here.machine(), now()
            rates, temps = [], []
            for n, gpu in enumerate(gpus):
                lost = machine.lost(gpu, at)
                speed_now = 0.0 if lost else rate(machine, gpu, found, at)
                done[n] = -1 if lost else done[n] + round(speed_now * 1e9 * span / OPS)
                errors[n] += _errors(machine, gpu, at) - (1 if lost else 0)
                faulty[n] = faulty[n] or errors[n] != 0
                rates.append(speed_now)
                temps.append(0 if lost else machine.sensors(gpu, at).gpu_c)
            share = min(100.0, elapsed / seconds * 100.0)
            print(_progress(share, done, rates, errors, temps), end="", flush=True)
            if next_report < share:
                next_report = share + 10.0
                print(f"\n\tSummary at:   {datetime.fromtimestamp(at, UTC):%a %b %e %H:%M:%S UTC %Y}\n")
                errors = [0] * len(gpus)
            if all(d == -1 for d in done):
                print("\n\nNo clients are alive!  Aborting", file=sys.stderr)
                return errno.ENOMEDIUM
    _close([gpu for gpu, d in zip(gpus, done, strict=True) if d != -1], faulty)
    return 0


def _close(freed: Sequence[Gpu], faulty: list[bool]) -> None:
    print("\nKilling processes with SIGTERM (soft kill)")
    for gpu in freed:
        print(f"Freed memory for dev {gpu.index}\nUninitted cublas")
    print(f"done\n\nTested {len(faulty)} GPUs:")
    for n, bad in enumerate(faulty):
        # With -i the program counts its one client, not the device.
        print(f"\tGPU {n}: {'FAULTY' if bad else 'OK'}")


def run(here: Here, found: Arguments) -> int:
    """Do what a command line asks; the exit status."""
    product = here.facts.product
    machine = here.machine()
    # It numbers what CUDA shows it, and a GPU that is lost is not among that.
    seen = list(enumerate(machine.visible(now())))
    if found.listing:
        for number, _ in seen:
            print(f"ID {number}: {product.name}, {product.cuda_mb[0]}MB")
        return 0
    if not found.timed:
        print("Run length not specified in the command line. ", end="")
    print(f"Using compare file: {COMPARE_FILE}\nBurning for {found.seconds} seconds.")
    # This list is nvidia-smi's, which knows nothing of what CUDA is shown.
    for gpu in here.facts.gpus:
        if not machine.lost(gpu, now()):
            print(f"GPU {gpu.index}: {product.name} (UUID: {gpu.uuid})")
    chosen = [(number, gpu) for number, gpu in seen if found.device in {None, number}]
    if not chosen:
        print('Couldn\'t init a GPU test: Error in "get device": CUDA_ERROR_INVALID_DEVICE', file=sys.stderr)
        return errno.ENOMEDIUM
    for number, _ in chosen:
        print(_initialised(product, found).format(number), flush=True)
    return _burn(here, [gpu for _, gpu in chosen], found)


HELP = """GPU Burn
Usage: gpu-burn [OPTIONS] [TIME]

-m X\tUse X MB of memory.
-m N%\tUse N% of the available GPU memory.  Default is 90%
-d\tUse doubles
-tc\tTry to use Tensor cores
-l\tLists all GPUs in the system
-i N\tExecute only on GPU N
-c FILE\tUse FILE as compare kernel.  Default is compare.fatbin
-stts T\tSet timeout threshold to T seconds for using SIGTERM to abort child processes before using SIGKILL.
-h\tShow this help message"""


def _stop(number: int, frame: FrameType | None) -> None:
    del frame
    # So that what was registered is taken away again.
    sys.exit(128 + number)


def main() -> int:
    """Entry of the executable."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        found = parse(sys.argv[1:])
        if found.helping:
            print(HELP)
            return 0
        return run(Here.find(), found)
    except SyntaxRefusedError as error:
        print(error, file=sys.stderr)
        return errno.EINVAL
    except FleetError as error:
        return fail("gpu_burn", error)


if __name__ == "__main__":
    sys.exit(main())
