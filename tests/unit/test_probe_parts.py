"""The parts of the probes that need no machine: parsers, guard rules, settings, schedule, journal, queue."""

import importlib.util
import json
import math
import os
import random
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chaos_probe
from chaos_probe import spool, wire
from chaos_probe.commands.run import parse_gpus as gpu_flag
from chaos_probe.commands.run import parse_params
from chaos_probe.deadman import keep_watch, timer_argv, watcher_argv
from chaos_probe.devices import cuda_worker
from chaos_probe.devices import tool as tools
from chaos_probe.devices.cuda import Cuda, both_ways
from chaos_probe.devices.dcgm import parse_dmon
from chaos_probe.devices.gpu_burn import GpuBurn, parse_burn
from chaos_probe.devices.host import end_marked, file_system, marked, measure_gflops, start_neighbours
from chaos_probe.devices.kubelet import sort_devices
from chaos_probe.devices.numa import numa_node_of, numa_nodes, pinned_triad
from chaos_probe.devices.nvbandwidth import NvBandwidth, parse_nvbandwidth
from chaos_probe.devices.nvidia_smi import NvidiaSmi, parse_csv
from chaos_probe.devices.nvml import Nvml, find_telemetry
from chaos_probe.devices.tool import run_tool, visible
from chaos_probe.devices.triad import measure_triad
from chaos_probe.errors import (
    HaltedError,
    JournalError,
    SpoolError,
    ToolError,
    ToolTimeoutError,
    ToolUnusableError,
    UsageError,
)
from chaos_probe.experiments import EXPERIMENTS
from chaos_probe.experiments.base import Context, Experiment, Plan
from chaos_probe.guard import Ceilings, Guard, is_quiet, one_run
from chaos_probe.halt import Halt
from chaos_probe.journal import Entry, Journal, State
from chaos_probe.kernel_log import KernelLog, parse_line
from chaos_probe.machine import Machine
from chaos_probe.records import Gpu, Residue, RunPhase, RunRecord, Sample, Vitals
from chaos_probe.recover import finish, recover, revert
from chaos_probe.request import Request, Sinks
from chaos_probe.revert import carry_out, dcgm_value, end_processes, power_limit, read_back
from chaos_probe.run import STEPS, Runner
from chaos_probe.schedule import LastTimes, Refusals, Task, choose, first_pause, seed_of, staleness
from chaos_probe.settings import GuardSettings, QuietHours, Settings, SpoolSettings, load_settings, seconds
from chaos_probe.spool import Spool
from tests.process.probe_node import until

GPU = Gpu(0, "GPU-0", "NVIDIA H100 80GB HBM3", "00000000:18:00.0", 81559, 700.0, "570.1")


# Parsers.


@given(st.text(max_size=400))
def test_parsers_survive_any_text(text: str) -> None:
    parse_burn(text)
    parse_dmon(text, [150])
    parse_line(text, 1.0, 0.0)
    for parse in (parse_csv, parse_nvbandwidth):
        with suppress(ToolError):
            parse(text)


def test_bandwidths_are_told_apart_by_bus() -> None:
    text = (
        "Device 0: NVIDIA H100 (00000000:2a:00)\nDevice 1: NVIDIA H100 (00000000:18:00)\n\nRunning x.\n"
        "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1\n 0     55.63     N/A\n\nSUM x 55.63\n"
    )
    table = parse_nvbandwidth(text)
    assert table.gb_per_s == (55.63, None)
    assert table.of(GPU, 0) is None
    assert table.of(Gpu(1, pci_bus_id="00000000:2A:00.0"), 1) == 55.63
    with pytest.raises(ToolError, match="Waived"):
        parse_nvbandwidth("Running device_local_copy.\nWaived\n")


def test_blank_values_of_dcgm_are_no_values() -> None:
    rows = parse_dmon("GPU 0 2147483632 140737488355328.0 9223372036854775792 45\n", [1, 2, 3, 4])
    assert rows[0] == {1: None, 2: None, 3: None, 4: 45.0}


def test_the_slower_way_counts_and_nothing_is_no_bandwidth() -> None:
    assert both_ways(25.0, 24.0, "x").value == 24.0
    assert both_ways(None, 24.0, "x").value == 24.0
    assert both_ways(None, None, "x").status == "failed"
    assert both_ways(0.0, 24.0, "x").status == "failed"


@pytest.mark.parametrize(("text", "value"), [("10s", 10), ("1.5m", 90), ("6h", 21600), ("250ms", 0.25), ("7", 7)])
def test_spans(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1w", "nan", "inf"])
def test_no_spans(text: str) -> None:
    with pytest.raises(UsageError, match="no span of time"):
        seconds(text)


def test_flags() -> None:
    assert parse_params(("a=1", "b=x=y")) == {"a": "1", "b": "x=y"}
    for bad in (("a",), ("=1",), ("a=1", "a=2")):
        with pytest.raises(UsageError):
            parse_params(bad)
    assert gpu_flag("all") is None
    assert gpu_flag("0, 3") == [0, 3]
    with pytest.raises(UsageError, match="write indices"):
        gpu_flag("0,-1")
    with pytest.raises(UsageError, match="write indices"):
        gpu_flag("\u00b2")


def test_every_experiment_describes_itself() -> None:
    for kind, one in EXPERIMENTS.items():
        assert one.kind == kind
        assert one.summary
        assert one.surfaces
        for parameter in one.parameters:
            assert parameter.parse(parameter.default) == parameter.default
            json.dumps(parameter.to_json())


# Tools and halts.


def test_a_tool_is_ended_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(ToolTimeoutError, match=r"did not finish within 0\.3 s"):
        run_tool(["sh", "-c", f"sleep 60 & echo $! > {pid_file}; wait"], timeout_s=0.3)
    child = Path(f"/proc/{pid_file.read_text().strip()}/stat")
    assert not child.exists() or child.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_a_tool_that_says_too_much_is_ended() -> None:
    with pytest.raises(ToolError, match="more than 8 MiB"):
        run_tool(["sh", "-c", "yes"], timeout_s=30)


def test_a_tool_obeys_a_halt_and_an_absent_one_is_named() -> None:
    halt = Halt()
    halt.tell("enough")
    with pytest.raises(HaltedError, match="enough"):
        run_tool(["sleep", "60"], timeout_s=30, halt=halt)
    with pytest.raises(ToolError, match="no-such-tool cannot be started"):
        run_tool(["no-such-tool"], timeout_s=1)


def test_a_tool_that_nothing_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # A process that hangs in the driver takes no signal; here the signals are lost on their way.
    groups: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: groups.append(group))
    try:
        with ThreadPoolExecutor(tools.MAX_STUCK) as pool:
            stuck = [pool.submit(run_tool, ["sleep", "60"], timeout_s=0.01) for _ in range(tools.MAX_STUCK)]
        assert all("did not finish" in str(one.exception()) for one in stuck)
        with pytest.raises(ToolTimeoutError, match="4 processes of sleep hang and cannot be ended"):
            run_tool(["sleep", "0"], timeout_s=5)
        assert run_tool(["true"], timeout_s=5).status == 0
    finally:
        monkeypatch.undo()
        for group in set(groups):
            os.killpg(group, signal.SIGKILL)
    until(lambda: all(not Path(f"/proc/{group}").exists() or zombie(group) for group in groups))
    assert run_tool(["sleep", "0"], timeout_s=5).status == 0


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("beside", ["compare.ptx", "compare.fatbin"])
def test_gpu_burn_runs_where_its_kernel_file_is(tmp_path: Path, beside: str) -> None:
    program = tmp_path / "gpu_burn"
    program.write_text(
        '#!/bin/sh\n[ -e compare.ptx -o -e compare.fatbin ] || { echo "couldn\'t find compare kernel: x"; exit 0; }\n'
        'echo "100.0%  proc\'d: 280 (48000 Gflop/s)   errors: 0   temps: 52 C"\n'
    )
    program.chmod(0o755)
    (tmp_path / "link").symlink_to(program)
    cuda = Cuda(None, GpuBurn(str(tmp_path / "link")), None)
    # That it is missing is no fault of a GPU.
    with pytest.raises(ToolUnusableError, match="put compare"):
        cuda.compute([GPU], 1.0, "tensor", Halt())
    (tmp_path / beside).touch()
    assert [one.value for one in cuda.compute([GPU], 1.0, "tensor", Halt())] == [48.0]


