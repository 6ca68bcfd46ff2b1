"""Files of an evidence bundle: bounded reading, times and numbers, and errors that say which line is wrong."""

import csv
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from scorer.model.errors import BundleError

#: No file of one node's evidence is larger.
MAX_BYTES = 64 * 1024 * 1024
_INDEX_DIGITS = 9


def read_text(path: Path) -> str:
    """Read a text file.

    Raises:
        BundleError: if it is too large, unreadable, or no UTF-8.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise BundleError(f"{path}: {size} bytes are more than the {MAX_BYTES} allowed; keep only the last days")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BundleError(f"{path}: byte {error.start} is no UTF-8; save the file as plain text") from error
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}") from error


def is_index(text: str) -> bool:
    """Whether a text is a whole number such as counts and indices are: plain digits, and not thousands of them."""
    return text.isascii() and text.isdigit() and len(text) <= _INDEX_DIGITS


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object; a plain line that a tool prints before it is skipped.

    Raises:
        BundleError: if it is no JSON object.
    """
    text = read_text(path)
    begin = text.find("{")
    try:
        found = json.loads(text[max(begin, 0) :])
    except RecursionError:
        raise BundleError(f"{path}: is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise BundleError(f"{path}, line {error.lineno}: not JSON ({error.msg}); was the file cut off?") from error
    except ValueError as error:
        raise BundleError(f"{path}: {error}") from error  # a number of thousands of digits
    if not isinstance(found, dict):
        raise BundleError(f"{path}: a JSON object is expected")
    return found


def read_csv(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line numbers and rows of a CSV file with a header; blanks around cells are dropped.

    Raises:
        BundleError: if a needed column is missing or a row has another number of cells than the header.
    """
    lines = read_text(path).splitlines()
    rows = csv.reader(lines, skipinitialspace=True)
    header = [cell.strip() for cell in next(rows, [])]
    missing = [name for name in needed if name not in header]
    if missing:
        raise BundleError(f"{path}, line 1: the column {missing[0]!r} is missing; the header line must be included")
    for number, row in enumerate(rows, 2):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(header):
            raise BundleError(f"{path}, line {number}: {len(row)} cells where the header has {len(header)}")
        yield number, dict(zip(header, (cell.strip() for cell in row), strict=True))


def parse_time(text: object, where: str) -> float:
    """Return Unix seconds of an RFC 3339 time; without a zone it is UTC.

    Raises:
        BundleError: if it is none.
    """
    try:
        at = datetime.fromisoformat(str(text).strip().replace("/", "-"))
    except ValueError:
        raise BundleError(f"{where}: {text!r} is no RFC 3339 time, such as 2026-11-20T12:00:00Z") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def number_of(value: object, where: str) -> float:
    """Return a finite number.

    Raises:
        BundleError: if it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BundleError(f"{where}: {value!r} is no finite number")
    return float(value)


def object_of(value: object, where: str) -> dict[str, object]:
    """Return a JSON object; nothing counts as an empty one.

    Raises:
        BundleError: if it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BundleError(f"{where}: an object is expected, not {type(value).__name__}")
    return value


def list_of(value: object, where: str) -> list[object]:
    """Return a JSON list; nothing counts as an empty one.

    Raises:
        BundleError: if it is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise BundleError(f"{where}: a list is expected, not {type(value).__name__}")
    return value
