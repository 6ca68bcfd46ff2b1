"""``gpugrade job-types``: what a pod's labels may say."""

from typing import Any

import click
from gpugrade.v1 import grading_pb2

from scorer.cli.client import Client, rounded
from scorer.cli.output import Answer, Column, Table, number
from scorer.cli.question import question
from scorer.model.dimension import Dimension


@click.command("job-types")
@question()
def command(client: Client) -> Answer:
    """List job types and sensitivity classes.

    These are the values of the pod labels gpugrade.dev/job-type and gpugrade.dev/sensitivity.
    """
    response = client.job_types()
    return Answer(
        document=_document(response),
        names=tuple(f"job-type/{each.name}" for each in response.job_types),
        blocks=(_type_table(response), _class_table(response)),
    )


def _type_table(response: grading_pb2.ListJobTypesResponse) -> Table:
    columns = (
        Column("JOB-TYPE"),
        Column("SENSITIVITY"),
        Column("WAITS"),
        Column("STEP-TIME"),
        Column("CHOSEN-WHEN"),
    )
    rows = tuple(
        (
            each.name,
            each.sensitivity,
            "yes" if each.waits_for_slowest else "no",
            ",".join(f"{name}={share:.2f}" for name, share in _weights(dict(each.weights)).items()),
            each.chosen_when,
        )
        for each in response.job_types
    )
    return Table(columns, rows)


def _class_table(response: grading_pb2.ListJobTypesResponse) -> Table:
    columns = (
        Column("SENSITIVITY"),
        Column("YELLOW-FROM", right=True),
        Column("RED-FROM", right=True),
        Column("UNKNOWN-SCORES-AS"),
    )
    rows = tuple(
        (each.name, number(each.yellow_from), number(each.red_from), each.unknown_scores_as)
        for each in response.sensitivities
    )
    return Table(columns, rows)


def _document(response: grading_pb2.ListJobTypesResponse) -> dict[str, Any]:
    return {
        "items": [
            {
                "name": each.name,
                "chosen_when": each.chosen_when,
                "weights": {name: rounded(share) for name, share in _weights(dict(each.weights)).items()},
                "waits_for_slowest": each.waits_for_slowest,
                "sensitivity": each.sensitivity,
            }
            for each in response.job_types
        ],
        "sensitivities": [
            {
                "name": each.name,
                "yellow_from": rounded(each.yellow_from),
                "red_from": rounded(each.red_from),
                "unknown_scores_as": each.unknown_scores_as,
            }
            for each in response.sensitivities
        ],
    }


def _weights(shares: dict[str, float]) -> dict[str, float]:
    """Shares in the order of the dimensions; a map on the wire has none."""
    order = [dimension.label for dimension in Dimension]
    return dict(sorted(shares.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))
