"""The emulated executables as real processes, the state file under concurrent writers, the command line."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from tools.fleet import state as state_module
from tools.fleet.create import create, token_sha256
from tools.fleet.episodes import episode_at
from tools.fleet.inventory import build
from tools.fleet.node import now
from tools.fleet.state import FleetDir, FleetError, State

ROOT = Path(__file__).resolve().parents[2]
ENOMEDIUM = 123
#: Runs an executable of the fleet and returns what it printed.
Tool: TypeAlias = Callable[..., str]


def calm_seed(at: float) -> int:
    """A seed whose first node is as it should be for the next quarter of an hour: the tools run on the real clock."""
    for seed in range(1, 1000):
        node = build(seed, 4, 8, at)[0][0]
        times = [at + 60 * minute for minute in range(16)]
        if not any(g.slow for g in node.gpus) and not any(episode_at(seed, node.name, t) for t in times):
            return seed
    raise AssertionError("no calm fleet")


@pytest.fixture
def fleet(tmp_path: Path) -> FleetDir:
    # A blank in the path: the executables must quote it.
    return create(tmp_path / "a fleet", calm_seed(now()), 4, 8, now())


@pytest.fixture
def tool(fleet: FleetDir) -> Tool:
    def run(
        name: str,
        *arguments: str,
        node: str = fleet.names[0],
        cwd: Path | None = None,
        status: int = 0,
        **environment: str,
    ) -> str:
        result = subprocess.run(
            [str(fleet.path / "bin" / name), *arguments],
            env={"PATH": "/usr/bin:/bin", "NODE_NAME": node, "GPUGRADE_FLEET_SPEED": "200", **environment},
            cwd=cwd or fleet.path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == status, result.stdout + result.stderr
        return result.stdout if status == 0 else result.stdout + result.stderr

    return run


def command(*arguments: object, status: int = 0) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "tools.fleet", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout if status == 0 else result.stderr


def column(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def query(tool: Tool, field: str, *more: str) -> list[str]:
    return column(tool("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", *more))


def compute(tool: Tool, gpu: int) -> float:
    out = tool("gpu_burn", "-tc", "-i", str(gpu), "20")
    rates = [float(r) for r in re.findall(r"\((\d+) Gflop/s\)", out)]
    return sum(rates) / len(rates) / 1000


def bandwidth(tool: Tool, test: str, **environment: str) -> list[Any]:
    found = json.loads(tool("nvbandwidth", "-j", "-t", test, **environment))["nvbandwidth"]["testcases"][0]
    assert found["status"] == "Passed"
    return [float(cell) if cell != "N/A" else None for row in found["bandwidth_matrix"] for cell in row]


def test_smi_filters_formats_and_lists(tool: Tool) -> None:
    assert query(tool, "index", "-i", "3,1") == ["1", "3"]
    uuid = query(tool, "uuid", "-i", "2")[0]
    assert query(tool, "index", "-i", uuid) == ["2"]
    assert query(tool, "index", "--id=00000000:2A:00.0") == ["1"]
    assert tool("nvidia-smi", "-L").splitlines()[2] == f"GPU 2: NVIDIA H100 80GB HBM3 (UUID: {uuid})"
    header = tool("nvidia-smi", "--query-gpu=clocks.max.sm,clocks_throttle_reasons.active,power.limit", "--format=csv")
    assert header.splitlines()[0] == "clocks.max.sm [MHz], clocks_event_reasons.active, power.limit [W]"
    assert header.splitlines()[1] == "1980 MHz, 0x0000000000000001, 700.00 W"


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--query-gpu=nonsense", "--format=csv"], 2, 'Field "nonsense" is not a valid field to query.'),
        (["--query-gpu=index", "--format=xml"], 2, "--format"),
        (["-i", "99", "-L"], 6, "No devices were found"),
        (["-pl", "99"], 2, "should be between 200.00 W and 700.00 W for GPU 00000000:18:00.0"),
        (["-pl", "inf"], 2, "is not a number"),
        (["-pl"], 2, "needs a value"),
        (["-lgc", "1500,1200"], 2, "the minimum is above the maximum"),
        (["--frobnicate"], 2, "Invalid combination"),
        ([], 2, "knows"),
    ],
)
def test_smi_refuses_as_the_real_one(tool: Tool, fleet: FleetDir, arguments: list[str], status: int, text: str) -> None:
    before = (fleet.folder(fleet.names[0]) / "state.json").read_bytes()
    assert text in tool("nvidia-smi", *arguments, status=status)
    assert (fleet.folder(fleet.names[0]) / "state.json").read_bytes() == before


def test_a_clock_lock_is_a_real_slowdown_and_reset_is_the_way_back(tool: Tool) -> None:
    free, memory = compute(tool, 1), bandwidth(tool, "device_local_copy")[1]
    said = tool("nvidia-smi", "-i", "1", "-lgc", "210,1110")
    assert said == 'GPU clocks set to "(gpuClkMin 210, gpuClkMax 1110)" for GPU 00000000:2A:00.0\nAll done.\n'
    assert compute(tool, 1) / free == pytest.approx(1110 / 1665, rel=0.02)
    assert bandwidth(tool, "device_local_copy")[1] / memory > 0.94
    # No query tells of the lock.
    assert query(tool, "clocks.max.sm", "-i", "1") == ["1980"]
    assert compute(tool, 2) / free > 0.9
    assert tool("nvidia-smi", "-rgc", "-i", "1") == "All done.\n"
    assert compute(tool, 1) / free == pytest.approx(1, rel=0.02)


def test_a_power_limit_is_set_read_and_felt(tool: Tool) -> None:
    free = compute(tool, 1)
    said = tool("nvidia-smi", "-i", "1", "-pl", "350")
    assert said == "Power limit for GPU 00000000:2A:00.0 was set to 350.00 W from 700.00 W.\nAll done.\n"
    assert query(tool, "power.limit,power.default_limit", "-i", "1") == ["350.00, 700.00"]
    assert compute(tool, 1) < 0.8 * free
    tool("nvidia-smi", "-i", "1", "-pl", "700")
    assert compute(tool, 1) / free == pytest.approx(1, rel=0.02)


def test_processes_and_burns_show_on_the_gpu_they_use(tool: Tool, fleet: FleetDir) -> None:
    command("process", "--state", fleet.path, "--node", fleet.names[0], "--gpu", 3, "--pid", 77, "--mib", 1000)
    apps = ["--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv"]
    uuid = query(tool, "uuid", "-i", "3")[0]
    assert tool("nvidia-smi", *apps).splitlines() == [
        "gpu_uuid, pid, process_name, used_gpu_memory [MiB]",
        f"{uuid}, 77, python3, 1000 MiB",
    ]
    assert int(query(tool, "utilization.gpu", "-i", "3")[0]) > 80
    assert query(tool, "memory.used", "-i", "3") == ["1000"]
    command("process", "--state", fleet.path, "--node", fleet.names[0], "--gpu", 3, "--end")
    assert tool("nvidia-smi", *apps).splitlines()[1:] == []
    assert query(tool, "utilization.gpu", "-i", "3") == ["0"]

    burner = subprocess.Popen(
        [str(fleet.path / "bin" / "gpu_burn"), "-i", "5", "3600"],
        env={"PATH": "/usr/bin:/bin", "NODE_NAME": fleet.names[0]},
        stdout=subprocess.PIPE,
        text=True,
    )
    with burner:
        assert burner.stdout is not None
        while "Results are" not in burner.stdout.readline():
            assert burner.poll() is None
        deadline = time.monotonic() + 20
        while len(tool("nvidia-smi", *apps).splitlines()) < 2:
            assert time.monotonic() < deadline
        assert f"{burner.pid}, gpu_burn" in tool("nvidia-smi", *apps)
        assert int(query(tool, "clocks.sm", "-i", "5")[0]) > 1500
        burner.send_signal(signal.SIGTERM)
        assert burner.wait(20) == 128 + signal.SIGTERM
    assert fleet.state(fleet.names[0])["burns"] == []


def test_a_burn_that_was_killed_burns_no_longer(tool: Tool, fleet: FleetDir) -> None:
    burner = subprocess.Popen(
        [str(fleet.path / "bin" / "gpu_burn"), "3600"],
        env={"PATH": "/usr/bin:/bin", "NODE_NAME": fleet.names[0]},
        stdout=subprocess.DEVNULL,
    )
    with burner:
        deadline = time.monotonic() + 20
        while query(tool, "utilization.gpu", "-i", "0") == ["0"]:
            assert time.monotonic() < deadline
        burner.kill()
        burner.wait(20)
    assert fleet.state(fleet.names[0])["burns"]
    assert query(tool, "utilization.gpu", "-i", "0") == ["0"]
    tool("gpu_burn", "-i", "1", "10")
    assert fleet.state(fleet.names[0])["burns"] == []


def test_a_lock_that_is_never_freed_is_said(fleet: FleetDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "LOCK_S", 0.05)
    with (fleet.folder(fleet.names[0]) / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(FleetError, match="holds the state of"):
            fleet.change(fleet.names[0], lambda state: state.clear())
    fleet.change(fleet.names[0], lambda state: state.update(exporter="ok"))


def test_burn_arguments(tool: Tool) -> None:
    out = tool("gpu_burn", "-d", "-m", "50%", "10")
    assert "using 40200 MB of it), using DOUBLES" in out
    assert "Tested 8 GPUs:" in out
    plain = [float(r) for r in re.findall(r"\((\d+) Gflop/s\)", tool("gpu_burn", "-i0", "10"))]
    assert 40_000 < sum(plain) / len(plain) < 56_000
    assert "Run length not specified" in tool("gpu_burn", "-i", "0")
    assert "ID 7: NVIDIA H100" in tool("gpu_burn", "-l")
    assert "Syntax error near -m" in tool("gpu_burn", "-m", "x", status=22)
    assert "CUDA_ERROR_INVALID_DEVICE" in tool("gpu_burn", "-i", "9", "10", status=ENOMEDIUM)
    assert "positive number" in tool("gpu_burn", "10", status=9, GPUGRADE_FLEET_SPEED="-1")


def test_nvbandwidth_honours_visible_devices(tool: Tool) -> None:
    whole = bandwidth(tool, "host_to_device_memcpy_ce")
    assert len(whole) == 8
    assert all(48 < v < 53 for v in whole)
    some = bandwidth(tool, "device_to_device_memcpy_read_ce", CUDA_VISIBLE_DEVICES="2,5")
    assert some[0] is None
    assert some[3] is None
    assert 440 < some[1] == some[2] < 490
    uuid = query(tool, "uuid", "-i", "6")[0]
    assert len(bandwidth(tool, "device_to_host_memcpy_ce", CUDA_VISIBLE_DEVICES=uuid)) == 1
    assert "CUDA_ERROR_NO_DEVICE" in tool("nvbandwidth", status=1, CUDA_VISIBLE_DEVICES="")
    one = json.loads(tool("nvbandwidth", "--json", CUDA_VISIBLE_DEVICES="0"))["nvbandwidth"]["testcases"]
    assert {t["name"]: t["status"] for t in one}["device_to_device_memcpy_read_ce"] == "Waived"
    text = tool("nvbandwidth", "-t", "device_local_copy")
    assert "Device 7: NVIDIA H100 80GB HBM3 (00000000:DB:00.0)" in text
    assert "SUM device_local_copy" in text
    assert "not found" in tool("nvbandwidth", "-t", "nonsense", status=1)
    assert "unrecognised" in tool("nvbandwidth", "--nonsense", status=1)


def test_a_burn_takes_the_devices_that_it_is_shown_not_the_places_on_the_node(tool: Tool, fleet: FleetDir) -> None:
    uuid = query(tool, "uuid", "-i", "5")[0]
    tool("nvidia-smi", "-i", "5", "-lgc", "0,600")
    try:
        slow = tool("gpu_burn", "-tc", "5", CUDA_VISIBLE_DEVICES=uuid)
        assert "Tested 1 GPUs" in slow
        rates = re.findall(r"\((\d+) Gflop/s\)", slow)
        assert rates
        assert all(float(r) < 300_000 for r in rates)
        assert "ID 0: NVIDIA H100" in tool("gpu_burn", "-l", CUDA_VISIBLE_DEVICES=uuid)
        command("fault", "--state", fleet.path, "--node", fleet.names[0], "--gpu", 2, "--kind", "lost")
        # CUDA does not count the lost one: the sixth GPU has number 4 now.
        behind = tool("gpu_burn", "-tc", "-i", "4", "5")
        rates = re.findall(r"\((\d+) Gflop/s\)", behind)
        assert rates
        assert all(float(r) < 300_000 for r in rates)
        assert "Tested 7 GPUs" in tool("gpu_burn", "5")
    finally:
        command("fault", "--state", fleet.path, "--node", fleet.names[0], "--gpu", 2, "--kind", "none")
        tool("nvidia-smi", "-i", "5", "-rgc")
    assert "CUDA_ERROR_INVALID_DEVICE" in tool("gpu_burn", "5", status=ENOMEDIUM, CUDA_VISIBLE_DEVICES="GPU-none")


def test_dcgmi_inject_has_the_real_pitfalls(tool: Tool, fleet: FleetDir) -> None:
    inject = ("test", "--inject")
    good = "Successfully injected field info.\n"
    assert "single GPU" in tool("dcgmi", *inject, "-g", "0", "-f", "230", "-v", "79", status=255)
    assert "-v/--value argument is required" in tool("dcgmi", *inject, "--gpuid", "0", "-f", "230", status=255)
    assert "Bad parameter" in tool("dcgmi", *inject, "--gpuid", "99", "-f", "230", "-v", "79", status=255)
    assert "negative" in tool("dcgmi", *inject, "--gpuid", "0", "-f", "150", "-v", "9", "--offset", "-5", status=255)
    assert "Unknown field" in tool("dcgmi", *inject, "--gpuid", "0", "-f", "9999", "-v", "1", status=255)
    # Without --gpuid it is GPU 1; a tag is as good as an id; garbage is 0.
    assert tool("dcgmi", *inject, "-f", "DCGM_FI_DEV_XID_ERRORS", "-v", "31") == good
    assert tool("dcgmi", *inject, "--gpuid", "2", "-f", "150", "-v", "garbage", "--offset", "60") == good
    cache = fleet.state(fleet.names[0])["dcgm"]["cache"]
    assert [s[1] for s in cache["1"]["230"]] == [31]
    assert [s[1] for s in cache["2"]["150"]] == [0]
    assert cache["2"]["150"][0][0] - cache["2"]["150"][0][2] == pytest.approx(60)
    assert cache["1"]["230"][0][0] - cache["1"]["230"][0][2] == pytest.approx(1)
    rows = tool("dcgmi", "dmon", "-e", "230,150", "-c", "1").splitlines()
    assert rows[3].split() == ["GPU", "1", "31", rows[3].split()[3]]
    assert rows[4].split()[3] == "0"
    # The driver and the kernel log know nothing of it.
    assert int(query(tool, "temperature.gpu", "-i", "2")[0]) > 20
    assert "Xid" not in (fleet.folder(fleet.names[0]) / "kmsg").read_text()


def test_an_injected_xid_stays_until_the_hostengine_restarts(tool: Tool, fleet: FleetDir) -> None:
    assert "not enabled" in tool("dcgmi", "health", "-c", status=255)
    tool("dcgmi", "health", "-s", "a")
    tool("dcgmi", "test", "--inject", "--gpuid", "4", "-f", "230", "-v", "79")
    for _ in range(2):
        body = json.loads(tool("dcgmi", "health", "-c", "-j"))["body"]
        assert body["Overall Health"]["value"] == "Failure"
        assert list(body["GPU"]["children"]) == ["4"]
        tool("dcgmi", "test", "--inject", "--gpuid", "4", "-f", "230", "-v", "0")
    command("restart-hostengine", "--state", fleet.path, "--node", fleet.names[0])
    assert "not enabled" in tool("dcgmi", "health", "-c", status=255)
    tool("dcgmi", "health", "-s", "a")
    assert json.loads(tool("dcgmi", "health", "-c", "-j"))["body"] == {"Overall Health": {"value": "Healthy"}}
    tool("dcgmi", "health", "--clear")
    for wrong in ("z", "am", "mm"):
        assert "Invalid health watch" in tool("dcgmi", "health", "-s", wrong, status=255)
    tool("dcgmi", "health", "-s", "x")
    # ConnectX has a letter and no line; SM has a line and no letter.
    assert "On" not in tool("dcgmi", "health", "-f")


@pytest.mark.parametrize("name", ["nvidia-smi", "dcgmi", "gpu_burn", "nvbandwidth"])
def test_tools_need_a_node_and_nothing_else(tool: Tool, fleet: FleetDir, tmp_path: Path, name: str) -> None:
    arguments = {"nvidia-smi": ["-L"], "dcgmi": ["discovery", "-l"], "gpu_burn": ["1"], "nvbandwidth": ["-j"]}[name]
    trap = tmp_path / "trap"
    trap.mkdir()
    for module in ("json.py", "tools.py", "dataclasses.py"):
        (trap / module).write_text("raise SystemExit('the working directory was imported')")
    said = tool(name, *arguments, cwd=trap, PYTHONHOME="/nowhere", PYTHONPATH=str(trap), GPUGRADE_FLEET="/nowhere")
    assert "H100" in said or "testcases" in said
    assert "no node 'nobody'" in tool(name, *arguments, node="nobody", status=9)
    result = subprocess.run(
        [str(fleet.path / "bin" / name), *arguments],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 9
    assert "NODE_NAME" in result.stderr


def test_writers_at_once_lose_nothing_and_readers_never_see_half(fleet: FleetDir, tool: Tool) -> None:
    name = fleet.names[1]
    reading = ThreadPoolExecutor(1)
    done = False

    def read() -> int:
        count = 0
        while not done:
            assert set(fleet.state(name)["gpus"]) == set(map(str, range(8)))
            count += 1
        return count

    reader = reading.submit(read)
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(tool, "dcgmi", "test", "--inject", "--gpuid", str(n % 8), "-f", "202", "-v", str(n), node=name)
            for n in range(24)
        ]
        jobs += [pool.submit(tool, "nvidia-smi", "-i", str(n), "-pl", str(300 + n), node=name) for n in range(8)]
        for job in jobs:
            job.result()
    done = True
    assert reader.result() > 0
    reading.shutdown()
    state = fleet.state(name)
    assert sorted(s[1] for g in state["dcgm"]["cache"].values() for s in g["202"]) == list(range(24))
    assert [state["gpus"][str(n)]["power_limit"] for n in range(8)] == [300 + n for n in range(8)]
    assert not [p.name for p in fleet.folder(name).iterdir() if p.name.startswith(".")]


def test_a_change_that_fails_changes_nothing(fleet: FleetDir) -> None:
    before = fleet.state(fleet.names[0])

    def alter(state: State) -> None:
        state["faults"].append("half done")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fleet.change(fleet.names[0], alter)
    assert fleet.state(fleet.names[0]) == before


def test_faults_show_on_every_surface_and_can_be_healed(tool: Tool, fleet: FleetDir) -> None:
    name = fleet.names[0]
    where = ("--state", fleet.path, "--node", name)
    command("fault", *where, "--gpu", 2, "--kind", "lost")
    assert query(tool, "index,uuid")[2] == "2, [Unknown Error]"
    assert tool("dcgmi", "discovery", "-l").startswith("7 GPUs found.")
    last = (fleet.folder(name) / "kmsg").read_text().splitlines()[-1]
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z NVRM: Xid \(PCI:0000:3a:00\): 79, .*fallen off the bus", last)
    assert "Unable to determine the device handle" in tool("nvidia-smi", "-i", "2", "-lgc", "900", status=15)
    command("fault", *where, "--gpu", 2, "--kind", "none")
    assert "[Unknown Error]" not in query(tool, "index,uuid")[2]
    before = compute(tool, 5)
    command("fault", *where, "--gpu", 5, "--kind", "slow", "--value", "1.4")
    assert before / compute(tool, 5) == pytest.approx(1.4, rel=0.02)
    assert "needs --value, above 0" in command("fault", *where, "--gpu", 5, "--kind", "xid", status=2)
    assert "GPUs 0 to 7" in command("fault", *where, "--gpu", 8, "--kind", "dbe", status=2)


def test_truth_tells_what_tools_do_not(fleet: FleetDir) -> None:
    where = ("--state", fleet.path)
    node = fleet.names[2]
    command("fault", *where, "--node", node, "--gpu", 1, "--kind", "slow", "--value", "1.5")
    items = json.loads(command("truth", *where, "-o", "json"))["items"]
    assert len(items) == 32
    # At least: the node may be in an episode besides.
    hit = next(i for i in items if (i["node"], i["gpu"]) == (node, 1))
    assert hit["slowdown"]["compute"] > 1.4
    assert hit["faults"][0]["kind"] == "slow"
    table = command("--truth", *where)
    assert re.search(rf"{node}\s+1\s.*\bslow\b", table)
    assert "of 32 GPUs are named" in table


def test_the_fleet_file_names_every_node_and_no_secret(fleet: FleetDir) -> None:
    text = command("file", "--state", fleet.path, "--exporter-base", "http://127.0.0.1:1234/")
    found = yaml.safe_load(text)
    assert found["kind"] == "Fleet"
    assert [n["name"] for n in found["nodes"]] == list(fleet.names)
    node = found["nodes"][0]
    assert node["exporter"] == f"http://127.0.0.1:1234/node/{fleet.names[0]}/metrics"
    assert node["probeTokenSha256"] == token_sha256(fleet.token(fleet.names[0]))
    assert fleet.token(fleet.names[0]) not in text
    for key in found["topology"][0]["keys"]:
        assert all(key in n["labels"] for n in found["nodes"])
    assert (fleet.folder(fleet.names[0]) / "token").stat().st_mode & 0o077 == 0


def test_a_directory_that_is_no_fleet_is_refused_with_the_remedy(tmp_path: Path, fleet: FleetDir) -> None:
    assert "tools.fleet init" in command("truth", "--state", tmp_path / "nothing", status=2)
    assert "holds a fleet already" in command("init", "--state", fleet.path, status=2)
    assert "1 to 8 GPUs" in command("init", "--state", tmp_path / "new", "--gpus", "9", status=2)
    (fleet.path / "fleet.json").write_text("{")
    with pytest.raises(FleetError, match="damaged"):
        FleetDir(fleet.path)
