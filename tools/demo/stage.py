"""What the acts of the story share: the server, the scheduler's part, and how a job or a fault is shown."""

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from gpugrade.v1 import placement_pb2
from rich.console import Console

from tools.demo import draw
from tools.demo.processes import DemoError, Processes
from tools.demo.scheduler import Chosen, PodSpec, Scheduler
from tools.demo.server import Server, Verdict

GANG = "train-multi"
PRODUCT = "NVIDIA-H100-80GB-HBM3"
PRODUCT_TEXT = "H100"


class Ports(NamedTuple):
    """Where the servers listen."""

    scheduler: int
    grpc: int
    admin: int
    exporter: int

    @classmethod
    def choose(cls) -> "Ports":
        """The ports of gpugrade where they are free, else what the system gives."""
        return cls(*(_free_port(wish) for wish in cls.usual()))

    @classmethod
    def usual(cls) -> "Ports":
        """The ports that users know."""
        return cls(9440, 9441, 9442, 9400)


def _free_port(wish: int) -> int:
    for port in (wish, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise DemoError("no free port on 127.0.0.1")


class Stage:
    """Where the story is played.

    Args:
        console: where it is told.
        home: folder for all that the demo writes.
        processes: its children.
        ports: where the servers listen.
    """

    def __init__(self, console: Console, home: Path, processes: Processes, ports: Ports) -> None:
        self.console = console
        self.home = home
        self.processes = processes
        self.ports = ports
        self.fleet_state = home / "fleet"
        self.fleet_file = home / "fleet.yaml"
        self.scheduler = Scheduler(f"http://127.0.0.1:{ports.scheduler}/scheduler", self.fleet_file)
        self.server = Server(f"127.0.0.1:{ports.grpc}")

    def gang(self, name: str, sensitivity: str) -> list[PodSpec]:
        """Four pods of eight GPUs that run in step."""
        labels = {"gpugrade.dev/job-type": GANG, "gpugrade.dev/sensitivity": sensitivity}
        return [PodSpec(f"{name}-{i}", 8, labels, gang=name, gang_size=4, product=PRODUCT) for i in range(4)]

    def place_gang(self, gang: list[PodSpec], title: str, sensitivity: str, *, bind: bool = True) -> list[str]:
        """Place all members, one after another; unless ``bind``, they leave again at once."""
        plan = self.server.dry_run(8, 4, GANG, sensitivity, PRODUCT_TEXT)
        nodes: list[str] = []
        for pod in gang:
            chosen = self.scheduler.schedule(pod)
            if not chosen.node:
                raise DemoError(f"no node for {pod.name}: {chosen.refused}")
            nodes.append(chosen.node)
            self.scheduler.bind(pod, chosen.node)
            self.await_free({chosen.node: 0})
            if len(nodes) == 1:
                first = chosen
        draw.say(self.console, f"{title}: [bold]{', '.join(nodes)}[/]")
        self.say_why(first)
        self.say_time(nodes, GANG, plan)
        for reason, count in first.refused.items():
            draw.say(self.console, f"  [dim]{count} {'node' if count == 1 else 'nodes'} refused: {reason}[/]")
        if not bind:
            self.scheduler.unbind_all([pod.name for pod in gang])
            self.await_free(dict.fromkeys(nodes, 8))
        return nodes

    def place_one(self, pod: PodSpec, title: str, job_type: str, sensitivity: str) -> None:
        """Place a single pod."""
        plan = self.server.dry_run(pod.gpus, 1, job_type, sensitivity, PRODUCT_TEXT if pod.product else "")
        before = self.scheduler.free()
        chosen = self.scheduler.schedule(pod)
        if not chosen.node:
            raise DemoError(f"no node for {pod.name}: {chosen.refused}")
        self.scheduler.bind(pod, chosen.node)
        self.await_free({chosen.node: before[chosen.node] - pod.gpus})
        draw.say(self.console, f"{title}: [bold]{chosen.node}[/], score {chosen.score} of 10")
        self.say_why(chosen)
        self.say_time([chosen.node], job_type, plan)

    def say_why(self, chosen: Chosen) -> None:
        """What the extender's own record of the decision says of the node."""
        reason = self.server.why(chosen.decision, chosen.node)
        draw.say(self.console, f"  [dim]{chosen.node}: {reason}[/]")

    def say_time(self, nodes: list[str], job_type: str, plan: placement_pb2.PlaceResponse) -> None:
        """The predicted time where the job went, beside that of a choice by rack that knows no grades."""
        slowest = max(self.server.verdict(node, job_type).slowdown for node in nodes)
        ours = slowest * plan.locality_factor
        racks = sorted({node.labels.get(draw.RACK, "") for node in self.server.nodes() if node.name in nodes})
        where = "" if len(nodes) == 1 else f" in {'rack' if len(racks) == 1 else 'racks'} {', '.join(racks)}"
        draw.say(
            self.console,
            f"  predicted time [bold green]{ours:.3f}[/]{where}; "
            f"a choice by rack that knows no grades: [bold red]{plan.blind_relative_time:.3f}[/]",
        )

    def with_fault(self, node: str, experiment: list[str], what: str) -> None:
        """Inject on a node, see its grade fall and the gang avoid it, revert, and see the grade return."""
        before = self.verdict(node)
        argv = [*self.probe(), *experiment, "--hold", "60s", *self.to_scorer(node)]
        child = self.processes.start_run(experiment[0], argv, NODE_NAME=node)
        started = time.monotonic()
        draw.say(self.console, what)
        self.processes.wait_until(f"the fall of {node}", lambda: self.verdict(node).grade > before.grade, seconds=40)
        fallen, seconds = self.verdict(node), time.monotonic() - started
        word = draw.grade_word(fallen.grade)
        was = draw.grade_word(before.grade)
        draw.say(self.console, f"{seconds:.1f} s later {node} is [bold]{word}[/] (was {was}): {fallen.reason}")
        elsewhere = self.place_gang(self.gang("again", "critical"), "The same request now", "critical", bind=False)
        if node in elsewhere:
            raise DemoError(f"the gang was placed on {node} although it is {word}")
        self._end(child, experiment[0])
        self._forgive(node, before.grade)

    def _end(self, child: subprocess.Popen[bytes], name: str) -> None:
        """Ask a running experiment to end: it reverts, verifies and reports."""
        child.terminate()
        try:
            status = child.wait(60)
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"{name} did not end within 60 s of SIGTERM") from error
        if status != 0:
            raise DemoError(f"{name} ended with {status}: {self.processes.last_words(name)}")

    def _forgive(self, node: str, grade: int) -> None:
        """The fault is out; one clean probe brings the grade back."""
        self.processes.wait_until("the scorer knowing of the revert", lambda: not self.active(node), seconds=15)
        held = self.verdict(node)
        draw.say(self.console, f"Reverted and read back. {node} is still {draw.grade_word(held.grade)}: {held.reason}")
        argv = [*self.probe(), "gpu-burn", "--gpu", "all", *self.to_scorer(node), "-o", "json"]
        self.processes.run("clean-probe", argv, timeout=60, NODE_NAME=node)
        self.processes.wait_until(f"the return of {node}", lambda: self.verdict(node).grade <= grade, seconds=30)
        draw.say(
            self.console,
            f"A clean probe, and {node} is [bold green]{draw.grade_word(self.verdict(node).grade)}[/] again.",
        )

    @staticmethod
    def probe() -> list[str]:
        """The command that runs an experiment."""
        return [sys.executable, "-m", "chaos_probe", "run"]

    def to_scorer(self, node: str) -> list[str]:
        """Where an experiment on a node reports, and where it keeps its journal."""
        token = self.fleet_state / "nodes" / node / "token"
        state = str(self.home / "agents" / node)
        return ["--report-to", f"127.0.0.1:{self.ports.grpc}", "--token-file", str(token), "--state-dir", state]

    def verdict(self, node: str) -> Verdict:
        """What the critical gang is told of a node."""
        return self.server.verdict(node, GANG, "critical")

    def active(self, node: str) -> bool:
        """Whether an experiment acts on a node, as far as the scorer knows."""
        return any(found.active_runs for found in self.server.nodes() if found.name == node)

    def await_free(self, expected: dict[str, int]) -> None:
        """Wait until the server knows what is free on some nodes."""

        def told() -> bool:
            free = {node.name: node.free for node in self.server.nodes()}
            return all(free[name] == count for name, count in expected.items())

        self.processes.wait_until("the server's view of the binding", told, seconds=15)

    def worst(self) -> str:
        """A node of the worst grade."""
        nodes = sorted(self.server.nodes(), key=lambda node: (-node.grade, node.name))
        return nodes[0].name
