"""The command as a process: pipes, exit status, terminals, watching."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpugrade.v1 import grading_pb2

from tests.cli_support import RED, Canned, running

COMMAND = [sys.executable, "-m", "scorer.cli.main"]
LIMIT_S = 60


@pytest.fixture
def canned() -> Iterator[Canned]:
    with running(Canned()) as server:
        yield server


def environment(canned: Canned, **more: str) -> dict[str, str]:
    return {**os.environ, "GPUGRADE_SERVER": canned.address, **more}


def run(canned: Canned, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(canned, **more),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_a_pipe_gets_plain_columns_and_the_exit_status_is_bad_news(canned: Canned) -> None:
    done = run(canned, "nodes", "--grade", "red")
    assert done.returncode == 1
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[1].split()[:3] == ["gpu-r01-n02", "red", "red"]


def test_no_server_is_one_line_and_exit_status_2(canned: Canned) -> None:
    done = run(canned, "--server", "127.0.0.1:1", "nodes")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "Error: no gpugrade server answers gRPC at 127.0.0.1:1: start it with gpugrade serve, or say where it is with "
        "--server HOST:PORT or GPUGRADE_SERVER (its port is 9441) [Connection refused]\n"
    )


def test_a_closed_standard_output_is_one_line_and_exit_status_2(canned: Canned) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "nodes"],
        env=environment(canned),
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "Error: cannot write the answer: standard output is closed\n")


def test_a_reader_that_leaves_early_sees_no_traceback(canned: Canned) -> None:
    canned.nodes.extend(grading_pb2.Node(name=f"gpu-r09-n{i:05}", grade=RED) for i in range(5000))
    with subprocess.Popen(
        [*COMMAND, "nodes"],
        env=environment(canned),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("NODE ")
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(LIMIT_S) == 1


def test_a_full_disk_is_a_clear_error(canned: Canned) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here: a full disk cannot be shown")
    with full.open("w") as target:
        done = subprocess.run(
            [*COMMAND, "nodes"],
            env=environment(canned),
            stdout=target,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "Error: cannot write the answer: No space left on device\n"


def test_a_narrow_encoding_loses_no_answer(canned: Canned) -> None:
    canned.nodes[1].reasons[0] = "18 µm too hot"
    done = run(canned, "nodes", "--grade", "red", PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert "18 \\xb5m too hot" in done.stdout


def on_terminal(canned: Canned, *arguments: str, **more: str) -> str:
    """What a command draws on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env=environment(canned, TERM="xterm-256color", COLUMNS="160", **more),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    drawn = b""
    try:
        while chunk := os.read(ours, 65536):
            drawn += chunk
    except OSError:
        pass  # the other end is closed: the command has left
    finally:
        os.close(ours)
    process.wait(LIMIT_S)
    return drawn.decode()


def test_a_terminal_gets_colour_and_with_no_color_none(canned: Canned) -> None:
    assert "\x1b[1;31mred" in on_terminal(canned, "nodes", NO_COLOR="")
    for drawn in (on_terminal(canned, "nodes", "--no-color", NO_COLOR=""), on_terminal(canned, "nodes", NO_COLOR="1")):
        assert "gpu-r01-n02" in drawn
        assert "31m" not in drawn


def test_watch_prints_what_changed_and_leaves_on_interrupt(canned: Canned) -> None:
    with subprocess.Popen(
        [*COMMAND, "nodes", "--watch", "--interval", "0.05", "-o", "name", "--grade", "red"],
        env=environment(canned),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "node/gpu-r01-n02\n"
        canned.nodes[3].grade = RED
        assert [process.stdout.readline() for _ in range(3)] == ["\n", "node/gpu-r01-n02\n", "node/gpu-r02-n02\n"]
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_watch_in_json_is_one_document_a_change(canned: Canned) -> None:
    with subprocess.Popen(
        [*COMMAND, "gpus", "gpu-r01-n01", "-w", "--interval", "0.05", "-o", "json"],
        env=environment(canned),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = []
        while (line := process.stdout.readline()) != "}\n":
            assert line, "the command left before its first document was whole"
            lines.append(line)
        assert json.loads("".join([*lines, "}"]))["bad_gpus"] == []
        process.stdout.close()
        canned.nodes[0].grade = RED
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(LIMIT_S) == 0


def test_watch_on_a_terminal_redraws_and_leaves_on_interrupt(canned: Canned) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "nodes", "--watch", "--interval", "0.05"],
        env=environment(canned, TERM="xterm-256color", COLUMNS="160", LINES="40"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        drawn = b""
        while b"row remap pending" not in drawn:
            drawn += os.read(ours, 65536)
        canned.nodes[3].reasons[0] = "repaired"
        while b"repaired" not in drawn:
            drawn += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        try:
            while chunk := os.read(ours, 65536):
                drawn += chunk
        except OSError:
            pass  # the other end is closed: the command has left
        os.close(ours)
        assert process.wait(LIMIT_S) == 130
        assert b"Traceback" not in drawn


def test_watch_outlives_a_server_for_a_while_and_then_says_that_it_is_away() -> None:
    with running(Canned()) as canned:
        process = subprocess.Popen(
            [*COMMAND, "nodes", "-w", "--interval", "0.05", "-o", "name", "--grade", "red"],
            env=environment(canned),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "node/gpu-r01-n02\n"
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert out == ""
    note, error = err.splitlines()
    assert note.startswith(f"Note: no gpugrade server answers gRPC at {canned.address}")
    assert note.endswith("; trying again")
    assert error.startswith("Error: no gpugrade server answers")
