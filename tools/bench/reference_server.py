"""Builds and starts the reference server, where there is a Go tool chain."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("reference")
BUILD_TIMEOUT = 600.0
STOP_TIMEOUT = 10.0


def build(target: Path) -> str:
    """Build the reference server.

    Args:
        target: the executable to write.

    Returns:
        Why it could not be built; empty if it was.
    """
    go = shutil.which("go")
    if go is None:
        return "there is no go on PATH"
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            [go, "build", "-o", str(target.resolve()), "."],
            cwd=SOURCE,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"go build took more than {BUILD_TIMEOUT:.0f} s"
    return "" if done.returncode == 0 else f"go build failed: {done.stderr.strip()[-300:]}"


@contextmanager
def started(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a server that prints one line when it listens; it is ended afterwards.

    Args:
        command: of the server.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            if not line:
                raise RuntimeError(f"{command[0]} ended before it listened")
            yield process, line.strip()
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
