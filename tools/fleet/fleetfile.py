"""The fleet file that the scorer reads where there is no Kubernetes."""

from typing import Any

from tools.fleet.create import token_sha256
from tools.fleet.state import FleetDir

TOPOLOGY = [
    {
        "name": "fabric",
        "keys": ["example.dev/rack", "network.topology.nvidia.com/leaf", "network.topology.nvidia.com/spine"],
    }
]


def fleet_file(fleet: FleetDir, exporter_base: str) -> dict[str, Any]:
    """The fleet as the scorer's file describes it.

    Args:
        fleet: the state directory.
        exporter_base: where ``serve`` listens, such as ``http://127.0.0.1:9400``; empty leaves exporters out.
    """
    nodes = []
    for node in fleet.nodes():
        entry: dict[str, Any] = {
            "name": node.name,
            "labels": node.labels(),
            "gpus": len(node.gpus),
            "expectedGpus": len(node.gpus),
            "product": node.product_name,
        }
        if exporter_base:
            entry["exporter"] = f"{exporter_base.rstrip('/')}/node/{node.name}/metrics"
        entry["probeTokenSha256"] = token_sha256(fleet.token(node.name))
        nodes.append(entry)
    return {"apiVersion": "config.gpugrade.dev/v1alpha1", "kind": "Fleet", "nodes": nodes, "topology": TOPOLOGY}
