"""``gpugrade nodes``: the fleet, a line a node."""

from collections.abc import Sequence
from typing import Any

import click
from gpugrade.v1 import grading_pb2

from scorer.cli.client import Client, grade_of, rounded, stamp
from scorer.cli.output import Answer, Column, Table, age, number
from scorer.cli.question import parse_names, question
from scorer.model.grade import Grade


def _parse_grades(ctx: click.Context, option: click.Parameter, value: str | None) -> tuple[str, ...]:
    labels = tuple(name.lower() for name in parse_names(ctx, option, value))
    known = [grade.label for grade in Grade]
    for label in labels:
        if label not in known:
            raise click.BadParameter(f"no grade is called {label!r}; there are {', '.join(known)}")
    return labels


@click.command("nodes")
@click.option("--grade", callback=_parse_grades, metavar="GRADE,...", help="Only these, such as red,yellow.")
@click.option("--job-type", metavar="TYPE", help="The grade for this job type, not the worst of all.")
@question(watchable=True)
def command(client: Client, grade: tuple[str, ...], job_type: str | None) -> Answer:
    """List nodes with their grades.

    The grade of a node is the worst of its grades for the job types, each at its own sensitivity and shape.
    """
    client.check_job_type(job_type)
    types = client.job_type_names()
    response = client.nodes()
    picked = [(node, _grade(node, job_type)) for node in response.nodes]
    if grade:
        picked = [(node, verdict) for node, verdict in picked if verdict.label in grade]
    return Answer(
        document={
            "items": [_item(node, verdict, types) for node, verdict in picked],
            "job_type": job_type,
            "board": {"version": response.board_version, "at": stamp(response, "board_at")},
        },
        names=tuple(f"node/{node.name}" for node, _ in picked),
        blocks=(nodes_table(picked, types, job_type),),
        bad=any(verdict is Grade.RED for _, verdict in picked),
    )


def _grade(node: grading_pb2.Node, job_type: str | None) -> Grade:
    if job_type is None:
        return grade_of(node.grade)
    return grade_of(node.grades[job_type]) if job_type in node.grades else Grade.UNKNOWN


def item_age(node: grading_pb2.Node) -> float | None:
    """Seconds since the newest good probe of its GPUs; ``None`` where there is none."""
    return node.age_s if node.HasField("age_s") else None


def _item(node: grading_pb2.Node, verdict: Grade, types: list[str]) -> dict[str, Any]:
    seconds = item_age(node)
    return {
        "node": node.name,
        "grade": verdict.label,
        "grades": {name: grade_of(node.grades[name]).label for name in types if name in node.grades},
        "gpus": node.gpus,
        "free": node.free,
        "age_s": None if seconds is None else round(seconds, 1),
        "reasons": list(node.reasons),
        "product": node.product,
        "slowdowns": {name: rounded(node.slowdowns[name]) for name in types if name in node.slowdowns},
        "active_runs": list(node.active_runs),
        "labels": dict(sorted(node.labels.items())),
    }


def nodes_table(picked: list[tuple[grading_pb2.Node, Grade]], types: list[str], job_type: str | None) -> Table:
    """A line a node, with its grade for each job type, or for one alone."""
    asked = types if job_type is None else []
    brief = initials(asked)
    columns = (
        Column("NODE"),
        Column("GRADE"),
        *(Column(name.upper(), brief=brief[name]) for name in asked),
        *([] if job_type is None else [Column("SLOWDOWN", right=True)]),
        Column("GPUS", right=True),
        Column("FREE", right=True),
        Column("AGE", right=True),
        *(Column(f"{name.upper()}-SLOWDOWN", wide=True, right=True) for name in asked),
        Column("RUNS", wide=True),
        Column("PRODUCT", wide=True),
        Column("REASONS"),
    )
    rows = tuple(
        (
            node.name,
            verdict.label,
            *(_grade(node, name).label for name in asked),
            *([] if job_type is None else [_slowdown(node, job_type)]),
            str(node.gpus),
            str(node.free),
            age(item_age(node)),
            *(_slowdown(node, name) for name in asked),
            ",".join(node.active_runs),
            node.product,
            "; ".join(node.reasons),
        )
        for node, verdict in picked
    )
    return Table(columns, rows)


def initials(names: Sequence[str]) -> dict[str, str]:
    """A head of few letters for each job type: ``TM`` for train-multi; numbered where that is another's too."""
    found: dict[str, str] = {}
    for name in names:
        letters = "".join(part[:1] for part in name.split("-")).upper()
        head, count = letters, 1
        while head in found.values():
            count += 1
            head = f"{letters}{count}"
        found[name] = head
    return found


def _slowdown(node: grading_pb2.Node, job_type: str) -> str:
    return number(node.slowdowns[job_type]) if job_type in node.slowdowns else number(0.0)
