"""What is really the matter with each GPU, which no tool of the node tells."""

from collections.abc import Iterator
from typing import Any

from tools.fleet.episodes import episode_at
from tools.fleet.faults import active
from tools.fleet.node import Machine
from tools.fleet.products import DIMENSIONS
from tools.fleet.state import FleetDir

#: From which true slowdown on any dimension the table names a GPU.
NAMED_FROM = 1.05


def truth(fleet: FleetDir, at: float) -> Iterator[dict[str, Any]]:
    """The truth about every GPU at Unix time ``at``, in order.

    Yields:
        ``node``, ``gpu``, ``uuid``, ``product``, ``slowdown`` by dimension (no noise; with present settings, faults and
        episodes), ``built_slow`` (dimension, slowdown, and the sign that telemetry shows, ``hidden`` for none),
        ``settings`` where they are not the default, ``episode`` of the node, ``faults``, ``injected`` (DCGM fields in
        whose cache something was put; no hardware is touched by that), ``silent``.
    """
    for name in fleet.names:
        machine = Machine(fleet.node(name), fleet.state(name))
        node = machine.facts
        episode = episode_at(node.seed, name, at)
        for gpu in node.gpus:
            faults = active(machine.faults, gpu.index, at)
            settings = machine.settings(gpu)
            changed: dict[str, Any] = {}
            if settings.lock is not None:
                changed["lock_mhz"] = list(settings.lock)
            if settings.power_limit != node.product.power_w[0]:
                changed["power_limit_w"] = settings.power_limit
            slow = gpu.slow
            yield {
                "node": name,
                "gpu": gpu.index,
                "uuid": gpu.uuid,
                "product": node.product_name,
                "slowdown": {d: round(machine.slowdown(gpu, d, at), 4) for d in DIMENSIONS},
                "built_slow": None
                if slow is None
                else {"dimension": slow.dimension, "slowdown": slow.slowdown, "sign": slow.sign},
                "settings": changed,
                "episode": None
                if episode is None
                else {"cause": episode.cause, "slowdown": round(episode.slowdown, 3), "until": episode.end},
                "faults": [{"kind": f.kind, "at": f.at, "value": f.value} for f in faults],
                "injected": sorted(map(int, machine.state["dcgm"]["cache"].get(str(gpu.index), {}))),
                "silent": node.silent,
            }


def table(rows: Iterator[dict[str, Any]]) -> str:
    """The GPUs with something the matter, one a line."""
    lines = [f"{'NODE':<14}{'GPU':<5}{'SLOWEST':<18}{'BUILT SLOW':<38}{'ELSE'}"]
    total = 0
    for row in rows:
        total += 1
        dimension, most = max(row["slowdown"].items(), key=lambda pair: pair[1])
        slow, episode = row["built_slow"], row["episode"]
        notes = [f["kind"] for f in row["faults"]]
        notes += [f"{k}={v}" for k, v in row["settings"].items()]
        if episode is not None:
            notes.append(f"episode: {episode['cause']} x{episode['slowdown']}")
        if row["injected"]:
            notes.append(f"injected into DCGM: {', '.join(map(str, row['injected']))}")
        if row["silent"] and row["gpu"] == 0:
            notes.append("agent silent")
        if most < NAMED_FROM and slow is None and not notes:
            continue
        built = "-"
        if slow is not None:
            sign = "no sign" if slow["sign"] == "hidden" else f"sign: {slow['sign']}"
            built = f"{slow['dimension']} x{slow['slowdown']:.2f}, {sign}"
        lines.append(
            f"{row['node']:<14}{row['gpu']:<5}{f'{dimension} x{most:.2f}':<18}{built:<38}{'; '.join(notes) or '-'}"
        )
    lines.append(f"{len(lines) - 1} of {total} GPUs are named")
    return "\n".join(lines)
