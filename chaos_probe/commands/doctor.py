"""``chaos-probe doctor``: what is here, what is missing, and what to do about it."""

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from chaos_probe.commands.common import (
    BAD_NEWS,
    FORMATS,
    print_json,
    print_table,
    report_options,
    settings_options,
    with_report,
)
from chaos_probe.devices.cuda import cuda_library
from chaos_probe.devices.host import file_system
from chaos_probe.devices.kubelet import handed_out
from chaos_probe.devices.nvml import Nvml
from chaos_probe.devices.tool import on_path
from chaos_probe.errors import JournalError, ProbeError, ToolError
from chaos_probe.experiments import experiment
from chaos_probe.guard import is_on
from chaos_probe.journal import Journal
from chaos_probe.machine import Machine
from chaos_probe.settings import AgentSettings, Settings

_CONNECT_S = 3.0
_PASSING = {
    "overlay": "which is gone with the container",
    "tmpfs": "which is memory",
    "ramfs": "which is memory",
    "nfs": "whose locks depend on a server",
    "nfs4": "whose locks depend on a server",
}
"""File systems on which the journal may not outlive what it is for."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: ``ok``, ``absent`` (matters to who wants it) or ``bad`` (the agent cannot work)."""

    what: str
    status: str
    detail: str
    remedy: str = ""


def _hardware(machine: Machine) -> Iterator[Finding]:
    if machine.gpu_problem:
        yield Finding("GPUs", "absent", machine.gpu_problem, "install the driver, and give the container access to it")
    else:
        products = sorted({gpu.product or "unknown" for gpu in machine.gpus})
        yield Finding("GPUs", "ok", f"{len(machine.gpus)}: {', '.join(products)}")
        seen = type(machine.telemetry).__name__ == "Nvml"
        remedy = "" if seen else "install nvidia-ml-py; ceilings are read through nvidia-smi meanwhile"
        present = "library loads, but sees other GPUs" if Nvml.find() else "not available"
        yield Finding("NVML", "ok" if seen else "absent", "sees the same GPUs" if seen else present, remedy)
    if machine.dcgm is None:
        yield Finding("DCGM", "absent", "dcgmi is not on PATH", "install datacenter-gpu-manager for dcgm-inject")
    else:
        try:
            yield Finding("DCGM", "ok", f"host engine sees {len(machine.dcgm.ids())} GPU(s)")
        except ToolError as error:
            yield Finding("DCGM", "absent", str(error), "start nv-hostengine, or set dcgm.host")
    library = cuda_library()
    yield Finding(
        "GPU library",
        "ok" if library else "absent",
        library or "no CuPy, no PyTorch",
        "" if library else "install one, or gpu_burn and nvbandwidth",
    )
    for what, names in (
        ("gpu_burn", ("gpu_burn", "gpu-burn")),
        ("nvbandwidth", ("nvbandwidth",)),
        ("numactl", ("numactl",)),
    ):
        path = on_path(*names)
        yield Finding(what, "ok" if path else "absent", path or "not on PATH", "" if path else f"install {what}")
    nodes = ", ".join(map(str, machine.numa)) or "unknown"
    yield Finding("NUMA", "ok", f"nodes with CPUs and memory: {nodes}")


def _state(settings: Settings) -> Iterator[Finding]:
    folder = settings.state_path
    try:
        journal = Journal(folder)
    except JournalError as error:
        yield Finding("state", "bad", str(error), "choose a folder that can be written with --state-dir")
        return
    if not os.access(folder, os.W_OK):
        yield Finding("state", "bad", f"{folder} cannot be written", "choose another with --state-dir")
        return
    kind = file_system(folder)
    if kind in _PASSING:
        remedy = "mount a folder of the node's own disk, or a run that dies with the container is never reverted"
        yield Finding("state", "absent", f"{folder} is on {kind}, {_PASSING[kind]}", remedy)
    else:
        yield Finding("state", "ok", str(folder))
    entries, damaged = journal.open_entries(), journal.damaged_files()
    if entries:
        runs = ", ".join(entry.run for entry in entries)
        yield Finding("journal", "bad", f"open: {runs}", "run chaos-probe recover, unless they are in progress")
    if damaged:
        names = ", ".join(map(str, damaged))
        yield Finding("journal", "bad", f"damaged: {names}", "check the node by hand, then delete the files")
    if not entries and not damaged:
        yield Finding("journal", "ok", "nothing open")


