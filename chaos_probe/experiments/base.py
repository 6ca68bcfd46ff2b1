"""What every experiment is made of: parameters, a plan, and the steps that it fills in."""

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from chaos_probe.devices.cuda import Measured
from chaos_probe.errors import UsageError
from chaos_probe.halt import Halt, pause_point
from chaos_probe.machine import Machine
from chaos_probe.records import UNITS, WHOLE_NODE, Figure, Gpu, Residue, Sample, SampleStatus, Vitals
from chaos_probe.revert import Action
from chaos_probe.settings import seconds

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """Something that ``--param`` may set.

    Attributes:
        name: as written.
        default: also gives the type; a number is read as one.
        help: one line.
        low: least number allowed.
        high: greatest number allowed.
        unit: of a number.
        choices: the words allowed.
    """

    name: str
    default: Value
    help: str
    low: float | None = None
    high: float | None = None
    unit: str = ""
    choices: tuple[str, ...] = ()

    def parse(self, given: Value) -> Value:
        """Return a value of the parameter's type.

        Raises:
            UsageError: it is not one, or out of bounds; the text says what is allowed.
        """
        text = str(given).strip()
        if self.choices:
            if text not in self.choices:
                raise UsageError(f"{self.name}={text}: there are {', '.join(self.choices)}")
            return text
        if isinstance(self.default, str):
            return text
        try:
            number = seconds(text) if self.unit == "s" else float(text)
        except (ValueError, UsageError):
            number = float("nan")
        low = float("-inf") if self.low is None else self.low
        high = float("inf") if self.high is None else self.high
        whole = isinstance(self.default, int)
        if not low <= number <= high or (whole and not number.is_integer()):
            kind = "a whole number" if whole else "a number"
            raise UsageError(f"{self.name}={text}: give {kind} from {low:g} to {high:g} {self.unit}".rstrip())
        return int(number) if whole else number

    def to_json(self) -> dict[str, Any]:
        """Return it for ``chaos-probe list -o json``."""
        kind = "string" if isinstance(self.default, str) else "integer" if isinstance(self.default, int) else "number"
        shown: dict[str, Any] = {"type": kind, "default": self.default, "help": self.help, "unit": self.unit or None}
        shown |= {"min": self.low, "max": self.high, "choices": list(self.choices) or None}
        return {key: value for key, value in shown.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is going to do, found out before anything is touched.

    Attributes:
        detail: for people.
        reverts: how to undo it; empty for a run that only measures.
        residues: what no revert takes away.
        bound_s: seconds within which a healthy run has reverted, from its injection.
        outlives: the fault stays when the process dies, so that a dead-man is set up.
        found: what the experiment found and needs again.
    """

    detail: str
    reverts: tuple[Action, ...] = ()
    residues: tuple[Residue, ...] = ()
    bound_s: float = 60.0
    outlives: bool = False
    found: Mapping[str, Any] = field(default_factory=dict)

    @property
    def injects(self) -> bool:
        """Whether there is something to revert."""
        return bool(self.reverts)


@dataclass(slots=True)
class Context:
    """What an experiment is given to work with.

    Attributes:
        run: id of the run.
        kind: of the experiment.
        gpus: what it is aimed at.
        params: parsed, defaults filled in.
        hold_s: seconds for which a fault stands.
        machine: the means.
        halt: asked by everything that waits or works.
        ours: gives whether the injection is still this run's to make, and keeps others from reverting meanwhile.
        keep: takes each sample as it is measured.
        vitals: gives the vital signs of a GPU between two times.
        plan: set once the plan is made.
        active: a fault stands: samples are tagged with the run.
        figures: other numbers that were measured.
        children: processes that the run started and must collect.
    """

    run: str
    kind: str
    gpus: tuple[Gpu, ...]
    params: Mapping[str, Any]
    hold_s: float
    machine: Machine
    halt: Halt
    ours: Callable[[], AbstractContextManager[bool]]
    keep: Callable[[Sample], None]
    vitals: Callable[[int, float, float], Vitals]
    plan: Plan | None = None
    active: bool = False
    figures: list[Figure] = field(default_factory=list)
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def sample(self, gpu: Gpu | None, dimension: str, measured: Measured, started: float | None = None) -> Sample:
        """Make a sample of a measurement that ended now, and hand it over."""
        now = time.time()
        sample = Sample(
            at=now,
            gpu=WHOLE_NODE if gpu is None else gpu.index,
            uuid="" if gpu is None else gpu.uuid,
            dimension=dimension,
            value=measured.value if measured.status is SampleStatus.OK else None,
            status=measured.status,
            run=self.run if self.active else "",
            source=self.kind,
            detail=measured.detail[:500],
            vitals=Vitals() if gpu is None or started is None else self.vitals(gpu.index, started, now),
            driver="" if gpu is None else gpu.driver,
        )
        self.keep(sample)
        return sample

    def point(self, name: str) -> None:
        """A place at which a rehearsal may stop this process, see :func:`chaos_probe.halt.pause_point`."""
        pause_point(name)

    def ticks(self, every_s: float) -> Iterator[float]:
        """Yield every so often until the hold is over; each time the seconds that are left.

        Raises:
            HaltedError: a stop was asked for.
        """
        end = time.monotonic() + self.hold_s
        while (left := end - time.monotonic()) > 0:
            yield left
            self.halt.sleep(min(every_s, max(0.0, end - time.monotonic())))


class Experiment(ABC):
    """One kind of chaos or measurement. It holds no state: a run's is in its context and plan."""

    kind: ClassVar[str]
    summary: ClassVar[str]
    surfaces: ClassVar[tuple[str, ...]] = ()
    """Where a monitor could see it."""
    needs: ClassVar[tuple[str, ...]] = ()
    risk: ClassVar[Literal["none", "load", "reversible", "residue"]]
    scope: ClassVar[Literal["gpu", "node"]] = "gpu"
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    injects: ClassVar[bool] = False
    """Whether it injects with its default parameters."""

    def missing(self, machine: Machine) -> list[str]:
        """Return what this machine lacks for it."""
        del machine
        return []

    def injects_with(self, params: Mapping[str, Value]) -> bool:
        """Return whether it injects with these parameters, as :meth:`parse` gives them."""
        del params
        return self.injects

    @abstractmethod
    def plan(self, ctx: Context) -> Plan:
        """Find out what there is and what will be done. Touches nothing.

        Raises:
            RefusedError: it cannot be done safely.
            UsageError: the parameters do not fit this machine.
        """

    def before(self, ctx: Context) -> str:
        """Measure before the injection, where that is wanted; returns what there is to say."""
        del ctx
        return ""

    def inject(self, ctx: Context) -> str:
        """Inject; returns what was done."""
        del ctx
        return "measures only: nothing injected"

    @abstractmethod
    def observe(self, ctx: Context) -> str:
        """Measure, or hold the fault; returns what was seen."""

    def after(self, ctx: Context) -> str:
        """Measure after the verified revert, where that is wanted; returns what there is to say."""
        del ctx
        return ""

    def parse(self, given: Mapping[str, Value]) -> dict[str, Value]:
        """Return all parameters, defaults filled in.

        Raises:
            UsageError: an unknown name or a wrong value.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in given:
            if name not in known:
                raise UsageError(f"{self.kind} has no parameter {name!r}; there are {', '.join(known) or 'none'}")
        return {name: p.parse(given[name]) if name in given else p.default for name, p in known.items()}


def listed(samples: Sequence[Sample]) -> str:
    """Say in a few words what samples show."""
    words = []
    for sample in samples:
        what = sample.dimension if sample.gpu == WHOLE_NODE else f"GPU {sample.gpu} {sample.dimension}"
        if sample.value is None:
            words.append(f"{what} {sample.status}: {sample.detail}")
        else:
            words.append(f"{what} {sample.value:.4g} {UNITS[sample.dimension]}")
    return "; ".join(words) or "nothing measured"
