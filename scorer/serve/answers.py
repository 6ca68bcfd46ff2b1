"""Answers to the scheduler, encoded as Go spells them."""

from collections.abc import Mapping, Sequence
from itertools import compress

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from scorer.placement import Reason
from scorer.serve.names import Found
from scorer.serve.wire import ExtenderCall, Victims

_ENCODER = msgspec.json.Encoder()
_ZERO, _ONE, _BLANK = (np.uint8(ord(c)) for c in "01 ")
_TEN = np.uint8(10)


def encode_filter(
    call: ExtenderCall, kept: Found | None, codes: NDArray[np.uint8], reasons: Sequence[Reason], failing: Sequence[str]
) -> bytes:
    """Encode the answer to filter, in kind and in the order asked: a list of names, or of whole nodes as they came.

    Args:
        call: what was asked.
        kept: the names that pass, where they were looked up as a whole.
        codes: uint8 (n,): 0 passes, k fails for ``reasons[k - 1]``.
        reasons: the distinct ones.
        failing: names of the nodes that fail, in the order asked.
    """
    if kept is not None:
        passed = Raw(kept.names.raw)
    else:
        asked: Sequence[object] = call.names if call.items is None else call.items
        passed = Raw(_ENCODER.encode(list(compress(asked, (codes == 0).tobytes()))))
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for name, code in zip(failing, codes[codes > 0].tolist(), strict=True):
        reason = reasons[code - 1]
        (unresolvable if reason.unresolvable else failed)[name] = reason.text
    return _ENCODER.encode(
        {
            "Nodes": None if call.items is None else {"metadata": {}, "items": passed},
            "NodeNames": passed if call.items is None else None,
            "FailedNodes": failed,
            "FailedAndUnresolvableNodes": unresolvable,
            "Error": "",
        }
    )


def encode_filter_error(text: str) -> bytes:
    """Encode a filter answer that is an error: the scheduler reads it only with status 200."""
    return _ENCODER.encode(
        {"Nodes": None, "NodeNames": None, "FailedNodes": None, "FailedAndUnresolvableNodes": None, "Error": text}
    )


def encode_error(text: str) -> bytes:
    """Encode an error of the other doors."""
    return _ENCODER.encode({"error": text})


def encode_preempt(victims: Mapping[str, Victims]) -> bytes:
    """Encode the answer to preempt: whatever was sent, it is UIDs that go back."""
    return _ENCODER.encode(
        {
            "NodeNameToMetaVictims": {
                node: {"Pods": [{"UID": uid} for uid in v.uids], "NumPDBViolations": v.violations}
                for node, v in victims.items()
            }
        }
    )


class ScoreTable:
    """Answers to prioritize, all but the scores written beforehand.

    Making thousands of small objects and encoding them is what costs in prioritize. Here each node has a line of
    bytes of one width, filled up with blanks, which JSON allows between tokens; an answer is the lines of its nodes
    with the scores written into two columns.
    """

    __slots__ = ("_lines", "_long", "nodes")

    #: Names that are longer in JSON would widen everybody's line; they are encoded one by one.
    LONGEST = 96

    def __init__(self, nodes: tuple[str, ...]) -> None:
        """Write the lines of every node.

        Args:
            nodes: names, in the order of rows.
        """
        self.nodes = nodes
        quoted = [_ENCODER.encode(name) for name in nodes]
        self._long = np.array([len(q) > self.LONGEST for q in quoted], bool)
        width = max((len(q) for q in quoted if len(q) <= self.LONGEST), default=0)
        text = b"".join(b'{"Host":' + q[:width].ljust(width) + b',"Score":00},' for q in quoted)
        self._lines = np.frombuffer(text, np.uint8).reshape(len(nodes), len(b'{"Host":,"Score":00},') + width)

    def encode(self, names: Sequence[str], rows: NDArray[np.int32], scores: NDArray[np.uint8]) -> bytes:
        """Encode the answer to prioritize: nodes with a line in the order asked, then the others.

        Args:
            names: as they were asked.
            rows: int32 (n,): row of each in ``nodes``; -1 for an unknown one.
            scores: uint8 (n,): 0-10.
        """
        odd = rows < 0
        if len(self.nodes):
            odd |= self._long.take(rows)
        others = np.flatnonzero(odd).tolist()
        if others:
            rows, lined = rows[~odd], scores[~odd]
        else:
            lined = scores
        rest = b",".join(b'{"Host":%s,"Score":%d}' % (_ENCODER.encode(names[i]), scores[i]) for i in others)
        return b"[" + rest + b"]" if not len(rows) else self._list_of(rows, lined, rest)

    def _list_of(self, rows: NDArray[np.int32], scores: NDArray[np.uint8], rest: bytes) -> bytes:
        """Write into one buffer, since an answer is large enough for every copy to be felt."""
        count, width = len(rows), self._lines.shape[1]
        end = 1 + count * width
        buffer = np.empty(end + len(rest) + bool(rest), np.uint8)
        lines = buffer[1:end].reshape(count, width)
        # Rows are known to lie within the table; numpy would copy once more to be able to raise.
        np.take(self._lines, rows, axis=0, out=lines, mode="clip")
        lines[:, -4] = np.where(scores >= _TEN, _ONE, _BLANK)
        lines[:, -3] = np.where(scores >= _TEN, scores - _TEN, scores) + _ZERO
        buffer[0] = ord("[")
        if rest:
            buffer[end:-1] = np.frombuffer(rest, np.uint8)
        buffer[-1] = ord("]")
        return buffer.tobytes()
