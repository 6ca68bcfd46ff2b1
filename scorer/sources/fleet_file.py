"""The fleet file: nodes, labels, exporters and bound pods, for use without Kubernetes."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, field

from scorer.model.cluster import BoundPod, GangKey
from scorer.model.errors import ConfigError
from scorer.placement.gangs import GANG_KINDS
from scorer.sources.cluster import ClusterState, NodeRecord, Topology, build_state
from scorer.sources.topology_section import LabelKey, TreeRow, trees_of
from scorer.sources.yaml_file import Strict, WatchedFile, decode_yaml, read_bounded

#: 15,000 nodes with a dozen labels each are about 12 MB.
MAX_BYTES = 64 * 1024 * 1024

_Name = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
_Count = Annotated[int, Meta(ge=0, le=1024)]
_Hash = Annotated[str, Meta(pattern=r"^([0-9a-fA-F]{64})?$")]


class _Gang(Strict, frozen=True):
    kind: _Name
    name: _Name
    namespace: str = ""


class _Pod(Strict, frozen=True):
    name: _Name
    node: _Name
    gpus: _Count
    namespace: str = "default"
    uid: str = ""
    gang: _Gang | None = None


class _Node(Strict, frozen=True):
    name: _Name
    gpus: _Count
    labels: dict[LabelKey, Annotated[str, Meta(max_length=63)]] = field(default_factory=dict)
    expected_gpus: _Count | None = None
    product: Annotated[str, Meta(max_length=128)] = ""
    exporter: Annotated[str, Meta(max_length=2048)] = ""
    probe_token_sha256: _Hash = ""


class _Fleet(Strict, frozen=True):
    api_version: str
    kind: str
    nodes: tuple[_Node, ...]
    topology: tuple[TreeRow, ...] = ()
    pods: tuple[_Pod, ...] = ()


def load_fleet(path: Path, version: int, now: float, topology: Topology = ()) -> ClusterState:
    """Read a fleet file.

    Args:
        path: the file.
        version: the version that the state gets.
        now: Unix seconds.
        topology: trees to use where the file names none.

    Raises:
        ConfigError: names the file, the place inside it, what is wrong there and what to do.
    """
    fleet = decode_yaml(path, read_bounded(path, MAX_BYTES), "Fleet", _Fleet)
    names: dict[str, int] = {}
    for i, node in enumerate(fleet.nodes):
        if node.name in names:
            raise ConfigError(
                f"{path}: $.nodes[{i}].name: {node.name!r} is the name of $.nodes[{names[node.name]}] too; "
                "each node is listed once"
            )
        names[node.name] = i
        _check_exporter(path, i, node.exporter)
    for i, pod in enumerate(fleet.pods):
        if pod.node not in names:
            raise ConfigError(f"{path}: $.pods[{i}].node: there is no node {pod.node!r} in this file")
        if pod.gang is not None and pod.gang.kind not in GANG_KINDS:
            # A kind that no pod ever gets would leave its members unseen, without a word.
            known = ", ".join(GANG_KINDS)
            raise ConfigError(f"{path}: $.pods[{i}].gang.kind: there is no kind {pod.gang.kind!r}; there are {known}")
    try:
        own = trees_of(fleet.topology, "$.topology")
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    return build_state(
        version, now, [_record(node) for node in fleet.nodes], [_bound(pod) for pod in fleet.pods], own or topology
    )


def _record(node: _Node) -> NodeRecord:
    return NodeRecord(
        node.name,
        node.labels,
        node.gpus,
        node.expected_gpus,
        node.product,
        node.exporter,
        node.probe_token_sha256.lower(),
    )


def _bound(pod: _Pod) -> BoundPod:
    gang = None if pod.gang is None else GangKey(pod.gang.kind, pod.gang.namespace or pod.namespace, pod.gang.name)
    return BoundPod(pod.uid, pod.namespace, pod.name, pod.node, pod.gpus, gang)


def _check_exporter(path: Path, i: int, url: str) -> None:
    if not url:
        return
    place = f"{path}: $.nodes[{i}].exporter: {url!r}"
    try:
        parts = urlsplit(url)
        port_ok = parts.port != 0
    except ValueError:
        raise ConfigError(f"{place} is not a URL; write http://HOST:PORT/metrics") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_ok:
        raise ConfigError(f"{place} must be an http or https URL with a host, such as http://HOST:9400/metrics")


class FleetFileSource:
    """A :class:`~scorer.sources.cluster.ClusterSource` that follows a fleet file."""

    def __init__(self, path: Path, topology: Topology = (), poll_s: float = 1.0) -> None:
        """Read the file for the first time.

        Args:
            path: the file.
            topology: trees to use where the file names none.
            poll_s: seconds between looks.

        Raises:
            ConfigError: if it is wrong.
        """
        versions = itertools.count(1)
        self._file = WatchedFile(path, lambda p: load_fleet(p, next(versions), time.time(), topology), poll_s)

    @property
    def current(self) -> ClusterState:
        """The newest good content."""
        return self._file.current

    @property
    def problem(self) -> str:
        """Why the file as it is now was refused; empty if it was not."""
        return self._file.problem

    def start(self, changed: Callable[[], None]) -> None:
        """Follow the file."""
        self._file.start(changed)

    def stop(self) -> None:
        """Stop following it."""
        self._file.stop()
