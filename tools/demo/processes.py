"""Child processes of the demo: started with a log file each, watched, and always stopped."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self


class DemoError(Exception):
    """Something the demo needs did not happen; the text says what, and where to look."""


class Processes:
    """A set of children that ends with the block it is used in.

    Args:
        logs: folder for one log file a child.
        env: environment of all of them.
    """

    def __init__(self, logs: Path, env: Mapping[str, str]) -> None:
        self.logs = logs
        self.env = dict(env)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._lasting: set[str] = set()
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, name: str, argv: Sequence[str], **env: str) -> None:
        """Start a child that is to run until the end."""
        self._children[name] = self._popen(name, argv, env)
        self._lasting.add(name)

    def run(self, name: str, argv: Sequence[str], *, timeout: float, good: Sequence[int] = (0,), **env: str) -> str:
        """Run a child to its end and return what it wrote to standard output.

        Raises:
            DemoError: if it ends with another status than the good ones, or not in time.
        """
        log = self.log(name)
        with log.open("ab") as errors:
            try:
                done = subprocess.run(
                    list(argv), env=self.env | env, stdout=subprocess.PIPE, stderr=errors, timeout=timeout, check=False
                )
            except subprocess.TimeoutExpired as error:
                raise DemoError(f"{name} did not end within {timeout:.0f} s; see {log}") from error
        if done.returncode not in good:
            raise DemoError(
                f"{name} ended with {done.returncode}: {self.last_words(name) or done.stdout.decode()[-500:]}"
            )
        return done.stdout.decode()

    def start_run(self, name: str, argv: Sequence[str], **env: str) -> subprocess.Popen[bytes]:
        """Start a child that ends by itself; the caller waits for it, and the end of the block stops it if need be."""
        child = self._popen(name, argv, env)
        self._children[name] = child
        return child

    def wait_until(self, what: str, happened: Callable[[], bool], *, seconds: float) -> None:
        """Ask again and again until something happened; give up when a child died or the time is over.

        Raises:
            DemoError: says what did not happen.
        """
        deadline = time.monotonic() + seconds
        while not happened():
            self.check()
            if time.monotonic() > deadline:
                raise DemoError(f"{what} did not happen within {seconds:.0f} s; the logs are in {self.logs}")
            time.sleep(0.1)

    def check(self) -> None:
        """Raise if a child has ended badly, or at all where it was to run until the end."""
        for name, child in self._children.items():
            status = child.poll()
            if status or (status == 0 and name in self._lasting):
                raise DemoError(f"{name} ended with {status}: {self.last_words(name)}")

    def log(self, name: str) -> Path:
        """The log file of a child."""
        return self.logs / f"{name}.log"

    def last_words(self, name: str) -> str:
        """The end of a child's log."""
        log = self.log(name)
        return log.read_text(errors="replace")[-800:].strip() if log.exists() else ""

    def stop(self) -> None:
        """Ask every child to end, newest first; insist after some seconds."""
        children = list(self._children.values())[::-1]
        for child in children:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        for child in children:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._children.clear()
        self._lasting.clear()

    def _popen(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        out: IO[bytes] = self.log(name).open("ab")
        with out:
            # In a group of its own: Ctrl-C is for the demo, which asks its children to end, once and in order.
            return subprocess.Popen(
                list(argv),
                env=self.env | dict(env),
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                process_group=0,
            )


def with_path(first: Path) -> dict[str, str]:
    """The present environment with a folder put first on PATH."""
    return dict(os.environ) | {"PATH": f"{first}{os.pathsep}{os.environ.get('PATH', '')}"}
