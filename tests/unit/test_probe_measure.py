"""Measurements that need no GPU, and the order of a run's steps."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaos_probe.devices import cuda_worker
from chaos_probe.devices.cuda import Cuda
from chaos_probe.devices.host import end_marked, file_system, marked, measure_gflops, start_neighbours
from chaos_probe.devices.numa import numa_node_of, numa_nodes, pinned_triad
from chaos_probe.devices.triad import measure_triad
from chaos_probe.errors import HaltedError, SpoolError, ToolError
from chaos_probe.experiments import EXPERIMENTS
from chaos_probe.experiments.base import Context, Experiment, Plan
from chaos_probe.halt import Halt
from chaos_probe.journal import Journal, State
from chaos_probe.machine import Machine
from chaos_probe.records import Residue, RunPhase, RunRecord
from chaos_probe.request import Request, Sinks
from chaos_probe.revert import end_processes
from chaos_probe.run import STEPS, Runner
from chaos_probe.settings import GuardSettings, Settings


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
