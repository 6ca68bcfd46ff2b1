"""Where facts are kept: SQLite, one writer thread, acknowledged only once they are on disk."""

from scorer.store.boards import BoardCodecError, decode_board, encode_board
from scorer.store.records import Batch, History, Written
from scorer.store.retention import Retention
from scorer.store.sample_store import SampleStore

__all__ = [
    "Batch",
    "BoardCodecError",
    "History",
    "Retention",
    "SampleStore",
    "Written",
    "decode_board",
    "encode_board",
]
