"""``gpugrade gpus NODE``: each GPU of a node, and how fast it is."""

from typing import Any

import click
from gpugrade.v1 import grading_pb2

from scorer.cli.client import Client, grade_of, rounded, stamp
from scorer.cli.output import Answer, Column, Table, number
from scorer.cli.question import question
from scorer.model.dimension import Dimension
from scorer.model.grade import Grade


@click.command("gpus")
@click.argument("node")
@question(watchable=True)
def command(client: Client, node: str) -> Answer:
    """Show each GPU of NODE, and how fast it is.

    Figures are slowdowns against GPUs of the same kind on other nodes: 1.00 is typical, 1.20 takes 20 % longer.
    """
    response = client.explain(node, None, None)
    types = client.job_type_names()
    return Answer(
        document={
            "node": response.node.name,
            "at": stamp(response, "at"),
            "gpus": [gpu_document(gpu, types) for gpu in response.gpus],
            "bad_gpus": list(response.bad_gpus),
        },
        names=tuple(f"gpu/{response.node.name}/{gpu.index}" for gpu in response.gpus),
        blocks=(gpu_table(response, types),),
        bad=any(worst(gpu) is Grade.RED for gpu in response.gpus),
    )


def worst(gpu: grading_pb2.GpuGrade) -> Grade:
    """The worst of a GPU's grades; unknown where it has none."""
    return max((grade_of(value) for value in gpu.grades.values()), default=Grade.UNKNOWN)


def gpu_document(gpu: grading_pb2.GpuGrade, types: list[str]) -> dict[str, Any]:
    """A GPU for JSON. A dimension that was never measured is left out."""
    measured = _measured(gpu)
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "grade": worst(gpu).label,
        "grades": {name: grade_of(gpu.grades[name]).label for name in types if name in gpu.grades},
        "slowdown": {name: rounded(value.slowdown) for name, value in measured.items()},
        "low": {name: rounded(value.low) for name, value in measured.items()},
        "high": {name: rounded(value.high) for name, value in measured.items()},
        "samples": {name: value.samples for name, value in measured.items()},
    }


def _measured(gpu: grading_pb2.GpuGrade) -> dict[str, grading_pb2.Prediction]:
    return {d.label: gpu.slowdowns[d.label] for d in Dimension if d.label in gpu.slowdowns}


def gpu_table(response: grading_pb2.ExplainNodeResponse, types: list[str]) -> Table:
    """A line a GPU; ``BAD`` marks those that are to be repaired."""
    seen = {name for gpu in response.gpus for name in gpu.slowdowns}
    dimensions = [d.label for d in Dimension if d.label in seen]
    bad = frozenset(response.bad_gpus)
    columns = (
        Column("GPU", right=True),
        Column("GRADE"),
        Column("BAD"),
        *(Column(name.upper(), right=True) for name in dimensions),
        *(Column(name.upper(), wide=True) for name in types),
        *(Column(f"{name.upper()}-RANGE", wide=True, right=True) for name in dimensions),
        Column("SAMPLES", wide=True, right=True),
        Column("UUID", wide=True),
    )
    rows = []
    for gpu in response.gpus:
        measured = _measured(gpu)
        rows.append(
            (
                str(gpu.index),
                worst(gpu).label,
                "yes" if gpu.index in bad else "no",
                *(number(measured[name].slowdown) if name in measured else "" for name in dimensions),
                *(grade_of(gpu.grades[name]).label if name in gpu.grades else "" for name in types),
                *(_range(measured.get(name)) for name in dimensions),
                str(sum(value.samples for value in measured.values())),
                gpu.uuid,
            )
        )
    return Table(columns, tuple(rows))


def _range(value: grading_pb2.Prediction | None) -> str:
    return "" if value is None else f"{number(value.low)}..{number(value.high)}"
