"""Sending the past to a scorer, as the agents would have."""

from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import stamina
from gpugrade.v1 import probe_pb2 as pb
from gpugrade.v1 import probe_pb2_grpc as rpc

from tools.fleet.history import history
from tools.fleet.state import FleetDir, FleetError

CALL_TIMEOUT_S = 60.0
ATTEMPTS = 10
MAX_WAIT_S = 90.0


@dataclass(slots=True)
class Outcome:
    """What the scorer did with what was sent.

    Attributes:
        reports: sent.
        accepted: records kept.
        duplicates: records known before.
        refused: ids and reasons.
    """

    reports: int = 0
    accepted: int = 0
    duplicates: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


def _passing(error: Exception) -> bool:
    return (
        isinstance(error, grpc.RpcError)
        and isinstance(error, grpc.Call)
        and error.code() is grpc.StatusCode.UNAVAILABLE
    )


def send(stub: rpc.ProbeIngestStub, report: pb.ReportRequest, token: str, outcome: Outcome) -> None:
    """Send one report, again while the scorer is away, and note what became of it.

    Raises:
        FleetError: if the scorer refuses it, or stays away.
    """
    try:
        for attempt in stamina.retry_context(on=_passing, attempts=ATTEMPTS, timeout=MAX_WAIT_S, wait_max=10.0):
            with attempt:
                answer: pb.ReportResponse = stub.Report(
                    report, timeout=CALL_TIMEOUT_S, metadata=(("authorization", f"Bearer {token}"),)
                )
    except grpc.RpcError as error:
        what = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else repr(error)
        raise FleetError(f"the scorer did not take the report of {report.node}: {what}") from error
    outcome.reports += 1
    outcome.accepted += answer.accepted
    outcome.duplicates += answer.duplicates
    outcome.refused += [(r.id, r.reason) for r in answer.rejections]


def replay(
    fleet: FleetDir,
    scorer: str,
    start: float,
    end: float,
    every: float,
    progress: Callable[[int, int, Outcome], None] | None = None,
) -> Outcome:
    """Send every node's history, node after node.

    Args:
        fleet: the state directory.
        scorer: host:port of its gRPC door.
        start: Unix seconds.
        end: Unix seconds.
        every: seconds between rounds.
        progress: told after each node: nodes done, nodes in all, and what became of it so far.

    Raises:
        FleetError: if the scorer refuses a report as a whole, or stays away.
    """
    outcome = Outcome()
    with grpc.insecure_channel(scorer) as channel:
        stub = rpc.ProbeIngestStub(channel)
        for done, name in enumerate(fleet.names, 1):
            token = fleet.token(name)
            for report in history(fleet, name, start, end, every):
                send(stub, report, token, outcome)
            if progress is not None:
                progress(done, len(fleet.names), outcome)
    return outcome
