"""What forbids a run, the settings that say so, and when the agent measures."""

import math
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import chaos_probe
from chaos_probe.devices.cuda import Cuda
from chaos_probe.devices.kubelet import sort_devices
from chaos_probe.devices.nvidia_smi import NvidiaSmi
from chaos_probe.devices.nvml import Nvml, find_telemetry
from chaos_probe.errors import UsageError
from chaos_probe.guard import Ceilings, Guard, is_quiet
from chaos_probe.journal import Journal
from chaos_probe.machine import Machine
from chaos_probe.records import Gpu, Vitals
from chaos_probe.schedule import LastTimes, Refusals, Task, choose, first_pause, seed_of, staleness
from chaos_probe.settings import GuardSettings, QuietHours, Settings, load_settings
from tests.probe_support import GPU, entry

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
