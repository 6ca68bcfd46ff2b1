"""``pcie-bandwidth``: how fast data travels between host memory and GPU."""

import time
from collections.abc import Sequence
from typing import ClassVar, Literal

from chaos_probe.devices.cuda import Measured, both_ways
from chaos_probe.devices.dcgm import Dcgm, PcieDiagnosis
from chaos_probe.errors import ToolError
from chaos_probe.experiments.base import Context, Experiment, Parameter, Plan, listed
from chaos_probe.machine import Machine
from chaos_probe.records import Gpu, SampleStatus

_NO_NUMBER = {
    "pass": "dcgmi diag passed the GPU without giving a bandwidth",
    "skip": "dcgmi diag skipped the GPU",
}
"""What is said where there is no number and no fault either, by the diagnosis's word."""


class PcieBandwidth(Experiment):
    """Pinned copies both ways; the slower direction is the sample."""

    kind: ClassVar[str] = "pcie-bandwidth"
    summary: ClassVar[str] = "Copy between host and GPU both ways: GB/s of the slower direction"
    surfaces: ClassVar[tuple[str, ...]] = ("probe",)
    needs: ClassVar[tuple[str, ...]] = ("nvidia-smi", "CuPy, PyTorch, nvbandwidth or dcgmi")
    risk: ClassVar[Literal["load"]] = "load"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("seconds", 4.0, "per GPU, with CuPy or PyTorch", low=0.5, high=600.0, unit="s"),
    )

    def missing(self, machine: Machine) -> list[str]:
        """See the base class."""
        missing = [machine.gpu_problem] if machine.gpu_problem else []
        if machine.cuda.library is None and machine.cuda.copies is None and machine.dcgm is None:
            missing.append("CuPy, PyTorch, nvbandwidth or dcgmi")
        return missing

    def plan(self, ctx: Context) -> Plan:
        """See the base class."""
        means = ctx.machine.cuda.library or ("nvbandwidth" if ctx.machine.cuda.copies else "dcgmi diag -r pcie")
        return Plan(f"copies between host and {len(ctx.gpus)} GPU(s) by {means}")

    def observe(self, ctx: Context) -> str:
        """See the base class."""
        started = time.time()
        measured = ctx.machine.cuda.pcie(ctx.gpus, ctx.params["seconds"], ctx.halt)
        notes: list[str] = []
        if measured is None:
            if ctx.machine.dcgm is None:
                raise ToolError("nothing here can copy to a GPU; install CuPy, PyTorch, nvbandwidth or DCGM")
            measured = by_diagnosis(ctx.machine.dcgm, ctx.gpus, ctx)
        samples = []
        for gpu, one in zip(ctx.gpus, measured, strict=True):
            if one.detail in _NO_NUMBER.values():
                notes.append(f"GPU {gpu.index}: {one.detail}")
            else:
                samples.append(ctx.sample(gpu, "pcie", one, started))
        return "; ".join([listed(samples), *notes])


def by_diagnosis(dcgm: Dcgm, gpus: Sequence[Gpu], ctx: Context) -> list[Measured]:
    """Measure with DCGM's diagnosis, whose version 4 may pass a GPU without a number."""
    try:
        ids = dcgm.ids()
        found = dcgm.pcie([ids[gpu.uuid] for gpu in gpus if gpu.uuid in ids], ctx.halt)
    except ToolError as error:
        return [Measured.failed(error)] * len(gpus)
    return [_judge(found.get(ids.get(gpu.uuid, -1))) for gpu in gpus]


def _judge(found: PcieDiagnosis | None) -> Measured:
    if found is None:
        return Measured(None, SampleStatus.FAILED, "dcgmi diag did not test this GPU")
    if found.status in {"fail", "error"}:
        return Measured(None, SampleStatus.FAILED, "; ".join(found.warnings) or "dcgmi diag failed this GPU")
    if found.host_to_device is None and found.device_to_host is None:
        words = _NO_NUMBER.get(found.status, f"dcgmi diag says {found.status or 'nothing'} of this GPU")
        return Measured(None, SampleStatus.FAILED, words)
    return both_ways(found.host_to_device, found.device_to_host, "dcgmi diag")
