"""The kubelet's ``v1.PodResourcesLister`` of an emulated node: which pods hold which GPUs.

Pods are the declared processes that name one. The messages are few and small, so they are written on the wire here,
field by field, instead of carrying the kubelet's contract a second time.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent import futures
from pathlib import Path

import grpc

from tools.fleet.inventory import Gpu
from tools.fleet.node import Machine
from tools.fleet.state import FleetDir

SERVICE = "v1.PodResourcesLister"
RESOURCE = "nvidia.com/gpu"


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _bytes(field: int, value: bytes | str) -> bytes:
    """A length-delimited field: a string or a message."""
    raw = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(raw)) + raw


def _device(gpu: Gpu) -> bytes:
    # ContainerDevices: resource_name 1, device_ids 2, topology 3 {nodes 1 {ID 1}}. Half of the GPUs sit on each socket.
    socket = b"\x08" + _varint(gpu.index // 4) if gpu.index >= 4 else b""
    return _bytes(1, RESOURCE) + _bytes(2, gpu.uuid) + _bytes(3, _bytes(1, socket))


def _pods(machine: Machine) -> dict[str, list[Gpu]]:
    """The GPUs of each ``namespace/name``."""
    pods: dict[str, list[Gpu]] = {}
    for process in machine.state["processes"]:
        if process.get("pod"):
            pods.setdefault(process["pod"], []).append(machine.facts.gpus[process["gpu"]])
    return pods


def _pod(name: str, gpus: Iterable[Gpu]) -> bytes:
    # PodResources: name 1, namespace 2, containers 3 {name 1, devices 2}.
    namespace, _, pod = name.rpartition("/")
    container = _bytes(1, "main") + b"".join(_bytes(2, _device(g)) for g in gpus)
    return _bytes(1, pod) + _bytes(2, namespace or "default") + _bytes(3, container)


def list_pods(machine: Machine) -> bytes:
    """A ``ListPodResourcesResponse``."""
    return b"".join(_bytes(1, _pod(name, gpus)) for name, gpus in _pods(machine).items())


def allocatable(machine: Machine, at: float) -> bytes:
    """An ``AllocatableResourcesResponse``: the GPUs that the device plugin would offer."""
    return b"".join(_bytes(1, _device(g)) for g in machine.facts.gpus if not machine.lost(g, at))


def make_server(fleet: FleetDir, node: str, socket: Path, clock: Callable[[], float]) -> grpc.Server:
    """A server on a Unix socket, not yet started.

    Args:
        fleet: the state directory.
        node: node name.
        socket: where the kubelet's would be; a stale one is replaced.
        clock: Unix seconds.
    """
    facts = fleet.node(node)

    def machine() -> Machine:
        return Machine(facts, fleet.state(node))

    def listed(request: bytes, context: grpc.ServicerContext) -> bytes:
        del request, context
        return list_pods(machine())

    def offered(request: bytes, context: grpc.ServicerContext) -> bytes:
        del request, context
        return allocatable(machine(), clock())

    # No serializers: requests and answers are bytes.
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "List": grpc.unary_unary_rpc_method_handler(listed),
        "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(offered),
    }
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    socket.unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{socket.resolve()}")
    return server


def serve(fleet: FleetDir, node: str, socket: Path, clock: Callable[[], float], stop: threading.Event) -> None:
    """Serve until ``stop`` is set."""
    server = make_server(fleet, node, socket, clock)
    server.start()
    print(f"PodResources of {node} at {socket}", flush=True)
    stop.wait()
    server.stop(grace=1.0).wait()
