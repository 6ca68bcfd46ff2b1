"""``chaos-probe run`` and ``recover`` as people call them, on a tiny emulated node."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos_probe.devices.host import marked
from chaos_probe.journal import Journal
from chaos_probe.recover import recover
from chaos_probe.run import STEPS
from tests.process.probe_node import Node, kill, stop, until

NOBODY = ("--report-to", "127.0.0.1:1")
QUICK_HOST = ("--param", "seconds=0.05", "--param", "mib=6")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    # No watcher may be left behind: it would outlive the test's folder.
    try:
        until(lambda: not watchers(made), 5.0)
    finally:
        for pid in watchers(made):
            os.kill(pid, signal.SIGKILL)


def watchers(node: Node) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if "deadman" in line and any(str(node.folder) in word for word in line):
                found.append(int(entry.name))
    return found


def answer(process: subprocess.Popen[str]) -> Any:
    said = process.communicate(timeout=40)[0]
    # What a paused run says of it comes before.
    return json.loads(said[said.index("{") :])


def steps(outcome: Any) -> list[tuple[str, str]]:
    return [(s["step"], s["status"]) for s in outcome["steps"]]


def test_list_says_what_is_missing_here(node: Node) -> None:
    items = {item["kind"]: item for item in node.json("list")}
    assert set(items) == {"gpu-burn", "pcie-bandwidth", "numa-bandwidth", "dcgm-inject", "gpu-throttle", "host-burn"}
    assert all(
        item["available"] and item["missing"] == [] for item in items.values() if item["kind"] != "numa-bandwidth"
    )
    assert items["dcgm-inject"]["parameters"]["fault"]["choices"] == ["xid", "sbe", "dbe", "thermal", "power", "nvlink"]
    (node.folder / "bin" / "dcgmi").unlink()
    without = {item["kind"]: item for item in node.json("list")}
    assert without["dcgm-inject"]["available"] is False
    assert without["dcgm-inject"]["missing"] == ["dcgmi is not on PATH"]


def test_burn_measures_every_gpu(node: Node) -> None:
    outcome = node.json("run", "gpu-burn", "--param", "seconds=1")
    assert steps(outcome) == [(step, "ok") for step in STEPS]
    values = {(s["gpu"], s["dimension"]): (s["value"], s["unit"], s["run"]) for s in outcome["samples"]}
    assert values == {
        (0, "compute"): (48.0, "TFLOP/s", ""),
        (1, "compute"): (48.0, "TFLOP/s", ""),
        (0, "memory"): (110.0, "GB/s", ""),
        (1, "memory"): (112.0, "GB/s", ""),
    }
    assert outcome["reverted"] is True
    assert outcome["verified"] is True


def test_one_gpu_is_burned_alone(node: Node) -> None:
    outcome = node.json("run", "gpu-burn", "--gpu", "1", "--param", "seconds=1")
    assert [s["gpu"] for s in outcome["samples"]] == [1, 1]
    assert ["gpu_burn", "-tc", "1"] in node.state["calls"]


def test_only_tensor_cores_give_compute(node: Node) -> None:
    outcome = node.json("run", "gpu-burn", "--gpu", "1", "--param", "seconds=1", "--param", "precision=float")
    # No baseline of tensor rates may see the rate of plain single precision.
    assert [s["dimension"] for s in outcome["samples"]] == ["memory"]
    assert outcome["figures"] == [{"name": "GPU 1 float", "value": 48.0, "unit": "TFLOP/s"}]
    assert "GPU 1 float 48 TFLOP/s" in outcome["steps"][4]["detail"]
    throttled = ("--hold", "10ms", "--param", "burn=1s", "--param", "precision=double")
    outcome = node.json("run", "gpu-throttle", "--gpu", "0", *throttled)
    assert outcome["samples"] == []
    assert [(f["name"], f["value"]) for f in outcome["figures"]] == [
        ("before GPU 0 double", 48.0), ("throttled GPU 0 double", 28.8), ("after GPU 0 double", 48.0),
    ]  # fmt: skip
    node.put(burn="no such kernel")
    outcome = node.json("run", "gpu-burn", "--gpu", "1", "--param", "precision=float", status=1)
    assert [(s["dimension"], s["status"]) for s in outcome["samples"]] == [("compute", "failed"), ("memory", "ok")]


def test_a_lost_gpu_fails_alone(node: Node) -> None:
    node.change_gpu(0, uuid="[Unknown Error]", temp="[Unknown Error]")
    for kind, dimensions in (("gpu-burn", ["compute", "memory"]), ("pcie-bandwidth", ["pcie"])):
        outcome = node.json("run", kind, "--param", "seconds=1", status=1)
        found = {(s["gpu"], s["dimension"]): s["status"] for s in outcome["samples"]}
        assert found == {(gpu, d): status for gpu, status in ((0, "failed"), (1, "ok")) for d in dimensions}


def test_pcie_takes_the_slower_way(node: Node) -> None:
    outcome = node.json("run", "pcie-bandwidth")
    assert [(s["dimension"], s["value"]) for s in outcome["samples"]] == [("pcie", 55.0), ("pcie", 56.0)]


def test_pcie_by_diagnosis_fails_the_narrow_gpu(node: Node, shared: Path) -> None:
    (node.folder / "bin" / "nvbandwidth").unlink()
    for version, first in (("v3", 24.6), ("v4", 54.9)):
        node.put(diag=(shared / "samples" / f"dcgmi_diag_{version}.json").read_text())
        outcome = node.json("run", "pcie-bandwidth", status=1)
        good, bad = outcome["samples"]
        assert (good["value"], good["status"]) == (first, "ok")
        assert (bad["value"], bad["status"]) == (None, "failed")
        assert "link width 8X" in bad["detail"]


def test_a_diagnosis_that_did_not_measure_is_held_against_no_gpu(node: Node) -> None:
    (node.folder / "bin" / "nvbandwidth").unlink()
    results = [{"name": "PCIe", "results": [{"gpu_ids": "0,1", "status": "SKIP"}]}]
    node.put(diag=json.dumps({"DCGM GPU Diagnostic": {"test_categories": [{"tests": results}]}}))
    outcome = node.json("run", "pcie-bandwidth")
    assert outcome["samples"] == []
    assert outcome["steps"][4]["detail"].count("dcgmi diag skipped the GPU") == 2
    node.put(diag=json.dumps({"DCGM Diagnostic": {"runtime_error": "the requested tests were not found"}}))
    outcome = node.json("run", "pcie-bandwidth", status=1)
    assert outcome["samples"] == []
    assert (outcome["steps"][4]["status"], outcome["steps"][4]["detail"]) == (
        "failed",
        "dcgmi diag did not run: the requested tests were not found",
    )


def test_throttle_slows_and_restores(node: Node) -> None:
    for by in ("clocks", "power"):
        outcome = node.json(
            "run", "gpu-throttle", "--gpu", "0", "--hold", "100ms", "--param", f"by={by}", "--param", "burn=1s"
        )
        assert steps(outcome) == [(step, "ok") for step in STEPS]
        before, during, after = outcome["samples"]
        assert (before["value"], during["value"], after["value"]) == (48.0, 28.8, 48.0)
        assert (before["run"], during["run"], after["run"]) == ("", outcome["run"], "")
        assert node.untouched()
    assert ["nvidia-smi", "-i", "GPU-00000000", "-pl", "390.00"] in node.state["calls"]
    assert ["nvidia-smi", "-i", "GPU-00000000", "-pl", "650.00"] in node.state["calls"]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"lock": "0,900"}, "limited by a setting already"), ({"max": "[N/A]"}, "does not say its clocks")],
)
def test_throttle_refuses_what_it_could_not_restore(node: Node, change: dict[str, str], words: str) -> None:
    node.change_gpu(0, **change)
    outcome = node.json("run", "gpu-throttle", "--gpu", "0", status=1)
    assert steps(outcome)[:2] == [("plan", "refused"), ("guard", "skipped")]
    assert words in outcome["steps"][0]["detail"]
    assert not any("-lgc" in call for call in node.state["calls"])


def test_failed_revert_is_bad_news_and_recover_goes_on(node: Node) -> None:
    process = node.paused(
        "run", "gpu-throttle", "--gpu", "0", "--hold", "10ms", "--param", "burn=0", "-o", "json", at="revert"
    )
    node.put(refuse=True)
    os.kill(process.pid, signal.SIGCONT)
    outcome = answer(process)
    assert process.returncode == 1
    assert dict(steps(outcome))["revert"] == "failed"
    assert (outcome["reverted"], outcome["verified"]) == (False, False)
    assert node.run("recover").returncode == 1
    # Its own dead-man still stands by, and would do it too.
    node.put(refuse=False)
    done = node.run("recover")
    assert done.returncode == 0, done.stdout
    assert node.untouched()
    assert "nothing is open" in node.run("recover").stdout
    until(lambda: not watchers(node))


@pytest.mark.parametrize("command", ["recover", "agent"])
def test_a_queue_that_cannot_be_used_keeps_no_fault_standing(node: Node, command: str) -> None:
    process = node.paused("run", "gpu-throttle", "--hold", "10ms", "--param", "burn=0", *NOBODY, at="observe")
    watching = watchers(node)
    (file,) = node.open_files()
    kill(process)
    for pid in watching:
        os.kill(pid, signal.SIGKILL)
    (node.state_dir / "queue.db").unlink()
    (node.state_dir / "queue.db").mkdir()
    done = node.run(*(("agent", "--once") if command == "agent" else (command,)), *NOBODY)
    assert done.returncode in {1, 2}
    assert "unable to open database file" in done.stdout + done.stderr
    assert node.untouched()
    # Its end is told once there is a queue.
    assert node.open_files() == [file]
    assert json.loads(file.read_text())["state"] == "reverted"
    (node.state_dir / "queue.db").rmdir()
    assert node.run("recover").returncode == 0
    assert node.open_files() == []


@pytest.mark.parametrize("fault", ["xid", "sbe", "dbe", "thermal", "power", "nvlink"])
def test_inject_writes_holds_and_takes_back(node: Node, fault: str) -> None:
    outcome = node.json("run", "dcgm-inject", "--gpu", "1", "--param", f"fault={fault}", "--hold", "10ms")
    assert steps(outcome) == [(step, "ok") for step in STEPS]
    calls = [call for call in node.state["calls"] if call[0] == "dcgmi" and call[1] in {"test", "health"}]
    writes = [call for call in calls if call[1] == "test"]
    assert all("--gpuid" in call and call[call.index("--gpuid") + 1] == "1" for call in writes)
    # Watches come first, or DCGM's history would not know of it.
    assert calls.index(writes[0]) > next(i for i, call in enumerate(calls) if "-s" in call)
    values = [float(call[call.index("-v") + 1]) for call in writes]
    if fault in {"thermal", "power", "nvlink"}:
        assert values[0] == 0
        assert values[1] > 0
    assert values[-1] == 0
    assert node.untouched()
    assert {r["surface"] for r in outcome["residues"]} == {"dcgm", "exporter"}
    assert ("xid:79" in {r["code"] for r in outcome["residues"]}) == (fault == "xid")


def test_a_real_xid_is_not_hidden_by_an_injected_one(node: Node) -> None:
    node.put(dcgm={"watches": "", "fields": {"0": {"230": 48}}, "xids": {}})
    outcome = node.json("run", "dcgm-inject", "--gpu", "0", status=1)
    assert outcome["steps"][0]["status"] == "refused"
    assert "GPU 0 shows XID 48 already" in outcome["steps"][0]["detail"]
    assert not any("--inject" in call for call in node.state["calls"])
    node.json("run", "dcgm-inject", "--gpu", "0", "--param", "fault=dbe", "--hold", "10ms")


def test_inject_adds_to_what_the_counter_has(node: Node) -> None:
    node.put(dcgm={"watches": "m", "fields": {"0": {"310": 7}}, "xids": {}})
    node.json("run", "dcgm-inject", "--gpu", "0", "--param", "fault=sbe", "--param", "value=5", "--hold", "10ms")
    values = [call[call.index("-v") + 1] for call in node.state["calls"] if "--inject" in call]
    assert values == ["12", "7"]
    assert node.state["dcgm"]["watches"] == "m"


def test_held_by_offset_is_reverted_later_still(node: Node) -> None:
    node.json("run", "dcgm-inject", "--gpu", "0", "--param", "fault=dbe", "--param", "hold_by=offset", "--hold", "2s")
    ahead = [int(call[call.index("--offset") + 1]) for call in node.state["calls"] if "--inject" in call]
    assert ahead[0] == 2
    assert ahead[1] > 2


def test_usage_is_refused_with_what_there_is(node: Node) -> None:
    for args, words in (
        (("run", "nope"), "there are gpu-burn"),
        (("run", "host-burn", "--param", "x=1"), "there are seconds, mib, neighbours"),
        (("run", "host-burn", "--param", "seconds=never"), "give a number from 0.05"),
        (("run", "gpu-burn", "--gpu", "9"), "there are 0, 1"),
        (("run", "gpu-burn", "--gpu", "x"), "write indices"),
        (("run", "dcgm-inject", "--param", "value=abc"), "give a whole number"),
        (("run", "dcgm-inject", "--param", "value=1000"), "an XID is a number"),
        (("run", "host-burn", "--hold", "soon"), "no span of time"),
        (("run", "host-burn", "--hold", "3d"), "at most a day"),
    ):
        done = node.run(*args)
        assert done.returncode == 2, args
        assert words in done.stderr, args


def test_dry_run_touches_nothing(node: Node) -> None:
    outcome = node.json("run", "gpu-throttle", "--dry-run")
    assert [s["status"] for s in outcome["steps"]] == ["ok", "ok", *["skipped"] * 6]
    assert node.open_files() == []
    assert not any("-lgc" in call for call in node.state["calls"])


def test_host_burn_really_measures_beside_neighbours(node: Node) -> None:
    outcome = node.json("run", "host-burn", *QUICK_HOST, "--param", "neighbours=1", "--hold", "10ms")
    assert steps(outcome) == [(step, "ok") for step in STEPS]
    (sample,) = outcome["samples"]
    assert sample["dimension"] == "host"
    assert 0.1 < sample["value"] < 2000
    assert sample["run"] == outcome["run"]
    assert {f["name"]: f["unit"] for f in outcome["figures"]} == {"cpu": "GFLOP/s", "memory": "GB/s"}
    assert marked(outcome["run"]) == []


def test_numa_measures_what_this_host_has(node: Node) -> None:
    done = node.run("run", "numa-bandwidth", "--param", "seconds=0.05", "--param", "mib=6", "-o", "json")
    outcome = json.loads(done.stdout)
    if outcome["steps"][0]["status"] == "refused":
        pytest.skip(outcome["steps"][0]["detail"])
    assert outcome["figures"][0]["value"] > 0
    assert bool(outcome["samples"]) == (len(outcome["figures"]) > 1)


def test_a_second_run_waits_its_turn(node: Node) -> None:
    process = node.paused("run", "host-burn", *QUICK_HOST, at="observe")
    outcome = node.json("run", "host-burn", *QUICK_HOST, status=1)
    assert dict(steps(outcome))["guard"] == "refused"
    assert "a run is in progress" in outcome["steps"][1]["detail"]
    assert node.run("recover").returncode == 1
    os.kill(process.pid, signal.SIGCONT)
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_in_the_middle_reverts_and_ends_well(node: Node, number: int) -> None:
    process = node.start("run", "gpu-throttle", "--hold", "60s", "--param", "burn=0", "-o", "json")
    until(lambda: any(gpu["lock"] for gpu in node.state["gpus"]))
    process.send_signal(number)
    outcome = answer(process)
    assert process.returncode == 0
    assert outcome["interrupted"] is True
    assert outcome["verified"] is True
    assert dict(steps(outcome))["observe"] == "halted"
    assert node.untouched()


def test_a_reader_that_goes_away_does_not_keep_the_run_from_reverting(node: Node) -> None:
    process = node.start("run", "gpu-throttle", "--hold", "10ms", "--param", "burn=0")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.wait(30)
    assert any("-lgc" in call for call in node.state["calls"])
    assert node.untouched()
    assert node.open_files() == []


def test_a_ceiling_ends_the_run(node: Node) -> None:
    process = node.start("run", "gpu-throttle", "--hold", "60s", "--param", "burn=0", "-o", "json")
    until(lambda: all(gpu["lock"] for gpu in node.state["gpus"]))
    until(lambda: any("dmon" not in c and "--query-gpu=index,temperature" in "".join(c) for c in node.state["calls"]))
    node.change_gpu(1, temp=97)
    outcome = answer(process)
    assert process.returncode == 1
    assert "GPU 1 is at 97 C" in outcome["steps"][4]["detail"]
    assert outcome["verified"] is True
    assert node.untouched()


def test_a_burn_that_hangs_is_ended_by_a_signal(node: Node) -> None:
    node.put(hang=True)
    process = node.start("run", "gpu-burn")
    until(lambda: any(call[0] == "gpu_burn" for call in node.state["calls"]))
    assert "halted" in stop(process)
    assert process.returncode == 0


KILL_POINTS = [
    "journal", "journal:done", "inject", "inject:begun", "inject:done",
    "observe", "observe:done", "revert", "revert:done", "verify", "report", "report:done",
]  # fmt: skip
COMMANDS = {
    "dcgm-inject": ("--gpu", "0", "--param", "fault=thermal", "--hold", "10ms"),
    "gpu-throttle": ("--hold", "10ms", "--param", "burn=0"),
    "host-burn": (*QUICK_HOST, "--param", "neighbours=1", "--hold", "10ms"),
    "numa-bandwidth": ("--param", "seconds=0.05", "--param", "mib=6"),
}
CASES = [(kind, at) for kind in ("dcgm-inject", "gpu-throttle", "host-burn") for at in KILL_POINTS]
CASES += [("numa-bandwidth", at) for at in ("plan", "guard", "observe", "report")]
CASES += [("dcgm-inject", at) for at in ("inject:watches", "inject:baseline", "observe:seen")]
CASES += [("gpu-throttle", "inject:first")]


@pytest.mark.parametrize(("kind", "at"), CASES)
def test_killed_at_any_step_the_next_start_reverts(
    node: Node, monkeypatch: pytest.MonkeyPatch, kind: str, at: str
) -> None:
    process = node.paused("run", kind, *COMMANDS[kind], at=at)
    watching = watchers(node)
    files = node.open_files()
    kill(process)
    # The dead-man would do it too; it is ended so that recover is what is tested.
    for pid in watching:
        os.kill(pid, signal.SIGKILL)
    for name, value in node.env().items():
        monkeypatch.setenv(name, value)
    done = recover(Journal(node.state_dir), None)
    assert [(item.entry.run, item.problem) for item in done] == [(file.stem, "") for file in files]
    assert node.untouched()
    assert node.open_files() == []
    assert all(marked(file.stem) == [] for file in files)
    assert recover(Journal(node.state_dir), None) == []


def test_the_dead_man_reverts_once_and_the_run_that_wakes_does_not_inject_again(node: Node) -> None:
    process = node.paused(
        "run", "dcgm-inject", "--gpu", "0", "--hold", "60s", "--param", "fault=dbe", "-o", "json", at="observe:seen"
    )
    (file,) = node.open_files()
    done = node.run_deadman(file, 0)
    assert "reverted, and read back" in done.stdout
    assert node.untouched()
    os.kill(process.pid, signal.SIGCONT)
    outcome = answer(process)
    assert dict(steps(outcome))["observe"] == "halted"
    assert outcome["steps"][5]["detail"].startswith("by the dead-man")
    assert outcome["verified"] is True
    assert node.untouched()


def test_the_dead_man_closes_a_run_before_it_began(node: Node) -> None:
    process = node.paused("run", "gpu-throttle", "--param", "burn=0", "-o", "json", at="inject")
    (file,) = node.open_files()
    assert "nothing had been injected" in node.run_deadman(file, 0).stdout
    os.kill(process.pid, signal.SIGCONT)
    outcome = answer(process)
    assert dict(steps(outcome))["inject"] == "halted"
    assert not any("-lgc" in call for call in node.state["calls"])


def test_the_dead_man_alone_reverts_a_killed_run(node: Node) -> None:
    process = node.paused("run", "gpu-throttle", "--hold", "10ms", "--param", "burn=0", at="observe")
    for pid in watchers(node):
        os.kill(pid, signal.SIGKILL)
    (file,) = node.open_files()
    kill(process)
    started = time.monotonic()
    assert "reverted" in node.run_deadman(file, 0.3).stdout
    assert time.monotonic() - started >= 0.3
    assert node.untouched()
    assert node.open_files() == []


def test_the_watcher_of_a_killed_run_does_not_wait_for_the_end_of_the_hold(node: Node) -> None:
    process = node.paused("run", "gpu-throttle", "--hold", "1d", "--param", "burn=0", at="observe")
    assert not node.untouched()
    # Stopped is not dead: it may go on.
    time.sleep(1.2)
    assert not node.untouched()
    kill(process)
    until(node.untouched)
    until(lambda: not node.open_files())
    until(lambda: not watchers(node))
    assert "reverted, and read back" in (node.state_dir / "journal" / "deadman.log").read_text()


def test_damaged_journal_files_are_kept_aside_and_stop_injections(node: Node) -> None:
    folder = node.state_dir / "journal"
    folder.mkdir(parents=True)
    (folder / "gpu-throttle-x.json").write_text('{"version": 1, "run": "gpu-thr')
    (folder / "old.json").write_text(json.dumps({"version": 99}))
    done = node.run("recover")
    assert done.returncode == 1
    assert done.stderr.count("was damaged") == 2
    kept = sorted((folder / "damaged").glob("*.json"))
    assert [path.name.split(".")[0] for path in kept] == ["gpu-throttle-x", "old"]
    assert kept[0].read_text() == '{"version": 1, "run": "gpu-thr'
    outcome = node.json("run", "gpu-throttle", status=1)
    assert "was damaged" in outcome["steps"][1]["detail"]
    node.json("run", "gpu-burn", "--param", "seconds=1")
    for path in kept:
        path.unlink()
    node.json("run", "gpu-throttle", "--hold", "10ms", "--param", "burn=0")


def test_doctor_tells_and_judges(node: Node) -> None:
    items = {item["what"]: item for item in node.json("doctor")["items"]}
    assert items["GPUs"]["detail"] == "2: NVIDIA H100 80GB HBM3"
    assert items["DCGM"]["status"] == "ok"
    node.kill_switch.touch()
    items = {item["what"]: item for item in node.json("doctor", status=1)["items"]}
    assert items["kill switch"]["status"] == "bad"
