"""``dcgm-inject``: faults written into DCGM's cache: does the monitoring see them? No GPU gets slower by it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from chaos_probe.devices.dcgm import WATCH_LETTERS, Dcgm
from chaos_probe.errors import HaltedError, RefusedError, ToolError, UsageError
from chaos_probe.experiments.base import Context, Experiment, Parameter, Plan
from chaos_probe.machine import Machine
from chaos_probe.records import Gpu, Residue
from chaos_probe.revert import Action, dcgm_value, dcgm_watches, watch_letters

_REINJECT_S = 1.0
_TOOL_S = 35.0
MAX_XID = 999
HISTORY = "DCGM's health keeps it until nv-hostengine restarts"
WINDOW = "a scrape or an alert window may still hold it"


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault.

    Attributes:
        field: DCGM field id.
        value: what is injected when nothing is said.
        delta: judged by its increase within a window: needs a sample of what was there first.
        letters: of the health systems that watch it.
        once: injected once: each further sample would be another event.
    """

    field: int
    value: float
    delta: bool
    letters: str
    once: bool = False


FAULTS: Mapping[str, Fault] = {
    "xid": Fault(230, 79, delta=False, letters="dimnpt", once=True),
    "sbe": Fault(310, 20, delta=False, letters="m"),
    "dbe": Fault(311, 1, delta=False, letters="m"),
    # Violation times are in nanoseconds: five seconds.
    "thermal": Fault(241, 5_000_000_000, delta=True, letters="t"),
    "power": Fault(240, 5_000_000_000, delta=True, letters="t"),
    "nvlink": Fault(429, 5, delta=True, letters="n"),
}


class DcgmInject(Experiment):
    """Writes a fault, keeps it there for the hold, writes what was found over it, and reads both back."""

    kind: ClassVar[str] = "dcgm-inject"
    summary: ClassVar[str] = "Write an XID, ECC, thermal, power or NVLink fault into DCGM's cache, then take it back"
    surfaces: ClassVar[tuple[str, ...]] = ("dcgm", "exporter")
    needs: ClassVar[tuple[str, ...]] = ("nvidia-smi", "dcgmi", "a standalone nv-hostengine that the monitor shares")
    risk: ClassVar[Literal["residue"]] = "residue"
    injects: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("fault", "xid", "which", choices=tuple(FAULTS)),
        Parameter("value", 0, "XID, or increase of the counter (ns for thermal, power); 0: the fault's own", 0, 10**15),
        Parameter(
            "hold_by", "auto", "write again every second, or once, dated ahead", choices=("auto", "reinject", "offset")
        ),
    )

    def missing(self, machine: Machine) -> list[str]:
        """See the base class."""
        missing = [machine.gpu_problem] if machine.gpu_problem else []
        if machine.dcgm is None:
            return [*missing, "dcgmi is not on PATH"]
        try:
            machine.dcgm.ids()
        except ToolError as error:
            missing.append(str(error))
        return missing

    def plan(self, ctx: Context) -> Plan:
        """See the base class."""
        name = str(ctx.params["fault"])
        fault = FAULTS[name]
        size = float(ctx.params["value"] or fault.value)
        if name == "xid" and not 1 <= size <= MAX_XID:
            raise UsageError(f"value={size:.0f}: an XID is a number from 1 to {MAX_XID}")
        dcgm = _dcgm(ctx.machine)
        ids = dcgm.ids()
        hold_by = _hold_by(fault, str(ctx.params["hold_by"]))
        bound = ctx.hold_s + _TOOL_S
        found: dict[int, float] = {}
        reverts: list[Action] = []
        letters, wanted = _watches(dcgm, fault)
        if wanted != letters:
            reverts.append(dcgm_watches(letters, dcgm.host))
        ahead = _ahead(hold_by, ctx.hold_s)
        for gpu in ctx.gpus:
            if gpu.uuid not in ids:
                raise RefusedError(
                    f"DCGM does not see GPU {gpu.index} ({gpu.uuid or 'no UUID'}); see dcgmi discovery -l"
                )
            gpu_id = ids[gpu.uuid]
            value = dcgm.read(gpu_id, [fault.field])[fault.field]
            if name == "xid" and value:
                raise RefusedError(
                    f"GPU {gpu.index} shows XID {value:.0f} already, and taking an injected one back would hide it; "
                    "look into it, restart nv-hostengine, then run again, or choose another fault"
                )
            found[gpu_id] = value or 0.0
            target = size if name == "xid" else found[gpu_id] + size
            reverts.append(dcgm_value(gpu_id, fault.field, found[gpu_id], target, ahead, dcgm.host))
        return Plan(
            f"{name} (field {fault.field}, {'XID' if name == 'xid' else 'increase'} {size:.0f}) "
            f"on {len(ctx.gpus)} GPU(s) for {ctx.hold_s:g} s, by {hold_by}; watches {letters or 'off'} -> {wanted}",
            reverts=tuple(reverts),
            residues=_residues(ctx.gpus, name, fault, size),
            bound_s=bound,
            outlives=True,
            found={"values": found, "size": size, "letters": letters, "wanted": wanted, "hold_by": hold_by},
        )

    def inject(self, ctx: Context) -> str:
        """Set the watches first: history is filled by what comes after. Then what was there, then the fault."""
        fault, found, dcgm = self._parts(ctx)
        if found["wanted"] != found["letters"]:
            dcgm.set_watches(found["wanted"])
        ctx.point("inject:watches")
        if fault.delta:
            for gpu_id, value in found["values"].items():
                dcgm.inject(gpu_id, fault.field, value)
        ctx.point("inject:baseline")
        self._write(ctx)
        return f"field {fault.field} written for DCGM's GPU(s) {', '.join(map(str, found['values']))}"

    def _parts(self, ctx: Context) -> tuple[Fault, Mapping[str, Any], Dcgm]:
        found = ctx.plan.found if ctx.plan is not None else {}
        return FAULTS[str(ctx.params["fault"])], found, _dcgm(ctx.machine)

    def _write(self, ctx: Context) -> None:
        fault, found, dcgm = self._parts(ctx)
        ahead = _ahead(found["hold_by"], ctx.hold_s)
        for gpu_id, value in found["values"].items():
            target = found["size"] if fault.field == FAULTS["xid"].field else value + found["size"]
            # A second sample of the same age and value would be overwritten by nobody: each is dated anew.
            dcgm.inject(gpu_id, fault.field, target, ahead)

    def observe(self, ctx: Context) -> str:
        """Keep the fault there for the hold, and say what DCGM itself makes of it."""
        fault, found, dcgm = self._parts(ctx)
        seen = self._seen(dcgm, fault, found)
        ctx.point("observe:seen")
        for number, _ in enumerate(ctx.ticks(_REINJECT_S)):
            if number and found["hold_by"] == "reinject":
                with ctx.ours() as still:
                    if not still:
                        raise HaltedError("the dead-man reverted this run meanwhile")
                    self._write(ctx)
        return seen

    def _seen(self, dcgm: Dcgm, fault: Fault, found: Mapping[str, Any]) -> str:
        words = []
        try:
            _, by_gpu = dcgm.health()
        except ToolError as error:
            by_gpu = {}
            words.append(str(error))
        for gpu_id in found["values"]:
            value = dcgm.read(gpu_id, [fault.field])[fault.field]
            verdicts = "; ".join(f"{system} {text}" for system, text in by_gpu.get(gpu_id, {}).items())
            shown = "N/A" if value is None else f"{value:g}"
            words.append(f"GPU {gpu_id}: field {fault.field} reads {shown}; health: {verdicts or 'nothing found'}")
        return "; ".join(words)

    def after(self, ctx: Context) -> str:
        """Say what DCGM's health still shows: residue, which no injected value takes away."""
        _, found, dcgm = self._parts(ctx)
        if not found["letters"]:
            return "health watches are off again, as found"
        try:
            _, by_gpu = dcgm.health()
        except ToolError as error:
            return f"health: {error}"
        left = [f"GPU {g}: {s} {t}" for g in found["values"] for s, t in by_gpu.get(g, {}).items()]
        return f"health still shows {'; '.join(left)} ({WINDOW})" if left else "health shows nothing"


