"""Answers to the scheduler, as ``gpugrade explain`` shows them: one with all its nodes, or the latest about a pod."""

from typing import Any

from gpugrade.v1 import placement_pb2

from scorer.cli.client import seconds_between, stamp
from scorer.cli.output import Answer, Column, Facts, Table, age


def about_pod(response: placement_pb2.ListDecisionsResponse) -> Answer:
    """The latest decisions about a pod: an overview, then the best nodes, then why others were refused."""
    blocks: list[Table | Facts] = [Facts((("pod", response.pod),)), _overview(response)]
    if any(each.best for each in response.decisions):
        blocks.append(_best(response))
    if any(each.refused for each in response.decisions):
        blocks.append(_refused(response))
    warnings = (warning for each in response.decisions for warning in each.warnings)
    return Answer(
        document={"pod": response.pod, "decisions": [_summary_document(each) for each in response.decisions]},
        names=tuple(f"decision/{each.decision_id}" for each in response.decisions),
        blocks=tuple(blocks),
        notes=tuple(dict.fromkeys(warnings)),
    )


def _overview(response: placement_pb2.ListDecisionsResponse) -> Table:
    columns = (
        Column("DECISION"),
        Column("VERB"),
        Column("AGO", right=True),
        Column("AT", wide=True),
        Column("JOB-TYPE"),
        Column("SENSITIVITY"),
        Column("MODE"),
        Column("ASKED", right=True),
        Column("PASSED", right=True),
        Column("NEUTRAL"),
    )
    rows = tuple(
        (
            each.decision_id,
            each.verb,
            age(seconds_between(each.at, response.now)),
            stamp(each, "at") or "",
            each.job_type,
            each.sensitivity,
            each.mode,
            str(each.asked),
            str(each.passed),
            each.neutral,
        )
        for each in response.decisions
    )
    return Table(columns, rows)


def _best(response: placement_pb2.ListDecisionsResponse) -> Table:
    columns = (Column("DECISION"), Column("BEST"), Column("SCORE", right=True), Column("REASON"))
    rows = tuple(
        (each.decision_id, node.node, str(node.score), node.reason) for each in response.decisions for node in each.best
    )
    return Table(columns, rows)


def _refused(response: placement_pb2.ListDecisionsResponse) -> Table:
    columns = (Column("DECISION"), Column("REFUSED", right=True), Column("REASON"))
    rows = tuple(
        (each.decision_id, str(refusal.nodes), refusal.reason)
        for each in response.decisions
        for refusal in each.refused
    )
    return Table(columns, rows)


def _summary_document(each: placement_pb2.DecisionSummary) -> dict[str, Any]:
    return {
        "decision": each.decision_id,
        "verb": each.verb,
        "at": stamp(each, "at"),
        "job_type": each.job_type,
        "sensitivity": each.sensitivity,
        "mode": each.mode,
        "board_version": each.board_version,
        "view_version": each.view_version,
        "asked": each.asked,
        "passed": each.passed,
        "best": [{"node": node.node, "score": node.score, "reason": node.reason} for node in each.best],
        "refused": [{"reason": refusal.reason, "nodes": refusal.nodes} for refusal in each.refused],
        "neutral": each.neutral or None,
        "warnings": list(each.warnings),
    }


def one_decision(response: placement_pb2.ExplainDecisionResponse) -> Answer:
    """One decision with every node."""
    facts = Facts(
        (
            ("decision", response.decision_id),
            ("verb", response.verb),
            ("pod", response.pod),
            ("job type", response.job_type),
            ("sensitivity", response.sensitivity),
            ("mode", response.mode),
            ("board", f"version {response.board_version}"),
            ("cluster view", f"version {response.view_version}"),
        )
    )
    columns = (Column("NODE"), Column("PASSED"), Column("SCORE", right=True), Column("REASON"))
    scored = response.verb == "score"
    rows = tuple(
        (each.node, "yes" if each.passed else "no", str(each.score) if scored else "", each.reason)
        for each in response.nodes
    )
    return Answer(
        document=_decision_document(response, scored),
        names=(f"decision/{response.decision_id}",),
        blocks=(facts, Table(columns, rows)),
        notes=tuple(response.warnings),
    )


def _decision_document(response: placement_pb2.ExplainDecisionResponse, scored: bool) -> dict[str, Any]:
    return {
        "decision": response.decision_id,
        "verb": response.verb,
        "pod": response.pod,
        "job_type": response.job_type,
        "sensitivity": response.sensitivity,
        "mode": response.mode,
        "board_version": response.board_version,
        "view_version": response.view_version,
        "nodes": [
            {
                "node": each.node,
                "passed": each.passed,
                "score": each.score if scored else None,
                "reason": each.reason,
            }
            for each in response.nodes
        ],
        "warnings": list(response.warnings),
    }