def test_a_broken_gpu_does_not_speak_for_its_neighbours(tmp_path: Path) -> None:
    # Both programs end without a number as soon as the second GPU is among those that they see.
    for name, says in (
        ("gpu_burn", "100.0%  proc'd: 280 (48000 Gflop/s)   errors: 0   temps: 52 C"),
        ("nvbandwidth", "x bandwidth (GB/s)\\n   0\\n 0  55.0"),
    ):
        script = tmp_path / name
        script.write_text(
            f'#!/bin/sh\ncase "$CUDA_VISIBLE_DEVICES" in *GPU-1*) echo CUDA_ERROR; exit 1;; esac\nprintf "{says}\\n"\n'
        )
        script.chmod(0o755)
    script = tmp_path / "gpu_burn"
    script.write_text(script.read_text().replace("100.0%", "100.0%%"))
    cuda = Cuda(None, GpuBurn(str(tmp_path / "gpu_burn")), NvBandwidth(str(tmp_path / "nvbandwidth")))
    gpus = [GPU, Gpu(1, "GPU-1"), Gpu(2, "GPU-2"), Gpu(3)]
    for found, value in (
        (cuda.compute(gpus, 1.0, "tensor", Halt()), 48.0),
        (cuda.memory(gpus, 1.0, Halt()), 110.0),
        (cuda.pcie(gpus, 1.0, Halt()), 55.0),
    ):
        assert [one.value for one in found or ()] == [value, None, value, None]
        assert [one.status for one in found or ()] == ["ok", "failed", "ok", "failed"]


def test_a_library_that_cannot_be_loaded_is_no_fault_of_a_gpu() -> None:
    if importlib.util.find_spec("cupy"):
        pytest.skip("CuPy is installed here")
    with pytest.raises(ToolUnusableError, match="cupy cannot be used: No module named"):
        Cuda("cupy", None, None).compute([GPU], 1.0, "tensor", Halt())


def test_a_halt_implies_its_child_but_not_the_reverse() -> None:
    parent = Halt()
    first = parent.child()
    first.tell("too hot")
    assert (first.reason, parent.told()) == ("too hot", False)
    second = parent.child()
    parent.tell("SIGTERM received", by_signal=True)
    assert (second.reason, second.by_signal) == ("SIGTERM received", True)
    assert parent.child().told()


def test_a_program_is_kept_to_gpus_by_uuid_alone(tmp_path: Path) -> None:
    others = [Gpu(3, "GPU-3"), Gpu(1, "GPU-1")]
    assert visible(others) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "GPU-3,GPU-1"}
    with pytest.raises(ToolError, match="GPU 2 does not tell its UUID"):
        visible([GPU, Gpu(2)])


def test_a_lost_gpu_is_measured_by_no_library() -> None:
    # Its number would be that of the next GPU that CUDA counts, which may have a job.
    cuda = Cuda("torch", None, None)
    found = [cuda.compute([Gpu(1)], 1.0, "tensor", Halt())]
    found += [cuda.memory([Gpu(1)], 1.0, Halt()) or [], cuda.pcie([Gpu(1)], 1.0, Halt()) or []]
    assert [[(one.status, one.value) for one in each] for each in found] == [[("failed", None)]] * 3
    assert all("lost" in one.detail for each in found for one in each)


# Guard.


class Told:
    """Vital signs and processes as a test says."""

    def __init__(self, vitals: Any = None, busy: Any = None) -> None:
        self._vitals, self._busy = vitals or {}, busy or {}

    def vitals(self) -> dict[int, Vitals]:
        return self._vitals

    def busy(self) -> dict[str, int]:
        return self._busy


def guard_of(tmp_path: Path, telemetry: Any = None, **more: Any) -> Guard:
    values = {"kill_switch": str(tmp_path / "stop"), "pod_resources_socket": str(tmp_path / "sock")} | more
    machine = Machine((GPU,), "", None, telemetry, None, Cuda(None, None, None), (0,), numactl=False)
    return Guard(GuardSettings(**values), machine, Journal(tmp_path))


NOON = datetime(2026, 6, 3, 12, 0, tzinfo=UTC)  # a Wednesday
COOL = {0: Vitals(temperature_c=40.0, power_w=70.0, reasons=1)}


def test_nothing_forbids_a_quiet_cool_gpu(tmp_path: Path) -> None:
    assert guard_of(tmp_path, Told(COOL)).refusals([GPU], injects=True, now=NOON) == []


