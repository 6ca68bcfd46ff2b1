"""Writing a new fleet into a directory."""

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

from tools.fleet import shims
from tools.fleet.chance import hexes
from tools.fleet.faults import kernel_line, stamped
from tools.fleet.inventory import Fault, Node, build
from tools.fleet.products import DRIVER
from tools.fleet.state import FleetDir, FleetError, fresh_state, node_record, write_whole

#: How long before the fleet begins its nodes booted.
UPTIME_S = 16 * 86400.0


def create(path: Path, seed: int, nodes: int, gpus: int, now: float) -> FleetDir:
    """Make a fleet and write it.

    Args:
        path: state directory; must not hold a fleet yet.
        seed: decides everything that chance decides.
        nodes: how many.
        gpus: of each node.
        now: Unix seconds at which the fleet begins.

    Raises:
        FleetError: if the directory holds a fleet already.
        ValueError: for counts that make no fleet.
    """
    if (path / "fleet.json").exists():
        raise FleetError(f"{path} holds a fleet already; take another folder, or delete it")
    made, faults = build(seed, nodes, gpus, now)
    for node in made:
        folder = path / "nodes" / node.name
        folder.mkdir(parents=True, exist_ok=True)
        mine = faults.get(node.name, [])
        write_whole(folder / "facts.json", json.dumps(node_record(node)))
        write_whole(folder / "state.json", json.dumps(fresh_state(node, mine, now)))
        write_whole(folder / "token", token(seed, node.name) + "\n", 0o600)
        write_whole(folder / "kmsg", "".join(line + "\n" for line in _kernel_log(node, mine)))
    shims.write(path)
    # Last, so that a directory with fleet.json is a whole fleet.
    write_whole(path / "fleet.json", json.dumps({"seed": seed, "created": now, "nodes": [n.name for n in made]}))
    return FleetDir(path)


def token(seed: int, node: str) -> str:
    """The token of a node's agent. It follows from the seed: this fleet guards nothing."""
    return f"fleet-{hexes(32, seed, 'token', node)}"


def token_sha256(value: str) -> str:
    """The hash by which the scorer knows a token: hexadecimal."""
    return hashlib.sha256(value.encode()).hexdigest()


def _kernel_log(node: Node, faults: list[Fault]) -> Iterator[str]:
    boot = node.created - UPTIME_S - 60.0 * random.Random(node.name).random()
    lines = [
        (boot, "Linux version 5.15.0-119-generic (buildd@lcy02-amd64-075) #129-Ubuntu SMP"),
        (boot + 41.4, f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build"),
        (boot + 43.5, f"nvidia-modeset: Loading NVIDIA UNIX Open Kernel Mode Setting Driver for x86_64  {DRIVER}"),
    ]
    for fault in faults:
        line = kernel_line(fault, node.gpus[fault.gpu])
        if line is not None:
            lines.append(line)
    return (stamped(at, text) for at, text in sorted(lines))
