"""A stand-in for kube-scheduler's part: resource fit, the two extender calls, the choice, and the binding.

It speaks to the extender over HTTP exactly as kube-scheduler does with ``nodeCacheCapable: true``, and binds by writing
the pod into the fleet file, which is where the server learns of bindings when there is no Kubernetes.
"""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import urllib3
import yaml

PRODUCT = "nvidia.com/gpu.product"


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod to place.

    Attributes:
        name: of the pod.
        gpus: whole GPUs that it asks for.
        labels: such as ``gpugrade.dev/sensitivity``.
        gang: name of its plain-pod group; empty for none.
        gang_size: pods in that group.
        product: value of ``nvidia.com/gpu.product`` that its node selector asks for; empty for any.
    """

    name: str
    gpus: int
    labels: dict[str, str] = field(default_factory=dict)
    gang: str = ""
    gang_size: int = 1
    product: str = ""

    def manifest(self, seed: str) -> dict[str, Any]:
        """The pod as kube-scheduler would send it."""
        labels = dict(self.labels)
        annotations: dict[str, str] = {}
        if self.gang:
            labels["kueue.x-k8s.io/pod-group-name"] = self.gang
            annotations["kueue.x-k8s.io/pod-group-total-count"] = str(self.gang_size)
        amounts = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": str(self.gpus)}
        return {
            "metadata": {
                "name": self.name,
                "namespace": "ml",
                "uid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{seed}/{self.name}")),
                "labels": labels,
                "annotations": annotations,
            },
            "spec": {
                "containers": [
                    {
                        "name": "main",
                        "image": "registry.example/train:1",
                        "resources": {"limits": amounts, "requests": amounts},
                    }
                ],
                "nodeSelector": {PRODUCT: self.product} if self.product else {},
                "schedulerName": "default-scheduler",
                "priority": 0,
            },
            "status": {"phase": "Pending", "qosClass": "Guaranteed"},
        }


@dataclass(frozen=True, slots=True)
class Chosen:
    """What became of a pod.

    Attributes:
        pod: its name.
        node: where it goes; empty if nowhere.
        score: what the extender gave that node, 0-10.
        refused: how many nodes were refused, by reason.
        decision: id of the extender's answer.
    """

    pod: str
    node: str
    score: int
    refused: dict[str, int]
    decision: str


class Scheduler:
    """Places pods one after another.

    Args:
        url: of the extender, such as ``http://127.0.0.1:9440/scheduler``.
        fleet_file: the file that the server watches.
    """

    def __init__(self, url: str, fleet_file: Path) -> None:
        self.url = url
        self.fleet_file = fleet_file
        self._http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(5.0))

    def schedule(self, pod: PodSpec) -> Chosen:
        """Choose a node: those selected that have room, then filter, then the highest score, ties by name."""
        manifest = pod.manifest(str(self.fleet_file))
        labels = {node["name"]: node.get("labels", {}) for node in self._read()["nodes"]}
        names = [
            name
            for name, free in self.free().items()
            if free >= pod.gpus and (not pod.product or labels[name].get(PRODUCT) == pod.product)
        ]
        answer, decision = self._post("filter", {"Pod": manifest, "Nodes": None, "NodeNames": names})
        refused: dict[str, int] = {}
        for failures in (answer["FailedNodes"] or {}, answer["FailedAndUnresolvableNodes"] or {}):
            for reason in failures.values():
                refused[reason] = refused.get(reason, 0) + 1
        feasible = answer["NodeNames"] or []
        if not feasible:
            return Chosen(pod.name, "", 0, refused, decision)
        scores = {feasible[0]: 0}
        if len(feasible) > 1:
            ranked, decision = self._post("prioritize", {"Pod": manifest, "Nodes": None, "NodeNames": feasible})
            scores = {entry["Host"]: entry["Score"] for entry in ranked}
        best = min(feasible, key=lambda name: (-scores[name], name))
        return Chosen(pod.name, best, scores[best], refused, decision)

    def bind(self, pod: PodSpec, node: str) -> None:
        """Write the pod into the fleet file."""
        fleet = self._read()
        entry: dict[str, Any] = {
            "name": pod.name,
            "namespace": "ml",
            "uid": pod.manifest(str(self.fleet_file))["metadata"]["uid"],
            "node": node,
            "gpus": pod.gpus,
        }
        if pod.gang:
            entry["gang"] = {"kind": "kueue-pod-group", "namespace": "ml", "name": pod.gang}
        fleet.setdefault("pods", []).append(entry)
        self._write(fleet)

    def unbind_all(self, names: Sequence[str]) -> None:
        """The pods have ended."""
        fleet = self._read()
        fleet["pods"] = [pod for pod in fleet.get("pods", []) if pod["name"] not in names]
        self._write(fleet)

    def free(self) -> dict[str, int]:
        """GPUs that no bound pod holds, by node."""
        fleet = self._read()
        free = {node["name"]: int(node["gpus"]) for node in fleet["nodes"]}
        for pod in fleet.get("pods", []):
            free[pod["node"]] -= int(pod["gpus"])
        return free

    def _post(self, verb: str, body: dict[str, Any]) -> tuple[Any, str]:
        response = self._http.request(
            "POST", f"{self.url}/{verb}", body=json.dumps(body), headers={"Content-Type": "application/json"}
        )
        if response.status != 200:
            raise RuntimeError(f"{verb} answered {response.status}: {response.data[:300]!r}")
        answer = response.json()
        if verb == "filter" and answer.get("Error"):
            raise RuntimeError(f"filter answered: {answer['Error']}")
        return answer, response.headers.get("X-Gpugrade-Decision", "")

    def _read(self) -> dict[str, Any]:
        loaded: dict[str, Any] = yaml.load(self.fleet_file.read_text(), Loader=LOADER)  # noqa: S506 - both loaders are the safe one
        return loaded

    def _write(self, fleet: dict[str, Any]) -> None:
        scratch = self.fleet_file.with_suffix(".new")
        scratch.write_text(yaml.dump(fleet, Dumper=DUMPER, sort_keys=False))
        scratch.replace(self.fleet_file)


#: libyaml's where PyYAML was built with it: ten times faster on a file of this size.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
