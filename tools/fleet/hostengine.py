"""The hostengine's memory: cached samples, injected ones among them, health watches and the XID history.

What is injected reaches this cache alone: the exporter and ``dcgmi`` read it, the driver, ``nvidia-smi`` and the kernel
log do not.
"""

from tools.fleet.fields import FIELDS, XID, Live, last_xid
from tools.fleet.inventory import Gpu
from tools.fleet.node import Machine
from tools.fleet.state import State

#: After an injected sample's time the next live one lands on top within this many seconds.
UPDATE_S = 1.0
#: Samples are forgotten after this.
KEEP_S = 600.0
#: Most samples kept of one field.
MAX_SAMPLES = 256
#: Window in which counters are judged.
WINDOW_S = 60.0


def inject(state: State, gpu: int, field: int, value: float, stamp: float, now: float) -> None:
    """Put a sample into the cache.

    Args:
        state: of the node; changed in place.
        gpu: index.
        field: DCGM field id.
        value: in the field's unit.
        stamp: time of the sample, Unix seconds; live sampling of the field pauses until then.
        now: Unix seconds.
    """
    dcgm = state["dcgm"]
    samples = dcgm["cache"].setdefault(str(gpu), {}).setdefault(str(field), [])
    # The XID gauge is fed by events only: its last value never ages.
    old = [s for s in samples if field == XID or s[0] >= now - KEEP_S]
    samples[:] = [*old[-MAX_SAMPLES:], [stamp, value, now]]
    # The history is filled by a subscriber that exists only where watches were set before.
    if field == XID and dcgm["watches"] is not None and value > 0:
        history = dcgm["xids"].setdefault(str(gpu), [])
        history.append([int(value), now])
        del history[:-MAX_SAMPLES]


def samples_of(state: State, gpu: int, field: int) -> list[tuple[float, float, float]]:
    """The injected samples of a field as (time, value, when it was injected), oldest first."""
    found = state["dcgm"]["cache"].get(str(gpu), {}).get(str(field), ())
    return sorted(((float(a), float(b), float(c)) for a, b, c in found), key=lambda sample: sample[0])


def held(state: State, gpu: int, field: int, now: float) -> float | None:
    """The injected value that still stands above the live one; None if none does."""
    found = samples_of(state, gpu, field)
    if not found:
        return None
    stamp, value, injected = found[-1]
    return value if field == XID or now < max(stamp, injected) + UPDATE_S else None


def latest(machine: Machine, gpu: Gpu, field: int, live: Live) -> float | None:
    """The latest value of a field, injected or live; None where a lost GPU gives none."""
    injected = held(machine.state, gpu.index, field, live.at)
    if field == XID:
        value, at = last_xid(live)
        found = samples_of(machine.state, gpu.index, field)
        return injected if injected is not None and found[-1][2] >= at else value
    if injected is not None:
        return injected
    return None if machine.lost(gpu, live.at) else FIELDS[field].live(live)


def increase(state: State, gpu: int, field: int, now: float) -> float:
    """How much a counter grew in the window, from the first sample in it to the last: a lone sample shows no growth."""
    window = [value for stamp, value, _ in samples_of(state, gpu, field) if stamp >= now - WINDOW_S]
    return window[-1] - window[0] if len(window) > 1 else 0.0


def xid_history(machine: Machine, gpu: Gpu, live: Live) -> list[int]:
    """The XIDs that the health module remembers of a GPU, oldest first, each once. Only a restart clears them."""
    watches = machine.state["dcgm"]["watches"]
    found = [(float(at), int(xid)) for xid, at in machine.state["dcgm"]["xids"].get(str(gpu.index), ())]
    real, at = last_xid(live)
    if real and watches is not None and at >= float(watches["at"]):
        found.append((at, int(real)))
    return list(dict.fromkeys(xid for _, xid in sorted(found)))