@pytest.mark.parametrize(
    ("vitals", "injects", "words"),
    [
        (Vitals(temperature_c=95.0), False, "above the ceiling of 90 C; let it cool"),
        (Vitals(temperature_c=40.0, power_w=900.0), False, "draws 900 W, above the ceiling of 805 W"),
        (Vitals(temperature_c=40.0, reasons=0x40), True, "throttled already (hardware thermal slowdown)"),
        (Vitals(), True, "does not tell its temperature"),
    ],
)
def test_ceilings_and_throttling_forbid(tmp_path: Path, vitals: Any, injects: bool, words: str) -> None:
    (refusal,) = guard_of(tmp_path, Told({0: vitals})).refusals([GPU], injects=injects, now=NOON)
    assert words in refusal


def test_a_throttled_gpu_may_be_measured(tmp_path: Path) -> None:
    told = Told({0: Vitals(temperature_c=40.0, reasons=0x40)})
    assert guard_of(tmp_path, told).refusals([GPU], injects=False, now=NOON) == []


def test_jobs_switch_quiet_hours_and_open_runs_forbid(tmp_path: Path) -> None:
    hours = QuietHours(start="11:00", end="13:00")
    guard = guard_of(tmp_path, Told(COOL, {"GPU-0": 2}), quiet_hours=(hours,))
    (tmp_path / "stop").touch()
    Journal(tmp_path).write(entry("r1"))
    refusals = guard.refusals([GPU], injects=True, now=NOON)
    for words in ("kill switch", "quiet hours", "run r1 (host-burn) is still open", "2 compute process(es)"):
        assert sum(words in refusal for refusal in refusals) == 1
    assert len(refusals) == 4


def test_what_cannot_be_looked_at_forbids(tmp_path: Path) -> None:
    # A name that is too long stands for a folder that may not be read: root may read all.
    hidden = str(tmp_path / ("x" * 300))
    (refusal,) = guard_of(tmp_path, Told(COOL), kill_switch=hidden).refusals([], injects=False, now=NOON)
    assert "kill switch" in refusal
    (refusal,) = guard_of(tmp_path, Told(COOL), pod_resources_socket=hidden).refusals([GPU], injects=False, now=NOON)
    assert "whether there is a kubelet cannot be told" in refusal
    assert "run with the rights to read it" in refusal


@pytest.mark.parametrize(
    ("start", "end", "days", "at", "quiet"),
    [
        ("11:00", "13:00", (), (3, 12, 59), True),
        ("11:00", "13:00", (), (3, 13, 0), False),
        ("22:00", "06:00", (), (3, 23, 0), True),
        ("22:00", "06:00", (), (3, 5, 59), True),
        ("22:00", "06:00", (), (3, 6, 0), False),
        ("22:00", "06:00", ("tue",), (3, 5, 0), True),
        ("22:00", "06:00", ("wed",), (3, 5, 0), False),
        ("22:00", "06:00", ("wed",), (3, 23, 0), True),
    ],
)
def test_quiet_hours(start: str, end: str, days: Any, at: Any, quiet: bool) -> None:
    day, hour, minute = at
    assert (
        is_quiet([QuietHours(start=start, end=end, days=days)], datetime(2026, 6, day, hour, minute, tzinfo=UTC))
        is quiet
    )


def test_a_limit_of_ones_own_wins() -> None:
    assert "above the ceiling of 500 W" in Ceilings(90.0, 500.0).broken(GPU, Vitals(power_w=501.0))
    assert Ceilings(90.0, 0.0).broken(Gpu(0), Vitals(power_w=5000.0)) == ""


def test_devices_of_pods() -> None:
    held = sort_devices(
        [
            ("nvidia.com/gpu", "GPU-1::3"),
            ("nvidia.com/gpu", "2"),
            ("nvidia.com/mig-1g.10gb", "MIG-x"),
            ("gpu.nvidia.com", "gpu-0"),
        ]
    )
    assert (set(held.uuids), set(held.indices)) == ({"GPU-1"}, {2})
    assert held.unclear == {"nvidia.com/mig-1g.10gb MIG-x", "gpu.nvidia.com gpu-0"}


def test_without_a_driver_there_is_no_telemetry() -> None:
    assert find_telemetry(None, None) is None
    smi = NvidiaSmi("nvidia-smi")
    assert find_telemetry(smi, None) is smi


class Library:
    """NVML's own functions, for two GPUs of which the second is lost."""

    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 1:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 61

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 650_500

    def nvmlDeviceGetPowerManagementLimit(self, handle: int) -> int:
        raise self.NVMLError("not supported")

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:
        return 1635

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 4

    NVML_ERROR_GPU_IS_LOST = 15
    refusal: int | None = None

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[object]:
        if self.refusal is not None:
            error = self.NVMLError("no")
            error.value = self.refusal  # type: ignore[attr-defined] # as pynvml sets it
            raise error
        return [object(), object()]


def test_nvml_tells_in_our_units_and_leaves_out_what_it_does_not_know() -> None:
    nvml = Nvml(Library())
    assert nvml.vitals() == {0: Vitals(61, 650.5, None, 1635, 4)}
    assert nvml.busy() == {"GPU-0": 2}
    assert nvml.uuids() == {0: "GPU-0"}


def test_a_gpu_that_does_not_tell_its_processes_may_have_a_job(tmp_path: Path) -> None:
    library = Library()
    library.refusal = 4  # no permission
    assert Nvml(library).busy() == {"GPU-0": -1}
    (refusal,) = guard_of(tmp_path, Told(COOL, {"GPU-0": -1})).refusals([GPU], injects=False, now=NOON)
    assert "GPU 0 does not tell its processes" in refusal
    library.refusal = Library.NVML_ERROR_GPU_IS_LOST
    assert Nvml(library).busy() == {}


def test_nvml_is_believed_where_it_sees_the_gpus_of_nvidia_smi(tmp_path: Path) -> None:
    nvml = Nvml(Library())
    for uuid, believed in (("GPU-0", True), ("GPU-9", False)):
        script = tmp_path / "nvidia-smi"
        script.write_text(f"#!/bin/sh\necho 'index, uuid'\necho '0, {uuid}'\n")
        script.chmod(0o755)
        smi = NvidiaSmi(str(script))
        assert find_telemetry(smi, nvml) is (nvml if believed else smi)


# Settings.


