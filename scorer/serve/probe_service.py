"""The gRPC door of the probes: who may report what, kept before it is acknowledged."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import NoReturn

import grpc
import structlog
from gpugrade.v1 import probe_pb2 as pb
from gpugrade.v1 import probe_pb2_grpc as pb_grpc

from scorer.model.errors import RequestError, StoreError
from scorer.serve.metrics import ServiceMetrics
from scorer.sources.cluster import ClusterState
from scorer.sources.evidence_log import EvidenceLog
from scorer.sources.probe_reports import ParsedReport, parse_report, token_matches
from scorer.store import Batch, SampleStore, Written

log = structlog.get_logger(__name__)

#: Longer, and the probe keeps its batch and comes again.
_WRITE_TIMEOUT_S = 10.0
_BEARER = "bearer "
_MAX_NODE = 253


class _RefusedError(Exception):
    """A report that is refused whole."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class ProbeService(pb_grpc.ProbeIngestServicer):
    """Servicer of ``gpugrade.v1.ProbeIngest``."""

    def __init__(
        self,
        cluster: Callable[[], ClusterState],
        store: SampleStore,
        evidence: EvidenceLog,
        changed: Callable[[], None],
        metrics: ServiceMetrics,
        *,
        trust_tokenless: bool,
        retention_s: float,
        concurrent: int = 8,
    ) -> None:
        """Serve reports.

        Args:
            cluster: gives the nodes that may report, and their tokens' hashes.
            store: keeps what is new before it is acknowledged.
            evidence: gets what is new once it is kept.
            changed: called after new evidence.
            metrics: what to count in.
            trust_tokenless: whether nodes for which no token is set may report: only where none but this machine
                reaches the door.
            retention_s: records older than this are refused.
            concurrent: reports at work at once. Threads are shared with the doors that must answer at once, so that a
                slow disk may not hold them all.
        """
        self._cluster = cluster
        self._store = store
        self._evidence = evidence
        self._changed = changed
        self._metrics = metrics
        self._trust_tokenless = trust_tokenless
        self._retention_s = retention_s
        self._slots = threading.BoundedSemaphore(concurrent)

    def Report(self, request: pb.ReportRequest, context: grpc.ServicerContext) -> pb.ReportResponse:  # noqa: N802 - the contract's name
        """Take a batch."""
        try:
            response = self._report(request, context)
        except _RefusedError as refused:
            self._refuse(context, refused.code, str(refused))
        except RequestError as error:
            self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except StoreError as error:
            self._refuse(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the report could not be kept: {error}; keep the batch and send it again later",
            )
        self._metrics.reports.labels("OK").inc()
        return response

    def _refuse(self, context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
        self._metrics.reports.labels(code.name).inc()
        context.abort(code, text)

    def _report(self, request: pb.ReportRequest, context: grpc.ServicerContext) -> pb.ReportResponse:
        self._authorise(request.node, context)
        now = time.time()
        parsed = parse_report(request, now, now - self._retention_s)
        if not self._slots.acquire(blocking=False):
            raise StoreError("too many reports are being written already")
        try:
            written = self._keep(Batch(request.node, parsed.gpus, parsed.samples, parsed.runs, parsed.kernel))
        finally:
            self._slots.release()
        return self._answer(parsed, written)

    def _authorise(self, node: str, context: grpc.ServicerContext) -> None:
        if not node or len(node) > _MAX_NODE:
            raise RequestError("the report names no node; set its field node")
        token = _token(context)
        record = self._cluster().nodes.get(node)
        if record is None:
            raise _RefusedError(grpc.StatusCode.NOT_FOUND, f"there is no node {node!r} in the fleet")
        if not record.probe_token_sha256:
            if self._trust_tokenless:
                return
            raise _RefusedError(
                grpc.StatusCode.UNAUTHENTICATED,
                f"no token is set for node {node!r}; add probeTokenSha256 to the fleet file",
            )
        if token is None:
            raise _RefusedError(
                grpc.StatusCode.UNAUTHENTICATED, "no token; send the metadata authorization: Bearer TOKEN"
            )
        if not token_matches(token, record.probe_token_sha256):
            raise _RefusedError(
                grpc.StatusCode.PERMISSION_DENIED, f"this token may not report for node {node!r}; each node has its own"
            )

    def _keep(self, batch: Batch) -> Written:
        """Write, and hand on what is new: from the writer, so that a caller who has given up changes nothing."""

        def kept(done: "Future[Written]") -> None:
            if done.exception() is None:
                self._hand_on(batch, done.result())

        future = self._store.write(batch)
        future.add_done_callback(kept)
        try:
            return future.result(_WRITE_TIMEOUT_S)
        except FutureTimeoutError:
            raise StoreError(f"the disk has not taken it within {_WRITE_TIMEOUT_S:g} s") from None

    def _hand_on(self, batch: Batch, written: Written) -> None:
        if batch.gpus is not None:
            self._evidence.set_gpus(batch.node, batch.gpus)
        self._evidence.add_runs(written.runs)
        self._evidence.add_samples(written.samples)
        self._evidence.add_kernel(written.kernel)
        self._changed()

    def _answer(self, parsed: ParsedReport, written: Written) -> pb.ReportResponse:
        rejections = [pb.Rejection(id=name, reason=reason) for name, reason in parsed.rejections]
        rejections += [
            pb.Rejection(id=name, reason="this run id belongs to another node") for name in written.foreign_runs
        ]
        accepted, duplicates = 0, 0
        for kind, sent, new in (
            ("sample", len(parsed.samples), len(written.samples)),
            ("run", len(parsed.runs) - len(written.foreign_runs), len(written.runs)),
            ("kernel", len(parsed.kernel), len(written.kernel)),
        ):
            accepted += new
            duplicates += sent - new
            self._metrics.records.labels(kind, "accepted").inc(new)
            self._metrics.records.labels(kind, "duplicate").inc(sent - new)
        self._metrics.records.labels("sample", "impossible").inc(parsed.impossible)
        self._metrics.records.labels("any", "rejected").inc(len(rejections))
        return pb.ReportResponse(accepted=accepted, duplicates=duplicates, rejections=rejections)


def _token(context: grpc.ServicerContext) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str) and value[: len(_BEARER)].lower() == _BEARER:
            return value[len(_BEARER) :].strip()
    return None
