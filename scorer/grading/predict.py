"""How slow a GPU will be: its level against its reference, shrunk by how far its samples can be trusted.

The prior is heavy-tailed (Cauchy-like, with the group's own spread as scale): small deviations are pulled towards
typical, a large one that repeats is hardly pulled at all. A level that rests on one sample counts little, as one slow
probe is far more often a passing one than the chip's nature.
"""

from dataclasses import dataclass

import numpy as np

from scorer.grading.baseline import LEAST_NOISE, Fleet, Reference, reference
from scorer.grading.series import (
    DIMENSIONS,
    MIN_STEP,
    Bools,
    Floats,
    Ints,
    Levels,
    flatten,
    levels,
    noise_by_class,
    usable,
)
from scorer.model.evidence import Evidence
from scorer.model.policy import GradingPolicy

#: Share that a lone sample keeps: of first slow probes about one in four repeats.
LONE_SHARE = 0.25
#: Interval: 90 % of a normal distribution.
Z90 = 1.645
#: What is not known of a dimension that was never measured, as a standard deviation (published spreads are about that).
UNMEASURED = 0.06
#: A level wanders by this much a day since it was last seen (random walk).
DRIFT_A_DAY = 0.004
#: Own scatter weighs as its samples, the group's as this many.
PRIOR_SAMPLES = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Predicted slowdowns; arrays have the shape (G, D).

    Attributes:
        slowdown: relative time, 1 is typical; NaN where never measured or nothing to compare with.
        low: lower end of the 90 % interval.
        high: upper end.
        samples: int32: samples of the present level.
        peers: GPUs behind the reference.
        newest_at: Unix seconds of the newest measurement; NaN where there is none.
        oldest_at: Unix seconds of the oldest measurement of the present level.
        settled: whether the two newest samples agree with the level.
        active: whether a running experiment's own samples decide.
        clean_at: (G,): Unix seconds of the newest measurement with nothing injected; NaN where there is none.
    """

    slowdown: Floats
    low: Floats
    high: Floats
    samples: Ints
    peers: Ints
    newest_at: Floats
    oldest_at: Floats
    settled: Bools
    active: Bools
    clean_at: Floats


def predict(
    evidence: Evidence, plain: Bools, active: Bools, fleet: Fleet, now: float, policy: GradingPolicy
) -> Prediction:
    """Predict every GPU's slowdown on every dimension.

    Args:
        evidence: samples and peers.
        plain: bool (n,): samples taken while nothing was injected; only they make baselines.
        active: bool (n,): samples taken under an injection that still acts; they show what the GPU is now.
        fleet: where the GPUs stand.
        now: Unix seconds.
        policy: how many peers are enough.
    """
    gpus = fleet.node.size
    good = usable(evidence.samples, now)
    flat = flatten(evidence.samples, good & plain)
    noise = noise_by_class(flat, fleet.group, fleet.groups, LEAST_NOISE)
    series_key = flat.key[flat.first]
    found = levels(flat, noise[fleet.group[series_key // DIMENSIONS], series_key % DIMENSIONS], now)

    own = _spread_out(found.key, found.level, gpus)
    weight = np.nan_to_num(_spread_out(found.key, found.weight, gpus), nan=1.0)
    ref = reference(own, weight, noise, fleet, evidence.peers, policy)
    result = _shrink(found, ref, gpus, now)
    if bool(np.any(active & good)):
        _overlay_active(result, evidence, good & active, ref)
    return result


def _spread_out(key: Ints, values: Floats, gpus: int) -> Floats:
    out = np.full(gpus * DIMENSIONS, np.nan)
    out[key] = values
    return out.reshape(gpus, DIMENSIONS)


def _shrink(found: Levels, ref: Reference, gpus: int, now: float) -> Prediction:
    """Turn levels into predictions with intervals."""
    key = found.key
    base = ref.level.ravel()[key]
    tau = ref.spread.ravel()[key]
    noise = ref.noise.ravel()[key]
    lone = found.count == 1
    n = found.count
    off = found.level - base
    # A fast sample beside a slow one is as good as alone: the slow one must not make the pair look faster.
    torn = (n == 2) & (found.highest - found.lowest > MIN_STEP) & (off < 0)  # noqa: PLR2004 - a pair
    off = off * np.where(lone | torn, LONE_SHARE, 1.0)

    variance = (PRIOR_SAMPLES * noise**2 + n * found.spread**2) / (PRIOR_SAMPLES + n)
    age_days = np.maximum(now - found.newest_at, 0.0) / 86400.0
    error = variance / found.weight + DRIFT_A_DAY**2 * age_days
    prior = (tau**2 + off**2) / 2
    share = prior / (prior + error)
    theta = off * share
    half = Z90 * np.sqrt(error * share)
    few = n <= 2  # noqa: PLR2004 - two samples cannot outvote each other, so both stay possible
    low = np.where(few, np.minimum(theta - half, found.lowest - base), theta - half)
    high = np.where(few, np.maximum(theta + half, found.highest - base), theta + half)
    low = np.where(lone, np.minimum(low, 0.0), low)
    high = np.where(lone, np.maximum(high, 0.0), high)

    def table(values: Floats) -> Floats:
        return _spread_out(key, values, gpus)

    samples = np.zeros(gpus * DIMENSIONS, np.int64)
    samples[key] = n
    settled = np.zeros(gpus * DIMENSIONS, np.bool_)
    settled[key] = found.settled
    shape = (gpus, DIMENSIONS)
    return Prediction(
        slowdown=table(np.exp(theta)),
        low=table(np.exp(low)),
        high=table(np.exp(high)),
        samples=samples.reshape(shape),
        peers=ref.peers,
        newest_at=table(found.newest_at),
        oldest_at=table(found.oldest_at),
        settled=settled.reshape(shape),
        active=np.zeros(shape, np.bool_),
        clean_at=newest_of(table(found.newest_at)),
    )


def newest_of(at: Floats) -> Floats:
    """The latest time in each row of (G, D); NaN where a row holds none."""
    latest = np.where(np.isfinite(at), at, -np.inf).max(axis=1)
    return np.where(np.isfinite(latest), latest, np.nan)


def _overlay_active(result: Prediction, evidence: Evidence, keep: Bools, ref: Reference) -> None:
    """Where an injected fault acts now, the samples taken under it say what the GPU is: their cause is known.

    They count at full weight, the faster of two and the middle of more; arrays of ``result`` are changed in place.
    """
    flat = flatten(evidence.samples, keep)
    for first, count in zip(flat.first, flat.count, strict=True):
        gpu, d = divmod(int(flat.key[first]), DIMENSIONS)
        z = np.sort(flat.z[first : first + count])
        theta = float(z[(count - 1) // 2]) - ref.level[gpu, d]
        if not np.isfinite(theta):
            continue
        half = Z90 * max(float(ref.noise[gpu, d]), LEAST_NOISE)
        result.slowdown[gpu, d] = np.exp(theta)
        result.low[gpu, d] = np.exp(theta - half)
        result.high[gpu, d] = np.exp(theta + half)
        result.samples[gpu, d] = count
        result.newest_at[gpu, d] = flat.at[first + count - 1]
        result.oldest_at[gpu, d] = flat.at[first]
        result.settled[gpu, d] = True
        result.active[gpu, d] = True
