"""The demo's scorecard: grades beside the truth."""

from typing import Any

from gpugrade.v1 import grading_pb2 as g

from tools.demo.scorecard import score


def row(node: str, compute: float, *, fault: bool = False, episode: bool = False) -> dict[str, Any]:
    others = dict.fromkeys(("memory", "pcie", "nvlink", "fabric", "numa", "host"), 1.0)
    return {
        "node": node,
        "slowdown": {"compute": compute} | others,
        "faults": [{"kind": "dbe"}] if fault else [],
        "episode": {"cause": "heat", "slowdown": 1.4} if episode else None,
    }


def test_found_missed_false_alarms_and_what_passes() -> None:
    truth = [
        row("slow-found", 1.3),
        row("slow-missed", 1.3),
        row("slow-unknown", 1.3),
        row("sick-found", 1.0, fault=True),
        row("good", 1.0),
        row("good-alarmed", 1.0),
        row("passing", 1.4, episode=True),
    ]
    grades = {
        "slow-found": g.GRADE_RED,
        "slow-missed": g.GRADE_GREEN,
        "slow-unknown": g.GRADE_UNKNOWN,
        "sick-found": g.GRADE_YELLOW,
        "good": g.GRADE_GREEN,
        "good-alarmed": g.GRADE_YELLOW,
        "passing": g.GRADE_GREEN,
    }
    card = score(truth, grades, "train-multi", 1.05)
    assert (card.bad, card.found, card.missed, card.unknown) == (4, 2, ("slow-missed",), 1)
    assert (card.good, card.false_alarms, card.passing) == (2, ("good-alarmed",), 1)


def test_the_worst_gpu_counts() -> None:
    card = score([row("a", 1.0), row("a", 1.3)], {"a": g.GRADE_RED}, "train-multi", 1.05)
    assert (card.bad, card.found, card.good) == (1, 1, 0)
