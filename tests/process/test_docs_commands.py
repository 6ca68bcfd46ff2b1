"""Every command that the documentation shows runs, against a real server that has graded an emulated fleet."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.process.conftest import WholeChain
from tests.service_support import until

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "tools").rglob("*.md")) + sorted((ROOT / "manifests").rglob("*.md"))


@dataclass(frozen=True)
class Shown:
    """A command as a page shows it."""

    page: Path
    command: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.command}"


def shown(language: str, prompt: str = "") -> list[Shown]:
    found = []
    for page in PAGES:
        for name, body in FENCE.findall(page.read_text()):
            if name == language:
                lines = [line for line in body.replace("\\\n", "").splitlines() if line.startswith(prompt)]
                found += [Shown(page, line.removeprefix(prompt).strip()) for line in lines if line.strip()]
    return [command for command in found if not command.command.startswith("#")]


COMMANDS = shown("sh") + shown("console", "$ ")
MAKE = [command for command in COMMANDS if command.command.startswith("make ")]
STAYING = [
    command
    for command in COMMANDS
    if re.search(r"gpugrade serve --fleet|chaos-probe agent (?!--once|--help)", command.command)
]
PLAIN = [command for command in COMMANDS if command not in MAKE and command not in STAYING]


def here(chain: WholeChain, command: str) -> str:
    """The command with this interpreter's folder in place of ``.venv/bin``, and the server's address."""
    ports = chain.ports
    command = command.replace(".venv/bin/", "").replace("localhost:9441", f"localhost:{ports['grpc']}")
    return command.replace("localhost:9442", f"localhost:{ports['admin']}").replace(
        "/dev/kmsg", str(chain.fleet.folder("gpu-r01-n01") / "kmsg")
    )


def lay_out(chain: WholeChain, folder: Path) -> None:
    """The files that the pages tell a reader to make."""
    (folder / "fleet.yaml").write_text((chain.home / "fleet.yaml").read_text())
    (folder / "token").write_text(chain.fleet.token("gpu-r01-n01"))


def ask_about_a_pod(chain: WholeChain) -> None:
    """What the scheduler asks about the pod that the pages name."""
    limits = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}
    pod = {"metadata": {"namespace": "ml", "name": "train-0"}, "spec": limits}
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": ["gpu-r01-n01"]}).encode()
    url = f"http://127.0.0.1:{chain.ports['scheduler']}/scheduler/prioritize"
    with urllib.request.urlopen(url, data=body, timeout=10) as answer:
        assert answer.status == 200


def test_pages_show_commands() -> None:
    assert len(PLAIN) > 20
    assert STAYING
    assert {command.command for command in MAKE} >= {"make demo", "make test"}


@pytest.mark.parametrize("shown", PLAIN, ids=str)
def test_command_runs(whole_chain: WholeChain, shown: Shown, tmp_path: Path) -> None:
    if (
        shutil.which(
            shown.command.removeprefix(".venv/bin/").split()[0], path=f"{ROOT}{os.pathsep}{whole_chain.env['PATH']}"
        )
        is None
    ):
        pytest.skip(f"{shown.command.removeprefix('.venv/bin/').split()[0]} is not on this machine")
    lay_out(whole_chain, tmp_path)
    if "--pod " in shown.command:
        ask_about_a_pod(whole_chain)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", here(whole_chain, shown.command)],
        env=whole_chain.env | {"CHAOS_PROBE_STATE": str(tmp_path / "state")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # One is an answer too: something is red.
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("shown", STAYING, ids=str)
def test_command_that_stays_comes_up_and_ends_when_asked(whole_chain: WholeChain, shown: Shown, tmp_path: Path) -> None:
    lay_out(whole_chain, tmp_path)
    command = here(whole_chain, shown.command)
    if "gpugrade serve" in command:
        ports = "--ports-file ports.json --scheduler-port 0 --grpc-port 0 --admin-port 0"
        ready = tmp_path / "ports.json"
        command = f"{command} {ports}"
    else:
        ready = tmp_path / "state"
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            env=whole_chain.env | {"CHAOS_PROBE_STATE": str(tmp_path / "state")},
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until(lambda: ready.exists() or child.poll() is not None, f"{command} coming up", 30)
        assert child.poll() is None, (tmp_path / "log").read_text()
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0, (tmp_path / "log").read_text()
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def test_make_commands_are_targets_and_ci_runs_the_two_that_matter() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in MAKE:
        assert command.command.split()[1] in targets, command
    ci = (ROOT / ".ci" / "run").read_text()
    assert "make demo ONCE=1" in ci
    assert "make test" in ci


def test_the_interpreter_has_the_commands() -> None:
    for name in ("gpugrade", "kubectl-gpugrade", "chaos-probe"):
        assert (Path(sys.executable).parent / name).exists(), f"{name} is not installed beside {sys.executable}"


def test_links_lead_somewhere() -> None:
    link = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")
    links = [(page, target) for page in PAGES for target in link.findall(page.read_text())]
    assert links
    assert not [f"{page.relative_to(ROOT)}: {target}" for page, target in links if not (page.parent / target).exists()]
