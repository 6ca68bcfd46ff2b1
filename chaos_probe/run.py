"""A run: plan, guard, journal, inject, observe, revert, verify, report; always in this order, whatever happens."""

import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime

from chaos_probe.deadman import DeadMan
from chaos_probe.errors import HaltedError, ProbeError, RefusedError, UsageError
from chaos_probe.experiments.base import Context, Plan, Value
from chaos_probe.guard import Guard, one_run
from chaos_probe.halt import Halt, pause_point
from chaos_probe.journal import Entry, Journal, State
from chaos_probe.machine import Machine
from chaos_probe.records import Gpu, Outcome, Sample, Step, StepStatus, Vitals
from chaos_probe.recover import finish, revert
from chaos_probe.request import Request, Sinks, choose_gpus
from chaos_probe.settings import Settings, seconds
from chaos_probe.watch import Watch

STEPS = ("plan", "guard", "journal", "inject", "observe", "revert", "verify", "report")
_CHILD_S = 5.0


class Runner:
    """Runs experiments on this node, one at a time."""

    def __init__(self, settings: Settings, machine: Machine, journal: Journal, sinks: Sinks | None = None) -> None:
        self.settings = settings
        self.machine = machine
        self.journal = journal
        self.sinks = sinks or Sinks()
        self.guard = Guard(settings.guard, machine, journal)

    def execute(self, request: Request, halt: Halt) -> Outcome:
        """Do a run and return all that it did.

        Raises:
            UsageError: parameters or GPUs that do not exist; nothing was done.
        """
        params = request.experiment.parse(request.params)
        request.check_hold()
        gpus = choose_gpus(self.machine, request.gpus)
        return _Run(self, request, params, gpus, halt).execute()


