"""What a run is asked for, and who is told of it as it happens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from chaos_probe.errors import UsageError
from chaos_probe.experiments.base import Experiment, Value
from chaos_probe.machine import Machine
from chaos_probe.records import Gpu, RunRecord, Sample, Step

DEFAULT_HOLD_S = 10.0
MAX_HOLD_S = 86400.0


@dataclass(frozen=True, slots=True)
class Sinks:
    """Where what a run tells goes as it happens. The defaults keep nothing.

    Attributes:
        sample: takes each sample.
        record: takes the record of a run that injects; ``None`` where nobody is told.
        step: takes each step as it is done.
    """

    sample: Callable[[Sample], None] = lambda _: None
    record: Callable[[RunRecord], None] | None = None
    step: Callable[[Step], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for.

    Attributes:
        experiment: which.
        params: as given; see :meth:`Experiment.parse`.
        gpus: indices; ``None`` means all.
        hold_s: seconds for which a fault stands.
        dry_run: plan and guard only.
    """

    experiment: Experiment
    params: Mapping[str, Value] = field(default_factory=dict)
    gpus: Sequence[int] | None = None
    hold_s: float = DEFAULT_HOLD_S
    dry_run: bool = False

    def check_hold(self) -> None:
        """Check how long the fault is to stand.

        Raises:
            UsageError: not at all, or more than a day.
        """
        if not 0.0 < self.hold_s <= MAX_HOLD_S:
            raise UsageError(f"a hold of {self.hold_s:g} s: give more than 0 and at most a day")


def choose_gpus(machine: Machine, wanted: Sequence[int] | None) -> tuple[Gpu, ...]:
    """Return the GPUs with these indices, or all.

    Raises:
        UsageError: one is not there.
    """
    if wanted is None:
        return machine.gpus
    by_index = {gpu.index: gpu for gpu in machine.gpus}
    absent = [index for index in wanted if index not in by_index]
    if absent:
        there = ", ".join(map(str, by_index)) or f"none ({machine.gpu_problem})"
        raise UsageError(f"there is no GPU {', '.join(map(str, absent))} on this node; there are {there}")
    return tuple(by_index[index] for index in dict.fromkeys(wanted))
