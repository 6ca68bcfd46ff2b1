"""``gpugrade grade``: grade one node from an evidence bundle, without a server."""

import math
from datetime import UTC, datetime
from pathlib import Path

import click

from scorer.cli import output
from scorer.cli.output import Answer, Column, Facts, Table, number
from scorer.grading import NodeExplanation, explain_node, fold
from scorer.model.grade import Grade
from scorer.model.policy import GradingPolicy
from scorer.sources.bundle import load_bundle


@click.command("grade")
@click.option(
    "--bundle",
    "directory",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The directory of evidence to judge.",
)
@click.option("--output", "-o", "form", type=click.Choice(output.FORMATS), default="table", show_default=True)
@click.option("--no-color", is_flag=True, help="No colour on a terminal; also NO_COLOR.")
@click.pass_context
def command(ctx: click.Context, directory: Path, form: str, no_color: bool) -> None:
    """Grade one node from an evidence bundle.

    Exits with 0 if nothing is red, 1 if something is, 2 if the bundle is damaged.
    """
    policy = GradingPolicy()
    bundle = load_bundle(directory)
    answer = answer_of(explain_node(fold(bundle.evidence, policy, bundle.now), 0, policy))
    above = ctx.obj if isinstance(ctx.obj, dict) else {}
    output.show(answer, form, no_color or bool(above.get("no_color")))
    ctx.exit(int(answer.bad))


def answer_of(found: NodeExplanation) -> Answer:
    """Say a node's grades, whom to blame and what to do, for every format."""
    return Answer(
        document=as_json(found),
        names=(f"node/{found.node}",),
        blocks=(_facts(found), _table(found)),
        bad=any(job.grade is Grade.RED for job in found.jobs),
    )


def as_json(answer: NodeExplanation) -> dict[str, object]:
    """Return the shape that other programs read: grades by job type, GPUs, whom to blame, what to do."""
    return {
        "node": answer.node,
        "at": _time(answer.at),
        "grades": {
            job.job_type: {
                "grade": job.grade.label,
                "sensitivity": job.sensitivity.label,
                "slowdown": _figure(job.slowdown),
                "low": _figure(job.low),
                "high": _figure(job.high),
                "confidence": _figure(job.confidence),
                "reasons": list(job.reasons),
            }
            for job in answer.jobs
        },
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "grades": {name: grade.label for name, grade in gpu.grades.items()},
                "slowdown": {d.label: _figure(f.slowdown) for d, f in gpu.dimensions.items()},
            }
            for gpu in answer.gpus
        ],
        "bad_gpus": list(answer.bad_gpus),
        "action": answer.action.value,
        "evidence": list(answer.evidence),
    }


def _facts(answer: NodeExplanation) -> Facts:
    return Facts(
        (
            ("node", answer.node),
            ("at", _time(answer.at)),
            ("bad GPUs", ", ".join(map(str, answer.bad_gpus)) or "none"),
            ("action", answer.action.value),
            *(("evidence", line) for line in answer.evidence),
        )
    )


def _table(answer: NodeExplanation) -> Table:
    columns = (
        Column("JOB-TYPE"),
        Column("SENSITIVITY"),
        Column("GRADE"),
        Column("SLOWDOWN", right=True),
        Column("RANGE", right=True),
        Column("CONFIDENCE", right=True),
        Column("REASONS"),
    )
    rows = tuple(
        (
            job.job_type,
            job.sensitivity.label,
            job.grade.label,
            number(job.slowdown),
            f"{number(job.low)}..{number(job.high)}",
            number(job.confidence),
            "; ".join(job.reasons),
        )
        for job in answer.jobs
    )
    return Table(columns, rows)


def _figure(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
