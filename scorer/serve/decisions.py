"""Decisions as messages: every node of one, or the gist of it."""

import math
from collections.abc import Iterable

import numpy as np
from google.protobuf.timestamp_pb2 import Timestamp
from gpugrade.v1 import placement_pb2 as pb

from scorer.model.grade import Grade
from scorer.placement.decide import standing
from scorer.serve.state import Decision

#: Nodes of a score that its gist names.
MAX_BEST = 5


def name_of(decision: Decision) -> str:
    """The pod that a decision is about, as namespace/name."""
    return f"{decision.pod.namespace or 'default'}/{decision.pod.name}"


def node_decisions(decision: Decision, places: Iterable[int]) -> list[pb.NodeDecision]:
    """What was said of nodes.

    Args:
        decision: the answer that was given.
        places: of the nodes, in the order in which they were asked.
    """
    scored = decision.verb == "score"
    # The strangers stand in the order asked, so that the n-th unknown row is the n-th of them.
    stranger = np.cumsum(decision.rows < 0) - 1
    answers: list[pb.NodeDecision] = []
    for i in places:
        row, value = int(decision.rows[i]), int(decision.values[i])
        answers.append(
            pb.NodeDecision(
                node=decision.strangers[int(stranger[i])] if row < 0 else decision.nodes[row],
                passed=scored or value == 0,
                score=value if scored else 0,
                reason=_why(decision, row, value, Grade(int(decision.grade[i])), float(decision.slowdown[i])),
            )
        )
    return answers


def stamp(at: float) -> Timestamp:
    """A time in whole seconds."""
    return Timestamp(seconds=math.floor(at))


def summary(decision_id: str, decision: Decision) -> pb.DecisionSummary:
    """The gist of a decision: how many passed, the best, and why the others were refused."""
    scored = decision.verb == "score"
    message = pb.DecisionSummary(
        decision_id=decision_id,
        verb=decision.verb,
        at=stamp(decision.at),
        job_type=decision.pod.job_type,
        sensitivity=decision.pod.sensitivity.label,
        mode=str(decision.mode),
        board_version=decision.board_version,
        view_version=decision.view_version,
        asked=len(decision.rows),
        passed=len(decision.rows) if scored else int(np.count_nonzero(decision.values == 0)),
        neutral=decision.neutral,
        warnings=decision.pod.warnings,
    )
    if scored:
        best = np.argsort(-decision.values.astype(np.int16), kind="stable")[:MAX_BEST]
        message.best.extend(node_decisions(decision, best.tolist()))
    else:
        counts = np.bincount(decision.values, minlength=len(decision.reasons) + 1)[1:].tolist()
        refused = sorted(zip(decision.reasons, counts, strict=True), key=lambda pair: -pair[1])
        message.refused.extend(pb.Refusal(reason=reason, nodes=count) for reason, count in refused)
    return message


def _why(decision: Decision, row: int, value: int, grade: Grade, slowdown: float) -> str:
    if decision.neutral:
        return f"answered neutrally: {decision.neutral}"
    if row < 0:
        return "not a node of the cluster that gpugrade saw: passes, with a neutral score"
    parts = [standing(grade, slowdown)]
    if decision.verb == "filter" and value:
        parts.append(decision.reasons[value - 1])
    if row in decision.planned:
        parts.append("in the plan of its gang")
    if decision.mode == "observe":
        parts.append("mode observe answers neutrally")
    return ", ".join(parts)
