"""The story, act by act. Everything it shows comes from the running server and the emulated tools."""

import sys
import time

from gpugrade.v1 import grading_pb2 as g
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from scorer.model.grade import DEFAULT_THRESHOLDS, Sensitivity
from scorer.model.words import counted
from tools.demo import draw
from tools.demo.processes import DemoError
from tools.demo.scheduler import PodSpec
from tools.demo.scorecard import score
from tools.demo.stage import GANG, Ports, Stage
from tools.fleet.replay import Outcome, replay
from tools.fleet.state import FleetDir
from tools.fleet.truth import truth

FAULTY_GPU = 2
DAY = 86400.0
YELLOW_FROM = DEFAULT_THRESHOLDS[Sensitivity.SENSITIVE].yellow


class Story:
    """The demo's acts, in order.

    Args:
        stage: where they are played.
        nodes: nodes of the emulated fleet.
        seed: of the emulated fleet.
    """

    def __init__(self, stage: Stage, nodes: int, seed: int) -> None:
        self.stage = stage
        self.console = stage.console
        self.processes = stage.processes
        self.server = stage.server
        self.ports = stage.ports
        self.nodes = nodes
        self.seed = seed

    def tell(self, *, stays: bool) -> None:
        """All acts.

        Args:
            stays: whether the servers stay up afterwards.
        """
        self.fleet_comes_up()
        self.two_weeks_of_probes()
        self.grade_map()
        self.what_is_not_green()
        first = self.three_jobs()
        self.real_slowdown(first)
        self.false_alarm(first)
        self.addresses(stays=stays)

    # 1
    def fleet_comes_up(self) -> None:
        """The emulated nodes, their exporters, and the server."""
        draw.heading(self.console, 1, "The fleet comes up")
        emulator = [sys.executable, "-m", "tools.fleet"]
        state = ["--state", str(self.stage.fleet_state)]
        self.processes.run(
            "fleet-init", [*emulator, "init", *state, "--nodes", str(self.nodes), "--seed", str(self.seed)], timeout=60
        )
        base = f"http://127.0.0.1:{self.ports.exporter}"
        self.processes.start("exporters", [*emulator, "serve", *state, "--port", str(self.ports.exporter)])
        described = self.processes.run("fleet-file", [*emulator, "file", *state, "--exporter-base", base], timeout=60)
        self.stage.fleet_file.write_text(described)
        self.processes.start(
            "gpugrade",
            [
                *(sys.executable, "-m", "scorer.cli.main", "serve", "--mode", "enforce"),
                *("--fleet", str(self.stage.fleet_file), "--db", str(self.stage.home / "gpugrade.db")),
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
            self.console,
            f"[bold]{counted(len(nodes), 'node')}[/] in {counted(racks, 'rack')}, "
            f"[bold]{counted(gpus, 'GPU')}[/]: {', '.join(products)}",
        )
        unknown = sum(node.grade == g.GRADE_UNKNOWN for node in nodes)
        draw.say(
            self.console,
            f"Nothing has been measured yet, so {unknown} of {counted(len(nodes), 'node')} count as [bold]unknown[/]: "
            "not green.",
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
                FleetDir(self.stage.fleet_state), f"127.0.0.1:{self.ports.grpc}", now - 14 * DAY, now, DAY / 2, moved
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
        draw.say(self.console, f"Grade and slowdown for {GANG}:")
        draw.reasons_table(self.console, rows)
        card = score(
            truth(FleetDir(self.stage.fleet_state), time.time()),
            {node.name: node.grades.get(GANG, g.GRADE_UNKNOWN) for node in self.server.nodes()},
            GANG,
            YELLOW_FROM,
        )
        draw.say(
            self.console,
            f"The emulator knows the truth: [bold]{card.found} of {card.bad}[/] slow or sick nodes were found, "
            f"with [bold]{len(card.false_alarms)}[/] false alarms among {card.good} good ones"
            + (f"; missed: {', '.join(card.missed)}." if card.missed else ".")
            + (f" {card.passing} more are in a passing slow episode just now." if card.passing else ""),
        )

    # 5
    def three_jobs(self) -> list[str]:
        """Three jobs by real extender calls; returns the nodes of the gang."""
        draw.heading(self.console, 5, "Three jobs, placed by real extender calls")
        gang = self.stage.gang("llm", "critical")
        placed = self.stage.place_gang(gang, "a [bold]critical[/] gang of 4 pods x 8 GPUs", "critical")
        single = PodSpec(
            "finetune", 8, {"gpugrade.dev/job-type": "train-node", "gpugrade.dev/sensitivity": "sensitive"}
        )
        self.stage.place_one(single, "a [bold]sensitive[/] job on one node, 8 GPUs", "train-node", "sensitive")
        tolerant = PodSpec("chatbot", 1, {"gpugrade.dev/job-type": "infer-gpu", "gpugrade.dev/sensitivity": "tolerant"})
        self.stage.place_one(tolerant, "a [bold]tolerant[/] one, 1 GPU", "infer-gpu", "tolerant")
        draw.say(
            self.console,
            "  [dim]It bears 1.25, so it takes a node that stricter jobs cannot use: the fast ones stay free.[/]",
        )
        self.stage.scheduler.unbind_all([pod.name for pod in gang])
        self.stage.await_free(dict.fromkeys(placed, 8))
        draw.say(self.console, "[dim]The gang has done its work and leaves its nodes.[/]")
        return placed

    # 6
    def real_slowdown(self, gang_nodes: list[str]) -> None:
        """gpu-throttle on a node that the gang would use again."""
        node = self._steady(gang_nodes)
        draw.heading(self.console, 6, f"A real slowdown: gpu-throttle on {node}")
        self.stage.with_fault(
            node,
            ["gpu-throttle", "--param", "to=0.6", "--gpu", str(FAULTY_GPU)],
            "Clocks locked to 60 % through nvidia-smi; the probe burns and measures. One slow sample would be doubted; "
            "this one counts at once, because its cause is known: the experiment is running.",
        )

    # 7
    def false_alarm(self, gang_nodes: list[str]) -> None:
        """dcgm-inject on the same node: nothing is wrong with it."""
        node = self._steady(gang_nodes)
        draw.heading(self.console, 7, f"A false alarm by design: dcgm-inject of XID 79 on {node}")
        self.stage.with_fault(
            node,
            ["dcgm-inject", "--param", "fault=xid", "--param", "value=79", "--gpu", str(FAULTY_GPU)],
            "XID 79 (fallen off the bus) written into DCGM's cache; nothing is wrong with the GPU. Telemetry alone "
            "cannot tell, so the node must fall, and a clean probe must bring it back.",
        )

    # 8
    def addresses(self, *, stays: bool) -> None:
        """Where to go on."""
        draw.heading(self.console, 8, "Try it yourself")
        if not stays:
            draw.say(self.console, "[bold]make demo[/] without ONCE=1 stays up, so that you can ask it:")
        usual = Ports.usual()
        for name, have, wish in zip(("extender", "gRPC", "page", "exporters"), self.ports, usual, strict=True):
            if have != wish:
                draw.say(
                    self.console, f"[yellow]Port {wish} ({name}) is taken by another program; here it is {have}.[/]"
                )
        server = "" if self.ports.grpc == usual.grpc else f" --server localhost:{self.ports.grpc}"
        ask = f".venv/bin/gpugrade{server}"
        for what, line in (
            ("the page", f"http://127.0.0.1:{self.ports.admin}/"),
            ("the extender", f"http://127.0.0.1:{self.ports.scheduler}/scheduler/filter"),
            ("what is not green", f"{ask} nodes --grade red,yellow,unknown"),
            ("why?", f"{ask} explain {self.stage.worst()}"),
            ("where would it go?", f"{ask} place --gpus 8 --pods 4 --product H100"),
            ("the truth (while it is up)", f".venv/bin/python -m tools.fleet truth --state {self.stage.fleet_state}"),
        ):
            self.console.print(f"   [dim]{what}[/]")
            self.console.print(f"     {line}", highlight=False, soft_wrap=True)

    def _graded(self) -> bool:
        """Whether all but the silent node have been measured and graded."""
        measured = [node for node in self.server.nodes() if node.HasField("age_s")]
        return len(measured) >= self.nodes - 1

    def _steady(self, names: list[str]) -> str:
        """The first of some nodes that no passing episode slows just now: its grade must be able to return."""
        rows = truth(FleetDir(self.stage.fleet_state), time.time())
        disturbed = {row["node"] for row in rows if row["episode"]}
        return next((name for name in names if name not in disturbed), names[0])
