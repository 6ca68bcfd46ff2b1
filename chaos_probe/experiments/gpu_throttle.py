"""``gpu-throttle``: GPUs made really slower through ``nvidia-smi``, measured, and set back to what was found."""

import time
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from chaos_probe.devices.nvidia_smi import REASON_CLOCKS_SETTING, NvidiaSmi, selector
from chaos_probe.errors import RefusedError, ToolError, UsageError
from chaos_probe.experiments.base import Context, Experiment, Parameter, Plan
from chaos_probe.experiments.gpu_burn import PRECISION, burn
from chaos_probe.machine import Machine
from chaos_probe.records import Gpu, Vitals
from chaos_probe.revert import Action, power_limit, reset_clocks

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOOLS_S = 90.0


class GpuThrottle(Experiment):
    """A lower clock or power limit: the one fault here that changes speed, so the grader can learn from it."""

    kind: ClassVar[str] = "gpu-throttle"
    summary: ClassVar[str] = (
        "Lower the clock or the power limit of GPUs for a while, with a burn before, during and after"
    )
    surfaces: ClassVar[tuple[str, ...]] = ("probe", "nvml", "exporter")
    needs: ClassVar[tuple[str, ...]] = ("nvidia-smi, with the right to set limits", "CuPy, PyTorch or gpu_burn")
    risk: ClassVar[Literal["reversible"]] = "reversible"
    injects: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("by", "clocks", "what is lowered", choices=("clocks", "power")),
        Parameter("to", 0.6, "share of the highest clock, or of the power limit that is set", low=0.05, high=0.99),
        Parameter("burn", 5.0, "seconds of each burn; 0: none", low=0.0, high=600.0, unit="s"),
        PRECISION,
    )

    def missing(self, machine: Machine) -> list[str]:
        """See the base class."""
        missing = [machine.gpu_problem] if machine.gpu_problem else []
        if machine.cuda.library is None and machine.cuda.burn is None:
            missing.append("CuPy, PyTorch or gpu_burn")
        return missing

    def plan(self, ctx: Context) -> Plan:
        """See the base class. Refuses where it cannot tell what was there."""
        smi = _smi(ctx.machine)
        by, share = str(ctx.params["by"]), float(ctx.params["to"])
        vitals = smi.vitals()
        targets: dict[str, float] = {}
        reverts: list[Action] = []
        words = []
        for gpu in ctx.gpus:
            name = selector(gpu)
            if by == "power":
                targets[name], found = _lower_power(smi, gpu, share)
                reverts.append(power_limit(name, found))
                words.append(f"GPU {gpu.index}: {found:g} W -> {targets[name]:g} W")
            else:
                targets[name] = _lower_clock(smi, gpu, share, vitals.get(gpu.index, Vitals()))
                reverts.append(reset_clocks(name))
                words.append(f"GPU {gpu.index}: not locked -> at most {targets[name]:g} MHz")
        burns = ctx.params["burn"] * len(ctx.gpus) + _TOOLS_S if ctx.params["burn"] else 0.0
        return Plan(
            f"{'; '.join(words)} for {ctx.hold_s:g} s",
            reverts=tuple(reverts),
            bound_s=ctx.hold_s + burns + _TOOLS_S,
            outlives=True,
            found={"targets": targets},
        )

    def before(self, ctx: Context) -> str:
        """See the base class."""
        return self._burn(ctx, "before")

    def inject(self, ctx: Context) -> str:
        """See the base class."""
        smi = _smi(ctx.machine)
        targets: Mapping[str, Any] = ctx.plan.found["targets"] if ctx.plan is not None else {}
        for name, target in targets.items():
            if ctx.params["by"] == "power":
                smi.set_power_limit(name, target)
            else:
                smi.lock_clocks(name, 0, round(target))
            ctx.point("inject:first")
        return f"{len(targets)} GPU(s) throttled by {ctx.params['by']}"

    def observe(self, ctx: Context) -> str:
        """See the base class."""
        end = time.monotonic() + ctx.hold_s
        words = self._burn(ctx, "throttled")
        ctx.halt.sleep(end - time.monotonic())
        return words or "held, not measured (burn=0)"

    def after(self, ctx: Context) -> str:
        """See the base class."""
        return self._burn(ctx, "after")

    def _burn(self, ctx: Context, when: str) -> str:
        if not ctx.params["burn"]:
            return ""
        return f"{when}: {burn(ctx, ctx.params['burn'], ctx.params['precision'], when)}"


def _smi(machine: Machine) -> NvidiaSmi:
    if machine.smi is None:
        raise ToolError("nvidia-smi is not on PATH")
    return machine.smi


def _lower_power(smi: NvidiaSmi, gpu: Gpu, share: float) -> tuple[float, float]:
    """Return the limit to set and the one that was found, watts."""
    limits = smi.power_limits(gpu)
    if limits is None:
        raise RefusedError(
            f"GPU {gpu.index} does not say its power limit, so it could not be restored; use --param by=clocks"
        )
    target = max(limits.lowest, limits.now * share)
    if target >= limits.now:
        raise UsageError(
            f"GPU {gpu.index} has {limits.now:g} W set and takes no less than {limits.lowest:g} W; nothing to lower"
        )
    return target, limits.now


def _lower_clock(smi: NvidiaSmi, gpu: Gpu, share: float, vitals: Vitals) -> float:
    """Return the clock to lock, MHz."""
    highest = smi.max_sm_clock(gpu)
    if highest is None or vitals.reasons is None:
        raise RefusedError(
            f"GPU {gpu.index} does not say its clocks or what limits them, so a lock that somebody set could not be "
            "restored; use --param by=power"
        )
    if vitals.reasons & REASON_CLOCKS_SETTING:
        raise RefusedError(
            f"the clock of GPU {gpu.index} is limited by a setting already, whose value cannot be read back; remove it "
            "with nvidia-smi -rgc and -rac, or use --param by=power"
        )
    return highest * share
