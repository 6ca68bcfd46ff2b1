"""Transient episodes: a whole node is slow for a while, then as good as before. A chain of two states."""

from dataclasses import dataclass
from functools import lru_cache

from tools.fleet.chance import quantile, unit
from tools.fleet.quality import EPISODE_MEAN_S, EPISODE_SHARE, EPISODE_SLOWDOWN

#: One step of the chain, seconds.
STEP_S = 15 * 60
#: The chain starts anew each week from its long-run shares, so that any time can be asked without all of the past.
WEEK_S = 7 * 86400
_LEAVE = STEP_S / EPISODE_MEAN_S
_ENTER = _LEAVE * EPISODE_SHARE / (1.0 - EPISODE_SHARE)

#: What an episode touches, and how often: (share, cause, exponent of the slowdown by dimension).
CAUSES: tuple[tuple[float, str, dict[str, float]], ...] = (
    (0.50, "power brake of the chassis", {"compute": 1.0, "memory": 0.5}),
    (0.30, "congested fabric", {"fabric": 1.0}),
    (0.20, "noisy neighbour on the host", {"host": 1.0, "pcie": 0.7, "numa": 0.5}),
)


@dataclass(frozen=True, slots=True)
class Episode:
    """One slow stretch of a node.

    Attributes:
        start: Unix seconds.
        end: Unix seconds, not part of it.
        slowdown: relative time at the dimension that it hits hardest.
        cause: for people.
        reach: exponent of ``slowdown`` by dimension; a dimension that is not there is not touched.
    """

    start: float
    end: float
    slowdown: float
    cause: str
    reach: dict[str, float]

    def factor(self, dimension: str) -> float:
        """Relative time on ``dimension`` while it lasts."""
        power = self.reach.get(dimension, 0.0)
        return float(self.slowdown**power)


@lru_cache(maxsize=4096)
def week(seed: int, node: str, number: int) -> tuple[Episode, ...]:
    """The episodes of a node in week ``number`` since the epoch, in order."""
    found: list[Episode] = []
    begun: int | None = None
    base = number * WEEK_S
    slow = unit(seed, "episode", node, number, "first") < EPISODE_SHARE
    for step in range(WEEK_S // STEP_S):
        if step:
            draw = unit(seed, "episode", node, number, step)
            slow = draw >= _LEAVE if slow else draw < _ENTER
        if slow and begun is None:
            begun = step
        elif not slow and begun is not None:
            found.append(_episode(seed, node, base, begun, step))
            begun = None
    if begun is not None:
        found.append(_episode(seed, node, base, begun, WEEK_S // STEP_S))
    return tuple(found)


def _episode(seed: int, node: str, base: int, begun: int, step: int) -> Episode:
    start = base + begun * STEP_S
    draw = unit(seed, "cause", node, start)
    for share, cause, reach in CAUSES:  # noqa: B007 - the last cause stands where rounding leaves nothing
        draw -= share
        if draw < 0:
            break
    slowdown = quantile(EPISODE_SLOWDOWN, unit(seed, "slowdown", node, start))
    return Episode(start, base + step * STEP_S, slowdown, cause, reach)


def episode_at(seed: int, node: str, at: float) -> Episode | None:
    """The episode that node is in at Unix time ``at``, if any."""
    for episode in week(seed, node, int(at // WEEK_S)):
        if episode.start <= at < episode.end:
            return episode
    return None