def _guard(settings: Settings) -> Iterator[Finding]:
    switch = Path(settings.guard.kill_switch)
    if is_on(switch):
        yield Finding("kill switch", "bad", f"{switch} is on", "remove the file to allow runs")
    else:
        yield Finding("kill switch", "ok", f"{switch} is off")
    try:
        held = handed_out(Path(settings.guard.pod_resources_socket))
    except ToolError as error:
        yield Finding("kubelet", "bad", str(error), "mount /var/lib/kubelet/pod-resources, run as root")
        return
    if held is None:
        yield Finding("kubelet", "absent", "no PodResources socket", "needed on Kubernetes nodes only")
    else:
        yield Finding(
            "kubelet", "ok", f"{len(held.uuids) + len(held.indices) + len(held.unclear)} device(s) handed out"
        )


def _scorer(settings: Settings) -> Iterator[Finding]:
    report = settings.report
    if not report.to:
        yield Finding("scorer", "absent", "no address", "the agent needs --report-to HOST:PORT")
        return
    for what, name in (("token", report.token_file), ("certificates", report.ca_file)):
        if name and not os.access(name, os.R_OK):
            yield Finding(what, "bad", f"{name} cannot be read", f"put the {what} there")
            return
    import grpc  # noqa: PLC0415 - only where a scorer is named

    from chaos_probe.report import channel_to  # noqa: PLC0415 - likewise

    how = "with TLS" if report.ca_file else "without TLS"
    with channel_to(report) as channel:
        try:
            grpc.channel_ready_future(channel).result(_CONNECT_S)
        except grpc.FutureTimeoutError:
            remedy = "reports wait in the queue until it does; see that both sides agree on TLS (--ca-file)"
            yield Finding("scorer", "absent", f"{report.to} does not answer {how}", remedy)
        else:
            yield Finding("scorer", "ok", f"{report.to} answers {how}")


def _experiments(settings: Settings, machine: Machine) -> Iterator[Finding]:
    asked_for = settings.agent.experiments != AgentSettings().experiments
    able = 0
    for planned in settings.agent.experiments:
        try:
            chosen = experiment(planned.kind)
            chosen.parse(planned.params)
        except ProbeError as error:
            yield Finding(planned.kind, "bad", str(error), "correct agent.experiments")
            continue
        missing = "; ".join(chosen.missing(machine))
        able += not missing
        bad = "bad" if asked_for else "absent"
        yield Finding(
            planned.kind, bad if missing else "ok", missing or f"every {planned.every}", "see above" if missing else ""
        )
    if not able:
        yield Finding("agent", "bad", "nothing that it should measure can be measured", "see above")


def examine(settings: Settings) -> list[Finding]:
    """Look at everything."""
    machine = Machine.detect(settings.dcgm.host)
    return [
        *_hardware(machine),
        *_state(settings),
        *_guard(settings),
        *_scorer(settings),
        *_experiments(settings, machine),
    ]


@click.command("doctor")
@click.option("-o", "--output", type=FORMATS, default="table", show_default=True)
@report_options
@settings_options
def command(
    settings: Settings, output: str, report_to: str | None, token_file: str | None, ca_file: str | None
) -> None:
    """Say what is here, what is missing and what to do; ends with 1 where the configured agent cannot work."""
    findings = examine(with_report(settings, report_to, token_file, ca_file))
    if output == "json":
        print_json({"items": [asdict(finding) for finding in findings]})
    else:
        print_table(
            ("WHAT", "STATUS", "DETAIL", "REMEDY"), [[f.what, f.status, f.detail, f.remedy or "-"] for f in findings]
        )
    sys.exit(BAD_NEWS if any(f.status == "bad" for f in findings) else 0)
