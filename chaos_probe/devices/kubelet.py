"""The kubelet's PodResources socket: which GPUs it has handed out. Pod names are never read."""

from dataclasses import dataclass
from pathlib import Path

from chaos_probe.errors import ToolError

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
TIMEOUT_S = 5.0
_MAX_MESSAGE = 16 << 20


@dataclass(frozen=True, slots=True)
class HandedOut:
    """Devices that pods hold.

    Attributes:
        uuids: GPUs by UUID (replicas of time-slicing counted as their GPU).
        indices: GPUs that the device plugin names by number.
        unclear: devices that cannot be told to a GPU (MIG slices, DRA claims): any GPU may be meant.
    """

    uuids: frozenset[str] = frozenset()
    indices: frozenset[int] = frozenset()
    unclear: frozenset[str] = frozenset()


def sort_devices(names: list[tuple[str, str]]) -> HandedOut:
    """Sort (resource, device id) pairs of NVIDIA GPUs into what they tell."""
    uuids, indices, unclear = set(), set(), set()
    for resource, device in names:
        base = device.split("::")[0]
        if base.startswith("GPU-"):
            uuids.add(base)
        elif base.isdigit():
            indices.add(int(base))
        else:
            unclear.add(f"{resource} {base}")
    return HandedOut(frozenset(uuids), frozenset(indices), frozenset(unclear))


def handed_out(socket: Path = SOCKET) -> HandedOut | None:
    """Ask the kubelet; ``None`` where there is no socket, that is no kubelet.

    Raises:
        ToolError: there is a socket, and it does not answer; or whether there is one cannot be told.
    """
    try:
        socket.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        # That it cannot be looked at does not mean that no pod holds a GPU.
        raise ToolError(
            f"whether there is a kubelet cannot be told ({socket}: {error.strerror}); run with the rights to read it"
        ) from error
    import grpc  # noqa: PLC0415 - heavy, and only needed on a Kubernetes node
    from gpugrade.kubelet import podresources_pb2, podresources_pb2_grpc  # noqa: PLC0415 - needs grpc

    # The authority must be a plain name: servers in Go refuse the path that gRPC would send by default.
    options = [("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", _MAX_MESSAGE)]
    try:
        with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
            stub = podresources_pb2_grpc.PodResourcesListerStub(channel)
            answer = stub.List(podresources_pb2.ListPodResourcesRequest(), timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        raise ToolError(
            f"the kubelet does not say which GPUs pods hold ({socket}: {error.code().name}); "
            "mount its pod-resources folder and run with the rights to read it"
        ) from error
    names: list[tuple[str, str]] = []
    for container in (c for pod in answer.pod_resources for c in pod.containers):
        for devices in container.devices:
            if devices.resource_name.startswith("nvidia.com/"):
                names += [(devices.resource_name, device) for device in devices.device_ids]
        for claim in (c for d in container.dynamic_resources for c in d.claim_resources):
            if claim.driver_name == "gpu.nvidia.com":
                names.append((claim.driver_name, claim.device_name))
    return sort_devices(names)
