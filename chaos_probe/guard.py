"""What forbids a run. Each refusal says what is the matter and what to do about it."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from chaos_probe.devices.kubelet import handed_out
from chaos_probe.devices.nvidia_smi import THROTTLED, reason_words
from chaos_probe.devices.nvml import UNKNOWN
from chaos_probe.errors import RefusedError, ToolError, UsageError
from chaos_probe.journal import Journal, no_lock
from chaos_probe.machine import Machine
from chaos_probe.records import Gpu, Vitals
from chaos_probe.settings import GuardSettings, QuietHours

POWER_HEADROOM = 1.15
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Above these nothing is started and a run is ended."""

    max_temperature_c: float
    max_power_w: float

    def broken(self, gpu: Gpu, vitals: Vitals) -> str:
        """Say which ceiling a GPU is above; empty where none, or where it does not tell."""
        if vitals.temperature_c is not None and vitals.temperature_c > self.max_temperature_c:
            return (
                f"GPU {gpu.index} is at {vitals.temperature_c:g} C, above the ceiling of {self.max_temperature_c:g} C"
            )
        limit = self.max_power_w or gpu.default_power_limit_w * POWER_HEADROOM
        if vitals.power_w is not None and limit and vitals.power_w > limit:
            return f"GPU {gpu.index} draws {vitals.power_w:g} W, above the ceiling of {limit:g} W"
        return ""


def is_on(kill_switch: Path) -> bool:
    """Whether the kill switch is on: the file is there, or that cannot be told."""
    try:
        kill_switch.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def is_quiet(hours: Sequence[QuietHours], now: datetime) -> bool:
    """Whether a moment lies in one of the quiet spans; the end itself does not."""
    minute = now.hour * 60 + now.minute
    yesterday = now - timedelta(days=1)
    for span in hours:
        start, end = span.minutes()
        days: Sequence[str] = span.days or _DAYS
        today_in = _DAYS[now.weekday()] in days
        if start < end:
            if today_in and start <= minute < end:
                return True
        elif (today_in and minute >= start) or (_DAYS[yesterday.weekday()] in days and minute < end):
            return True
    return False


@contextmanager
def one_run(state_dir: Path, what: str) -> Iterator[None]:
    """Hold the node's lock: one run at a time.

    Raises:
        RefusedError: another run holds it.
        JournalError: the lock cannot be had on this file system.
    """
    path = state_dir / "run.lock"
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("a+"))
        except OSError as error:
            raise no_lock(state_dir, error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(200).strip() or "another process"
            raise RefusedError(f"a run is in progress on this node ({holder}); wait for it or end it") from None
        except OSError as error:
            raise no_lock(state_dir, error) from error
        file.truncate(0)
        file.write(f"{what}, process {os.getpid()}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def run_in_progress(state_dir: Path) -> bool:
    """Whether a live process holds the node's lock; the system frees it when its holder ends, whatever ends it."""
    try:
        with (state_dir / "run.lock").open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        # Held; or it cannot be told, and then nobody may take it that nothing runs.
        return True
    return False


class Guard:
    """The rules, for one node."""

    def __init__(self, settings: GuardSettings, machine: Machine, journal: Journal) -> None:
        self._settings = settings
        self._machine = machine
        self._journal = journal
        self.ceilings = Ceilings(settings.max_temperature_c, settings.max_power_w)
        self.kill_switch = Path(settings.kill_switch)

    def refusals(self, gpus: Sequence[Gpu], *, injects: bool, now: datetime) -> list[str]:
        """Return all that forbids a run on these GPUs at this moment (an aware time).

        A run that only measures may start on a GPU that is throttled: that is what it would find out.
        """
        found = self._switches(now)
        if injects:
            found += self._clean_start()
        if gpus:
            found += self._jobs(gpus)
            found += self._vitals(gpus, injects=injects)
        return found

    def _switches(self, now: datetime) -> list[str]:
        found = []
        if is_on(self.kill_switch):
            found.append(f"the kill switch {self.kill_switch} is on; remove the file to allow runs")
        try:
            zone = ZoneInfo(self._settings.timezone)
        except (ZoneInfoNotFoundError, ValueError):
            raise UsageError(
                f"guard.timezone {self._settings.timezone!r} is no time zone; write one like UTC"
            ) from None
        if is_quiet(self._settings.quiet_hours, now.astimezone(zone)):
            found.append("these are quiet hours; run later or change guard.quietHours")
        return found

    def _clean_start(self) -> list[str]:
        found = [
            f"run {entry.run} ({entry.kind}) is still open; run chaos-probe recover"
            for entry in self._journal.open_entries()
        ]
        found += [
            f"{path} was damaged, so what it injected may still stand; check the node by hand, then delete the file"
            for path in self._journal.damaged_files()
        ]
        return found

    def _jobs(self, gpus: Sequence[Gpu]) -> list[str]:
        found = []
        telemetry = self._machine.telemetry
        try:
            busy = telemetry.busy() if telemetry is not None else {}
            held = handed_out(Path(self._settings.pod_resources_socket))
        except ToolError as error:
            return [f"whether a job uses the GPUs cannot be told: {error}"]
        for gpu in gpus:
            count = busy.get(gpu.uuid, 0)
            if count == UNKNOWN:
                found.append(f"GPU {gpu.index} does not tell its processes, so a job may use it; run with more rights")
            elif count:
                found.append(f"GPU {gpu.index} has {count} compute process(es); wait for the job or drain the node")
            elif held is not None and (gpu.uuid in held.uuids or gpu.index in held.indices):
                found.append(f"GPU {gpu.index} is handed out to a pod; wait for it or drain the node")
        if held is not None and held.unclear:
            found.append(
                f"pods hold {len(held.unclear)} slice(s) or claimed device(s) on a GPU that is not told; drain the node"
            )
        return found

    def _vitals(self, gpus: Sequence[Gpu], *, injects: bool) -> list[str]:
        telemetry = self._machine.telemetry
        try:
            vitals = telemetry.vitals() if telemetry is not None else {}
        except ToolError as error:
            return [f"temperature and power cannot be read: {error}"]
        found = []
        for gpu in gpus:
            now = vitals.get(gpu.index, Vitals())
            if injects and now.temperature_c is None:
                found.append(f"GPU {gpu.index} does not tell its temperature, so no ceiling holds; check the driver")
            if broken := self.ceilings.broken(gpu, now):
                found.append(f"{broken}; let it cool down, or look at the cooling")
            if injects and now.reasons is not None and now.reasons & THROTTLED:
                found.append(
                    f"GPU {gpu.index} is throttled already ({reason_words(now.reasons & THROTTLED)}); see to that"
                )
        return found
