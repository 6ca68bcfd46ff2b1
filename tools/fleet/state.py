"""Where the emulated fleet is kept: one directory, written once, and one small state file a node that tools change.

``fleet.json`` names the nodes; ``nodes/<node>/`` holds ``facts.json`` (never changes), ``state.json`` (replaced whole,
under a lock), ``kmsg`` and ``token``; ``bin/`` the executables.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from tools.fleet.inventory import Fault, Gpu, Node, Slow
from tools.fleet.physics import initial_settings

#: The mutable part of a node, as it stands in its file.
State: TypeAlias = dict[str, Any]
T = TypeVar("T")
#: Longest wait for a node's state. Writers hold it for a millisecond.
LOCK_S = 10.0


class FleetError(Exception):
    """The state directory, or what was asked of it, is wrong; the text says what to do."""


def fresh_state(node: Node, faults: list[Fault], now: float) -> State:
    """The state that a node begins with."""
    return {
        "gpus": {str(g.index): {"lock": None, "power_limit": initial_settings(node, g).power_limit} for g in node.gpus},
        "processes": [],
        "burns": [],
        "faults": [[f.gpu, f.kind, f.at, f.value] for f in faults],
        "exporter": "ok",
        "dcgm": fresh_dcgm(now),
    }


def fresh_dcgm(now: float) -> State:
    """What a hostengine that starts now knows: nothing."""
    return {"started": now, "watches": None, "cache": {}, "xids": {}}


class FleetDir:
    """A state directory that exists."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        try:
            found = json.loads((self.path / "fleet.json").read_text())
            self.seed = int(found["seed"])
            self.created = float(found["created"])
            self.names: tuple[str, ...] = tuple(found["nodes"])
        except FileNotFoundError:
            raise FleetError(
                f"{self.path} holds no fleet; make one: python -m tools.fleet init --state {self.path}"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise FleetError(
                f"{self.path / 'fleet.json'} is damaged ({error!r}): delete the folder, init again"
            ) from error

    def folder(self, node: str) -> Path:
        """The folder of one node.

        Raises:
            FleetError: if the fleet has no such node.
        """
        if node not in self.names:
            raise FleetError(f"the fleet in {self.path} has no node {node!r}; it has {', '.join(self.names[:3])}, ...")
        return self.path / "nodes" / node

    def node(self, name: str) -> Node:
        """What never changes about a node."""
        return _node(json.loads((self.folder(name) / "facts.json").read_text()))

    def nodes(self) -> Iterator[Node]:
        """All nodes, in order."""
        return map(self.node, self.names)

    def token(self, name: str) -> str:
        """The token with which the node's agent reports."""
        return (self.folder(name) / "token").read_text().strip()

    def state(self, name: str) -> State:
        """The node's state as it stands. Replaced whole by writers, so reading needs no lock."""
        found: State = json.loads((self.folder(name) / "state.json").read_text())
        return found

    @contextmanager
    def _locked(self, name: str) -> Iterator[Path]:
        folder = self.folder(name)
        with (folder / "lock").open("w") as lock:
            self._wait(lock.fileno(), name)
            yield folder

    def _wait(self, lock: int, name: str) -> None:
        """Wait for a node's lock, which the system frees when its holder ends, whatever ends it."""
        deadline = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    text = f"something holds the state of {name} for more than {LOCK_S:.0f} s; find it and end it"
                    raise FleetError(text) from None
                time.sleep(0.002)
            else:
                return

    def change(self, name: str, alter: Callable[[State], T]) -> T:
        """Change a node's state: one writer at a time, readers see the old or the new one, never a part.

        Args:
            name: node.
            alter: changes the state it is given, in place; if it raises, nothing is written.

        Returns:
            What ``alter`` returned.
        """
        with self._locked(name) as folder:
            path = folder / "state.json"
            state: State = json.loads(path.read_text())
            result = alter(state)
            write_whole(path, json.dumps(state))
        return result

    def log(self, name: str, lines: list[str]) -> None:
        """Append lines to the node's kernel log."""
        with self._locked(name) as folder, (folder / "kmsg").open("a") as log:
            log.write("".join(line + "\n" for line in lines))


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file at once, so that no reader ever sees half of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text)
    part.chmod(mode)
    part.replace(path)


def faults_of(state: Mapping[str, Any]) -> list[Fault]:
    """The physical faults in a state."""
    return [Fault(int(gpu), str(kind), float(at), float(value)) for gpu, kind, at, value in state["faults"]]


def node_record(node: Node) -> dict[str, Any]:
    """A node as it stands in ``facts.json``."""
    record: dict[str, Any] = {key: getattr(node, key) for key in node.__slots__ if key != "gpus"}
    record["gpus"] = [
        {
            "index": g.index,
            "uuid": g.uuid,
            "pci_bus_id": g.pci_bus_id,
            "serial": g.serial,
            "slow": None if g.slow is None else [g.slow.dimension, g.slow.slowdown, g.slow.sign],
        }
        for g in node.gpus
    ]
    return record


def _node(record: dict[str, Any]) -> Node:
    gpus = tuple(Gpu(**{**g, "slow": None if g["slow"] is None else Slow(*g["slow"])}) for g in record["gpus"])
    return Node(**{**record, "gpus": gpus})
