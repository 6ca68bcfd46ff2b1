"""The scheduler's door: ``/scheduler/filter``, ``/scheduler/prioritize`` and ``/scheduler/preempt`` as bare ASGI.

Every answer carries ``Content-Length``: the scheduler closes a body after its first JSON value, and a chunked answer
costs it a new connection each time. What is wrong with a request is told where the scheduler reads it: in the
``Error`` field with status 200 for filter, as JSON with status 400 for prioritize, as 400 or 413 for preempt.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from scorer.model.errors import RequestError
from scorer.model.policy import Mode
from scorer.placement import filter_nodes, request_of, score_nodes
from scorer.serve import answers, wire
from scorer.serve.state import ServingState

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Seconds for a body to arrive; the scheduler's own time-out is shorter.
BODY_TIMEOUT = 30.0
DECISION_HEADER = b"x-gpugrade-decision"

_OK, _BAD_REQUEST, _NOT_FOUND, _WRONG_METHOD, _TOO_LARGE, _INTERNAL = 200, 400, 404, 405, 413, 500

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    decision: str = ""


class _TooLargeError(RequestError):
    """The body is above the limit."""


class _GoneError(RequestError):
    """The client went away before its body was complete."""


@dataclass(frozen=True, slots=True)
class _Verb:
    """One verb: how it is answered, and where its caller reads errors."""

    name: str
    answer: Callable[[ServingState, bytes], _Answer]
    error: Callable[[str], bytes]
    bad: int
    too_large: int
    broken: int


def make_extender_app(state: ServingState, patience: float = BODY_TIMEOUT) -> App:
    """Make the ASGI application of the scheduler's door.

    Args:
        state: read once a request; never waited for.
        patience: seconds for a body to arrive.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RequestError(f"the scheduler's door speaks HTTP only, not {scope['type']}")
        verb = _VERBS.get(scope["path"])
        if verb is None:
            known = ", ".join(_VERBS)
            await _reply(send, _Answer(_NOT_FOUND, answers.encode_error(f"no such path; there are {known}")))
        elif scope["method"] != "POST":
            text = f"{verb.name} is asked with POST, not {scope['method'][:20]}"
            await _reply(send, _Answer(_WRONG_METHOD, answers.encode_error(text)), ((b"allow", b"POST"),))
        else:
            await _serve(state, verb, scope, receive, send, patience)

    return app


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _serve(state: ServingState, verb: _Verb, scope: Scope, receive: Receive, send: Send, patience: float) -> None:
    started = time.perf_counter()
    extra: tuple[tuple[bytes, bytes], ...] = ()
    try:
        body = await _read_body(scope, receive, state.world.policy.max_body_bytes, patience)
        started = time.perf_counter()
        answer = verb.answer(state, body)
    except _GoneError:
        state.metrics.duration.labels(verb.name, "gone").observe(time.perf_counter() - started)
        return
    except _TooLargeError as error:
        answer = _refuse(state, verb, verb.too_large, error)
        # What is still coming is of unknown length, so the connection cannot be used again.
        extra = () if _content_length(scope) is not None else ((b"connection", b"close"),)
    except RequestError as error:
        answer = _refuse(state, verb, verb.bad, error)
    except TimeoutError:
        answer = _refuse(state, verb, verb.bad, RequestError(f"the body did not arrive within {patience:g} s"))
        extra = ((b"connection", b"close"),)
    except Exception:
        # A fault of ours must not stop scheduling: an ignorable extender that answers with an error is skipped.
        log.exception("request failed", verb=verb.name)
        answer = _refuse(state, verb, verb.broken, RequestError("gpugrade failed; its log says why"), "internal")
    await _reply(send, answer, extra)
    state.metrics.duration.labels(verb.name, str(answer.status)).observe(time.perf_counter() - started)


def _refuse(state: ServingState, verb: _Verb, status: int, error: RequestError, reason: str = "bad-request") -> _Answer:
    state.metrics.fail_open.labels(reason).inc()
    if reason == "bad-request":
        log.warning("request refused", verb=verb.name, error=str(error))
    return _Answer(status, verb.error(str(error)))


