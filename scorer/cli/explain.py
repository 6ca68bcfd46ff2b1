"""``gpugrade explain``: why a node has its grade, or why the scheduler was answered as it was."""

from typing import Any

import click
from gpugrade.v1 import grading_pb2

from scorer.cli.client import Client, grade_of, rounded, seconds_between, stamp
from scorer.cli.decisions import about_pod, one_decision
from scorer.cli.gpus import gpu_document, gpu_table
from scorer.cli.nodes import item_age
from scorer.cli.output import Answer, Column, Facts, Table, age, number
from scorer.cli.question import parse_sensitivity, question
from scorer.model.grade import Grade


@click.command("explain")
@click.argument("node", required=False)
@click.option("--job-type", metavar="TYPE", help="Only this job type.")
@click.option(
    "--sensitivity",
    callback=parse_sensitivity,
    metavar="CLASS",
    help="At this class: critical, sensitive or tolerant.",
)
@click.option("--decision", metavar="ID", help="An answer to the scheduler, by its id, in place of a node.")
@click.option(
    "--pod", metavar="NAMESPACE/NAME", help="What the scheduler was told about a pod lately, in place of a node."
)
@question(watchable=True)
def command(
    client: Client,
    node: str | None,
    job_type: str | None,
    sensitivity: str | None,
    decision: str | None,
    pod: str | None,
) -> Answer:
    """Say why NODE has its grade, or why the scheduler was answered as it was."""
    if decision is not None:
        if node or job_type or sensitivity or pod:
            raise click.UsageError("--decision stands alone: it names one answer, with its job type and sensitivity")
        return one_decision(client.decision(decision))
    if pod is not None:
        if node or job_type or sensitivity:
            raise click.UsageError("--pod stands alone: its answers have their own job type and sensitivity")
        return about_pod(client.decisions(pod))
    if node is None:
        raise click.UsageError(
            "name a NODE, a pod with --pod NAMESPACE/NAME, or a decision with --decision ID; "
            "gpugrade nodes lists the nodes"
        )
    client.check_job_type(job_type)
    return _explain_node(client.explain(node, job_type, sensitivity), client.job_type_names(), job_type)


def _explain_node(response: grading_pb2.ExplainNodeResponse, types: list[str], job_type: str | None) -> Answer:
    verdict = max((grade_of(each.grade) for each in response.job_types), default=grade_of(response.node.grade))
    blocks: list[Table | Facts] = [_node_facts(response, verdict)]
    if response.job_types:
        blocks.append(_job_type_table(response))
    if response.gpus:
        blocks.append(gpu_table(response, types))
    if response.findings:
        blocks.append(_finding_table(response))
    return Answer(
        document=_node_document(response, types, verdict, job_type),
        names=(f"node/{response.node.name}",),
        blocks=tuple(blocks),
        bad=verdict is Grade.RED,
    )


def _node_facts(response: grading_pb2.ExplainNodeResponse, verdict: Grade) -> Facts:
    node = response.node
    seconds = item_age(node)
    return Facts(
        (
            ("node", node.name),
            ("grade", verdict.label),
            ("product", node.product),
            ("GPUs", f"{node.gpus}, {node.free} free"),
            ("bad GPUs", ", ".join(str(index) for index in response.bad_gpus) or "none"),
            ("last good probe", "never" if seconds is None else f"{age(seconds)} ago"),
            ("running now", ", ".join(node.active_runs) or "none"),
            ("action", response.action or "none"),
        )
    )


def _job_type_table(response: grading_pb2.ExplainNodeResponse) -> Table:
    columns = (
        Column("JOB-TYPE"),
        Column("SENSITIVITY"),
        Column("GRADE"),
        Column("SLOWDOWN", right=True),
        Column("RANGE", right=True),
        Column("CONFIDENCE", right=True),
        Column("SINCE", right=True),
        Column("REASONS"),
    )
    rows = tuple(
        (
            each.job_type,
            each.sensitivity,
            grade_of(each.grade).label,
            number(each.slowdown),
            f"{number(each.low)}..{number(each.high)}",
            number(each.confidence),
            age(seconds_between(each.since, response.at)),
            "; ".join(each.reasons),
        )
        for each in response.job_types
    )
    return Table(columns, rows)


def _finding_table(response: grading_pb2.ExplainNodeResponse) -> Table:
    columns = (
        Column("RULE"),
        Column("GRADE"),
        Column("GPU", right=True),
        Column("CONCERNS"),
        Column("SOURCE"),
        Column("FIRST", right=True),
        Column("LAST", right=True),
        Column("RUN", wide=True),
        Column("FINDING"),
    )
    rows = tuple(
        (
            each.rule,
            grade_of(each.grade).label,
            "all" if each.gpu_index < 0 else str(each.gpu_index),
            each.reach,
            each.source,
            age(seconds_between(each.first_seen, response.at)),
            age(seconds_between(each.last_seen, response.at)),
            each.run,
            f"{each.text} [{each.evidence}]" if each.evidence else each.text,
        )
        for each in response.findings
    )
    return Table(columns, rows)


def _node_document(
    response: grading_pb2.ExplainNodeResponse, types: list[str], verdict: Grade, job_type: str | None
) -> dict[str, Any]:
    node = response.node
    seconds = item_age(node)
    return {
        "node": node.name,
        "at": stamp(response, "at"),
        "grade": verdict.label,
        "job_type": job_type,
        "product": node.product,
        "gpu_count": node.gpus,
        "free": node.free,
        "age_s": None if seconds is None else round(seconds, 1),
        "active_runs": list(node.active_runs),
        "labels": dict(sorted(node.labels.items())),
        "grades": {
            each.job_type: {
                "grade": grade_of(each.grade).label,
                "sensitivity": each.sensitivity,
                "slowdown": rounded(each.slowdown),
                "low": rounded(each.low),
                "high": rounded(each.high),
                "confidence": rounded(each.confidence),
                "since": stamp(each, "since"),
                "reasons": list(each.reasons),
            }
            for each in response.job_types
        },
        "gpus": [gpu_document(gpu, types) for gpu in response.gpus],
        "bad_gpus": list(response.bad_gpus),
        "action": response.action or "none",
        "evidence": [_evidence_line(each) for each in response.findings],
        "findings": [_finding_document(each) for each in response.findings],
    }


def _evidence_line(finding: grading_pb2.Finding) -> str:
    where = " ".join(part for part in (finding.source, finding.evidence) if part)
    return f"{finding.text} [{where}]" if where else finding.text


def _finding_document(finding: grading_pb2.Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "grade": grade_of(finding.grade).label,
        "reach": finding.reach,
        "gpu": None if finding.gpu_index < 0 else finding.gpu_index,
        "text": finding.text,
        "evidence": finding.evidence,
        "source": finding.source,
        "action": finding.action or "none",
        "first_seen": stamp(finding, "first_seen"),
        "last_seen": stamp(finding, "last_seen"),
        "run": finding.run or None,
    }