def _dcgm(machine: Machine) -> Dcgm:
    if machine.dcgm is None:
        raise ToolError("dcgmi is not on PATH; install DCGM")
    return machine.dcgm


def _hold_by(fault: Fault, asked: str) -> str:
    if asked != "auto":
        return asked
    return "once" if fault.once else "reinject"


def _ahead(hold_by: str, hold_s: float) -> int:
    """Return how many seconds ahead the fault is dated; the program's own default is 1."""
    return max(1, math.ceil(hold_s)) if hold_by == "offset" else 1


def _watches(dcgm: Dcgm, fault: Fault) -> tuple[str, str]:
    """Return the letters of the watches that are on, and of those that will be.

    Raises:
        RefusedError: a watch is on that no letter sets back.
    """
    on = dcgm.watches()
    letters = watch_letters(on)
    wanted = "".join(sorted(set(letters) | set(fault.letters)))
    stuck = [name for name, is_on in on.items() if is_on and name not in WATCH_LETTERS]
    if wanted != letters and stuck:
        raise RefusedError(
            f"health watches {', '.join(stuck)} are on and cannot be set back by dcgmi; turn on {wanted} too, "
            "with the tool that set them, then run again"
        )
    return letters, wanted


def _residues(gpus: Sequence[Gpu], name: str, fault: Fault, size: float) -> tuple[Residue, ...]:
    found = []
    for gpu in gpus:
        if name == "xid":
            found.append(Residue("dcgm", f"xid:{size:.0f}", gpu.index, HISTORY))
            found.append(Residue("exporter", f"xid:{size:.0f}", gpu.index, WINDOW))
        found.append(Residue("dcgm", f"field:{fault.field}", gpu.index, WINDOW))
        found.append(Residue("exporter", f"field:{fault.field}", gpu.index, WINDOW))
    return tuple(found)
