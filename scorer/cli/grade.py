"""``gpugrade grade``: grade one node from an evidence bundle, without a server."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path

import click

from scorer.grading import NodeExplanation, explain_node, fold
from scorer.model.errors import GpugradeError
from scorer.model.grade import Grade
from scorer.model.policy import GradingPolicy
from scorer.sources.bundle import load_bundle


class _Failure(click.ClickException):
    exit_code = 2


@click.command("grade")
@click.option(
    "--bundle",
    "directory",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The directory of evidence to judge.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(directory: Path, output: str) -> None:
    """Grade one node from an evidence bundle.

    Exits with 0 if nothing is red, 1 if something is, 2 if the bundle is damaged.
    """
    policy = GradingPolicy()
    try:
        bundle = load_bundle(directory)
    except GpugradeError as error:
        raise _Failure(str(error)) from error
    answer = explain_node(fold(bundle.evidence, policy, bundle.now), 0, policy)
    click.echo(json.dumps(as_json(answer), indent=1, allow_nan=False) if output == "json" else as_table(answer))
    if any(job.grade is Grade.RED for job in answer.jobs):
        click.get_current_context().exit(1)


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


def as_table(answer: NodeExplanation) -> str:
    """Return the answer for people: one line a job type, then the reasons, whom to blame and what to do."""
    lines = [f"{answer.node} at {_time(answer.at)}", ""]
    lines.append(f"{'JOB TYPE':<14}{'SENSITIVITY':<13}{'GRADE':<9}{'SLOWDOWN':<22}CONFIDENCE")
    for job in answer.jobs:
        figure = "-" if math.isnan(job.slowdown) else f"{job.slowdown:.2f} ({job.low:.2f} to {job.high:.2f})"
        lines.append(
            f"{job.job_type:<14}{job.sensitivity.label:<13}{job.grade.label:<9}{figure:<22}{job.confidence:.0%}"
        )
    lines.append("")
    for job in answer.jobs:
        lines.extend(f"{job.job_type}: {reason}" for reason in job.reasons)
    lines.append("")
    lines.append(f"bad GPUs: {', '.join(map(str, answer.bad_gpus)) or 'none'}")
    lines.append(f"action:   {answer.action.value}")
    lines.extend(f"evidence: {line}" for line in answer.evidence)
    return "\n".join(lines)


def _figure(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
