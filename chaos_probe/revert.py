"""Reverts as data: each a name and arguments that any process can carry out, again and again, and read back."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any

from chaos_probe.devices.dcgm import WATCH_LETTERS, Dcgm
from chaos_probe.devices.host import end_marked, marked
from chaos_probe.devices.nvidia_smi import REASON_CLOCKS_SETTING, NvidiaSmi
from chaos_probe.errors import ProbeError, ToolError

Action = Mapping[str, Any]
"""``{"do": name, ...arguments}``: what the journal keeps."""

_SETTLE_S = 5.0
_POLL_S = 0.25
_WATTS = 0.5
_WRITTEN_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Revert:
    """How one kind of action is carried out and read back (empty text: as it was found), and what it must say."""

    apply: Callable[[Action], None]
    problem: Callable[[Action], str]
    arguments: Mapping[str, type | UnionType]


def power_limit(gpu: str, watts: float) -> Action:
    """Set a GPU's power limit back to what was read, in watts."""
    return {"do": "power-limit", "gpu": gpu, "watts": watts}


def reset_clocks(gpu: str) -> Action:
    """Take the lock of a GPU's clock away."""
    return {"do": "reset-clocks", "gpu": gpu}


def dcgm_value(gpu_id: int, field: int, neutral: float, injected: float, ahead: int, host: str = "") -> Action:
    """Write the value that was found over an injected one.

    Args:
        gpu_id: DCGM's number of the GPU.
        field: DCGM field id.
        neutral: what was found, or 0.
        injected: what was written.
        ahead: seconds by which injected values are dated ahead; the neutral one must be later.
        host: of the host engine.
    """
    return {
        "do": "dcgm-value",
        "gpu_id": gpu_id,
        "field": field,
        "neutral": neutral,
        "injected": injected,
        "ahead": ahead,
        "host": host,
    }


def dcgm_watches(letters: str, host: str = "") -> Action:
    """Set the health watches back to those found."""
    return {"do": "dcgm-watches", "letters": letters, "host": host}


def end_processes(run: str) -> Action:
    """End the processes that carry the mark of a run."""
    return {"do": "end-processes", "run": run}


def _smi() -> NvidiaSmi:
    smi = NvidiaSmi.find()
    if smi is None:
        raise ToolError("nvidia-smi is not on PATH, and the revert needs it")
    return smi


def _dcgm(action: Action) -> Dcgm:
    dcgm = Dcgm.find(str(action.get("host", "")))
    if dcgm is None:
        raise ToolError("dcgmi is not on PATH, and the revert needs it")
    return dcgm


def _gpu(smi: NvidiaSmi, name: str) -> Any:  # noqa: ANN401 - a Gpu; typed by its uses
    for gpu in smi.gpus():
        if name in {gpu.uuid, str(gpu.index)}:
            return gpu
    raise ToolError(
        f"GPU {name} is not there any more, so its limits cannot be read back; if it was taken out for good, "
        "delete the run's file in the journal"
    )


def _power_problem(action: Action) -> str:
    smi = _smi()
    limits = smi.power_limits(_gpu(smi, action["gpu"]))
    if limits is None:
        return f"GPU {action['gpu']} does not say its power limit"
    if abs(limits.now - action["watts"]) > _WATTS:
        return f"GPU {action['gpu']} has a power limit of {limits.now:g} W, found was {action['watts']:g} W"
    return ""


def _clocks_problem(action: Action) -> str:
    smi = _smi()
    vitals = smi.vitals().get(_gpu(smi, action["gpu"]).index)
    if vitals is None or vitals.reasons is None:
        return f"GPU {action['gpu']} does not say what limits its clock"
    if vitals.reasons & REASON_CLOCKS_SETTING:
        return f"GPU {action['gpu']} still has its clock limited by a setting"
    return ""


def _apply_value(action: Action) -> None:
    # Of two samples the later counts, and an injected one may be dated ahead. It was written some time after the start.
    until = action["started"] + action["ahead"] + _WRITTEN_WITHIN_S if action["ahead"] > 1 else 0.0
    ahead = max(1, math.ceil(until - time.time()))
    _dcgm(action).inject(action["gpu_id"], action["field"], action["neutral"], ahead)


def _value_problem(action: Action) -> str:
    value = _dcgm(action).read(action["gpu_id"], [action["field"]])[action["field"]]
    # Live sampling may already have put a real value on top: anything below the injected one is real.
    if value is None or value < action["injected"]:
        return ""
    return f"field {action['field']} of DCGM's GPU {action['gpu_id']} still reads {value:g}"


def watch_letters(watches: Mapping[str, bool]) -> str:
    """Return the letters that set exactly these watches."""
    return "".join(sorted({WATCH_LETTERS[name] for name, on in watches.items() if on and name in WATCH_LETTERS}))


def _watches_problem(action: Action) -> str:
    now = watch_letters(_dcgm(action).watches())
    return (
        ""
        if now == action["letters"]
        else f"health watches are {now or 'off'}, found were {action['letters'] or 'off'}"
    )


def _processes_problem(action: Action) -> str:
    left = marked(action["run"])
    return f"processes {left} of the run are still there" if left else ""


REVERTS: Mapping[str, Revert] = {
    "power-limit": Revert(
        lambda a: _smi().set_power_limit(a["gpu"], a["watts"]), _power_problem, {"gpu": str, "watts": int | float}
    ),
    "reset-clocks": Revert(lambda a: _smi().reset_clocks(a["gpu"]), _clocks_problem, {"gpu": str}),
    "dcgm-value": Revert(
        _apply_value,
        _value_problem,
        {"gpu_id": int, "field": int, "neutral": int | float, "injected": int | float, "ahead": int, "host": str},
    ),
    "dcgm-watches": Revert(
        lambda a: _dcgm(a).set_watches(a["letters"]), _watches_problem, {"letters": str, "host": str}
    ),
    "end-processes": Revert(lambda a: (end_marked(a["run"]), None)[1], _processes_problem, {"run": str}),
}


def well_formed(action: Action) -> bool:
    """Whether this is an action that can be carried out: a known name with all its arguments."""
    kind = REVERTS.get(str(action.get("do")))
    return kind is not None and all(isinstance(action.get(name), types) for name, types in kind.arguments.items())


def carry_out(actions: Sequence[Action], started: float) -> list[str]:
    """Carry out reverts of what was injected from ``started`` on, last first; each is tried whatever became of others.

    Returns:
        What went wrong; empty where nothing did.
    """
    problems = []
    for action in reversed(actions):
        try:
            REVERTS[action["do"]].apply({**action, "started": started})
        except (ProbeError, OSError) as error:
            problems.append(str(error))
    return problems


def read_back(actions: Sequence[Action], settle_s: float = _SETTLE_S) -> list[str]:
    """Return what is not as it was found, giving the machine some seconds to settle."""
    deadline = time.monotonic() + settle_s
    while True:
        problems = []
        for action in actions:
            try:
                problem = REVERTS[action["do"]].problem(action)
            except (ProbeError, OSError) as error:
                problem = str(error)
            if problem:
                problems.append(problem)
        if not problems or time.monotonic() >= deadline:
            return problems
        time.sleep(_POLL_S)
