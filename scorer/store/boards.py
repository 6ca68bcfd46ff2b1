"""A board as bytes, so that grades, and since when they hold, outlive a restart. Nothing in it is executed on load."""

import dataclasses
import io
import zipfile
from typing import Any

import msgspec
import numpy as np

from scorer.model.board import Finding, GradeBoard
from scorer.model.errors import StoreError

_FORMAT = 1
_ARRAYS = (
    "slowdown",
    "low",
    "high",
    "grade",
    "confidence",
    "evidence_at",
    "since",
    "gpu_start",
    "gpu_index",
    "gpu_slowdown",
    "gpu_low",
    "gpu_high",
    "gpu_samples",
    "gpu_grade",
)


class BoardCodecError(StoreError):
    """Bytes that are not a board, or one of another format."""


class _Head(msgspec.Struct):
    format: int
    version: int
    at: float
    nodes: tuple[str, ...]
    job_types: tuple[str, ...]
    gpu_uuid: tuple[str, ...]
    findings: tuple[tuple[dict[str, Any], ...], ...]


def encode_board(board: GradeBoard) -> bytes:
    """Write a board as one compressed block of bytes."""
    head = _Head(
        _FORMAT,
        board.version,
        board.at,
        board.nodes,
        board.job_types,
        board.gpu_uuid,
        tuple(tuple(_finding_row(f) for f in found) for found in board.findings),
    )
    buffer = io.BytesIO()
    columns: dict[str, Any] = {name: getattr(board, name) for name in _ARRAYS}
    columns["head"] = np.frombuffer(msgspec.msgpack.encode(head), np.uint8)
    np.savez_compressed(buffer, **columns)
    return buffer.getvalue()


def decode_board(data: bytes) -> GradeBoard:
    """Read a board back.

    Raises:
        BoardCodecError: if the bytes are damaged or of another format.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as columns:
            head = msgspec.msgpack.decode(columns["head"].tobytes(), type=_Head)
            if head.format != _FORMAT:
                raise BoardCodecError(f"a board of format {head.format}; this gpugrade reads {_FORMAT}")
            arrays = {name: columns[name] for name in _ARRAYS}
        findings = tuple(tuple(_finding(row) for row in found) for found in head.findings)
    except (msgspec.MsgspecError, ValueError, KeyError, OSError, zipfile.BadZipFile, EOFError) as error:
        raise BoardCodecError(f"the kept board cannot be read: {error}") from None
    return GradeBoard(
        version=head.version,
        at=head.at,
        nodes=head.nodes,
        row={name: i for i, name in enumerate(head.nodes)},
        job_types=head.job_types,
        gpu_uuid=head.gpu_uuid,
        findings=findings,
        **arrays,
    )


def _finding_row(finding: Finding) -> dict[str, Any]:
    """NaN travels as it is in MessagePack; enums as their values."""
    return {f.name: getattr(finding, f.name) for f in dataclasses.fields(finding)}


def _finding(row: dict[str, Any]) -> Finding:
    return msgspec.convert(row, Finding)
