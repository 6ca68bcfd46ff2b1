"""Looking up a whole JSON list of node names at once, on its bytes."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import msgspec
import numpy as np
from numpy.typing import NDArray

_NAMES = msgspec.json.Decoder(list[str])
_QUOTE, _COMMA = ord('"'), ord(",")
_WORD = 8
#: Keeps the low bytes of a little-endian word: the index is how many.
_KEEP = np.array([(1 << (8 * n)) - 1 for n in range(_WORD)] + [2**64 - 1], np.uint64)
#: Odd numbers by which words are mixed; any will do, since what is found is compared in full.
_MIX = np.random.default_rng(0x67707567).integers(2**62, 2**63, 64, np.uint64) * np.uint64(2) + np.uint64(1)
#: Longest name that is indexed: Kubernetes allows 253 characters.
_LONGEST = 256
#: Slots of the table for each node; the emptier it is the fewer nodes share a slot.
_SPARSE = 4


class RawNames(Sequence[str]):
    """A JSON list of names that becomes strings only where somebody looks at one."""

    __slots__ = ("_count", "_names", "raw")

    def __init__(self, raw: bytes, count: int) -> None:
        """Wrap a list that is known to be well formed.

        Args:
            raw: its JSON.
            count: of names in it.
        """
        self.raw, self._count = raw, count
        self._names: list[str] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._strings()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._strings())

    def _strings(self) -> list[str]:
        if self._names is None:
            self._names = _NAMES.decode(self.raw)
        return self._names


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The names of a list, looked up.

    Attributes:
        names: of the list.
        rows: int32 (n,): row of each name.
        begins: int64 (n,): offset of each name's opening quote in the JSON; ``None`` in a list that was spliced.
        ends: int64 (n,): offset behind its closing quote; likewise.
    """

    names: RawNames
    rows: NDArray[np.int32]
    begins: NDArray[np.int64] | None = None
    ends: NDArray[np.int64] | None = None

    def keep(self, kept: NDArray[np.bool_]) -> "Found | None":
        """Leave names out.

        Args:
            kept: bool (n,): which ones stay.

        Returns:
            ``None`` where names must go and the offsets are not known.
        """
        if kept.all():
            return self
        if self.begins is None or self.ends is None:
            return None
        raw = self.names.raw
        edge = np.zeros(len(kept) + 1, bool)
        edge[0], edge[-1] = kept[0], kept[-1]
        np.not_equal(kept[1:], kept[:-1], out=edge[1:-1])
        change = np.flatnonzero(edge)
        runs = zip(self.begins[change[0::2]].tolist(), self.ends[change[1::2] - 1].tolist(), strict=True)
        spliced = b"[" + b",".join([raw[begin:end] for begin, end in runs]) + b"]"
        rows = self.rows[kept]
        return Found(RawNames(spliced, len(rows)), rows)


