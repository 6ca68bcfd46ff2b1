"""Programs of the node: found on PATH, run with a bound on time and output, ended with everything they started."""

import os
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from chaos_probe.errors import HaltedError, ToolError, ToolTimeoutError, ToolUnusableError
from chaos_probe.halt import Halt
from chaos_probe.records import Gpu

MAX_OUTPUT = 8 << 20
_POLL_S = 0.2
_GRACE_S = 3.0
MAX_STUCK = 4
"""So many processes of one program may hang in the driver before no more of it are started."""

_stuck: list[subprocess.Popen[bytes]] = []
_stuck_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a program said. A status of 0 proves nothing for some of them: read the text."""

    argv: tuple[str, ...]
    status: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The first thing that it said when it failed, one line."""
        text = (self.err.strip() or self.out.strip() or "no output").splitlines()[0]
        return f"{self.argv[0]} ended with {self.status}: {text[:300]}"


def on_path(*names: str) -> str | None:
    """Return the first of these programs that is on PATH, as a full path."""
    return next((found for name in names if (found := shutil.which(name))), None)


def visible(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the environment that lets a CUDA program see these GPUs only, numbered in this order.

    By UUID alone: CUDA does not count a GPU that is lost, so that behind one a number means another GPU.

    Raises:
        ToolError: one of them does not tell its UUID.
    """
    if nameless := [str(gpu.index) for gpu in gpus if not gpu.uuid]:
        raise ToolError(f"GPU {', '.join(nameless)} does not tell its UUID, so a program cannot be kept to it")
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)}


def run_tool(
    argv: Sequence[str],
    *,
    timeout_s: float,
    halt: Halt | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = False,
) -> ToolResult:
    """Run a program to its end and return what it said, undecodable bytes replaced.

    It runs in a session of its own, so that a time-out or a stop ends its children too. One that not even SIGKILL ends
    (it hangs in the driver) is left to itself: waiting for it would never end either.

    Args:
        argv: program and arguments.
        timeout_s: seconds after which it is ended.
        halt: ends it early when told.
        env: added to the environment.
        cwd: folder to run it in; else this process's.
        check: whether a status other than 0 is an error.

    Raises:
        ToolTimeoutError: it did not finish in time, or too many before it hang still.
        ToolUnusableError: it could not be started.
        HaltedError: a stop was asked for meanwhile.
        ToolError: it said more than 8 MiB, or failed where ``check`` is set.
    """
    _refuse_more_of(argv[0])
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **env} if env else None,
            cwd=cwd,
        )
    except OSError as error:
        raise ToolUnusableError(f"{argv[0]} cannot be started: {error.strerror or error}") from error
    try:
        out, err = _collect(process, time.monotonic() + timeout_s, halt, timeout_s)
    except BaseException:
        end_group(process)
        raise
    finally:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    result = ToolResult(tuple(argv), process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))
    if check and result.status != 0:
        raise ToolError(result.complaint)
    return result


def _refuse_more_of(program: str) -> None:
    """Collect what hung and has ended since; refuse to add to too many that hang still."""
    with _stuck_lock:
        _stuck[:] = [process for process in _stuck if process.poll() is None]
        hanging = sum(1 for process in _stuck if _name(process) == program)
    if hanging >= MAX_STUCK:
        raise ToolTimeoutError(
            f"{hanging} processes of {program} hang and cannot be ended, so no more are started; the driver does not "
            "answer: look at the kernel log, and restart the node"
        )


def _name(process: subprocess.Popen[bytes]) -> str:
    return str(process.args[0]) if isinstance(process.args, list) else str(process.args)


def _collect(
    process: subprocess.Popen[bytes], deadline: float, halt: Halt | None, timeout_s: float
) -> tuple[bytes, bytes]:
    name = _name(process)
    buffers: dict[str, bytearray] = {"out": bytearray(), "err": bytearray()}
    with selectors.DefaultSelector() as selector:
        streams: tuple[tuple[str, IO[bytes] | None], ...] = (("out", process.stdout), ("err", process.stderr))
        for key, stream in streams:
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ, key)
        while selector.get_map() or process.poll() is None:
            if halt is not None and halt.told():
                raise HaltedError(halt.reason)
            left = deadline - time.monotonic()
            if left <= 0:
                raise ToolTimeoutError(f"{name} did not finish within {timeout_s:g} s and was ended")
            if not selector.get_map():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(min(_POLL_S, left))
                continue
            for ready, _ in selector.select(min(_POLL_S, left)):
                chunk = os.read(ready.fd, 1 << 16)
                if chunk:
                    buffers[ready.data] += chunk
                else:
                    selector.unregister(ready.fileobj)
            if sum(map(len, buffers.values())) > MAX_OUTPUT:
                raise ToolError(f"{name} said more than {MAX_OUTPUT >> 20} MiB and was ended")
    return bytes(buffers["out"]), bytes(buffers["err"])


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads its own session, and all that it started: politely, then for good."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
            if number == signal.SIGTERM:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            return
    with _stuck_lock:
        _stuck.append(process)
