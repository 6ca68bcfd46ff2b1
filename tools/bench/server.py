"""The server under test: the real extender and the real gRPC door over a synthetic world, in a process of its own."""

import json
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
from gpugrade.v1 import placement_pb2_grpc
from prometheus_client import CollectorRegistry

from scorer.serve.doors import HttpDoor
from scorer.serve.extender import make_extender_app
from scorer.serve.placement_service import PlacementService
from scorer.serve.state import ServingState
from tools.bench.fleet import build_world

MESSAGE_LIMIT = 64 * 1024 * 1024


def main() -> None:
    """Serve ``argv[1]`` nodes; print the two ports as one JSON line once both doors listen."""
    # Before any thread begins, so that none takes the signal that this one waits for.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    now = time.time()
    started = time.perf_counter()
    world = build_world(int(sys.argv[1]), now)
    state = ServingState(CollectorRegistry(), policy=world.policy)
    state.replace(world)
    built = time.perf_counter() - started
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", MESSAGE_LIMIT)])
    placement_pb2_grpc.add_PlacementServicer_to_server(PlacementService(state), server)
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    listener = socket.create_server(("127.0.0.1", 0))
    door = HttpDoor("scheduler", make_extender_app(state), listener)
    door.start()
    ports = {"http": listener.getsockname()[1], "grpc": grpc_port, "build_s": built}
    print(json.dumps(ports), flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    door.stop()
    server.stop(None)


if __name__ == "__main__":
    main()
