"""The agent of a node: measures on a schedule, tells the scorer, and reverts what a dead run left behind."""

import random
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import structlog

from chaos_probe.errors import JournalError, ProbeError, RefusedError, SpoolError, UsageError
from chaos_probe.experiments import experiment
from chaos_probe.guard import one_run
from chaos_probe.halt import Halt
from chaos_probe.journal import Journal
from chaos_probe.kernel_log import KernelLog
from chaos_probe.machine import Machine
from chaos_probe.metrics import Metrics
from chaos_probe.records import WHOLE_NODE, Gpu, Outcome, RunRecord, Sample, StepStatus
from chaos_probe.recover import Reporter, recover
from chaos_probe.report import Sender
from chaos_probe.request import DEFAULT_HOLD_S, Request, Sinks
from chaos_probe.run import Runner
from chaos_probe.schedule import LastTimes, Refusals, Task, choose, first_pause, pause, seed_of
from chaos_probe.settings import Planned, Settings, seconds
from chaos_probe.spool import Spool
from chaos_probe.wire import queue_gpus, queue_kernel, queue_run, queue_sample

log = structlog.get_logger("chaos_probe.agent")

_HOUSEKEEPING_S = 1.0
_LAST_FLUSH_S = 5.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What the agent is made of, opened."""

    settings: Settings
    journal: Journal
    queue: Spool
    sender: Sender
    metrics: Metrics


def open_parts(settings: Settings) -> Parts:
    """Open journal, queue and the way to the scorer.

    Raises:
        ProbeError: one of them cannot be used.
    """
    if not settings.report.to:
        raise UsageError("the agent must know whom to tell; give --report-to HOST:PORT")
    journal = Journal(settings.state_path)
    try:
        queue = Spool(settings.state_path / "queue.db", settings.spool.max_records, settings.spool.max_mib << 20)
    except SpoolError as error:
        # What a dead run left standing is taken back all the same. That it was is told once there is a queue.
        recover_open(settings, journal, _no_queue(error))
        raise
    if queue.moved is not None:
        log.error("the queue was damaged and set aside", file=str(queue.moved))
    return Parts(settings, journal, queue, Sender(queue, settings.node_name, settings.report), Metrics())


def _no_queue(error: SpoolError) -> Reporter:
    def refuse(_: RunRecord) -> None:
        raise error

    return refuse


def recover_open(settings: Settings, journal: Journal, report: Reporter) -> None:
    """Revert what a run left open, unless that run is alive, and log what came of it."""
    try:
        if not journal.open_entries():
            return
        with one_run(settings.state_path, "recover"):
            for done in recover(journal, report):
                if done.problem:
                    log.error("a run is not reverted and closed", run=done.entry.run, problem=done.problem)
                else:
                    log.warning("reverted a run that was left open", run=done.entry.run, kind=done.entry.kind)
    except RefusedError as error:
        log.warning("not recovering", reason=str(error))
    except JournalError as error:
        log.error("what is open cannot be told; nothing is injected meanwhile", error=str(error))  # noqa: TRY400 - a person needs the reason, not the stack


def check_plan(planned: Sequence[Planned], *, allow_injection: bool) -> None:
    """Check the experiments that the settings list.

    Raises:
        UsageError: one does not exist, has wrong parameters, or injects where that is not allowed.
    """
    for item in planned:
        chosen = experiment(item.kind)
        params = chosen.parse(item.params)
        if chosen.injects_with(params) and not allow_injection:
            raise UsageError(
                f"{item.kind} injects a fault; set agent.allowInjection to let the agent do that by itself"
            )


def tasks_of(planned: Sequence[Planned], gpus: Sequence[Gpu]) -> dict[Task, Planned]:
    """Return the tasks: one per GPU for experiments on GPUs, one for the node for the others."""
    tasks: dict[Task, Planned] = {}
    for item in planned:
        every = seconds(item.every)
        on_gpus = experiment(item.kind).scope == "gpu"
        for index in [gpu.index for gpu in gpus] if on_gpus else [WHOLE_NODE]:
            tasks[Task(item.kind, index, every)] = item
    return tasks


class Agent:
    """One agent, from its start to its end."""

    def __init__(self, parts: Parts, halt: Halt) -> None:
        settings = parts.settings
        check_plan(settings.agent.experiments, allow_injection=settings.agent.allow_injection)
        self._parts = parts
        self._settings = settings
        self._halt = halt
        self._gpus: tuple[Gpu, ...] | None = None
        self._kernel = (
            KernelLog(Path(settings.agent.kernel_log), settings.state_path / "kernel-log.json")
            if settings.agent.kernel_log
            else None
        )

    def work(self, *, once: bool) -> list[Outcome]:
        """Recover, then measure until told to stop, or one round of everything.

        Returns:
            What the round gave; empty unless ``once``.
        """
        parts = self._parts
        outcomes: list[Outcome] = []
        with ExitStack() as stack:
            stack.callback(self._end)
            if self._settings.agent.metrics_port:
                parts.metrics.serve(self._settings.agent.metrics_port)
            parts.sender.start()
            recover_open(self._settings, parts.journal, self._record)
            for path in parts.journal.damaged_files():
                log.error("a journal file was damaged; check the node by hand, then delete it", file=str(path))
            self._housekeeping()
            keeper = threading.Thread(target=self._keep_house, name="housekeeping", daemon=True)
            keeper.start()
            if once:
                outcomes = self._round()
            else:
                self._loop()
            stack.callback(keeper.join)
            stack.callback(lambda: self._halt.tell("the round is over"))
        return outcomes

    def _end(self) -> None:
        """Say what can be said quickly; the rest waits on disk for the next start."""
        try:
            self._housekeeping()
            if not self._parts.sender.flush(attempts=2, timeout_s=_LAST_FLUSH_S):
                log.warning("reports wait for the next start", last_error=self._parts.sender.counts.last_error)
        except SpoolError as error:
            log.error("reports cannot be sent", error=str(error))  # noqa: TRY400 - a person needs the reason, not the stack
        self._parts.sender.close()

    # Runs.

    def _record(self, record: RunRecord) -> None:
        queue_run(self._parts.queue, record)
        self._parts.sender.wake()

    def _sample(self, sample: Sample) -> None:
        queue_sample(self._parts.queue, sample)
        self._parts.sender.wake()

    def _run(self, machine: Machine, planned: Planned, gpus: Sequence[int] | None) -> Outcome:
        hold = seconds(planned.hold) if planned.hold else DEFAULT_HOLD_S
        runner = Runner(self._settings, machine, self._parts.journal, Sinks(self._sample, self._record))
        outcome = runner.execute(Request(experiment(planned.kind), planned.params, gpus, hold), self._halt.child())
        self._parts.metrics.ran(outcome, time.time())
        words = "; ".join(f"{s.step}: {s.detail}" for s in outcome.steps if s.status not in {"ok", "skipped"})
        log.info("ran", run=outcome.run, good=outcome.good, samples=len(outcome.samples), problem=words or None)
        return outcome

    def _available(self, machine: Machine) -> list[Planned]:
        return [p for p in self._settings.agent.experiments if not experiment(p.kind).missing(machine)]

    def _round(self) -> list[Outcome]:
        machine = Machine.detect(self._settings.dcgm.host)
        outcomes = []
        for planned in self._available(machine):
            if self._halt.told():
                break
            outcomes.append(self._run(machine, planned, None))
        return outcomes

    def _loop(self) -> None:
        agent = self._settings.agent
        # Not for secrets: a schedule that is the same each time for one node.
        rng = random.Random(seed_of(self._settings.node_name) if agent.seed is None else agent.seed)  # noqa: S311
        last = LastTimes(self._settings.state_path / "last-times.json")
        refusals = Refusals()
        mean = seconds(agent.pause)
        self._halt.wait(first_pause(mean, rng))
        while not self._halt.told():
            # A revert that failed is not left to the next start: what kept it from working may be over.
            recover_open(self._settings, self._parts.journal, self._record)
            machine = Machine.detect(self._settings.dcgm.host)
            tasks = tasks_of(self._available(machine), machine.gpus)
            task = choose(refusals.ready(list(tasks), time.monotonic()), last(), time.time(), rng)
            if task is not None:
                gpus = None if task.gpu == WHOLE_NODE else [task.gpu]
                outcome = self._run(machine, tasks[task], gpus)
                # A refused run measured nothing, so its task stays stale and is tried again, after others.
                if any(step.status is StepStatus.REFUSED for step in outcome.steps):
                    refusals.add(task, time.monotonic(), mean)
                elif not outcome.interrupted:
                    refusals.forget(task)
                    self._remember(last, task, list(tasks))
            self._halt.wait(pause(mean, rng))

    @staticmethod
    def _remember(last: LastTimes, task: Task, known: Sequence[Task]) -> None:
        try:
            last.set(task, time.time(), known)
        except OSError as error:
            reason = "the time of a run cannot be kept; after a restart it is measured again"
            log.warning(reason, task=task.key, error=str(error))

    # Housekeeping.

    def _keep_house(self) -> None:
        every = seconds(self._settings.agent.inventory_every)
        next_inventory = time.monotonic() + every
        while not self._halt.wait(_HOUSEKEEPING_S):
            if time.monotonic() >= next_inventory:
                self._gpus_now()
                next_inventory = time.monotonic() + every
            self._small_things()

    def _housekeeping(self) -> None:
        self._gpus_now()
        self._small_things()

    def _gpus_now(self) -> None:
        machine = Machine.detect(self._settings.dcgm.host)
        if machine.gpus and machine.gpus != self._gpus:
            try:
                queue_gpus(self._parts.queue, machine.gpus)
            except SpoolError as error:
                log.error("the inventory cannot be queued", error=str(error))  # noqa: TRY400 - a person needs the reason, not the stack
                return
            self._gpus = machine.gpus
            self._parts.sender.wake()

    def _follow(self, kernel: KernelLog) -> None:
        if not (lines := kernel.poll()):
            return
        try:
            for line in lines:
                queue_kernel(self._parts.queue, line.at, line.text)
            kernel.keep()
        except (SpoolError, OSError):
            # Rather twice than never: these lines are read again.
            kernel.rewind()
            raise
        self._parts.sender.wake()

    def _small_things(self) -> None:
        try:
            if self._kernel is not None:
                self._follow(self._kernel)
            self._parts.metrics.level(self._parts.sender, len(self._parts.journal.open_entries()))
            if self._settings.agent.metrics_file:
                self._parts.metrics.write(Path(self._settings.agent.metrics_file))
        except (ProbeError, OSError) as error:
            log.error("housekeeping failed", error=str(error))  # noqa: TRY400 - a person needs the reason, not the stack
