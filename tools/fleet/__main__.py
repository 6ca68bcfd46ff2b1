"""``python -m tools.fleet``: make an emulated fleet, serve its exporters, replay its past, break it, tell its truth."""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from tools.fleet import faults as fault_kinds
from tools.fleet.create import create
from tools.fleet.inventory import Fault
from tools.fleet.server import MODES, Exporters, break_exporter
from tools.fleet.state import FleetDir, FleetError, State, fresh_dcgm

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def span(text: str) -> float:
    """Seconds of a span such as ``12h``, ``90m`` or ``30`` (seconds)."""
    number, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1.0)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = -1.0
    if not 0.0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no span of time; say 30s, 90m, 12h or 14d")
    return seconds


def _fleet(options: argparse.Namespace) -> FleetDir:
    return FleetDir(options.state)


def _init(options: argparse.Namespace) -> None:
    fleet = create(options.state, options.seed, options.nodes, options.gpus, time.time())
    print(f"{len(fleet.names)} {'node' if len(fleet.names) == 1 else 'nodes'} in {fleet.path}")
    print(f"export GPUGRADE_FLEET={fleet.path} PATH={fleet.path}/bin:$PATH NODE_NAME={fleet.names[0]}")


def _serve(options: argparse.Namespace) -> None:
    try:
        server = Exporters(_fleet(options), (options.host, options.port))
    except (OSError, OverflowError) as error:
        raise FleetError(f"cannot listen on {options.host}:{options.port}: {error}; take another --port") from error

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        # shutdown() waits for serve_forever(), which this very thread runs.
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with server:
        host, port = server.server_address[:2]
        print(f"exporters at http://{host!s}:{port}/node/<name>/metrics", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print("stopped", flush=True)


def _file(options: argparse.Namespace) -> None:
    import yaml  # noqa: PLC0415 - the executables start without it

    from tools.fleet.fleetfile import fleet_file  # noqa: PLC0415

    print(yaml.safe_dump(fleet_file(_fleet(options), options.exporter_base), sort_keys=False, width=200), end="")


def _replay(options: argparse.Namespace) -> None:
    from tools.fleet.replay import Outcome, replay  # noqa: PLC0415 - gRPC is heavy, and only this needs it

    fleet = _fleet(options)
    end = time.time()
    live = sys.stderr.isatty()

    def progress(done: int, total: int, outcome: Outcome) -> None:
        text = f"{done}/{total} nodes, {outcome.accepted} records kept, {outcome.duplicates} known"
        if live or done == total:
            print(f"\r{text}" if live else text, end="\n" if done == total else "", file=sys.stderr, flush=True)

    outcome = replay(fleet, options.scorer, end - options.days * 86400.0, end, options.every, progress)
    for key, reason in outcome.refused[:5]:
        print(f"refused {key}: {reason}", file=sys.stderr)
    if outcome.refused:
        raise FleetError(f"the scorer refused {len(outcome.refused)} records")


def _truth(options: argparse.Namespace) -> None:
    from tools.fleet.truth import table, truth  # noqa: PLC0415

    rows = truth(_fleet(options), time.time())
    print(json.dumps({"items": list(rows)}, indent=1) if options.output == "json" else table(rows))


def _restart(options: argparse.Namespace) -> None:
    def alter(state: State) -> None:
        state["dcgm"] = fresh_dcgm(time.time())

    _fleet(options).change(options.node, alter)
    print(f"the hostengine of {options.node} restarted: cache, watches and XID history are gone")


def _break(options: argparse.Namespace) -> None:
    break_exporter(_fleet(options), options.node, options.how)
    print(f"the exporter of {options.node}: {options.how}")


def _fault(options: argparse.Namespace) -> None:
    fleet = _fleet(options)
    node = fleet.node(options.node)
    if options.gpu >= len(node.gpus) or options.gpu < 0:
        raise FleetError(f"{options.node} has GPUs 0 to {len(node.gpus) - 1}, not {options.gpu}")
    if options.kind == "none":

        def heal(state: State) -> None:
            state["faults"] = [f for f in state["faults"] if f[0] != options.gpu]

        fleet.change(options.node, heal)
        print(f"GPU {options.gpu} of {options.node} has no fault any more")
        return
    kind = fault_kinds.KINDS[options.kind]
    if kind.valued and not 0 < options.value < 10_000:
        raise FleetError(f"--kind {options.kind} needs --value, above 0: {kind.valued}")
    fault = Fault(options.gpu, options.kind, time.time(), options.value)
    line = fault_kinds.kernel_line(fault, node.gpus[options.gpu])

    def hurt(state: State) -> None:
        state["faults"].append([fault.gpu, fault.kind, fault.at, fault.value])

    fleet.change(options.node, hurt)
    if line is not None:
        fleet.log(options.node, [fault_kinds.stamped(*line)])
    print(f"GPU {options.gpu} of {options.node}: {kind.summary}")


def _process(options: argparse.Namespace) -> None:
    fleet = _fleet(options)
    node = fleet.node(options.node)
    if not 0 <= options.gpu < len(node.gpus):
        raise FleetError(f"{options.node} has GPUs 0 to {len(node.gpus) - 1}, not {options.gpu}")

    def alter(state: State) -> None:
        others = [p for p in state["processes"] if p["gpu"] != options.gpu]
        mine = {"gpu": options.gpu, "pid": options.pid, "name": options.name, "mib": options.mib, "pod": options.pod}
        state["processes"] = others if options.end else [*others, mine]

    fleet.change(options.node, alter)
    print(f"GPU {options.gpu} of {options.node}: {'free' if options.end else options.name}")


def _podresources(options: argparse.Namespace) -> None:
    from tools.fleet.podresources import serve  # noqa: PLC0415 - gRPC is heavy, and only this needs it

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    serve(_fleet(options), options.node, options.socket, time.time, stop)


Add: TypeAlias = Callable[..., argparse.ArgumentParser]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.fleet", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    default = os.environ.get("GPUGRADE_FLEET")

    def add(
        name: str, run: Callable[[argparse.Namespace], None], text: str, node: bool = False
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        where: dict[str, Any] = {"required": True} if default is None else {"default": Path(default)}
        made.add_argument("--state", type=Path, help="state directory", **where)
        if node:
            made.add_argument("--node", required=True)
        made.set_defaults(run=run)
        return made

    _fleet_commands(add)
    _node_commands(add)
    return parser


def _fleet_commands(add: Add) -> None:
    init = add("init", _init, "make a fleet in a new directory")
    init.add_argument("--seed", type=int, default=1)
    init.add_argument("--nodes", type=int, default=64)
    init.add_argument("--gpus", type=int, default=8)
    serve = add("serve", _serve, "serve the exporters of all nodes")
    serve.add_argument("--port", type=int, default=9400)
    serve.add_argument("--host", default="127.0.0.1")
    file = add("file", _file, "print the fleet file for the scorer")
    file.add_argument("--exporter-base", default="http://127.0.0.1:9400")
    replay = add("replay", _replay, "send the past to a scorer")
    replay.add_argument("--scorer", required=True, metavar="HOST:PORT")
    replay.add_argument("--days", type=float, default=14.0)
    replay.add_argument("--every", type=span, default=12 * 3600.0, metavar="SPAN")
    truth = add("truth", _truth, "tell what is really the matter with each GPU")
    truth.add_argument("-o", "--output", choices=("table", "json"), default="table")


def _node_commands(add: Add) -> None:
    add("restart-hostengine", _restart, "forget all that DCGM of a node remembers", node=True)
    broken = add("break-exporter", _break, "let a node's exporter misbehave", node=True)
    broken.add_argument("--how", required=True, choices=MODES)
    fault = add("fault", _fault, "give a GPU a physical fault that every surface shows", node=True)
    fault.add_argument("--gpu", type=int, required=True)
    kinds = "; ".join(f"{name}: {kind.summary}" for name, kind in fault_kinds.KINDS.items())
    fault.add_argument("--kind", required=True, choices=(*fault_kinds.KINDS, "none"), help=f"{kinds}; none: heals it")
    fault.add_argument("--value", type=float, default=0.0)
    process = add("process", _process, "declare a process that uses a GPU", node=True)
    process.add_argument("--gpu", type=int, required=True)
    process.add_argument("--pid", type=int, default=4242)
    process.add_argument("--name", default="python3")
    process.add_argument("--mib", type=int, default=61440)
    process.add_argument("--pod", default="", metavar="NAMESPACE/NAME", help="what PodResources calls it")
    process.add_argument("--end", action="store_true", help="the GPU is free again")
    pods = add("podresources", _podresources, "serve the kubelet's PodResources of a node", node=True)
    pods.add_argument("--socket", type=Path, required=True)


def main(arguments: list[str]) -> int:
    """Run a command; the exit status."""
    # `--truth` is the same as the command `truth`.
    words = ["truth", *(a for a in arguments if a != "--truth")] if "--truth" in arguments else arguments
    options = _parser().parse_args(words)
    try:
        options.run(options)
    except (FleetError, ValueError) as error:
        print(f"fleet: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