def test_settings_are_read(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        "apiVersion: config.gpugrade.dev/v1alpha1\nkind: ProbeSettings\nnode: n7\n"
        "guard: {quietHours: [{start: '22:00', end: '06:00', days: [sat]}], maxTemperatureC: 85}\n"
        "agent: {experiments: [{kind: gpu-burn, every: 1h, params: {seconds: 5}}]}\n"
    )
    settings = load_settings(str(file))
    assert (settings.node_name, settings.guard.max_temperature_c) == ("n7", 85.0)
    assert settings.agent.experiments[0].params == {"seconds": 5}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes: x", "unknown field `nodes`"),
        ("guard: {maxTemperatureC: hot}", "$.guard.maxTemperatureC"),
        ("agent: {experiments: [{kind: gpu-burn, every: often}]}", "agent.experiments[0].every: 'often' is no span"),
        ("deadMan: {margin: 0s}", "deadMan.margin must be longer"),
        ("guard: {quietHours: [{start: '25:00', end: '06:00'}]}", "write times like"),
        ("guard: {timezone: Mars/Olympus}", "guard.timezone 'Mars/Olympus' is no time zone"),
        ("kind: Fleet", "this reads config.gpugrade.dev/v1alpha1 ProbeSettings"),
        ("a: [", "is not YAML"),
        ("spool: {maxRecords: 0}", "at least 1"),
        ("- 1", "Expected `object`"),
    ],
)
def test_wrong_settings_say_where(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        load_settings(str(file))
    assert words in str(raised.value)


def test_the_settings_that_the_page_shows_are_the_defaults(tmp_path: Path) -> None:
    page = Path(chaos_probe.__file__).with_name("README.md").read_text()
    file = tmp_path / "s.yaml"
    file.write_text(page.split("```yaml\n")[1].split("```")[0])
    assert load_settings(str(file)) == Settings()


def test_absent_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load_settings(str(tmp_path / "none.yaml"))


def test_state_goes_where_it_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHAOS_PROBE_STATE", str(tmp_path))
    assert Settings().state_path == tmp_path
    assert Settings(state_dir="/x").state_path == Path("/x")


# Schedule.

TASKS = [Task("gpu-burn", 0, 3600.0), Task("gpu-burn", 1, 3600.0), Task("host-burn", -1, 7200.0)]


def test_the_stalest_is_the_likeliest() -> None:
    last = {"gpu-burn/0": 0.0, "gpu-burn/1": 36000.0 - 4400.0, "host-burn/-1": 36000.0 - 60.0}
    rng = random.Random(1)
    chosen = [choose(TASKS, last, 36000.0, rng) for _ in range(300)]
    counts = {task: chosen.count(task) for task in TASKS}
    assert counts[TASKS[0]] > 20 * counts[TASKS[1]] > 0
    assert counts[TASKS[2]] == 0


@given(st.integers(0, 2**32), st.lists(st.floats(0.0, 1e6), min_size=3, max_size=3), st.floats(0.0, 1e6))
def test_only_what_is_due_is_chosen(seed: int, times: list[float], now: float) -> None:
    last = {task.key: at for task, at in zip(TASKS, times, strict=True)}
    task = choose(TASKS, last, now, random.Random(seed))
    assert task == choose(TASKS, last, now, random.Random(seed))
    if task is not None:
        assert staleness(task, last, now) >= 0.8
    elif all(at <= now for at in times):
        assert any(staleness(t, last, now) <= 1.2 for t in TASKS)


def test_never_done_and_clocks_that_went_back_are_stale() -> None:
    assert staleness(TASKS[0], {}, 5.0) == math.inf
    assert staleness(TASKS[0], {"gpu-burn/0": 9.0}, 5.0) == math.inf
    assert seed_of("n1") == seed_of("n1") != seed_of("n2")


def test_a_refused_task_steps_back_longer_each_time_and_keeps_no_other_from_its_turn() -> None:
    refusals = Refusals()
    busy, free, _ = TASKS
    assert refusals.ready(TASKS, 0.0) == TASKS
    refusals.add(busy, 0.0, 30.0)
    assert refusals.ready(TASKS, 59.0) == TASKS[1:]
    assert refusals.ready(TASKS, 60.0) == TASKS
    refusals.add(busy, 60.0, 30.0)
    assert busy not in refusals.ready(TASKS, 179.0)
    for _ in range(40):
        refusals.add(busy, 200.0, 30.0)
    # At most a quarter of its interval, however often.
    assert refusals.ready(TASKS, 200.0 + 900.0) == TASKS
    assert busy not in refusals.ready(TASKS, 200.0 + 899.0)
    refusals.forget(busy)
    assert refusals.ready(TASKS, 201.0) == TASKS
    # Never measured, and refused for ever: what is due beside it is found within a few looks.
    rng, now, turns = random.Random(3), 0.0, 0
    refusals.add(busy, now, 30.0)
    last = {free.key: 0.0, "host-burn/-1": 1e9}
    while (task := choose(refusals.ready([busy, free], now), last, 4000.0, rng)) is not free:
        if task is busy:
            refusals.add(busy, now, 30.0)
        now, turns = now + 30.0, turns + 1
    assert turns < 10


def test_agents_that_start_together_do_not_begin_together() -> None:
    waits = sorted(first_pause(30.0, random.Random(seed_of(f"n{number}"))) for number in range(200))
    assert 0.0 <= waits[0] < 2.0
    assert 28.0 < waits[-1] <= 30.0


def test_last_times_survive_and_forget(tmp_path: Path) -> None:
    path = tmp_path / "last.json"
    LastTimes(path).set(TASKS[0], 7.0, TASKS)
    kept = LastTimes(path)
    assert kept() == {"gpu-burn/0": 7.0}
    kept.set(TASKS[2], 8.0, TASKS[2:])
    assert LastTimes(path)() == {"host-burn/-1": 8.0}
    path.write_text("[1, 2")
    assert LastTimes(path)() == {}


# Journal.


def entry(run: str, **more: Any) -> Entry:
    values: dict[str, Any] = {
        "kind": "host-burn",
        "node": "n1",
        "gpus": (),
        "created": 1.0,
        "reverts": (end_processes(run),),
    } | more
    return Entry(run=run, **values)


def test_the_journal_gives_back_what_it_was_given(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    one = entry("a", gpus=(1, 2), residues=(Residue("dcgm", "xid:79", 1, "x"),), report=True, started=2.5)
    journal.write(one)
    assert Journal(tmp_path).read("a") == one
    assert journal.read("b") is None
    with pytest.raises(JournalError):
        journal.path("../x")


@pytest.mark.parametrize("cut", [0, 1, 40, 150])
def test_a_file_cut_short_is_set_aside(tmp_path: Path, cut: int) -> None:
    journal = Journal(tmp_path)
    path = journal.write(entry("a"))
    journal.write(entry("b", created=0.5))
    whole = path.read_text()
    path.write_text(whole[:cut])
    assert [e.run for e in journal.open_entries()] == ["b"]
    (kept,) = journal.damaged_files()
    assert kept.read_text() == whole[:cut]


@settings(max_examples=60)
@given(st.text(max_size=60), st.sampled_from(["run", "gpus", "reverts", "state", "started", "version", "residues"]))
def test_a_file_with_nonsense_in_it_is_damaged_not_a_crash(
    tmp_path_factory: pytest.TempPathFactory, nonsense: str, key: str
) -> None:
    journal = Journal(tmp_path_factory.mktemp("j"))
    path = journal.write(entry("a"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: nonsense}))
    entries = journal.open_entries()
    assert len(entries) + len(journal.damaged_files()) == 1


def test_reverting_twice_is_reverting_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(entry("a", started=1.0, report=True))
    told: list[RunRecord] = []
    first = revert(journal, "a", "recover")
    assert first is not None
    assert (first.state, first.by) == (State.REVERTED, "recover")
    assert revert(journal, "a", "dead-man") == first
    assert getattr(finish(journal, "a", told.append), "state", None) is State.CLOSED
    assert getattr(finish(journal, "a", told.append), "state", None) is State.CLOSED
    assert [(r.id, r.phase) for r in told] == [("a", RunPhase.REVERTED)]
    assert recover(journal, told.append) == []


def test_what_was_never_injected_is_only_closed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(entry("a", reverts=(power_limit("GPU-0", 1.0),), report=True))
    told: list[RunRecord] = []
    (done,) = recover(journal, told.append)
    assert (done.problem, done.entry.state, told) == ("", State.CLOSED, [])


def test_a_revert_that_fails_stays_open_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    journal = Journal(tmp_path)
    journal.write(entry("a", started=1.0, report=True, reverts=(end_processes("a"),)))
    journal.write(entry("b", started=1.0, report=True, reverts=(power_limit("GPU-0", 1.0),)))
    told: list[RunRecord] = []
    results = recover(journal, told.append)
    assert [bool(r.problem) for r in results] == [False, True]
    assert "nvidia-smi is not on PATH" in results[1].problem
    assert {r.id: r.phase for r in told} == {"a": RunPhase.REVERTED, "b": RunPhase.FAILED_REVERT}
    assert [e.run for e in journal.open_entries()] == ["b"]


def test_a_report_that_cannot_be_queued_is_tried_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(entry("a", started=1.0, report=True))

    def full(_: object) -> None:
        raise SpoolError("full")

    # Another run's revert does not wait for that.
    journal.write(entry("b", started=2.0, created=2.0, report=True))
    assert ["not closed (full)" in done.problem for done in recover(journal, full)] == [True, True]
    assert [waiting.state for waiting in journal.open_entries()] == [State.REVERTED, State.REVERTED]
    told: list[RunRecord] = []
    recover(journal, told.append)
    assert [(r.id, r.phase) for r in told] == [("a", RunPhase.REVERTED), ("b", RunPhase.REVERTED)]


def test_the_dead_man_tries_on_while_the_queue_takes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(entry("a", started=1.0, report=True))
    answers = [SpoolError("full"), SpoolError("full"), None]

    def report(_: object) -> None:
        if error := answers.pop(0):
            raise error

    assert "reverted, and read back" in keep_watch(journal, "a", 0.0, report, retry_s=0.0)
    assert answers == []
    assert journal.open_entries() == []


def test_a_file_that_cannot_be_read_now_is_no_damaged_file(tmp_path: Path) -> None:
    # What opens at the path is a folder: an error of the system, as too many open files would be.
    journal = Journal(tmp_path)
    (journal.folder / "a.json").mkdir()
    with pytest.raises(JournalError, match="cannot be read: Is a directory"):
        journal.open_entries()
    assert (journal.folder / "a.json").exists()
    assert journal.damaged_files() == []


@pytest.mark.parametrize("action", [{"do": "power-limit"}, {"do": "reset-clocks", "gpu": 3}, {"do": "x"}, {}])
def test_a_revert_that_lacks_something_is_damage_and_holds_up_no_other(tmp_path: Path, action: Any) -> None:
    journal = Journal(tmp_path)
    journal.write(entry("a", started=1.0, reverts=(action,)))
    journal.write(entry("b", started=1.0))
    assert [(done.entry.run, done.problem) for done in recover(journal, None)] == [("b", "")]
    assert len(journal.damaged_files()) == 1


def test_where_no_lock_can_be_had_it_is_said(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(entry("a"))
    (journal.folder / ".a.lock").mkdir()
    with pytest.raises(JournalError, match=r"no lock can be had in .*choose a --state-dir"), journal.hold("a"):
        pass
    (tmp_path / "run.lock").mkdir()
    with pytest.raises(JournalError, match="no lock can be had"), one_run(tmp_path, "x"):
        pass


def test_a_run_does_not_end_before_it_began_when_the_clock_goes_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    ahead = time.time() + 3600.0
    journal.write(entry("a", started=ahead, report=True))
    (done,) = recover(journal, None)
    assert done.entry.ended == ahead


def test_all_reverts_are_tried_last_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    problems = carry_out([power_limit("GPU-0", 1.0), end_processes("x"), power_limit("GPU-1", 1.0)], 0.0)
    assert len(problems) == 2


@pytest.mark.parametrize(("value", "as_found"), [("7", True), ("9", True), ("0", True), ("N/A", True), ("27", False)])
def test_what_is_below_the_injected_value_is_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, as_found: bool
) -> None:
    # Below what was found too: the counter began anew with the host engine or the driver.
    script = tmp_path / "dcgmi"
    script.write_text(f"#!/bin/sh\necho 'GPU 0 {value}'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert (read_back([dcgm_value(0, 310, 7, 27, 1)], 0.0) == []) is as_found


def test_closed_entries_are_pruned(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(105):
        one = entry(f"r{number:03d}")
        journal.write(one)
        journal.close(one)
    assert len(list(journal.closed.glob("*.json"))) == 100


def test_two_processes_do_not_hold_one_run(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(entry("a"))
    order: list[Entry | None] = []
    with journal.hold("a"):
        other = threading.Thread(target=lambda: order.append(revert(Journal(tmp_path), "a", "dead-man")))
        other.start()
        other.join(0.2)
        assert order == []
        closed = journal.close(entry("a"))
    other.join(10)
    assert order == [closed]


def test_dead_man_commands(tmp_path: Path) -> None:
    bounds = SpoolSettings(max_records=7, max_mib=3)
    argv = timer_argv(tmp_path / "r.json", 90.0, "unit-x", bounds)
    assert argv[:2] == ["systemd-run", "--quiet"]
    assert "--on-active=90" in argv
    assert argv[-6:] == watcher_argv(tmp_path / "r.json", 0.0, bounds)[-6:]
    assert watcher_argv(tmp_path / "r.json", 90.0, bounds)[-1] == "90"
    # With bounds of its own it would drop from the queue what the settings allow.
    assert "--queue-records 7 --queue-mib 3" in " ".join(argv)


# Queue.


def plain(number: int, run: str = "") -> Sample:
    return Sample(at=float(number), gpu=0, uuid="GPU-0", dimension="compute", value=1.0, run=run, id=f"s{number}")


def run_record(name: str, phase: RunPhase = RunPhase.ACTIVE, ended: float | None = None) -> RunRecord:
    return RunRecord(name, "gpu-throttle", (0,), phase, 1.0, ended, (Residue("dcgm", "xid:79", 0),))


def test_the_oldest_plain_samples_go_first_and_runs_never(tmp_path: Path) -> None:
    queue = Spool(tmp_path / "q.db", 5, 1 << 20)
    wire.queue_run(queue, run_record("r1"))
    wire.queue_sample(queue, plain(1, run="r1"))
    wire.queue_kernel(queue, 1.0, "NVRM: Xid")
    for number in range(2, 6):
        wire.queue_sample(queue, plain(number))
    assert [(r.kind, r.name) for r in queue.oldest(10, 1 << 20)] == [
        ("run", "r1"), ("tagged", "s1"), ("kernel", ""), ("sample", "s4"), ("sample", "s5"),
    ]  # fmt: skip
    assert queue.level().lost == {"sample": 2}
    for number in range(2, 6):
        wire.queue_run(queue, run_record(f"r{number}"))
    assert [r.kind for r in queue.oldest(10, 1 << 20)] == ["run"] * 5
    assert queue.level().lost == {"sample": 4, "kernel": 1, "tagged": 1}
    with pytest.raises(SpoolError, match="full of run reports"):
        wire.queue_run(queue, run_record("r9"))
    assert queue.level().records == 5
    # The end of a run that waits takes the place of its beginning, so it always fits.
    wire.queue_run(queue, run_record("r3", RunPhase.REVERTED, 2.0))
    request = wire.request_of("n1", "1", queue.oldest(10, 1 << 20))
    assert [(r.id, r.phase) for r in request.runs][-1] == ("r3", 2)
    assert request.runs[-1].residues[0].code == "xid:79"


@settings(max_examples=40)  # each put is flushed to disk, which takes what it takes
@given(st.lists(st.tuples(st.sampled_from(["sample", "tagged", "kernel"]), st.integers(1, 400)), max_size=25))
def test_the_queue_never_passes_its_bounds(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[str, int]]
) -> None:
    queue = Spool(tmp_path_factory.mktemp("q") / "q.db", 8, 1000)
    for number, (kind, size) in enumerate(puts):
        queue.put(kind, str(number), bytes(size))
        level = queue.level()
        assert level.records <= 8
        assert level.size <= 1000
    level = queue.level()
    assert level.records + sum(level.lost.values()) == len(puts)


def test_a_batch_is_bounded_and_leaves_only_when_done(tmp_path: Path) -> None:
    queue = Spool(tmp_path / "q.db", 100, 1 << 20)
    for number in range(4):
        queue.put(spool.SAMPLE, str(number), bytes(300))
    assert len(queue.oldest(10, 700)) == 2
    assert len(queue.oldest(10, 1)) == 1
    queue.done(queue.oldest(3, 1 << 20))
    assert [r.name for r in Spool(tmp_path / "q.db", 100, 1 << 20).oldest(10, 1 << 20)] == ["3"]


def test_a_file_that_is_no_queue_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    path.write_bytes(b"not a database at all, but long enough to look at" * 30)
    queue = Spool(path, 10, 1 << 20)
    assert queue.moved is not None
    assert queue.moved.read_bytes().startswith(b"not a database")
    queue.put(spool.SAMPLE, "x", b"1")
    assert queue.level().records == 1


def test_a_full_disk_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    queue = Spool(tmp_path / "q.db", 10_000, 1 << 30)
    queue.put(spool.RUN, "r", b"1")

    class Full(Spool):
        def _open(self) -> Any:
            return limited(super()._open())

    full = Full.__new__(Full)
    full.__dict__ |= queue.__dict__
    with pytest.raises(SpoolError, match="takes nothing: database or disk is full"):
        full.put(spool.SAMPLE, "big", bytes(1 << 22))
    assert [r.name for r in queue.oldest(10, 1 << 20)] == ["r"]


class limited:  # noqa: N801 - used as a context manager
    """SQLite's own bound on pages stands for a full disk: the same error comes."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __enter__(self) -> sqlite3.Connection:
        db: sqlite3.Connection = self._inner.__enter__()
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages + 1}")
        return db

    def __exit__(self, *error: object) -> None:
        self._inner.__exit__(*error)


def test_samples_travel_whole() -> None:
    sample = Sample(
        at=1700000000.25, gpu=3, uuid="GPU-3", dimension="memory", value=2.5, run="r", source="gpu-burn", detail="d",
        vitals=Vitals(61.0, 650.0, 700.0, 1635.0), driver="570.1",
    )  # fmt: skip
    message = wire.sample_message(sample)
    assert message.at.ToMilliseconds() == 1700000000250
    assert (message.value, message.unit, message.gpu_index, message.run) == (2.5, "GB/s", 3, "r")
    assert (message.context.temperature_c, message.context.power_limit_w) == (61.0, 700.0)
    empty = wire.sample_message(Sample(at=1.0, gpu=-1, uuid="", dimension="host", value=None))
    assert not empty.HasField("value")
    assert not empty.context.HasField("temperature_c")


# Kernel log.


def test_the_log_is_followed_over_restart_and_rotation(tmp_path: Path) -> None:
    log, place = tmp_path / "kmsg", tmp_path / "place.json"
    log.write_text(
        "NVRM: Xid (PCI:0000:18:00): 31, old, without a time\n"
        "2026-06-01T10:00:00Z NVRM: Xid (PCI:0000:18:00): 79, pid=1\n"
        "2026-06-01T10:00:01Z usb 1-1: new device\n"
    )
    first = KernelLog(log, place)
    (line,) = first.poll()
    assert (line.at, line.text) == (1780308000.0, "NVRM: Xid (PCI:0000:18:00): 79, pid=1")
    assert first.poll() == []
    with log.open("a") as file:
        file.write("2026-06-01T10:00:02Z mlx5_core 0000:9c:00.0: link down\n2026-06-01T10:00:03Z NVRM: ha")
    assert [one.text for one in first.poll()] == ["mlx5_core 0000:9c:00.0: link down"]
    first.keep()
    with log.open("a") as file:
        file.write("lf a line\nNVRM: bare\n")
    second = KernelLog(log, place)
    assert [one.text for one in second.poll()] == ["NVRM: half a line", "NVRM: bare"]
    log.rename(tmp_path / "kmsg.1")
    assert second.poll() == []
    log.write_text("2026-06-01T11:00:00Z NVRM: after rotation\n")
    assert [one.text for one in second.poll()] == ["NVRM: after rotation"]


def test_old_lines_without_a_time_are_not_taken_for_new_however_many_there_are(tmp_path: Path) -> None:
    log, place = tmp_path / "kmsg", tmp_path / "place.json"
    log.write_text("NVRM: Xid (PCI:0000:18:00): 79, long ago\n" * 10_000)
    follower = KernelLog(log, place)
    assert follower.poll() == []
    follower.keep()
    # A restart in the middle of the old part changes nothing.
    follower = KernelLog(log, place)
    assert [follower.poll() for _ in range(5)] == [[]] * 5
    with log.open("a") as file:
        file.write("NVRM: Xid (PCI:0000:18:00): 48, now\n")
    assert [line.text for line in follower.poll()] == ["NVRM: Xid (PCI:0000:18:00): 48, now"]


def test_lines_that_could_not_be_queued_are_read_again(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("2026-06-01T10:00:00Z NVRM: a\n2026-06-01T10:00:01Z NVRM: b")
    follower = KernelLog(log, tmp_path / "place.json")
    assert [line.text for line in follower.poll()] == ["NVRM: a"]
    follower.rewind()
    assert [line.text for line in follower.poll()] == ["NVRM: a"]
    follower.keep()
    with log.open("a") as file:
        file.write("!\n")
    assert [line.text for line in follower.poll()] == ["NVRM: b!"]
    follower.rewind()
    assert [line.text for line in follower.poll()] == ["NVRM: b!"]


def test_a_flood_of_lines_loses_none(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("".join(f"2026-06-01T10:00:00Z NVRM: Xid {number}\n" for number in range(9000)))
    follower = KernelLog(log, tmp_path / "place.json")
    found = [line.text for _ in range(4) for line in follower.poll()]
    assert found == [f"NVRM: Xid {number}" for number in range(9000)]


def test_kmsg_records_count_from_boot() -> None:
    line = parse_line("6,1234,5000000,-;NVRM: Xid (PCI:0000:18:00): 48", 99.0, 1000.0)
    assert line is not None
    assert (line.at, line.text, line.timed) == (1005.0, "NVRM: Xid (PCI:0000:18:00): 48", True)
    assert parse_line("6,1,1,-;systemd[1]: started", 99.0, 0.0) is None


# Measurements that need no GPU.


def test_the_host_is_measured() -> None:
    rate, rounds = measure_triad(0.02, 2, 6)
    assert rate > 0.05
    assert rounds >= 4
    gflops, products, same = measure_gflops(0.02, size=64)
    assert gflops > 0
    assert products >= 1
    assert same


def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 0:20 / / rw - overlay overlay rw\n"
        f"23 22 0:21 / {tmp_path} rw,nosuid shared:1 master:2 - ext4 /dev/sda1 rw\n"
        f"24 22 0:22 / {tmp_path}/x rw - tmpfs tmpfs rw\nnonsense\n"
    )
    assert file_system(tmp_path / "state", mounts) == "ext4"
    assert file_system(tmp_path / "x" / "state", mounts) == "tmpfs"
    assert file_system(tmp_path / "xy", mounts) == "ext4"
    assert file_system(Path("/var/lib"), mounts) == "overlay"
    assert file_system(tmp_path, tmp_path / "none") == ""
    assert file_system(Path("/proc/self")) == "proc"


def test_marked_processes_are_found_and_ended() -> None:
    children = start_neighbours("unit-run", 2, 60.0, 3)
    try:
        assert sorted(marked("unit-run")) == sorted(child.pid for child in children)
        assert end_marked("unit-run") == 2
        assert marked("unit-run") == []
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert end_marked("no-such-run") == 0


def test_numa_nodes_and_where_a_device_hangs(tmp_path: Path) -> None:
    for number, cpus, memory in ((0, "0-3", 1024), (1, "4-7", 1024), (2, "", 1024), (3, "8", 0)):
        folder = tmp_path / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
        (folder / "meminfo").write_text(f"Node {number} MemTotal:       {memory} kB\n")
    assert numa_nodes(tmp_path) == (0, 1)
    device = tmp_path / "bus/pci/devices/0000:18:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    assert numa_node_of("00000000:18:00.0", tmp_path) == 1
    (device / "numa_node").write_text("-1\n")
    assert numa_node_of("00000000:18:00.0", tmp_path) is None
    assert numa_node_of("00000000:99:00.0", tmp_path) is None


def runner_of(tmp_path: Path, machine: Machine, record: Callable[[RunRecord], None] | None = None) -> Runner:
    guard = GuardSettings(kill_switch=str(tmp_path / "stop"), pod_resources_socket=str(tmp_path / "sock"))
    settings = Settings(node="n1", guard=guard)
    return Runner(settings, machine, Journal(tmp_path), Sinks(record=record))


def test_two_numa_nodes_give_a_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "numactl"
    script.write_text('#!/bin/sh\necho "$1 $2" >> "$0.log"\nshift 2\nexec "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    machine = Machine((), "none", None, None, None, Cuda(None, None, None), (0, 1), numactl=True)
    request = Request(EXPERIMENTS["numa-bandwidth"], {"seconds": 0.05, "mib": 6})
    outcome = runner_of(tmp_path, machine).execute(request, Halt())
    assert outcome.good, outcome.steps
    rates = {figure.name: figure.value for figure in outcome.figures}
    assert set(rates) == {"local-0", "local-1", "remote-0-1", "remote-1-0"}
    (sample,) = outcome.samples
    assert (sample.gpu, sample.dimension) == (-1, "numa")
    assert sample.value == min(rates["remote-0-1"] / rates["local-0"], rates["remote-1-0"] / rates["local-1"])
    pins = script.with_suffix(".log").read_text().split("\n")
    assert sorted(filter(None, pins)) == [f"--cpunodebind={c} --membind={m}" for c in (0, 1) for m in (0, 1)]


class Scripted(Experiment):
    """Injects a mark that nobody carries, and fails where it is told."""

    kind = "scripted"
    summary = "for this test"
    risk = "reversible"
    scope = "node"

    def __init__(self, fails_at: str, error: Exception) -> None:
        self._fails_at, self._error = fails_at, error
        self.did: list[str] = []

    def _do(self, step: str) -> str:
        self.did.append(step)
        if step == self._fails_at:
            raise self._error
        return step

    def plan(self, ctx: Context) -> Plan:
        self._do("plan")
        return Plan("a plan", reverts=(end_processes(ctx.run),), residues=(Residue("dcgm", "xid:1", -1),))

    def inject(self, ctx: Context) -> str:
        return self._do("inject")

    def observe(self, ctx: Context) -> str:
        return self._do("observe")

    def after(self, ctx: Context) -> str:
        return self._do("verify")


@pytest.mark.parametrize("step", ["plan", "inject", "observe", "verify"])
@pytest.mark.parametrize("error", [ToolError("broken"), TypeError("a bug"), HaltedError("too hot"), OSError("no disk")])
def test_whatever_fails_the_order_holds_and_what_was_injected_is_reverted(
    tmp_path: Path, step: str, error: Exception
) -> None:
    told: list[RunRecord] = []
    machine = Machine((), "none", None, None, None, Cuda(None, None, None), (0,), numactl=False)
    scripted = Scripted(step, error)
    outcome = runner_of(tmp_path, machine, told.append).execute(Request(scripted), Halt())
    assert tuple(s.step for s in outcome.steps) == STEPS
    assert (outcome.reverted, outcome.verified) == (True, True)
    assert not outcome.good
    assert Journal(tmp_path).open_entries() == []
    phases = [record.phase for record in told]
    assert phases == ([] if step == "plan" else [RunPhase.ACTIVE, RunPhase.REVERTED])
    assert scripted.did == sorted(scripted.did, key=STEPS.index)
    assert ("verify" in scripted.did) is (step != "plan")


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("I/O operation on closed file")])
def test_a_reader_that_is_gone_does_not_keep_a_run_from_reverting(tmp_path: Path, error: Exception) -> None:
    def gone(_: object) -> None:
        raise error

    machine = Machine((), "none", None, None, None, Cuda(None, None, None), (0,), numactl=False)
    runner = Runner(runner_of(tmp_path, machine).settings, machine, Journal(tmp_path), Sinks(step=gone))
    scripted = Scripted("observe", ToolError("broken"))
    assert runner.execute(Request(scripted), Halt()).reverted
    assert scripted.did[-1] == "verify"
    assert Journal(tmp_path).open_entries() == []


def test_a_beginning_that_cannot_be_told_is_no_beginning(tmp_path: Path) -> None:
    def full(_: RunRecord) -> None:
        raise SpoolError("the queue is full")

    machine = Machine((), "none", None, None, None, Cuda(None, None, None), (0,), numactl=False)
    scripted = Scripted("", ToolError(""))
    outcome = runner_of(tmp_path, machine, full).execute(Request(scripted), Halt())
    assert "inject" not in scripted.did
    assert not outcome.good
    # Its end waits until it can be told.
    assert [e.state for e in Journal(tmp_path).open_entries()] == [State.REVERTED]


def test_numactl_really_pins() -> None:
    if shutil.which("numactl") is None:
        pytest.skip("numactl is not installed: pinning cannot be tried")
    (first, *_) = numa_nodes()
    try:
        rate = pinned_triad(first, first, 0.02, 6)
    except ToolError as error:
        pytest.skip(f"this kernel or container does not let memory be bound: {error}")
    assert rate > 0.05


class NumpyArrays:
    """The worker's operations on the CPU, to try its judgement; ``wrong`` spoils one product."""

    def __init__(self, wrong: bool = False) -> None:
        self._left = 3 if wrong else -1

    def matrices(self, size: int, precision: str) -> tuple[Any, Any, Any]:
        rng = np.random.default_rng(1)
        return rng.random((size, size)), rng.random((size, size)), np.empty((size, size))

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        np.matmul(a, b, out=out)
        self._left -= 1
        if self._left == 0:
            out[0, 0] += 1.0

    def equal(self, a: Any, b: Any) -> bool:
        return bool(np.array_equal(a, b))

    def copy_of(self, a: Any) -> Any:
        return a.copy()

    def buffers(self, size: int) -> tuple[Any, Any, Any]:
        return np.ones(size, np.uint8), np.empty(size, np.uint8), np.ones(size, np.uint8)

    def copy(self, source: Any, destination: Any) -> None:
        np.copyto(destination, source)

    def finish(self) -> None:
        pass


def test_the_worker_counts_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    good = cuda_worker.measure_compute(NumpyArrays(), 0.01, size=32)
    assert good["errors"] == 0
    assert good["tflops"] > 0
    # A batch of one product, so that the spoiled one is looked at.
    monkeypatch.setattr(cuda_worker, "BATCH_S", 0.0)
    assert cuda_worker.measure_compute(NumpyArrays(wrong=True), 0.01, size=32)["errors"] == 1
    assert cuda_worker.measure_memory(NumpyArrays(), 0.01, 1 << 16)["gb_per_s"] > 0
    assert set(cuda_worker.measure_pcie(NumpyArrays(), 0.01, 1 << 16)) == {"host_to_device", "device_to_host"}
