"""The tools of a node: what they print, and how they are run, halted and ended."""

import importlib.util
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos_probe.commands.run import parse_gpus as gpu_flag
from chaos_probe.commands.run import parse_params
from chaos_probe.devices import tool as tools
from chaos_probe.devices.cuda import Cuda, both_ways
from chaos_probe.devices.dcgm import parse_dmon
from chaos_probe.devices.gpu_burn import GpuBurn, parse_burn
from chaos_probe.devices.nvbandwidth import NvBandwidth, parse_nvbandwidth
from chaos_probe.devices.nvidia_smi import parse_csv
from chaos_probe.devices.tool import run_tool, visible
from chaos_probe.errors import HaltedError, ToolError, ToolTimeoutError, ToolUnusableError, UsageError
from chaos_probe.experiments import EXPERIMENTS
from chaos_probe.halt import Halt
from chaos_probe.kernel_log import parse_line
from chaos_probe.records import Gpu
from chaos_probe.settings import seconds
from tests.probe_support import GPU
from tests.process.probe_node import until

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
