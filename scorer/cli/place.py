"""``gpugrade place``: where a job would go, and how fast it would run there. Nothing is reserved or changed."""

from typing import Any

import click
from gpugrade.v1 import placement_pb2

from scorer.cli.client import Client, rounded
from scorer.cli.output import Answer, Column, Facts, Table, number
from scorer.cli.question import parse_names, parse_sensitivity, question
from scorer.model.grade import Grade
from scorer.model.words import counted

MAX_PODS = 100_000
MAX_GPUS_OF_A_POD = 1024


@click.command("place")
@click.option("--gpus", type=click.IntRange(1, MAX_GPUS_OF_A_POD), required=True, help="GPUs of each pod.")
@click.option("--pods", type=click.IntRange(1, MAX_PODS), default=1, show_default=True, help="Pods that run in step.")
@click.option("--job-type", metavar="TYPE", help="If not given, chosen by the shape, as for a pod without the label.")
@click.option("--sensitivity", callback=parse_sensitivity, metavar="CLASS", help="If not given, the job type's own.")
@click.option("--exclude", callback=parse_names, metavar="NODE,...", help="Nodes to leave out.")
@click.option("--product", metavar="TEXT", help="Only nodes whose GPU product contains this, such as H100.")
@question()
def command(
    client: Client,
    gpus: int,
    pods: int,
    job_type: str | None,
    sensitivity: str | None,
    exclude: tuple[str, ...],
    product: str | None,
) -> Answer:
    """Say where a job would go, and how fast it would run there.

    A dry run: nothing is reserved. The predicted time is relative to GPUs of typical speed that are close together. It
    stands beside that of a choice that packs by topology and knows no grades.
    """
    client.check_job_type(job_type)
    client.check_nodes(exclude)
    response = client.place(
        placement_pb2.PlaceRequest(
            gpus=gpus,
            pods=pods,
            job_type=job_type or "",
            sensitivity=sensitivity or "",
            exclude=exclude,
            product=product or "",
        )
    )
    return _infeasible(response, gpus, pods) if response.infeasible else _feasible(response, gpus, pods)


def _document(response: placement_pb2.PlaceResponse, gpus: int, pods: int) -> dict[str, Any]:
    return {
        "job_type": response.job_type,
        "sensitivity": response.sensitivity,
        "pods": pods,
        "gpus": gpus,
        "feasible": not response.infeasible,
        "infeasible": response.infeasible or None,
        "assignments": [
            {
                "node": each.node,
                "pods": each.pods,
                "grade": each.grade,
                "slowdown": rounded(each.slowdown),
                "reasons": list(each.reasons),
            }
            for each in response.assignments
        ],
        "predicted_relative_time": rounded(response.predicted_relative_time),
        "blind_relative_time": rounded(response.blind_relative_time),
        "level": response.level,
        "domain": response.domain,
        "locality_factor": rounded(response.locality_factor),
        "warnings": list(response.warnings),
    }


def _job(response: placement_pb2.PlaceResponse, gpus: int, pods: int) -> str:
    return (
        f"{counted(pods, 'pod')} of {counted(gpus, 'GPU')}, "
        f"{response.job_type or 'any type'}, {response.sensitivity or 'own sensitivity'}"
    )


def _infeasible(response: placement_pb2.PlaceResponse, gpus: int, pods: int) -> Answer:
    return Answer(
        document=_document(response, gpus, pods),
        names=(),
        blocks=(Facts((("job", _job(response, gpus, pods)), ("does not fit", response.infeasible))),),
        bad=True,
        notes=tuple(response.warnings),
    )


def _feasible(response: placement_pb2.PlaceResponse, gpus: int, pods: int) -> Answer:
    columns = (
        Column("NODE"),
        Column("PODS", right=True),
        Column("GRADE"),
        Column("SLOWDOWN", right=True),
        Column("REASONS"),
    )
    rows = tuple(
        (each.node, str(each.pods), each.grade, number(each.slowdown), "; ".join(each.reasons))
        for each in response.assignments
    )
    spans = " ".join(part for part in (response.level, response.domain) if part)
    facts = Facts(
        (
            ("job", _job(response, gpus, pods)),
            ("spans", f"{spans or 'no known level'} (locality factor {number(response.locality_factor)})"),
            ("predicted time", f"{number(response.predicted_relative_time)} of typical"),
            ("blind choice", f"{number(response.blind_relative_time)} of typical{_gain(response)}"),
        )
    )
    return Answer(
        document=_document(response, gpus, pods),
        names=tuple(f"node/{each.node}" for each in response.assignments),
        blocks=(Table(columns, rows), facts),
        bad=any(each.grade == Grade.RED.label for each in response.assignments),
        notes=tuple(response.warnings),
    )


def _gain(response: placement_pb2.PlaceResponse) -> str:
    """How much less time the placement takes than a blind one, in words; nothing where that is not known."""
    ours, blind = response.predicted_relative_time, response.blind_relative_time
    if not (0 < ours < float("inf") and 0 < blind < float("inf")):
        return ""
    percent = round(100 * (1 - ours / blind))
    if percent == 0:
        return ", the same"
    return f", so this one takes {abs(percent)} % {'less' if percent > 0 else 'more'}"
