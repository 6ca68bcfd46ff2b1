"""A tiny emulated node for the probes' tests: one file behind four names on PATH, state in one JSON file.

It prints what the samples beside the checkout show, and knows just enough to be throttled, injected into and read back.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

FAKE = r"""
import fcntl, json, os, sys
me, args = os.path.basename(sys.argv[0]), sys.argv[1:]
path = os.environ["FAKE_NODE"]
lock = open(path + ".lock", "w"); fcntl.flock(lock, fcntl.LOCK_EX)
state = json.load(open(path))
state["calls"].append([me, *args])
def save():
    with open(path + ".new", "w") as f: json.dump(state, f)
    os.replace(path + ".new", path)
save()
def opt(*names, default=None):
    for i, a in enumerate(args):
        if a in names: return args[i + 1]
        for n in names:
            if a.startswith(n + "="): return a.split("=", 1)[1]
    return default
gpus = state["gpus"]
def pick(name): return [g for g in gpus if name in (None, str(g["index"]), g["uuid"])]
def smi():
    if opt("--query-gpu"):
        fields = opt("--query-gpu").split(",")
        print(", ".join(fields))
        for g in pick(opt("-i")):
            row = {"index": g["index"], "uuid": g["uuid"], "name": "NVIDIA H100 80GB HBM3", "pci.bus_id": g["bus"],
                   "memory.total": 81559, "power.default_limit": "700.00", "driver_version": "570.1", "power.draw": "71.02",
                   "power.limit": "%.2f" % g["limit"], "power.min_limit": "200.00", "power.max_limit": "700.00",
                   "temperature.gpu": g["temp"], "clocks.sm": 345, "clocks.max.sm": g.get("max", 1980),
                   "clocks_event_reasons.active": g["reasons"] if not g["lock"] else "0x0000000000000002"}
            print(", ".join(str(row[f]) for f in fields))
    elif opt("--query-compute-apps"):
        print("gpu_uuid, pid")
        for g in gpus:
            if g["busy"]: print(g["uuid"] + ", 4242")
    elif "-pl" in args or "-lgc" in args or "-rgc" in args:
        if state["refuse"]: print("Insufficient Permissions"); sys.exit(4)
        for g in pick(opt("-i")):
            if "-pl" in args: g["limit"] = float(opt("-pl"))
            if "-lgc" in args: g["lock"] = opt("-lgc")
            if "-rgc" in args: g["lock"] = ""
        save(); print("All done.")
def tree(body, head=True):
    print(json.dumps({"body": body, **({"header": ["Health Monitor Report"]} if head else {})}, indent=1))
NAMES = {"PCIe": "p", "NVLINK": "n", "Memory": "m", "InfoROM": "i", "Thermal": "t", "Power": "t", "Driver": "d"}
def dcgmi():
    d = state["dcgm"]
    if args[0] == "discovery":
        print("%d GPUs found." % len(gpus))
        for g in gpus: print("| %-6d | Device UUID: %-57s|" % (g["index"], g["uuid"]))
        print("0 NvSwitches found.")
    elif args[0] == "health":
        if "-s" in args: d["watches"] = opt("-s"); save(); print("Health monitor systems set successfully.")
        elif "--clear" in args: d["watches"] = ""; save(); print("Health monitor systems cleared successfully.")
        elif "-f" in args:
            print("Health monitor systems report")
            tree({n: {"value": "On" if l in d["watches"] else "Off"} for n, l in NAMES.items()}, head=False)
        elif not d["watches"]: print("Error: Health watches not enabled. Please enable watches. "); sys.exit(255)
        elif d["xids"]:
            tree({"Overall Health": {"value": "Failure"}, "GPU": {"children": {str(g): {"value": "Failure", "children": {
                "Errors": {"children": {"Internal error": {"value": "Failure", "overflow": ["XID %s" % x]}}}}} for g, x in d["xids"].items()}}})
        else: tree({"Overall Health": {"value": "Healthy"}})
    elif args[0] == "test":
        gpu, field, value = opt("--gpuid", default="1"), opt("-f"), float(opt("-v"))
        if int(gpu) >= len(gpus): print("Error: Unable to inject info. Return: Bad parameter passed to function"); sys.exit(255)
        d["fields"].setdefault(gpu, {})[field] = value
        if field == "230" and value and d["watches"]: d["xids"][gpu] = int(value)
        save(); print("Successfully injected field info.")
    elif args[0] == "dmon":
        fields = opt("-e").split(",")
        print("#Entity  " + "  ".join("F" + f for f in fields)); print("ID")
        found = d["fields"].get(opt("-i"), {})
        print("GPU %s  " % opt("-i") + "  ".join("%d" % found[f] if f in found and (f != "230" or found[f]) else "N/A" for f in fields))
    elif args[0] == "diag": print(state["diag"])
