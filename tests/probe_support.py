"""What the tests of the probes' parts share: a GPU and a journal entry."""

from typing import Any

from chaos_probe.journal import Entry
from chaos_probe.records import Gpu
from chaos_probe.revert import end_processes

GPU = Gpu(0, "GPU-0", "NVIDIA H100 80GB HBM3", "00000000:18:00.0", 81559, 700.0, "570.1")


def entry(run: str, **more: Any) -> Entry:
    """An open journal entry of a run on no GPU."""
    values: dict[str, Any] = {
        "kind": "host-burn",
        "node": "n1",
        "gpus": (),
        "created": 1.0,
        "reverts": (end_processes(run),),
    } | more
    return Entry(run=run, **values)
