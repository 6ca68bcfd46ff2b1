"""Which measurement comes next: the stalest are the likeliest; a seeded jitter keeps nodes out of step."""

import json
import math
import os
import random
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_MAX_WEIGHT = 16.0
_JITTER = 0.2
_LONGEST = 0.25
_MAX_DOUBLINGS = 20


@dataclass(frozen=True, slots=True)
class Task:
    """One experiment on one GPU, or on the node (-1), that is repeated.

    Attributes:
        kind: the experiment.
        gpu: index, or -1.
        every_s: how often, seconds.
    """

    kind: str
    gpu: int
    every_s: float

    @property
    def key(self) -> str:
        """The name under which its last time is kept."""
        return f"{self.kind}/{self.gpu}"


def seed_of(node: str) -> int:
    """Return a seed that is the same for a node every time, and another for another node."""
    return zlib.crc32(node.encode())


def staleness(task: Task, last: Mapping[str, float], now: float) -> float:
    """Return its age as a multiple of its interval; infinite if it was never done or its time lies ahead."""
    at = last.get(task.key)
    if at is None or at > now:
        return math.inf
    return (now - at) / task.every_s


def choose(tasks: Sequence[Task], last: Mapping[str, float], now: float, rng: random.Random) -> Task | None:
    """Choose among the tasks that are due, each with the square of its staleness as weight.

    Due is what is older than its interval, shortened or lengthened by up to a fifth, anew at each call.
    """
    due: list[Task] = []
    weights: list[float] = []
    for task in tasks:
        stale = staleness(task, last, now)
        if stale >= rng.uniform(1.0 - _JITTER, 1.0 + _JITTER):
            due.append(task)
            weights.append(min(_MAX_WEIGHT, stale) ** 2)
    return rng.choices(due, weights)[0] if due else None


class Refusals:
    """Tasks that the guard refused step back, longer each time: the stalest would keep all others from their turn.

    A GPU with a job on it is refused for days, and a GPU beside it that is free must be measured all the same.
    """

    def __init__(self) -> None:
        self._times: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def add(self, task: Task, now: float, pause_s: float) -> None:
        """Note a refusal: the task waits two pauses, then four, and so on, at most a quarter of its interval.

        Args:
            task: that was refused.
            now: seconds of a clock that is never set.
            pause_s: mean time between two runs.
        """
        times = min(self._times.get(task.key, 0) + 1, _MAX_DOUBLINGS)
        self._times[task.key] = times
        self._until[task.key] = now + min(task.every_s * _LONGEST, pause_s * 2.0**times)

    def forget(self, task: Task) -> None:
        """A run of it was allowed."""
        self._times.pop(task.key, None)
        self._until.pop(task.key, None)

    def ready(self, tasks: Sequence[Task], now: float) -> list[Task]:
        """Return the tasks that do not wait, in their order."""
        return [task for task in tasks if self._until.get(task.key, now) <= now]


def first_pause(mean_s: float, rng: random.Random) -> float:
    """Return seconds until the first look: agents that start together must not begin together."""
    return mean_s * rng.uniform(0.0, 1.0)


def pause(mean_s: float, rng: random.Random) -> float:
    """Return seconds until the next look, around the mean."""
    return mean_s * rng.uniform(0.5, 1.5)


class LastTimes:
    """When each task was last done, on disk: a restart must not measure everything anew."""

    def __init__(self, path: Path) -> None:
        """Read the file; one that is absent or damaged means that nothing was done yet."""
        self._path = path
        self._last: dict[str, float] = {}
        with suppress(OSError, ValueError, AttributeError, TypeError):
            data = json.loads(path.read_text(encoding="utf-8"))
            self._last = {str(key): float(at) for key, at in data.items()}

    def __call__(self) -> Mapping[str, float]:
        """Return Unix seconds by key."""
        return self._last

    def set(self, task: Task, at: float, known: Sequence[Task]) -> None:
        """Keep that a task was done; those that are planned no more are forgotten."""
        keys = {t.key for t in known}
        self._last = {key: when for key, when in self._last.items() if key in keys} | {task.key: at}
        # In memory it is kept whatever the disk says.
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        draft.write_text(json.dumps(self._last), encoding="utf-8")
        draft.replace(self._path)