async def _reply(send: Send, answer: _Answer, extra: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer.body)), *extra]
    if answer.decision:
        headers.append((DECISION_HEADER, answer.decision.encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _content_length(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None


async def _read_body(scope: Scope, receive: Receive, limit: int, patience: float) -> bytes:
    """Read a body of at most ``limit`` bytes.

    A declared length above the limit is refused unread; the server drops what comes. A chunked body is read up to
    twice the limit without being kept, so that a client that only reads when it has written still gets its answer.
    """
    declared = _content_length(scope)
    if declared is not None and declared > limit:
        raise _TooLargeError(f"the body has {declared} bytes; at most {limit} are read (maxBodyBytes)")
    parts: list[bytes] = []
    size = 0
    async with asyncio.timeout(patience):
        while size <= 2 * limit:
            message = await receive()
            if message["type"] != "http.request":
                raise _GoneError("the client went away")
            part = message.get("body", b"")
            size += len(part)
            if size <= limit:
                parts.append(part)
            else:
                parts.clear()
            if not message.get("more_body"):
                break
    if size > limit:
        raise _TooLargeError(f"the body has more than {limit} bytes; no more are read (maxBodyBytes)")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _filter(state: ServingState, body: bytes) -> _Answer:
    snapshot = state.snapshot
    call = wire.decode_call(body, snapshot.names.find)
    pod = request_of(snapshot.world, call.pod)
    answer = filter_nodes(snapshot.world, pod, call.names, state.clock(), _rows(call))
    state.record(snapshot.world, pod, answer)
    codes = answer.codes
    kept = None if call.found is None else call.found.keep(codes == 0)
    if kept is not None:
        # These are the names that prioritize is asked about next.
        snapshot.names.keep(kept)
    # Only nodes of the view fail, so that their names are at hand.
    failing = [snapshot.world.view.nodes[row] for row in answer.asked.rows[codes > 0].tolist()]
    return _Answer(_OK, answers.encode_filter(call, kept, codes, answer.reasons, failing), answer.asked.decision_id)


def _prioritize(state: ServingState, body: bytes) -> _Answer:
    snapshot = state.snapshot
    call = wire.decode_call(body, snapshot.names.recall)
    pod = request_of(snapshot.world, call.pod)
    answer = score_nodes(snapshot.world, pod, call.names, state.clock(), _rows(call))
    state.record(snapshot.world, pod, answer)
    tenths = answer.scores // np.uint8(10)
    return _Answer(_OK, snapshot.scores.encode(call.names, answer.asked.rows, tenths), answer.asked.decision_id)


def _rows(call: wire.ExtenderCall) -> NDArray[np.int32] | None:
    return None if call.found is None else call.found.rows


def _preempt(state: ServingState, body: bytes) -> _Answer:
    call = wire.decode_preempt(body)
    snapshot = state.snapshot
    pod = request_of(snapshot.world, call.pod)
    names = list(call.victims)
    answer = filter_nodes(snapshot.world, pod, names, state.clock())
    state.record(snapshot.world, pod, answer)
    kept = dict(call.victims)
    if snapshot.world.policy.mode is Mode.ENFORCE:
        kept = {name: kept[name] for name, code in zip(names, answer.codes.tolist(), strict=True) if not code}
    return _Answer(_OK, answers.encode_preempt(kept), answer.asked.decision_id)


_VERBS: Mapping[str, _Verb] = {
    "/scheduler/filter": _Verb("filter", _filter, answers.encode_filter_error, _OK, _OK, _OK),
    "/scheduler/prioritize": _Verb(
        "prioritize", _prioritize, answers.encode_error, _BAD_REQUEST, _BAD_REQUEST, _INTERNAL
    ),
    "/scheduler/preempt": _Verb("preempt", _preempt, answers.encode_error, _BAD_REQUEST, _TOO_LARGE, _INTERNAL),
}