class _Run:
    """One run in progress."""

    def __init__(
        self, runner: Runner, request: Request, params: Mapping[str, Value], gpus: tuple[Gpu, ...], halt: Halt
    ) -> None:
        self._settings = runner.settings
        self._machine = runner.machine
        self._journal = runner.journal
        self._sinks = runner.sinks
        self._guard = runner.guard
        self._request = request
        self._experiment = request.experiment
        self._halt = halt
        self._steps: list[Step] = []
        self._samples: list[Sample] = []
        self._broken = False
        self._why = ""
        self._entry: Entry | None = None
        self._deadman: DeadMan | None = None
        self._watch: Watch | None = None
        self._ctx = Context(
            run=f"{request.experiment.kind}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
            kind=request.experiment.kind,
            gpus=gpus,
            params=params,
            hold_s=request.hold_s,
            machine=self._machine,
            halt=halt,
            ours=self._ours,
            keep=self._keep,
            vitals=self._vitals,
        )

    def execute(self) -> Outcome:
        with ExitStack() as stack:
            self._do("plan", self._plan)
            self._do("guard", lambda: self._guarded(stack))
            if self._request.dry_run:
                self._halt_here("dry run: not done")
            self._do("journal", self._journalled)
            if not self._broken:
                self._start_watch(stack)
            self._do("inject", self._inject)
            self._do("observe", lambda: self._experiment.observe(self._ctx))
            self._do("revert", self._revert, always=self._entry is not None)
            self._do("verify", self._verify, always=self._entry is not None)
            self._do("report", self._report, always=self._entry is not None)
        return self._outcome()

    def _outcome(self) -> Outcome:
        entry = self._entry
        clean = entry is None or entry.state is not State.OPEN
        plan = self._ctx.plan
        left = plan.residues if plan is not None and entry is not None and entry.started is not None else ()
        return Outcome(
            run=self._ctx.run,
            kind=self._ctx.kind,
            node=self._settings.node_name,
            gpus=self._ctx.gpus,
            steps=tuple(self._steps),
            samples=tuple(self._samples),
            figures=tuple(self._ctx.figures),
            residues=left,
            reverted=clean,
            verified=clean,
            interrupted=self._halt.by_signal,
        )

    # Steps.

    def _do(self, name: str, work: Callable[[], str], *, always: bool = False) -> None:
        """Do one step and note how it went; after a step that failed only those that must are done."""
        if self._broken and not always:
            self._note(name, StepStatus.SKIPPED, self._why)
            return
        pause_point(name)
        try:
            self._note(name, StepStatus.OK, work())
        except UsageError as error:
            if self._entry is None:
                raise
            self._fail(name, StepStatus.FAILED, str(error))
        except HaltedError as error:
            self._fail(name, StepStatus.HALTED, str(error))
        except RefusedError as error:
            self._fail(name, StepStatus.REFUSED, str(error))
        except (ProbeError, OSError) as error:
            self._fail(name, StepStatus.FAILED, str(error))
        except Exception as error:  # noqa: BLE001 - whatever went wrong, what was injected must be reverted
            self._fail(name, StepStatus.FAILED, f"{type(error).__name__}: {error}")
        pause_point(f"{name}:done")

    def _fail(self, name: str, status: StepStatus, detail: str) -> None:
        self._note(name, status, detail)
        self._broken = True
        self._why = self._why or f"{name} {status}"

    def _halt_here(self, why: str) -> None:
        if not self._broken:
            self._broken = True
            self._why = why

    def _note(self, name: str, status: StepStatus, detail: str) -> None:
        step = Step(name, time.time(), status, detail)
        self._steps.append(step)
        # Who reads along may be gone (a closed pipe or file); the run and its revert go on.
        with suppress(OSError, ValueError):
            self._sinks.step(step)

    def _plan(self) -> str:
        experiment, ctx = self._experiment, self._ctx
        if missing := experiment.missing(self._machine):
            raise RefusedError(f"{experiment.kind} cannot run here: {'; '.join(missing)}; see chaos-probe doctor")
        ctx.plan = experiment.plan(ctx)
        return ctx.plan.detail

    def _the_plan(self) -> Plan:
        if self._ctx.plan is None:
            raise ProbeError("no plan was made")
        return self._ctx.plan

    def _guarded(self, stack: ExitStack) -> str:
        stack.enter_context(one_run(self._journal.folder.parent, f"{self._ctx.kind} {self._ctx.run}"))
        refusals = self._guard.refusals(self._ctx.gpus, injects=self._the_plan().injects, now=datetime.now(UTC))
        if refusals:
            raise RefusedError("; ".join(refusals))
        self._halt.check()
        return "no job, no other run, ceilings kept"

    def _journalled(self) -> str:
        plan, ctx = self._the_plan(), self._ctx
        if not plan.injects:
            return "nothing to revert, nothing to keep"
        entry = Entry(
            run=ctx.run,
            kind=ctx.kind,
            node=self._settings.node_name,
            gpus=tuple(gpu.index for gpu in ctx.gpus) if self._experiment.scope == "gpu" else (),
            created=time.time(),
            reverts=plan.reverts,
            residues=plan.residues,
            report=self._sinks.record is not None,
        )
        file = self._journal.write(entry)
        self._entry = entry
        words = f"{len(plan.reverts)} revert(s) in {file}"
        if plan.outlives:
            after = plan.bound_s + seconds(self._settings.dead_man.margin)
            # The burn before the injection counts too.
            self._deadman = DeadMan.arm(file, ctx.run, after + plan.bound_s, self._settings.spool)
            words += f"; {self._deadman}"
        return words

    def _start_watch(self, stack: ExitStack) -> None:
        every = seconds(self._settings.guard.watch_every)
        watch = Watch(
            self._machine.telemetry, self._ctx.gpus, self._guard.ceilings, self._guard.kill_switch, every, self._halt
        )
        self._watch = stack.enter_context(watch)

    def _inject(self) -> str:
        before = self._experiment.before(self._ctx)
        if self._entry is None:
            return self._experiment.inject(self._ctx)
        self._halt.check()
        with self._journal.hold(self._ctx.run) as entry:
            if entry is None or entry.state is not State.OPEN:
                raise HaltedError("the dead-man closed this run before it began")
            started = replace(entry, started=time.time())
            self._journal.write(started)
            self._entry = started
            self._ctx.active = True
            if self._sinks.record is not None:
                self._sinks.record(started.record())
            pause_point("inject:begun")
            words = self._experiment.inject(self._ctx)
        return f"{before}; {words}" if before else words

    def _revert(self) -> str:
        if self._entry is None:
            return "nothing to revert"
        entry = revert(self._journal, self._ctx.run, "run")
        for child in self._ctx.children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(_CHILD_S)
        if entry is None:
            raise ProbeError("the journal file is gone, so nothing could be reverted; check the node by hand")
        self._entry = entry
        self._ctx.active = False
        who = "" if entry.by == "run" else f"by the {entry.by}: "
        if entry.state is State.OPEN:
            raise ProbeError(f"{who}{entry.detail}")
        return f"{who}{entry.detail}"

    def _verify(self) -> str:
        if self._entry is None:
            return "nothing was changed"
        if self._entry.state is State.OPEN:
            raise ProbeError(f"not as found: {self._entry.detail}")
        words = self._entry.detail
        if self._entry.started is not None and not self._halt.told():
            after = self._experiment.after(self._ctx)
            words = f"{words}; {after}" if after else words
        return words

    def _report(self) -> str:
        if self._entry is None:
            return f"{len(self._samples)} sample(s)"
        entry = finish(self._journal, self._ctx.run, self._sinks.record)
        if entry is not None:
            self._entry = replace(entry, state=self._entry.state)
        if entry is not None and entry.state is State.CLOSED and self._deadman is not None:
            self._deadman.stand_down()
        told = "told" if self._entry.report else "not asked to tell anybody"
        return f"{len(self._samples)} sample(s), {self._entry.record().phase}, {told}"

    # What the experiment calls back.

    @contextmanager
    def _ours(self) -> Iterator[bool]:
        with self._journal.hold(self._ctx.run) as entry:
            yield entry is not None and entry.state is State.OPEN

    def _keep(self, sample: Sample) -> None:
        self._samples.append(sample)
        self._sinks.sample(sample)

    def _vitals(self, gpu: int, start: float, end: float) -> Vitals:
        return self._watch.between(gpu, start, end) if self._watch is not None else Vitals()
