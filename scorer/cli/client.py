"""The client of the server's gRPC door: it asks, and turns what goes wrong into one line that says what to do."""

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from gpugrade.v1 import grading_pb2, grading_pb2_grpc, placement_pb2, placement_pb2_grpc

from scorer.cli import output
from scorer.cli.main import DEFAULT_SERVER
from scorer.model.errors import GpugradeError, InputError, RequestError, UnavailableError
from scorer.model.grade import Grade

#: An answer about 15,000 nodes is some 8 MB; gRPC's own bound is 4.
MAX_ANSWER_BYTES = 64 * 1024 * 1024
DEFAULT_PORT = 9441
MAX_PORT = 65535

_GRADES: dict[int, Grade] = {
    grading_pb2.GRADE_GREEN: Grade.GREEN,
    grading_pb2.GRADE_YELLOW: Grade.YELLOW,
    grading_pb2.GRADE_RED: Grade.RED,
}


def grade_of(value: int) -> Grade:
    """The grade that a number on the wire means; what is not known here is unknown, never green."""
    return _GRADES.get(value, Grade.UNKNOWN)


def stamp(holder: Any, name: str) -> str | None:  # noqa: ANN401 -- any protobuf message
    """A time of a message as RFC 3339 in UTC, whole seconds; ``None`` where it is not set."""
    if not holder.HasField(name):
        return None
    moment: Timestamp = getattr(holder, name)
    return Timestamp(seconds=moment.seconds).ToJsonString()


def seconds_between(earlier: Timestamp, later: Timestamp) -> float | None:
    """Seconds from one time to another; ``None`` where one is not set."""
    if not earlier.seconds or not later.seconds:
        return None
    return float(later.seconds - earlier.seconds)


def rounded(value: float) -> float | None:
    """A ratio for JSON, four digits; zero and what is no number stand for "not known" and give ``None``."""
    return round(value, 4) if 0 < value < float("inf") else None


