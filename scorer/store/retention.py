"""How much the store keeps, and how the rest goes."""

from dataclasses import dataclass
from sqlite3 import Connection

from scorer.model.evidence import RunPhase

_SLICE = 20_000
_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept; the oldest goes first."""

    max_age_s: float = 30 * _DAY
    """Older samples, kernel messages and reverted runs are removed."""
    max_bytes: int = 8 * 1024**3
    """Bound of the file's used pages. 5 million samples take about 1.5 GB."""
    every_s: float = 600.0
    """How often it is looked at."""


def prune(connection: Connection, retention: Retention, now: float) -> int:
    """Remove a slice of what is too old or too much; non-zero if there may be more."""
    before = now - retention.max_age_s
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    over = (pages - free) * size > retention.max_bytes
    removed = connection.execute(
        "DELETE FROM sample WHERE rowid IN (SELECT rowid FROM sample WHERE at < ? OR ? ORDER BY at LIMIT ?)",
        (before, over, _SLICE),
    ).rowcount
    connection.execute(
        "DELETE FROM kernel WHERE (node, at, text) IN"
        " (SELECT node, at, text FROM kernel WHERE at < ? OR ? ORDER BY at LIMIT ?)",
        (before, over, _SLICE),
    )
    # A run that could not be taken back stays until it is: its effects do.
    connection.execute("DELETE FROM run WHERE phase = ? AND ended < ?", (RunPhase.REVERTED.value, before))
    return int(removed == _SLICE)
