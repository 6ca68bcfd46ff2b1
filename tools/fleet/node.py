"""One emulated node as its tools see it: its facts, its state as it stands, and its GPUs at a time."""

import os
import sys
import time
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import Any

from tools.fleet import faults as fault_kinds
from tools.fleet import physics
from tools.fleet.inventory import Fault, Gpu, Node
from tools.fleet.physics import Sensors, Settings
from tools.fleet.state import FleetDir, FleetError, State, faults_of

#: How much faster than life the emulated programs run: 60 makes a burn of 30 s take half a second of wall time.
SPEED_VARIABLE = "GPUGRADE_FLEET_SPEED"


class Machine:
    """A node's facts and one reading of its state.

    Attributes:
        facts: what never changes.
        state: as read; it does not follow later changes.
        faults: the physical faults in it.
    """

    def __init__(self, facts: Node, state: State) -> None:
        self.facts = facts
        self.state = state
        self.faults: list[Fault] = faults_of(state)
        self._lost = {f.gpu: f.at for f in self.faults if fault_kinds.KINDS[f.kind].lost}

    def settings(self, gpu: Gpu) -> Settings:
        """What is set on a GPU."""
        found = self.state["gpus"][str(gpu.index)]
        lock = found["lock"]
        return Settings(None if lock is None else (lock[0], lock[1]), found["power_limit"])

    def lost(self, gpu: Gpu, at: float) -> bool:
        """Whether a GPU no longer answers."""
        return self._lost.get(gpu.index, float("inf")) <= at

    def visible(self, at: float) -> list[Gpu]:
        """The GPUs that a CUDA program sees at Unix time ``at``, as it numbers them.

        Those that answer, by PCI bus. ``CUDA_VISIBLE_DEVICES`` chooses among them, by that number or by UUID, and puts
        them in its order; as in CUDA, the first name in it that is no device ends the list.
        """
        alive = [g for g in self.facts.gpus if not self.lost(g, at)]
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
        if wanted is None:
            return alive
        names = {str(number): gpu for number, gpu in enumerate(alive)} | {gpu.uuid: gpu for gpu in alive}
        return [gpu for gpu in takewhile(bool, (names.get(text.strip()) for text in wanted.split(","))) if gpu]

    def burns(self, at: float) -> list[dict[str, Any]]:
        """The burns that run at Unix time ``at``; one that was killed is none, whatever it left in the state."""
        return [b for b in self.state["burns"] if at < b["until"] and _alive(b["pid"])]

    def load(self, gpu: Gpu, at: float) -> float:
        """How busy a GPU is: fully where it burns, nearly where a process is declared."""
        if any(gpu.index in burn["gpus"] for burn in self.burns(at)):
            return 1.0
        return 0.95 if any(p["gpu"] == gpu.index for p in self.state["processes"]) else 0.0

    def used_mib(self, gpu: Gpu, at: float) -> int:
        """Memory held on a GPU."""
        burning = any(gpu.index in burn["gpus"] for burn in self.burns(at))
        held = sum(int(p["mib"]) for p in self.state["processes"] if p["gpu"] == gpu.index)
        return min(self.facts.product.memory_mib, held + (72360 if burning else 0))

    def sensors(self, gpu: Gpu, at: float) -> Sensors:
        """What a GPU's sensors show at Unix time ``at``."""
        return physics.sensors(
            self.facts, gpu, at, self.settings(gpu), self.load(gpu, at), self.faults, self.used_mib(gpu, at)
        )

    def measure(self, gpu: Gpu, dimension: str, at: float) -> float:
        """One measurement with the settings in force, in the dimension's unit."""
        return physics.measure(self.facts, gpu, dimension, at, self.settings(gpu), self.faults)

    def slowdown(self, gpu: Gpu, dimension: str, at: float) -> float:
        """The truth behind a measurement: relative time, 1 for the model's median."""
        return physics.slowdown(self.facts, gpu, dimension, at, self.settings(gpu), self.faults)


class Here:
    """The node that an emulated executable runs on."""

    def __init__(self, fleet: FleetDir, name: str) -> None:
        self.fleet = fleet
        self.name = name
        self.facts = fleet.node(name)

    @classmethod
    def find(cls) -> "Here":
        """The node named by ``NODE_NAME``, of the fleet that ``GPUGRADE_FLEET`` points to.

        Raises:
            FleetError: if either is missing or wrong.
        """
        where, name = os.environ.get("GPUGRADE_FLEET"), os.environ.get("NODE_NAME")
        if not where:
            raise FleetError("GPUGRADE_FLEET does not say where the emulated fleet is kept")
        if not name:
            raise FleetError("NODE_NAME does not say which emulated node this is; set it, as the downward API would")
        return cls(FleetDir(Path(where)), name)

    def machine(self) -> Machine:
        """The node as it stands now."""
        return Machine(self.facts, self.fleet.state(self.name))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # It is there, and another user's.
        return True
    return True


def speed() -> float:
    """How much faster than life emulated programs run, from the environment.

    Raises:
        FleetError: if it is not a positive number.
    """
    text = os.environ.get(SPEED_VARIABLE, "1")
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise FleetError(f"{SPEED_VARIABLE}={text!r} is not a positive number")
    return value


def now() -> float:
    """Unix seconds."""
    return time.time()


def fail(tool: str, error: Exception) -> int:
    """Say why an emulated tool cannot run at all; the exit status of such a failure."""
    print(f"{tool}: {error}", file=sys.stderr)
    return 9


def pick(gpus: Iterable[Gpu], text: str) -> Gpu | None:
    """The GPU that an index, UUID, serial or bus id names; None if none is."""
    for gpu in gpus:
        if text in {str(gpu.index), gpu.uuid, gpu.serial} or text.upper() == gpu.pci_bus_id.upper():
            return gpu
    return None