class NameIndex:
    """Finds the rows of names in the bytes of their JSON list, without making a string of each.

    Making, hashing and comparing thousands of strings is most of what a request costs, and slower yet when their
    order is new each time, because every one is fetched from afar. Here names are compared as columns of 8-byte
    words in tables that fit the cache.
    """

    __slots__ = ("_bits", "_length", "_row", "_tag", "_words")

    def __init__(self, nodes: tuple[str, ...]) -> None:
        """Index the nodes of a view. One with a strange name is left out, and is then found by the slow way.

        Args:
            nodes: names, in the order of rows.
        """
        plain = [n.encode() if n.isascii() and n.isprintable() and not {'"', "\\"} & set(n) else b"" for n in nodes]
        plain = [n if 0 < len(n) <= _LONGEST else b"" for n in plain]
        width = max((len(n) for n in plain), default=0)
        count = -(-max(width, 1) // _WORD)
        padded = b"".join(n.ljust(count * _WORD, b"\0") for n in plain)
        words = np.frombuffer(padded, "<u8").reshape(len(nodes), count)
        self._words = [np.ascontiguousarray(words[:, k]) for k in range(count)]
        self._length = np.array([len(n) for n in plain], np.int64)
        self._bits = max(4, (_SPARSE * len(nodes)).bit_length())
        self._tag = np.zeros(1 << self._bits, np.uint64)
        self._row = np.full(1 << self._bits, -1, np.int32)
        tags = _tags(self._words) if len(nodes) else np.empty(0, np.uint64)
        for row, (tag, slot) in enumerate(zip(tags.tolist(), self._slots(tags).tolist(), strict=True)):
            free = slot
            while self._row[free] >= 0:
                free = (free + 1) & (len(self._row) - 1)
            if plain[row]:
                self._tag[free], self._row[free] = tag, row

    def find(self, raw: bytes) -> Found | None:
        """Find all names of a list.

        Args:
            raw: JSON of the list.

        Returns:
            ``None`` where the slow way is needed: it is not a plain list of plain strings, or a name is unknown.
        """
        padded = np.frombuffer(raw + b"\0" * (len(self._words) * _WORD), np.uint8)
        edges = _edges(raw, padded)
        if edges is None:
            return None
        starts, stops = edges
        lengths = stops - starts
        if int(lengths.max()) > len(self._words) * _WORD:
            return None
        words = _words_at(padded, starts, lengths, len(self._words))
        rows = self._rows(words)
        if rows is None:
            return None
        if (self._length.take(rows) != lengths).any():
            return None
        for own, asked in zip(self._words, words, strict=True):
            if (own.take(rows) != asked).any():
                return None
        return Found(RawNames(raw, len(rows)), rows, starts - 1, stops + 1)

    def _slots(self, tags: NDArray[np.uint64]) -> NDArray[np.int64]:
        return (tags >> np.uint64(64 - self._bits)).astype(np.int64)

    def _rows(self, words: list[NDArray[np.uint64]]) -> NDArray[np.int32] | None:
        tags = _tags(words)
        slots = self._slots(tags)
        rows = self._row.take(slots)
        wrong = np.flatnonzero(self._tag.take(slots) != tags)
        while len(wrong):
            # An empty slot ends the search of a name: it is unknown.
            if (rows[wrong] < 0).any():
                return None
            slots[wrong] = (slots[wrong] + 1) & (len(self._row) - 1)
            rows[wrong] = self._row[slots[wrong]]
            wrong = wrong[self._tag[slots[wrong]] != tags[wrong]]
        return rows if len(rows) and int(rows.min()) >= 0 else None


def _edges(raw: bytes, padded: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """First and one-past-last offset of each string, if ``raw`` is ``["...","..."]`` with no blanks and no escapes."""
    if not (raw.startswith(b'["') and raw.endswith(b'"]')) or b"\\" in raw:
        return None
    quotes = np.flatnonzero(padded == _QUOTE)
    starts, stops = quotes[0::2] + 1, quotes[1::2]
    if len(starts) != len(stops) or int(stops[-1]) != len(raw) - 2:
        return None
    if ((starts[1:] - stops[:-1]) != len('","')).any() or (padded[stops[:-1] + 1] != _COMMA).any():
        return None
    return starts, stops


def _words_at(
    padded: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], count: int
) -> list[NDArray[np.uint64]]:
    """The strings as columns of words, filled up with zeros."""
    # One item of this array begins at every byte, so that a string is fetched as one item.
    width = count * _WORD
    anywhere = np.ndarray((len(padded) - width + 1,), f"V{width}", padded.data, strides=(1,))
    columns = anywhere[starts].view("<u8").reshape(-1, count).T
    shortest = int(lengths.min())
    words = []
    for k, column in enumerate(columns):
        word = np.ascontiguousarray(column)
        if shortest < (k + 1) * _WORD:
            word &= _KEEP.take(np.clip(lengths - k * _WORD, 0, _WORD))
        words.append(word)
    return words


def _tags(words: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    tags = np.zeros(len(words[0]), np.uint64)
    for word, mix in zip(words, _MIX, strict=False):
        tags += (word ^ (word >> np.uint64(29))) * mix
    tags ^= tags >> np.uint64(32)
    tags *= _MIX[-1]
    return tags


class NameMemory:
    """Looks up lists of names, and remembers those that filter answered last.

    The scheduler asks prioritize about exactly the list that filter has just answered, and looking up thousands of
    names is the dearest part of a request. Nothing but time depends on it. Used by the thread of the HTTP door only.
    """

    __slots__ = ("_index", "_lists", "_shortest")

    #: As many schedulers, or profiles of load, may take turns.
    LISTS = 16

    def __init__(self, nodes: tuple[str, ...], shortest: int = 24 * 1024) -> None:
        """Remember nothing yet.

        Args:
            nodes: names, in the order of rows.
            shortest: bytes of JSON below which the slow way is the quicker one; measured at about 750 names.
        """
        self._shortest = shortest
        self._index = NameIndex(nodes)
        self._lists: OrderedDict[bytes, Found] = OrderedDict()

    def keep(self, found: Found) -> None:
        """Remember a list.

        Args:
            found: its names and rows.
        """
        self._lists[found.names.raw] = found
        while len(self._lists) > self.LISTS:
            self._lists.popitem(last=False)

    def find(self, raw: bytes) -> Found | None:
        """Look a list up.

        Args:
            raw: its JSON.

        Returns:
            ``None`` where the slow way is needed.
        """
        return self._index.find(raw) if len(raw) >= self._shortest else None

    def recall(self, raw: bytes) -> Found | None:
        """Look a list up, from memory where it is there.

        Args:
            raw: its JSON, byte for byte.

        Returns:
            ``None`` where the slow way is needed.
        """
        return self._lists.get(raw) or self.find(raw)
