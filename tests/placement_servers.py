"""Real servers on port 0 for tests of placement: uvicorn and grpc, each in a thread of its own."""

import http.client
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import uvicorn
from gpugrade.v1 import placement_pb2, placement_pb2_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from scorer.placement import World
from scorer.serve.extender import BODY_TIMEOUT, make_extender_app
from scorer.serve.http_protocol import BoundedProtocol
from scorer.serve.placement_service import PlacementService
from scorer.serve.state import ServingState
from tests.placement_worlds import NOW

DEADLINE = 20.0


def state_of(world: World) -> ServingState:
    """A state that serves one world, at the worlds' own time."""
    state = ServingState(CollectorRegistry(), policy=world.policy, clock=lambda: NOW)
    state.replace(world)
    return state


def sample(state_registry: CollectorRegistry, name: str, **labels: str) -> float:
    """A metric's value; 0 where it was never counted."""
    return state_registry.get_sample_value(name, labels) or 0.0


@contextmanager
def extender(
    state: ServingState, patience: float = BODY_TIMEOUT, protocol: type[BoundedProtocol] = BoundedProtocol
) -> Iterator[int]:
    """The scheduler's door on a real port, which is yielded."""
    config = uvicorn.Config(
        make_extender_app(state, patience), loop="uvloop", http=protocol, ws="none", lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    # Listening before the server runs: a client that connects at once waits in the backlog.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(DEADLINE)
            assert not thread.is_alive()


@contextmanager
def client(port: int) -> Iterator[http.client.HTTPConnection]:
    """One keep-alive connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def placement_server(state: ServingState) -> Iterator[grpc.Channel]:
    """The gRPC door on a real port, with health and reflection; a channel to it is yielded."""
    server = grpc.server(ThreadPoolExecutor(2))
    placement_pb2_grpc.add_PlacementServicer_to_server(PlacementService(state), server)
    checker = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checker, server)
    name = placement_pb2.DESCRIPTOR.services_by_name["Placement"].full_name
    checker.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((name, reflection.SERVICE_NAME), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        server.stop(None).wait(DEADLINE)
