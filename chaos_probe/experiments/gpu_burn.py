"""``gpu-burn``: how fast GPUs compute and copy within themselves, under full load."""

import time
from typing import ClassVar, Literal

from chaos_probe.experiments.base import Context, Experiment, Parameter, Plan, listed
from chaos_probe.machine import Machine
from chaos_probe.records import UNITS, Figure, Sample

COMPUTE_PRECISION = "tensor"
"""Tensor cores are what training runs on: their rate alone is the ``compute`` dimension."""

PRECISION = Parameter(
    "precision",
    COMPUTE_PRECISION,
    "of the products; only tensor gives compute samples, the others figures for people",
    choices=("tensor", "float", "double"),
)


class GpuBurnExperiment(Experiment):
    """Matrix products and copies, judged by the work done and the errors found."""

    kind: ClassVar[str] = "gpu-burn"
    summary: ClassVar[str] = "Burn GPUs with matrix products and copies: TFLOP/s, GB/s, wrong results"
    surfaces: ClassVar[tuple[str, ...]] = ("probe",)
    needs: ClassVar[tuple[str, ...]] = ("nvidia-smi", "CuPy, PyTorch or gpu_burn")
    risk: ClassVar[Literal["load"]] = "load"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("seconds", 10.0, "of burning; heat needs a minute to show", low=1.0, high=3600.0, unit="s"),
        PRECISION,
    )

    def missing(self, machine: Machine) -> list[str]:
        """See the base class."""
        missing = [machine.gpu_problem] if machine.gpu_problem else []
        if machine.cuda.library is None and machine.cuda.burn is None:
            missing.append("CuPy, PyTorch or gpu_burn")
        return missing

    def plan(self, ctx: Context) -> Plan:
        """See the base class."""
        copies = ctx.machine.cuda.library or ("nvbandwidth" if ctx.machine.cuda.copies else "")
        memory = f"then copies within ({copies})" if copies else "no memory figure: needs CuPy, PyTorch or nvbandwidth"
        means = ctx.machine.cuda.library or "gpu_burn"
        return Plan(f"{ctx.params['seconds']:g} s of products on {len(ctx.gpus)} GPU(s) by {means}, {memory}")

    def observe(self, ctx: Context) -> str:
        """See the base class."""
        words = burn(ctx, ctx.params["seconds"], ctx.params["precision"])
        started = time.time()
        copied = ctx.machine.cuda.memory(ctx.gpus, min(5.0, ctx.params["seconds"]), ctx.halt)
        if copied is None:
            return words
        samples = [ctx.sample(gpu, "memory", one, started) for gpu, one in zip(ctx.gpus, copied, strict=True)]
        return f"{words}; {listed(samples)}"


def burn(ctx: Context, seconds: float, precision: str, when: str = "") -> str:
    """Burn the run's GPUs, hand over what each gave, and return it in words.

    A rate of the tensor cores is a ``compute`` sample. One of another precision compares with none of those, so it is a
    figure for people that no baseline sees. A burn that fails is a sample whatever the precision: evidence of a fault.

    Args:
        ctx: of the run.
        seconds: how long.
        precision: a choice of :data:`PRECISION`.
        when: of several burns in one run, which.

    Raises:
        ToolError: there is nothing to burn with.
    """
    started = time.time()
    measured = ctx.machine.cuda.compute(ctx.gpus, seconds, precision, ctx.halt)
    samples: list[Sample] = []
    words: list[str] = []
    for gpu, one in zip(ctx.gpus, measured, strict=True):
        if one.value is None or precision == COMPUTE_PRECISION:
            samples.append(ctx.sample(gpu, "compute", one, started))
        else:
            name = " ".join(filter(None, (when, f"GPU {gpu.index}", precision)))
            ctx.figures.append(Figure(name, one.value, UNITS["compute"]))
            words.append(f"{name} {one.value:.4g} {UNITS['compute']}")
    return "; ".join([*words, *([listed(samples)] if samples else [])])