def speed(g): return 0.6 if g["lock"] or g["limit"] < 600 else 1.0
def burn():
    if state["hang"]:
        fcntl.flock(lock, fcntl.LOCK_UN); import time; time.sleep(60)
    if state["burn"]: print(state["burn"]); return
    seen = [g for u in os.environ["CUDA_VISIBLE_DEVICES"].split(",") for g in gpus if g["uuid"] == u]
    mine = seen if opt("-i") is None else [seen[int(opt("-i"))]]
    rates = " - ".join("280 (%d Gflop/s)" % (48000 * speed(g)) for g in mine)
    print("100.0%%  proc'd: %s   errors: %s   temps: %s" % (rates, " - ".join("0" for g in mine), " - ".join("52 C" for g in mine)))
    print("Tested %d GPUs:" % len(mine))
    for i, g in enumerate(mine): print("\tGPU %d: OK" % i)
def bandwidth():
    seen = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    mine = [g for u in seen for g in gpus if g["uuid"] == u]
    for i, g in enumerate(mine): print("Device %d: NVIDIA H100 80GB HBM3 (%s)" % (i, g["bus"][:-2]))
    print("\nRunning %s.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)" % opt("-t"))
    print("".join("%10d" % i for i in range(len(mine)))); print(" 0" + "".join("%10.2f" % (55 + g["index"]) for g in mine))
    print("\nSUM %s 1.0" % opt("-t"))
{"nvidia-smi": smi, "dcgmi": dcgmi, "gpu_burn": burn, "nvbandwidth": bandwidth}[me]()
"""


def until(what: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for something that tells nobody when it happens."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen in time")
        time.sleep(0.02)


class Node:
    """An emulated node with its own state directory; use ``run`` for commands that end and ``start`` for others."""

    def __init__(self, folder: Path, gpus: int = 2) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self.kill_switch = folder / "stop"
        self._bin = folder / "bin"
        self._bin.mkdir()
        self._file = folder / "node.json"
        script = self._bin / "fake.py"
        script.write_text(f"#!{sys.executable} -SE\n{FAKE}")
        script.chmod(0o755)
        for name in ("nvidia-smi", "dcgmi", "gpu_burn", "nvbandwidth"):
            (self._bin / name).symlink_to(script)
        self.put(
            gpus=[
                {"index": i, "uuid": f"GPU-{i:08d}", "bus": f"00000000:{i + 1:02X}:00.0", "limit": 650.0, "lock": "",
                 "temp": 40, "busy": False, "reasons": "0x0000000000000001"}
                for i in range(gpus)
            ],
            dcgm={"watches": "", "fields": {}, "xids": {}},
            calls=[], refuse=False, burn="", hang=False, diag="{}",
        )  # fmt: skip
        self.settings = folder / "settings.yaml"
        self.settings.write_text(
            "apiVersion: config.gpugrade.dev/v1alpha1\nkind: ProbeSettings\nnode: n1\n"
            f"stateDir: {self.state_dir}\nguard: {{killSwitch: {self.kill_switch}, watchEvery: 100ms,"
            f" podResourcesSocket: {folder}/kubelet.sock}}\n"
        )

    def put(self, **values: object) -> None:
        state = json.loads(self._file.read_text()) if self._file.exists() else {}
        with Path(f"{self._file}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            draft = self._file.with_suffix(".draft")
            draft.write_text(json.dumps(state | values))
            draft.replace(self._file)

    @property
    def state(self) -> Any:
        return json.loads(self._file.read_text())

    def change_gpu(self, index: int, **values: object) -> None:
        gpus = self.state["gpus"]
        gpus[index] |= values
        self.put(gpus=gpus)

    def env(self, **more: str) -> dict[str, str]:
        path = f"{self._bin}:/usr/bin:/bin"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("CHAOS_PROBE")}
        return kept | {"PATH": path, "PYTHONPATH": f"{ROOT}:{ROOT}/proto", "FAKE_NODE": str(self._file), **more}

    def argv(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "chaos_probe", *args, "--settings", str(self.settings)]

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*args), env=self.env(**env), capture_output=True, text=True, timeout=60, check=False
        )

    def json(self, *args: str, status: int = 0) -> Any:
        done = self.run(*args, "-o", "json")
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout)

    def start(self, *args: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(*args), env=self.env(**env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def paused(self, *args: str, at: str) -> subprocess.Popen[str]:
        """Start a command that stops itself at a point, and return it once it has stopped."""
        process = self.start(*args, CHAOS_PROBE_PAUSE_AT=at)

        def stopped() -> bool:
            assert process.poll() is None, process.stdout and process.stdout.read()
            return Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"

        until(stopped)
        return process

    def run_deadman(self, file: Path, after: float) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "chaos_probe", "deadman", "--journal", str(file), "--after", str(after)]
        return subprocess.run(argv, env=self.env(), capture_output=True, text=True, timeout=60, check=False)

    def open_files(self) -> list[Path]:
        return sorted((self.state_dir / "journal").glob("*.json"))

    def untouched(self) -> bool:
        """Whether everything that can be set is as it was at first."""
        state = self.state
        clean = all(g["lock"] == "" and g["limit"] == 650.0 for g in state["gpus"])
        return (
            clean
            and state["dcgm"]["watches"] == ""
            and not any(v for f in state["dcgm"]["fields"].values() for v in f.values())
        )


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    if process.stdout:
        process.stdout.close()


def stop(process: subprocess.Popen[str]) -> str:
    """End a command politely and return what it said."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=30)[0]
