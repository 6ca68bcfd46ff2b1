"""The watch over a run: ends it above a ceiling or at the kill switch, and keeps the vital signs it saw."""

import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from chaos_probe.devices.nvml import Telemetry
from chaos_probe.errors import ToolError
from chaos_probe.guard import Ceilings, is_on
from chaos_probe.halt import Halt
from chaos_probe.records import Gpu, Vitals

_BLIND_AFTER = 3
_KEEP = 1000
_FIRST_S = 0.5
_JOIN_S = 30.0


class Watch:
    """A thread that looks at the GPUs every few seconds while a run works. Use it as a context manager."""

    def __init__(
        self,
        telemetry: Telemetry | None,
        gpus: Sequence[Gpu],
        ceilings: Ceilings,
        kill_switch: Path,
        every_s: float,
        halt: Halt,
    ) -> None:
        self._telemetry = telemetry
        self._gpus = tuple(gpus)
        self._ceilings = ceilings
        self._kill_switch = kill_switch
        self._every_s = every_s
        self._halt = halt
        self._done = threading.Event()
        self._seen: list[tuple[float, dict[int, Vitals]]] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        # A driver that hangs hangs this thread too, and must not keep the run from its end.
        self._thread.join(_JOIN_S)

    def _work(self) -> None:
        blind = 0
        # The first look comes early: a short burn is to have its context too.
        wait = min(_FIRST_S, self._every_s)
        while not self._done.wait(wait):
            wait = self._every_s
            if is_on(self._kill_switch):
                self._halt.tell(f"the kill switch {self._kill_switch} was turned on")
            if self._telemetry is None or not self._gpus:
                continue
            try:
                vitals = self._telemetry.vitals()
            except ToolError as error:
                blind += 1
                if blind == _BLIND_AFTER:
                    self._halt.tell(f"temperature and power cannot be read any more: {error}")
                continue
            blind = 0
            with self._lock:
                self._seen = [*self._seen[-_KEEP:], (time.time(), vitals)]
            for gpu in self._gpus:
                if broken := self._ceilings.broken(gpu, vitals.get(gpu.index, Vitals())):
                    self._halt.tell(broken)

    def between(self, gpu: int, start: float, end: float) -> Vitals:
        """Return the median vital signs of a GPU between two Unix times; the last reasons seen."""
        with self._lock:
            seen = [v[gpu] for at, v in self._seen if start <= at <= end and gpu in v]

        def median(name: str) -> float | None:
            values = [value for v in seen if (value := getattr(v, name)) is not None]
            return statistics.median(values) if values else None

        return Vitals(
            temperature_c=median("temperature_c"),
            power_w=median("power_w"),
            power_limit_w=median("power_limit_w"),
            sm_clock_mhz=median("sm_clock_mhz"),
            reasons=next((v.reasons for v in reversed(seen) if v.reasons is not None), None),
        )
