"""The one way in which work in progress is told to stop."""

import os
import queue
import signal
import sys
import threading

from chaos_probe.errors import HaltedError

PAUSE_VARIABLE = "CHAOS_PROBE_PAUSE_AT"


class Halt:
    """Told once, by a signal, a ceiling or the kill switch; everything that waits or works asks it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._child: Halt | None = None
        self.reason = ""
        self.by_signal = False

    def tell(self, reason: str, *, by_signal: bool = False) -> None:
        """Ask for a stop; the first reason stays."""
        if not self._event.is_set():
            self.reason = reason
            self.by_signal = by_signal
            self._event.set()
        if self._child is not None:
            self._child.tell(reason, by_signal=by_signal)

    def child(self) -> "Halt":
        """Return a stop for one piece of work: told by itself it concerns that alone, and this one implies it."""
        made = Halt()
        self._child = made
        if self.told():
            made.tell(self.reason, by_signal=self.by_signal)
        return made

    def told(self) -> bool:
        """Whether a stop was asked for."""
        return self._event.is_set()

    def check(self) -> None:
        """Raise if a stop was asked for.

        Raises:
            HaltedError: with the reason.
        """
        if self._event.is_set():
            raise HaltedError(self.reason)

    def wait(self, seconds: float) -> bool:
        """Wait, at most that long, and return whether a stop was asked for."""
        return self._event.wait(max(0.0, seconds))

    def sleep(self, seconds: float) -> None:
        """Wait that long.

        Raises:
            HaltedError: as soon as a stop is asked for.
        """
        if self.wait(seconds):
            raise HaltedError(self.reason)


def on_signals(halt: Halt) -> None:
    """Let SIGTERM, SIGINT and SIGHUP (a terminal that closes) ask for a stop. Only the main thread may call it."""
    # An event must not be set in a handler: that interrupts whatever the main thread does, a wait for this very event
    # or another handler included, and the event's lock is not one that the same thread may take twice.
    received: queue.SimpleQueue[int] = queue.SimpleQueue()

    def tell() -> None:
        while True:
            halt.tell(f"{signal.Signals(received.get()).name} received", by_signal=True)

    threading.Thread(target=tell, name="signals", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: received.put(number))


def pause_point(name: str) -> None:
    """Stop this process here if ``CHAOS_PROBE_PAUSE_AT`` names this point; ``SIGCONT`` lets it go on.

    For rehearsing what happens when a probe dies at a given moment. The points are the steps of a run (``inject``:
    before it), the steps with ``:done`` (after it), and those inside a step that an experiment names.
    """
    if os.environ.get(PAUSE_VARIABLE) == name:
        print(f"paused at {name}; send SIGCONT to process {os.getpid()} to go on", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
