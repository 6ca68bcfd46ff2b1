"""From samples to series: the present level of each (GPU, dimension), robustly, restarting where it changed.

Everything here works on ``z = -log(value)``: larger is slower, and a factor in speed is a shift. No reference is needed
yet, so a level is in the unit of its dimension.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scorer.model.dimension import Dimension
from scorer.model.evidence import SampleColumns, SampleStatus

DIMENSIONS = len(Dimension)

#: Samples older than this, or beyond the newest so many of a series, say nothing about now.
MAX_AGE_S = 30 * 86400.0
MAX_SAMPLES = 16
#: A sample weighs half after this time.
HALF_LIFE_S = 7 * 86400.0
#: A clock that runs ahead of ours by more than this makes a sample unusable.
MAX_AHEAD_S = 600.0
#: Levels closer than this (3 %) are one level, however quiet the series.
MIN_STEP = 0.03
#: A series shows a scatter of its own from so many samples on; with fewer a step looks like scatter.
OWN_NOISE_FROM = 6
#: Normal-consistent scale of a median absolute deviation, and of a median absolute difference of neighbours.
MAD_SCALE = 1.4826
DIFF_SCALE = 1.0484
#: Rows handled at once: bounds memory, and keeps the working set in the cache.
CHUNK = 65536

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """Usable samples, ordered by series and time.

    Attributes:
        key: int64 (n,): GPU row x dimensions + dimension.
        at: float64 (n,).
        z: float64 (n,): -log(value).
        first: int64 (s,): where each series starts.
        count: int64 (s,).
    """

    key: Ints
    at: Floats
    z: Floats
    first: Ints
    count: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """The level of each series at present; all arrays have the shape (s,).

    Attributes:
        key: GPU row x dimensions + dimension.
        level: z of the present level.
        spread: scatter of its samples towards the fast side, as a standard deviation.
        count: samples of the present level.
        weight: the same, old samples counting less.
        lowest: smallest z among the present level's samples.
        highest: largest one.
        newest_at: Unix seconds of the newest sample.
        oldest_at: Unix seconds of the oldest sample of the present level.
        settled: whether the two newest samples agree with the level.
    """

    key: Ints
    level: Floats
    spread: Floats
    count: Ints
    weight: Floats
    lowest: Floats
    highest: Floats
    newest_at: Floats
    oldest_at: Floats
    settled: Bools


def usable(samples: SampleColumns, now: float) -> Bools:
    """Say which samples are measurements: status OK, a finite positive value, neither too old nor of the future."""
    value = samples.value
    good: Bools = (
        (samples.status == SampleStatus.OK)
        & np.isfinite(value)
        & (value > 0)
        & (samples.at >= now - MAX_AGE_S)
        & (samples.at <= now + MAX_AHEAD_S)
    )
    return good


def flatten(samples: SampleColumns, keep: Bools) -> Flat:
    """Select samples and order them by series, time and value, so that the order they came in is irrelevant.

    Args:
        samples: n of them, in any order.
        keep: bool (n,): which to use; every one must be usable.
    """
    at = samples.at[keep]
    z = -np.log(samples.value[keep])
    key = samples.gpu[keep].astype(np.int64) * DIMENSIONS + samples.dimension[keep]
    if not _ordered(key, at):
        order = _by_key(key)
        if not _ordered(key[order], at[order]):
            order = np.lexsort((z, at, key))
        key, at, z = key[order], at[order], z[order]
    first = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1]))) if key.size else np.empty(0, np.int64)
    count = np.diff(np.append(first, key.size))
    return Flat(key, at, z, first, count)


def _ordered(key: Ints, at: Floats) -> bool:
    """Whether (key, at) strictly ascends already; stores hand it over so, and sorting is the dearest step."""
    return bool(np.all((key[1:] > key[:-1]) | ((key[1:] == key[:-1]) & (at[1:] > at[:-1]))))


def _by_key(key: Ints) -> NDArray[np.intp]:
    """Stable order by key. Samples come in the order of time, so that is all the sorting that they mostly need.

    Two passes over 16 bits each, which NumPy sorts by counting, take a tenth of the time of sorting by key, time and
    value.
    """
    if key.size == 0 or int(key.max()) >= 1 << 32:
        return np.argsort(key, kind="stable")
    order = np.argsort(key.astype(np.uint16), kind="stable")  # the low half
    high = (key >> 16).astype(np.uint16)
    return order[np.argsort(high[order], kind="stable")]


def noise_by_class(flat: Flat, gpu_class: Ints, classes: int, least: float) -> Floats:
    """Scatter between neighbouring samples of one GPU, by class of GPU and dimension.

    Args:
        flat: the samples.
        gpu_class: int64 (GPUs,): class of each GPU.
        classes: number of classes.
        least: floor, and the answer where there is nothing to tell it from.

    Returns:
        float64 (classes, dimensions): a standard deviation of z.
    """
    noise = np.full((classes, DIMENSIONS), least)
    if flat.key.size <= 1:
        return noise
    same = flat.key[1:] == flat.key[:-1]
    step = np.abs(np.diff(flat.z))[same]
    key = flat.key[1:][same]
    cell = gpu_class[key // DIMENSIONS] * DIMENSIONS + key % DIMENSIONS
    for c in np.unique(cell):
        noise.flat[c] = max(least, DIFF_SCALE * float(np.median(step[cell == c])))
    return noise


def levels(flat: Flat, noise: Floats, now: float) -> Levels:
    """Find the present level of every series.

    Args:
        flat: the samples.
        noise: float64 (s,): scatter of a single sample that is ordinary for each series.
        now: Unix seconds.
    """
    parts = []
    for start in range(0, flat.first.size, CHUNK):
        part = slice(start, start + CHUNK)
        parts.append(_levels_of(flat, flat.first[part], flat.count[part], noise[part], now))
    if not parts:
        nothing = np.empty(0)
        ints = np.empty(0, np.int64)
        bools = np.empty(0, np.bool_)
        return Levels(ints, nothing, nothing, ints, nothing, nothing, nothing, nothing, nothing, bools)
    names = Levels.__slots__
    return Levels(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def _levels_of(flat: Flat, first: Ints, count: Ints, noise: Floats, now: float) -> Levels:
    """Do :func:`levels` for some of the series, as a matrix with the newest sample first."""
    width = int(min(count.max(), MAX_SAMPLES))
    n = np.minimum(count, width)
    column = np.arange(width)
    valid = column < n[:, None]
    pick = np.where(valid, (first + count - 1)[:, None] - column, 0)
    z = np.where(valid, flat.z[pick], np.nan)
    at = flat.at[pick]

    recent = _recent_level(z, n)
    tolerance = _tolerance(z, n, noise)
    agrees = np.abs(z - recent[:, None]) <= tolerance[:, None]
    m = _run_length(agrees, valid, n)
    inside = column < m[:, None]

    ranked = np.sort(np.where(inside, z, np.inf), axis=1)
    rows = np.arange(m.size)
    middle = ranked[rows, (m - 1) // 2]
    quarter = ranked[rows, (m - 1) // 4]
    near = inside & (np.abs(z - middle[:, None]) <= 3 * noise[:, None])
    level = np.where(near, z, 0.0).sum(axis=1) / near.sum(axis=1)
    age = np.maximum(now - at, 0.0)
    weight = np.where(inside, np.exp2(-age / HALF_LIFE_S), 0.0).sum(axis=1)
    close = np.abs(z - level[:, None]) <= tolerance[:, None]
    settled = close[:, 0] & close[:, 1] if width > 1 else np.zeros(m.size, np.bool_)
    return Levels(
        key=flat.key[first],
        level=level,
        spread=(middle - quarter) / 0.6745,
        count=m,
        weight=np.maximum(weight, 1e-3),
        lowest=ranked[:, 0],
        highest=ranked[rows, m - 1],
        newest_at=at[:, 0],
        oldest_at=at[rows, m - 1],
        settled=settled & (m > 1),
    )


def _recent_level(z: Floats, n: Ints) -> Floats:
    """The middle of the three newest samples; of two the faster, so that one slow sample changes no level."""
    a = z[:, 0]
    if z.shape[1] == 1:
        return a
    b = z[:, 1]
    low = np.fmin(a, b)
    if z.shape[1] == 2:  # noqa: PLR2004 - two columns, two samples
        return np.where(n > 1, low, a)
    middle = np.maximum(low, np.minimum(np.fmax(a, b), z[:, 2]))
    return np.where(n > 2, middle, np.where(n > 1, low, a))  # noqa: PLR2004 - three samples have a middle


def _tolerance(z: Floats, n: Ints, noise: Floats) -> Floats:
    """How far a sample may lie from a level and still belong to it: wider for a series that does not repeat."""
    floor = np.maximum(MIN_STEP, 4 * noise)
    if z.shape[1] < OWN_NOISE_FROM:
        return floor
    steps = np.sort(np.abs(np.diff(z, axis=1)), axis=1)  # NaN sorts to the end
    middle = steps[np.arange(n.size), np.maximum(n - 2, 0) // 2]
    own = np.where(n >= OWN_NOISE_FROM, DIFF_SCALE * middle, 0.0)
    wide: Floats = np.maximum(floor, 3 * own)
    return wide


def _run_length(agrees: Bools, valid: Bools, n: Ints) -> Ints:
    """How many of the newest samples belong to the present level: it ends where two neighbours do not agree."""
    bad = ~(agrees & valid)
    bad = np.concatenate((bad, np.ones((bad.shape[0], 1), np.bool_)), axis=1)
    ends = bad[:, :-1] & bad[:, 1:]
    run = np.where(ends.any(axis=1), ends.argmax(axis=1), n)
    run = np.minimum(run, n)
    return np.where(run == 0, np.minimum(n, 3), run)
