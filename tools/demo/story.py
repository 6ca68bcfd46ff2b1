"""The story, step by step. Everything it shows comes from the running server and the emulated tools."""

import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from gpugrade.v1 import grading_pb2 as g
from gpugrade.v1 import placement_pb2
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tools.demo import draw
from tools.demo.processes import DemoError, Processes
from tools.demo.scheduler import PodSpec, Scheduler
from tools.demo.server import Server, Verdict
from tools.fleet.replay import Outcome, replay
from tools.fleet.state import FleetDir

GANG = "train-multi"
FAULTY_GPU = 2
DAY = 86400.0
PRODUCT = "NVIDIA-H100-80GB-HBM3"
PRODUCT_TEXT = "H100"


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the servers listen."""

    scheduler: int
    grpc: int
    admin: int
    exporter: int

    @classmethod
    def choose(cls) -> "Ports":
        """The ports of gpugrade where they are free, else what the system gives."""
        return cls(*(_free_port(wish) for wish in (9440, 9441, 9442, 9400)))


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


class Story:
    """The demo's acts, in order.

    Args:
        console: where it is told.
        home: folder for all that the demo writes.
        processes: its children.
        ports: where the servers listen.
        nodes: nodes of the emulated fleet.
        seed: of the emulated fleet.
    """

    def __init__(self, console: Console, home: Path, processes: Processes, ports: Ports, nodes: int, seed: int) -> None:
        self.console = console
        self.home = home
        self.processes = processes
        self.ports = ports
        self.nodes = nodes
        self.seed = seed
        self.fleet_state = home / "fleet"
        self.fleet_file = home / "fleet.yaml"
        self.scheduler = Scheduler(f"http://127.0.0.1:{ports.scheduler}/scheduler", self.fleet_file)
        self.server = Server(f"127.0.0.1:{ports.grpc}")

    def tell(self) -> None:
        """All acts."""
        self.fleet_comes_up()
        self.two_weeks_of_probes()
        self.grade_map()
        self.what_is_not_green()
        first = self.three_jobs()
        self.real_slowdown(first)
        self.false_alarm(first)
        self.addresses()

    # 1
    def fleet_comes_up(self) -> None:
        """The emulated nodes, their exporters, and the server."""
        draw.heading(self.console, 1, "The fleet comes up")
        emulator = [sys.executable, "-m", "tools.fleet"]
        state = ["--state", str(self.fleet_state)]
        self.processes.run(
            "fleet-init", [*emulator, "init", *state, "--nodes", str(self.nodes), "--seed", str(self.seed)], timeout=60
        )
        base = f"http://127.0.0.1:{self.ports.exporter}"
        self.processes.start("exporters", [*emulator, "serve", *state, "--port", str(self.ports.exporter)])
        described = self.processes.run("fleet-file", [*emulator, "file", *state, "--exporter-base", base], timeout=60)
        self.fleet_file.write_text(described)
        self.processes.start(
            "gpugrade",
            [
                *(sys.executable, "-m", "scorer.cli.main", "serve", "--mode", "enforce"),
                *("--fleet", str(self.fleet_file), "--db", str(self.home / "gpugrade.db")),
                *("--scheduler-port", str(self.ports.scheduler), "--grpc-port", str(self.ports.grpc)),
                *("--admin-port", str(self.ports.admin), "--scrape-interval", "4"),
            ],
        )
        self.processes.wait_until("the server answering", lambda: self.server.answers(self.nodes), seconds=30)
        nodes = self.server.nodes()
        gpus = sum(node.gpus for node in nodes)
        products = sorted({node.product for node in nodes})
        racks = len({node.labels.get(draw.RACK, "") for node in nodes})
        draw.say(
            self.console, f"[bold]{len(nodes)}[/] nodes in {racks} racks, [bold]{gpus}[/] GPUs: {', '.join(products)}"
        )
        unknown = sum(node.grade == g.GRADE_UNKNOWN for node in nodes)
        draw.say(
            self.console,
            f"Nothing has been measured yet, so {unknown} of {len(nodes)} nodes are [bold]unknown[/]: not green.",
        )

    # 2
    def two_weeks_of_probes(self) -> None:
        """History as the agents would have reported it, on a fast clock."""
        draw.heading(self.console, 2, "Two weeks of probes, on a fast clock")
        columns = (TextColumn("   {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        started = time.monotonic()
        with Progress(*columns, console=self.console, transient=not self.console.is_terminal) as progress:
            task = progress.add_task("reports by gRPC", total=None)

            def moved(done: int, total: int, outcome: Outcome) -> None:
                del outcome
                progress.update(task, completed=done, total=total)

            now = time.time()
            outcome = replay(
                FleetDir(self.fleet_state), f"127.0.0.1:{self.ports.grpc}", now - 14 * DAY, now, DAY / 2, moved
            )
        if outcome.refused:
            raise DemoError(f"{len(outcome.refused)} records were refused, the first for: {outcome.refused[0][1]}")
        seconds = time.monotonic() - started
        draw.say(
            self.console, f"[bold]{outcome.accepted:,}[/] samples taken in and written to SQLite in {seconds:.1f} s."
        )
        self.processes.wait_until("grading of the history", self._graded, seconds=30)

    # 3
    def grade_map(self) -> None:
        """All nodes for the job type that is hardest to please."""
        draw.heading(self.console, 3, "The grade map, by rack")
        draw.grade_map(self.console, self.server.nodes(), GANG)

    # 4
    def what_is_not_green(self) -> None:
        """Each node that is not green, and why."""
        draw.heading(self.console, 4, "What is not green, and why")
        rows = []
        for node in self.server.nodes():
            grade = node.grades.get(GANG, g.GRADE_UNKNOWN)
            if grade != g.GRADE_GREEN:
                verdict = self.server.verdict(node.name, GANG)
                rows.append((node.name, grade, verdict.slowdown, verdict.reason))
        rows.sort(key=lambda row: (-row[1], -row[2], row[0]))
        draw.reasons_table(self.console, rows)
        if not rows:
            draw.say(self.console, "Everything is green.")

    # 5
    def three_jobs(self) -> list[str]:
        """Three jobs by real extender calls; returns the nodes of the gang."""
        draw.heading(self.console, 5, "Three jobs, placed by real extender calls")
        gang = self._gang("llm", "critical")
        placed = self._place_gang(gang, "a [bold]critical[/] gang of 4 pods x 8 GPUs", "critical")
        single = PodSpec(
            "finetune", 8, {"gpugrade.dev/job-type": "train-node", "gpugrade.dev/sensitivity": "sensitive"}
        )
        self._place_one(single, "a [bold]sensitive[/] job on one node, 8 GPUs", "train-node", "sensitive")
        tolerant = PodSpec("chatbot", 1, {"gpugrade.dev/job-type": "infer-gpu", "gpugrade.dev/sensitivity": "tolerant"})
        self._place_one(tolerant, "a [bold]tolerant[/] one, 1 GPU", "infer-gpu", "tolerant")
        self.scheduler.unbind_all([pod.name for pod in gang])
        self._await_free(dict.fromkeys(placed, 8))
        draw.say(self.console, "[dim]The gang has done its work and leaves its nodes.[/]")
        return placed

    # 6
    def real_slowdown(self, gang_nodes: list[str]) -> None:
        """gpu-throttle on a node that the gang would use again."""
        node = gang_nodes[0]
        draw.heading(self.console, 6, f"A real slowdown: gpu-throttle on {node}")
        self._with_fault(
            node,
            ["gpu-throttle", "--param", "to=0.6", "--param", "precision=tensor", "--gpu", str(FAULTY_GPU)],
            "Clocks locked to 60 % through nvidia-smi; the probe burns and measures.",
        )

    # 7
    def false_alarm(self, gang_nodes: list[str]) -> None:
        """dcgm-inject on the same node: nothing is wrong with it."""
        node = gang_nodes[0]
        draw.heading(self.console, 7, f"A false alarm by design: dcgm-inject of XID 79 on {node}")
        self._with_fault(
            node,
            ["dcgm-inject", "--param", "fault=xid", "--param", "value=79", "--gpu", str(FAULTY_GPU)],
            "XID 79 (fallen off the bus) written into DCGM's cache; nothing is wrong with the GPU.",
        )

    # 8
    def addresses(self) -> None:
        """Where to go on."""
        draw.heading(self.console, 8, "Try it yourself")
        server = "" if self.ports.grpc == 9441 else f" --server localhost:{self.ports.grpc}"
        for line in (
            f"the page        http://127.0.0.1:{self.ports.admin}/",
            f"metrics         http://127.0.0.1:{self.ports.admin}/metrics",
            f"the extender    http://127.0.0.1:{self.ports.scheduler}/scheduler/filter and /prioritize",
            f"nodes           .venv/bin/gpugrade{server} nodes --grade red,yellow",
            f"why?            .venv/bin/gpugrade{server} explain {self._worst()}",
            f"where would it  .venv/bin/gpugrade{server} place --gpus 8 --pods 4 --job-type train-multi",
            f"the truth       .venv/bin/python -m tools.fleet truth --state {self.fleet_state}",
        ):
            self.console.print(f"   {line}", highlight=False, soft_wrap=True)

    # What the acts are made of.

    def _gang(self, name: str, sensitivity: str) -> list[PodSpec]:
        labels = {"gpugrade.dev/job-type": GANG, "gpugrade.dev/sensitivity": sensitivity}
        return [PodSpec(f"{name}-{i}", 8, labels, gang=name, gang_size=4, product=PRODUCT) for i in range(4)]

    def _place_gang(self, gang: list[PodSpec], title: str, sensitivity: str, *, bind: bool = True) -> list[str]:
        plan = self.server.dry_run(8, 4, GANG, sensitivity, PRODUCT_TEXT)
        nodes: list[str] = []
        for pod in gang:
            chosen = self.scheduler.schedule(pod)
            if not chosen.node:
                raise DemoError(f"no node for {pod.name}: {chosen.refused}")
            nodes.append(chosen.node)
            self.scheduler.bind(pod, chosen.node)
            self._await_free({chosen.node: 0})
            if len(nodes) == 1:
                first = chosen
        draw.say(self.console, f"{title}: [bold]{', '.join(nodes)}[/]")
        self._say_time(nodes, GANG, plan)
        for reason, count in first.refused.items():
            draw.say(self.console, f"  [dim]{count} nodes refused: {reason}[/]")
        if not bind:
            self.scheduler.unbind_all([pod.name for pod in gang])
            self._await_free(dict.fromkeys(nodes, 8))
        return nodes

    def _place_one(self, pod: PodSpec, title: str, job_type: str, sensitivity: str) -> None:
        plan = self.server.dry_run(pod.gpus, 1, job_type, sensitivity, PRODUCT_TEXT if pod.product else "")
        before = self.scheduler.free()
        chosen = self.scheduler.schedule(pod)
        if not chosen.node:
            raise DemoError(f"no node for {pod.name}: {chosen.refused}")
        self.scheduler.bind(pod, chosen.node)
        self._await_free({chosen.node: before[chosen.node] - pod.gpus})
        draw.say(self.console, f"{title}: [bold]{chosen.node}[/], score {chosen.score} of 10")
        self._say_time([chosen.node], job_type, plan)

    def _say_time(self, nodes: list[str], job_type: str, plan: placement_pb2.PlaceResponse) -> None:
        slowest = max(self.server.verdict(node, job_type).slowdown for node in nodes)
        spans = f", all in one {plan.level} ({plan.domain})" if len(nodes) > 1 and plan.domain else ""
        draw.say(
            self.console,
            f"  predicted time [bold green]{slowest * (plan.locality_factor or 1.0):.3f}[/]{spans}; "
            f"a choice that knows only free and not free: [bold red]{plan.blind_relative_time:.3f}[/]",
        )

    def _with_fault(self, node: str, experiment: list[str], what: str) -> None:
        before = self._verdict(node)
        child = self.processes.start_run(
            experiment[0],
            [*self._probe(node), "run", *experiment, "--hold", "60s", *self._to_scorer(node)],
            NODE_NAME=node,
        )
        started = time.monotonic()
        draw.say(self.console, what)
        self.processes.wait_until(f"the fall of {node}", lambda: self._verdict(node).grade != g.GRADE_GREEN, seconds=40)
        now = self._verdict(node)
        fell = time.monotonic() - started
        draw.say(
            self.console,
            f"{fell:.1f} s later {node} is [bold]{draw.grade_word(now.grade)}[/] (was {draw.grade_word(before.grade)}): {now.reason}",
        )
        elsewhere = self._place_gang(self._gang("again", "critical"), "The same request now", "critical", bind=False)
        if node in elsewhere:
            raise DemoError(f"the gang was placed on {node} although it is {draw.grade_word(now.grade)}")
        child.terminate()
        try:
            child.wait(60)
        except TimeoutError as error:
            raise DemoError(f"{experiment[0]} did not end") from error
        now = self._verdict(node)
        draw.say(self.console, f"Reverted and read back. {node} is still {draw.grade_word(now.grade)}: {now.reason}")
        self.processes.run(
            "clean-probe",
            [*self._probe(node), "run", "gpu-burn", "--gpu", "all", "--param", "precision=tensor", *self._to_scorer(node), "-o", "json"],
            timeout=60,
            NODE_NAME=node,
        )
        self.processes.wait_until(
            f"the return of {node}", lambda: self._verdict(node).grade == before.grade, seconds=30
        )
        draw.say(
            self.console,
            f"A clean probe, and {node} is [bold green]{draw.grade_word(self._verdict(node).grade)}[/] again.",
        )

    def _probe(self, node: str) -> list[str]:
        return [sys.executable, "-m", "chaos_probe"]

    def _to_scorer(self, node: str) -> list[str]:
        token = self.fleet_state / "nodes" / node / "token"
        state = str(self.home / "agents" / node)
        return ["--report-to", f"127.0.0.1:{self.ports.grpc}", "--token-file", str(token), "--state-dir", state]

    def _verdict(self, node: str) -> Verdict:
        return self.server.verdict(node, GANG, "critical")

    def _active(self, node: str) -> bool:
        return any(found.active_runs for found in self.server.nodes() if found.name == node)

    def _graded(self) -> bool:
        measured = [node for node in self.server.nodes() if node.HasField("age_s")]
        return len(measured) >= self.nodes - 1

    def _await_free(self, expected: dict[str, int]) -> None:
        def told() -> bool:
            free = {node.name: node.free for node in self.server.nodes()}
            return all(free[name] == count for name, count in expected.items())

        self.processes.wait_until("the server's view of the binding", told, seconds=15)

    def _worst(self) -> str:
        nodes = sorted(self.server.nodes(), key=lambda node: (-node.grade, node.name))
        return nodes[0].name
