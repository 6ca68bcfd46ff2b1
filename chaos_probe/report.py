"""Reports by gRPC: what waits in the queue is sent, oldest first, and leaves it only when the scorer has it."""

import random
import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import grpc
import stamina
import structlog
from google.protobuf.message import DecodeError
from gpugrade.v1 import probe_pb2_grpc

from chaos_probe.errors import SpoolError, UsageError
from chaos_probe.settings import ReportSettings
from chaos_probe.spool import Level, Record, Spool
from chaos_probe.wire import request_of

BATCH_RECORDS = 500
BATCH_BYTES = 1 << 20
CALL_S = 10.0
IDLE_S = 1.0
MAX_WAIT_S = 60.0
_MAX_TOKEN = 1 << 16
# Worth trying again at once; everything else waits for somebody to put it right.
_PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED}

log = structlog.get_logger("chaos_probe.report")


def agent_version() -> str:
    """Return the version of this program."""
    try:
        return version("gpugrade")
    except PackageNotFoundError:
        return "0+source"


@dataclass(slots=True)
class Counts:
    """What became of records so far."""

    sent: int = 0
    refused: int = 0
    failed_calls: int = 0
    last_error: str = ""


def _passing(error: Exception) -> bool:
    return isinstance(error, grpc.RpcError) and error.code() in _PASSING


def channel_to(settings: ReportSettings) -> grpc.Channel:
    """Open a channel to the scorer: TLS where certificates are named, else plain.

    Raises:
        UsageError: the certificates cannot be read.
    """
    if not settings.ca_file:
        return grpc.insecure_channel(settings.to)
    try:
        authority = Path(settings.ca_file).read_bytes()
    except OSError as error:
        raise UsageError(f"{settings.ca_file} cannot be read: {error.strerror}") from error
    return grpc.secure_channel(settings.to, grpc.ssl_channel_credentials(authority))


class Sender:
    """Sends what waits, in a thread of its own while started, or at once by :meth:`flush`."""

    def __init__(self, queue: Spool, node: str, settings: ReportSettings) -> None:
        """Make one for a scorer.

        Raises:
            UsageError: the certificates cannot be read.
        """
        self._queue = queue
        self._node = node
        self._settings = settings
        self._version = agent_version()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._flushing = threading.Lock()
        self.counts = Counts()
        self._channel = channel_to(settings)
        self._stub = probe_pb2_grpc.ProbeIngestStub(self._channel)

    def start(self) -> None:
        """Send in the background from now on."""
        self._thread = threading.Thread(target=self._work, name="sender", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Something was queued: send it soon."""
        self._wake.set()

    def close(self) -> None:
        """Stop sending; what waits stays on disk."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CALL_S + IDLE_S)
        self._channel.close()

    def _work(self) -> None:
        wait = IDLE_S
        while not self._stop.is_set():
            sent = False
            with suppress(SpoolError):
                sent = self.flush(attempts=1)
            wait = IDLE_S if sent else min(MAX_WAIT_S, wait * 2)
            if sent:
                self._wake.wait(MAX_WAIT_S)
                self._wake.clear()
            else:
                # Not for secrets: the agents of a fleet must not all come back at one moment.
                self._stop.wait(wait * random.uniform(0.5, 1.0))  # noqa: S311 - see above

    def flush(self, attempts: int = 3, timeout_s: float = 15.0) -> bool:
        """Send all that waits, trying again when the scorer is away.

        Returns:
            Whether nothing waits any more; else :attr:`counts` says what the last call said.

        Raises:
            SpoolError: the queue cannot be read.
        """
        with self._flushing:
            size = BATCH_RECORDS
            while records := self._queue.oldest(size, BATCH_BYTES):
                try:
                    for attempt in stamina.retry_context(
                        on=_passing, attempts=attempts, timeout=timeout_s, wait_initial=0.2, wait_max=3.0
                    ):
                        with attempt:
                            self._send(records)
                except grpc.RpcError as error:
                    size = self._take_failure(error, records)
                    if not size:
                        return False
                except DecodeError as error:
                    # One record whose bytes are spoiled: it is found by halving, as one that the scorer never takes.
                    size = self._halve(records, f"it cannot be read back from the queue: {error}")
                except (OSError, UnicodeError) as error:
                    self.counts.failed_calls += 1
                    self.counts.last_error = str(error)
                    log.error("report cannot be made", error=str(error))  # noqa: TRY400 - a person needs the reason, not the stack
                    return False
            return True

    def _take_failure(self, error: grpc.RpcError, records: list[Record]) -> int:
        """Return the size of the next batch, or 0 to wait."""
        code: grpc.StatusCode = error.code()
        self.counts.failed_calls += 1
        self.counts.last_error = f"{code.name}: {error.details()}"
        log.warning("report was not taken", scorer=self._settings.to, code=code.name, details=error.details())
        return self._halve(records, error.details()) if code is grpc.StatusCode.INVALID_ARGUMENT else 0

    def _halve(self, records: list[Record], why: str | None) -> int:
        """Return the size of the next batch after one that is never taken as it is; a single record is given up."""
        if len(records) > 1:
            return len(records) // 2
        # Behind this one all others would wait forever.
        log.error("record given up", kind=records[0].kind, name=records[0].name, details=why)
        self._queue.done(records, lost=True)
        self.counts.refused += 1
        return BATCH_RECORDS

    def _send(self, records: list[Record]) -> None:
        request = request_of(self._node, self._version, records)
        answer: Any = self._stub.Report(request, timeout=CALL_S, metadata=self._metadata())
        for rejection in answer.rejections:
            log.error("record refused", id=rejection.id, reason=rejection.reason)
        self.counts.refused += len(answer.rejections)
        self.counts.sent += len(records) - len(answer.rejections)
        self._queue.done(records)

    def _metadata(self) -> list[tuple[str, str]]:
        """Read the token anew each time: it may be rotated."""
        if not self._settings.token_file:
            return []
        with Path(self._settings.token_file).open("rb") as file:
            token = file.read(_MAX_TOKEN).decode("ascii").strip()
        return [("authorization", f"Bearer {token}")]

    def level(self) -> Level:
        """Return how full the queue is."""
        return self._queue.level()