def did_you_mean(what: str, name: str, known: Iterable[str]) -> str:
    """One sentence about a wrong name: the nearest right one, or all if they are few."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"no {what} is called {name!r}; did you mean {near[0]}?"
    few = 12
    listed = ", ".join(names) if len(names) <= few else f"{', '.join(names[:few])} and {len(names) - few} more"
    there = "there are" if len(names) > 1 else "there is" if names else "there is none"
    return f"no {what} is called {name!r}; {there} {listed}".rstrip()


def target_of(server: str) -> str:
    """Check an address and add the default port.

    Raises:
        InputError: if it is not HOST:PORT.
    """
    if server.startswith("unix:"):
        return server
    wrong = InputError(f"{server!r} is not an address: --server wants HOST:PORT, such as {DEFAULT_SERVER}")
    if not server or "/" in server or any(c.isspace() for c in server):
        raise wrong
    bracket = server.rfind("]") + 1
    rest, colon, port = server[bracket:].rpartition(":")
    if not colon:
        return f"{server}:{DEFAULT_PORT}"
    host = server[:bracket] + rest
    if not host or ":" in rest or not (port.isascii() and port.isdigit() and 0 < int(port) <= MAX_PORT):
        raise wrong
    return f"{host}:{port}"


class Client:
    """Asks one server, and turns its errors into gpugrade's."""

    def __init__(self, server: str, timeout_s: float, ca_file: str | None = None) -> None:
        """Open a channel: TLS where certificates are named, else plain.

        Raises:
            InputError: if the address is wrong, or the certificates cannot be read.
        """
        self._server = target_of(server)
        self._timeout_s = timeout_s
        options: list[tuple[str, int]] = [("grpc.max_receive_message_length", MAX_ANSWER_BYTES)]
        if self._server.startswith(("localhost:", "127.", "[::1]", "unix:")):
            options.append(("grpc.enable_http_proxy", 0))
        if ca_file is None:
            self._channel = grpc.insecure_channel(self._server, options=options)
        else:
            try:
                authority = Path(ca_file).read_bytes()
            except OSError as error:
                raise InputError(f"--ca-file {ca_file} cannot be read: {error.strerror}") from error
            self._channel = grpc.secure_channel(self._server, grpc.ssl_channel_credentials(authority), options=options)
        self._grades = grading_pb2_grpc.GradesStub(self._channel)
        self._placement = placement_pb2_grpc.PlacementStub(self._channel)
        self._job_types: grading_pb2.ListJobTypesResponse | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def nodes(self) -> grading_pb2.ListNodesResponse:
        """All nodes with their grades."""
        answer: grading_pb2.ListNodesResponse = self._ask(self._grades.ListNodes, grading_pb2.ListNodesRequest())
        return answer

    def job_types(self) -> grading_pb2.ListJobTypesResponse:
        """Job types and sensitivity classes, asked once."""
        if self._job_types is None:
            self._job_types = self._ask(self._grades.ListJobTypes, grading_pb2.ListJobTypesRequest())
        return self._job_types

    def job_type_names(self) -> list[str]:
        """Names of the job types, in the server's order."""
        return [job_type.name for job_type in self.job_types().job_types]

    def check_job_type(self, name: str | None) -> None:
        """Refuse a job type that the server does not know.

        Raises:
            InputError: naming the nearest one.
        """
        if name and name not in (known := self.job_type_names()):
            raise InputError(did_you_mean("job type", name, known))

    def check_nodes(self, names: Iterable[str]) -> None:
        """Refuse node names that the server does not know.

        Raises:
            InputError: naming the nearest one.
        """
        wanted = list(names)
        if not wanted:
            return
        known = [node.name for node in self.nodes().nodes]
        there = frozenset(known)
        for name in wanted:
            if name not in there:
                raise InputError(did_you_mean("node", name, known))

    def explain(self, node: str, job_type: str | None, sensitivity: str | None) -> grading_pb2.ExplainNodeResponse:
        """One node with its reasons and evidence.

        Raises:
            InputError: if there is no such node.
        """
        request = grading_pb2.ExplainNodeRequest(node=node, job_type=job_type or "", sensitivity=sensitivity or "")

        def missing(details: str) -> GpugradeError:
            known = [each.name for each in self.nodes().nodes]
            if node in known:
                return RequestError(f"the server refused: {details}")
            return InputError(did_you_mean("node", node, known))

        answer: grading_pb2.ExplainNodeResponse = self._ask(self._grades.ExplainNode, request, missing)
        return answer

    def decision(self, decision_id: str) -> placement_pb2.ExplainDecisionResponse:
        """An earlier decision.

        Raises:
            InputError: if the server has it no more, or never had it.
        """

        def missing(_: str) -> GpugradeError:
            return InputError(
                f"the server has no decision {decision_id!r}; it keeps the latest ones, in memory: "
                "gpugrade explain --pod NAMESPACE/NAME lists those about a pod"
            )

        request = placement_pb2.ExplainDecisionRequest(decision_id=decision_id)
        answer: placement_pb2.ExplainDecisionResponse = self._ask(self._placement.ExplainDecision, request, missing)
        return answer

    def decisions(self, pod: str) -> placement_pb2.ListDecisionsResponse:
        """The latest decisions about a pod, newest first.

        Raises:
            InputError: if the server remembers none.
        """

        def missing(details: str) -> GpugradeError:
            return InputError(f"{output.clean(details)}; a pod is asked about only where it wants GPUs and is unbound")

        request = placement_pb2.ListDecisionsRequest(pod=pod)
        answer: placement_pb2.ListDecisionsResponse = self._ask(self._placement.ListDecisions, request, missing)
        return answer

    def place(self, request: placement_pb2.PlaceRequest) -> placement_pb2.PlaceResponse:
        """Where a job would go."""
        answer: placement_pb2.PlaceResponse = self._ask(self._placement.Place, request)
        return answer

    def _ask(
        self,
        method: Callable[..., Any],
        request: Any,  # noqa: ANN401 -- any protobuf message
        missing: Callable[[str], GpugradeError] | None = None,
    ) -> Any:  # noqa: ANN401 -- the message that the method answers
        try:
            return method(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.NOT_FOUND and missing is not None:
            raise missing(details)
        raise self._translated(code, details)

    def _translated(self, code: grpc.StatusCode, details: str) -> GpugradeError:
        where = "start it with gpugrade serve, or say where it is with --server HOST:PORT or GPUGRADE_SERVER"
        detail = output.clean(details)
        if code is grpc.StatusCode.UNAVAILABLE:
            return UnavailableError(
                f"no gpugrade server answers gRPC at {self._server}: {where} (its port is {DEFAULT_PORT}) "
                f"[{detail.rsplit(': ', 1)[-1]}]"
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return UnavailableError(
                f"the server at {self._server} did not answer within {self._timeout_s:g} s: "
                "try a longer --timeout, or see whether it is busy or cut off"
            )
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return UnavailableError(f"what answers at {self._server} is not this gpugrade's server: {where} [{detail}]")
        if code in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION}:
            return RequestError(f"the server refused: {detail}")
        return UnavailableError(f"the server at {self._server} failed ({code.name}): {detail}; see its log")
