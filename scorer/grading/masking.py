"""What experiments injected: counted while it acts, masked once it is taken back, never part of a baseline."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from scorer.grading.metrics import HEALTH_WORDS, XID
from scorer.grading.series import Bools
from scorer.model.evidence import Reading, Run, RunPhase, SampleColumns

#: A residue may show up this long after the revert.
GRACE_S = 60.0

_HEALTH_XID = re.compile(r"\bXID\s*(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Masks:
    """The runs of one node."""

    runs: tuple[Run, ...] = ()
    _left: dict[tuple[int, str], list[Run]] = field(init=False, repr=False, compare=False, default_factory=dict)
    """By residue, so that many runs with many residues cost each event only those that left the like of it."""

    def __post_init__(self) -> None:
        for run in self.runs:
            for key in {(x.gpu_index, x.code) for x in run.residues}:
                self._left.setdefault(key, []).append(run)

    def hides_event(self, gpu: int, code: str, at: float) -> bool:
        """Whether something dated is the residue of a reverted run."""
        return any(
            r.phase is RunPhase.REVERTED and r.started <= at <= r.ended + GRACE_S
            for r in self._runs_that_left(gpu, code)
        )

    def hides_reading(self, r: Reading) -> bool:
        """Whether a gauge or counter shows what a reverted run put there and nothing has changed it since."""
        codes = [f"field:{r.field}"] + ([f"xid:{r.value:.0f}"] if r.field == XID else [])
        for run in (run for code in codes for run in self._runs_that_left(r.gpu_index, code)):
            if run.phase is not RunPhase.REVERTED:
                continue
            if run.started <= r.since <= run.ended + GRACE_S or (math.isnan(r.previous) and run.started <= r.since):
                return True
        return False

    def hides_health(self, gpu: int, text: str) -> bool:
        """Whether a health verdict, which carries no time, tells of nothing but a reverted run's residue."""
        codes = {f"xid:{n}" for n in _HEALTH_XID.findall(text)}
        words = text.lower()
        codes |= {f"field:{f}" for f, word in HEALTH_WORDS.items() if word in words}
        return any(r.phase is RunPhase.REVERTED for c in codes for r in self._runs_that_left(gpu, c))

    def active_run(self, gpu: int, code: str) -> str:
        """Return the id of the run that is injecting this now, or nothing."""
        return next((r.id for r in self._runs_that_left(gpu, code) if r.phase is not RunPhase.REVERTED), "")

    def _runs_that_left(self, gpu: int, code: str) -> Iterator[Run]:
        """Runs that declared this residue; one about the whole node covers each GPU."""
        for index in (gpu, -1) if gpu >= 0 else (-1,):
            yield from self._left.get((index, code), ())


def split_samples(samples: SampleColumns, runs: Sequence[Run]) -> tuple[Bools, Bools]:
    """Say which samples are plain, and which were taken under an injection that still acts.

    Returns:
        two bool arrays (n,); samples of reverted runs are in neither.
    """
    acts = np.array([r.phase is not RunPhase.REVERTED for r in runs] + [False])
    known = (samples.run >= 0) & (samples.run < len(runs))
    active = known & acts[np.where(known, samples.run, -1)]
    return samples.run < 0, active
