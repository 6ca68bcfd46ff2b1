"""Answers to the scheduler, encoded as Go spells them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from scorer.placement import Reason
from scorer.serve.wire import ExtenderCall, Victims

_ENCODER = msgspec.json.Encoder()


def passing(call: ExtenderCall, codes: NDArray[np.uint8]) -> Raw:
    """Encode what passes, in kind and in the order asked: a list of names, or of whole nodes as they came.

    Args:
        call: what was asked.
        codes: uint8 (n,): 0 passes.
    """
    asked: Sequence[object] = call.names if call.items is None else call.items
    return Raw(_ENCODER.encode(list(compress(asked, (codes == 0).tobytes())) if codes.any() else asked))


def encode_filter(call: ExtenderCall, passed: Raw, codes: NDArray[np.uint8], reasons: Sequence[Reason]) -> bytes:
    """Encode the answer to filter.

    Args:
        call: what was asked.
        passed: of :func:`passing`.
        codes: uint8 (n,): 0 passes, k fails for ``reasons[k - 1]``.
        reasons: the distinct ones.
    """
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for i in np.flatnonzero(codes).tolist():
        reason = reasons[codes[i] - 1]
        (unresolvable if reason.unresolvable else failed)[call.names[i]] = reason.text
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


class ScoreFragments:
    """Ready-made pieces of prioritize answers, one for each node and score.

    Making thousands of small objects and encoding them is what costs in prioritize; joining bytes that are there
    already takes half the time, and leaves nothing to collect. About 1 KB a node.
    """

    __slots__ = ("_pieces", "nodes")

    #: Scores of the HTTP door: 0 to 10.
    LEVELS = 11

    def __init__(self, nodes: tuple[str, ...]) -> None:
        """Make the pieces of every node.

        Args:
            nodes: names, in the order of rows.
        """
        self.nodes = nodes
        self._pieces = np.empty(len(nodes) * self.LEVELS, object)
        self._pieces[:] = [piece for name in nodes for piece in _pieces(name, range(self.LEVELS))]

    def encode(self, names: Sequence[str], rows: NDArray[np.int32], scores: NDArray[np.uint8]) -> bytes:
        """Encode the answer to prioritize.

        Args:
            names: as they were asked.
            rows: int32 (n,): row of each in ``nodes``; -1 for an unknown one.
            scores: uint8 (n,): 0-10.
        """
        if not len(names):
            return b"[]"
        strangers = np.flatnonzero(rows < 0).tolist()
        if len(strangers) == len(names):
            pieces = [b""] * len(names)
        else:
            pieces = self._pieces.take(np.maximum(rows, 0) * self.LEVELS + scores).tolist()
        for i in strangers:
            pieces[i] = next(_pieces(names[i], (int(scores[i]),)))
        return b"[" + b",".join(pieces) + b"]"


def _pieces(name: str, scores: Iterable[int]) -> Iterator[bytes]:
    head = b'{"Host":' + _ENCODER.encode(name) + b',"Score":'
    return (head + b"%d}" % score for score in scores)
