"""Chance that repeats: every draw is a hash of the seed and of what is drawn, so history can be asked in any order."""

import math
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise

_SCALE = 2.0**-64


def _digest(keys: tuple[object, ...]) -> bytes:
    return blake2b("|".join(map(str, keys)).encode(), digest_size=16).digest()


def unit(*keys: object) -> float:
    """A number evenly spread over (0, 1), always the same for the same keys."""
    return (int.from_bytes(_digest(keys)[:8], "little") + 0.5) * _SCALE


def normal(*keys: object) -> float:
    """A standard normal number, always the same for the same keys."""
    digest = _digest(keys)
    first = (int.from_bytes(digest[:8], "little") + 0.5) * _SCALE
    second = int.from_bytes(digest[8:], "little") * _SCALE
    return math.sqrt(-2.0 * math.log(first)) * math.cos(2.0 * math.pi * second)


def hexes(count: int, *keys: object) -> str:
    """``count`` hexadecimal digits (32 at most), always the same for the same keys."""
    return _digest(keys).hex()[:count]


def quantile(table: Sequence[tuple[float, float]], share: float) -> float:
    """The value below which ``share`` of a distribution lies.

    Args:
        table: (percentile, value) pairs, ascending, from 0 to 100; between them it is linear.
        share: 0 to 1.
    """
    percent = share * 100.0
    for (p0, v0), (p1, v1) in pairwise(table):
        if percent <= p1:
            return v0 + (v1 - v0) * (percent - p0) / (p1 - p0)
    return table[-1][1]
