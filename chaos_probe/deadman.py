"""The dead-man: a watcher outside the run that reverts when the run itself cannot.

It is a process in a session of its own, so that what kills the run need not kill it, and acts as soon as the run's
process is gone, or when the run should have reverted long since. Where systemd is process 1 a transient timer stands
behind it, for what kills all processes of a service kills the watcher too. Both go away when the run is closed.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from chaos_probe.devices.tool import on_path, run_tool
from chaos_probe.errors import JournalError, ProbeError, SpoolError
from chaos_probe.guard import run_in_progress
from chaos_probe.journal import Journal, State
from chaos_probe.recover import Reporter, finish, revert
from chaos_probe.settings import SpoolSettings

_POLL_S = 0.5
_RETRY_S = 10.0
_TRIES = 30
_GONE_LOOKS = 2
_KEPT_ENVIRONMENT = ("PATH", "PYTHONPATH", "NODE_NAME", "GPUGRADE_FLEET", "LD_LIBRARY_PATH", "CHAOS_PROBE_STATE")


def watcher_argv(file: Path, after_s: float, queue: SpoolSettings) -> list[str]:
    """Return the command of the watcher."""
    argv = [sys.executable, "-m", "chaos_probe", "deadman"]
    argv += ["--queue-records", str(queue.max_records), "--queue-mib", str(queue.max_mib)]
    return [*argv, "--journal", str(file), "--after", f"{after_s:.0f}"]


def timer_argv(file: Path, after_s: float, unit: str, queue: SpoolSettings) -> list[str]:
    """Return the command that makes a transient timer of it: it survives whatever ends this service."""
    kept = [f"--setenv={name}={os.environ[name]}" for name in _KEPT_ENVIRONMENT if name in os.environ]
    head = ["systemd-run", "--quiet", "--collect", f"--unit={unit}", f"--on-active={after_s:.0f}"]
    head += ["--timer-property=AccuracySec=1s", f"--working-directory={Path.cwd()}"]
    return [*head, *kept, *watcher_argv(file, 0.0, queue)]


def systemd_runs(marker: Path = Path("/run/systemd/system")) -> bool:
    """Whether systemd is process 1 and takes orders from us."""
    return marker.is_dir() and os.geteuid() == 0 and on_path("systemd-run") is not None


class DeadMan:
    """One that was set up for a run."""

    def __init__(self, process: subprocess.Popen[bytes], unit: str) -> None:
        self._process = process
        self._unit = unit

    @classmethod
    def arm(cls, file: Path, run: str, after_s: float, queue: SpoolSettings) -> "DeadMan":
        """Set it up for the run whose journal file this is; it reverts after so many seconds unless stood down.

        Args:
            file: of the journal.
            run: its id.
            after_s: seconds.
            queue: bounds of the queue, in which it puts what it did.
        """
        unit = ""
        if systemd_runs():
            with suppress(ProbeError):
                name = f"chaos-probe-deadman-{run}"
                run_tool(timer_argv(file, after_s, name, queue), timeout_s=20.0, check=True)
                unit = name
        with (file.parent / "deadman.log").open("wb") as log:
            argv = watcher_argv(file, after_s, queue)
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        return cls(process, unit)

    def __str__(self) -> str:
        behind = f", and {self._unit}.timer behind it" if self._unit else ""
        return f"dead-man is process {self._process.pid}{behind}"

    def stand_down(self) -> None:
        """Take it away. Only once the run is closed: until then it may be needed."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        if self._unit:
            with suppress(ProbeError):
                run_tool(["systemctl", "stop", f"{self._unit}.timer"], timeout_s=20.0)


def keep_watch(journal: Journal, run: str, after_s: float, report: Reporter | None, retry_s: float = _RETRY_S) -> str:
    """Wait until the run is closed, or its process is gone, or for so long; then revert it.

    A revert that fails is tried again, a few times and at least until the time is over.

    Returns:
        What came of it.
    """
    deadline = time.monotonic() + after_s
    gone = 0
    while journal.path(run).exists() and gone < _GONE_LOOKS and (left := deadline - time.monotonic()) > 0:
        gone = 0 if run_in_progress(journal.folder.parent) else gone + 1
        time.sleep(min(_POLL_S, left))
    attempt = 0
    while attempt < _TRIES or time.monotonic() < deadline:
        attempt += 1
        # A full disk, or a queue that takes nothing, must not end the attempts.
        with suppress(JournalError, SpoolError):
            entry = revert(journal, run, "dead-man")
            if entry is None or entry.state is State.CLOSED:
                return "the run was closed; nothing to do"
            finish(journal, run, report)
            if entry.state is not State.OPEN:
                return f"run {run}: {entry.detail}"
        again = time.monotonic() + retry_s
        while journal.path(run).exists() and (left := again - time.monotonic()) > 0:
            time.sleep(min(_POLL_S, left))
    return f"run {run} could not be reverted and closed in {attempt} attempts; chaos-probe recover tries again"


def run_of(file: Path) -> tuple[Path, str]:
    """Return the state directory and the run that a journal file belongs to."""
    return file.resolve().parent.parent, file.stem
