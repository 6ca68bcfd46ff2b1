"""Signals that come together, or in the middle of a wait: a stop is told, and nothing locks up."""

import subprocess
import sys

import pytest

#: What a handler interrupts is chosen here: the moment in which the main thread holds the lock of what it waits for,
#: as it does on its way into each wait and in the middle of being told.
INTERRUPTED = """
import os, signal, sys
from chaos_probe.halt import Halt, on_signals

halt = Halt()
on_signals(halt)
with halt._event._cond:
    for number in sys.argv[1:]:
        os.kill(os.getpid(), int(number))
assert halt.wait(30)
assert halt.by_signal
print(halt.reason)
"""


@pytest.mark.parametrize("numbers", [("15",), ("15", "2", "1")], ids=["one", "a crowd"])
def test_a_signal_in_the_middle_of_a_wait_stops_and_locks_nothing_up(numbers: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *numbers], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(" received\n")
    assert len(numbers) > 1 or done.stdout == "SIGTERM received\n"
