"""The settings file: a camelCase mirror of :class:`scorer.model.policy.Settings`."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta, field

from scorer.model.dimension import Dimension
from scorer.model.errors import ConfigError
from scorer.model.grade import Grade, Sensitivity, Thresholds
from scorer.model.jobtype import JobShape, JobType
from scorer.model.policy import GradingPolicy, Mode, PlacementPolicy, Settings, UnknownPolicy
from scorer.sources.topology_section import TreeRow, trees_of
from scorer.sources.yaml_file import API_VERSION, Strict, decode_yaml, read_bounded

MAX_BYTES = 1024 * 1024
_KIND = "Settings"
_SHARES_TOLERANCE = 0.01
_UNKNOWN_AS = {None: None, "green": Grade.GREEN, "yellow": Grade.YELLOW, "red": Grade.RED}

_Positive = Annotated[float, Meta(gt=0)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Slowdown = Annotated[float, Meta(ge=1, le=100)]
_Label = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]


class _Shape(Strict, frozen=True):
    pods: Annotated[int, Meta(ge=1)] = 1
    gpus: Annotated[int, Meta(ge=1)] = 1


class _JobType(Strict, frozen=True):
    name: _Label
    weights: Annotated[dict[str, _Share], Meta(min_length=1)]
    waits_for_slowest: bool
    sensitivity: str
    shape: _Shape = _Shape()
    chosen_when: str = "by label only"


class _Thresholds(Strict, frozen=True):
    yellow: _Slowdown
    red: _Slowdown
    #: The grade whose score an unknown node gets; null scores below yellow.
    unknown_as: str | None = None


class _Grading(Strict, frozen=True):
    job_types: tuple[_JobType, ...] = ()
    thresholds: dict[str, _Thresholds] = field(default_factory=dict)
    max_probe_age_s: _Positive | None = None
    stale_telemetry_s: _Positive | None = None
    min_peers: Annotated[int, Meta(ge=2)] | None = None
    min_peer_nodes: Annotated[int, Meta(ge=1)] | None = None
    fault_window_s: _Positive | None = None


class _Placement(Strict, frozen=True):
    mode: Mode | None = None
    unknown_policy: UnknownPolicy | None = None
    unknown_share_limit: _Share | None = None
    stale_board_s: _Positive | None = None
    locality: dict[str, Annotated[float, Meta(ge=1, le=100)]] = field(default_factory=dict)
    topology: tuple[TreeRow, ...] = ()
    gpu_resources: Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)] | None = None
    max_body_bytes: Annotated[int, Meta(ge=1024, le=1024**3)] | None = None


class _Document(Strict, frozen=True):
    api_version: str
    kind: str
    grading: _Grading = _Grading()
    placement: _Placement = _Placement()


def load_settings(path: Path) -> Settings:
    """Read a settings file. What it leaves out keeps its default; a job type of a known name replaces that one.

    Raises:
        ConfigError: names the file, the place inside it, what is wrong there and what to do.
    """
    document = decode_yaml(path, read_bounded(path, MAX_BYTES), _KIND, _Document)
    try:
        return Settings(_grading(document.grading), _placement(document.placement))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def dump_settings(settings: Settings) -> str:
    """The settings as a file that :func:`load_settings` reads back to the same."""
    grading, placement = settings.grading, settings.placement
    document = _Document(
        API_VERSION,
        _KIND,
        _Grading(
            tuple(_job_type_row(job) for job in grading.job_types),
            {s.label: _Thresholds(t.yellow, t.red, _label(t.unknown_as)) for s, t in grading.thresholds.items()},
            **_plain(grading, _Grading, {"job_types", "thresholds"}),
        ),
        _Placement(
            locality=dict(placement.locality),
            topology=tuple(TreeRow(name, keys) for name, keys in placement.topology),
            **_plain(placement, _Placement, {"locality", "topology"}),
        ),
    )
    return yaml.safe_dump(msgspec.to_builtins(document), sort_keys=False, allow_unicode=True)


def _plain(policy: object, struct: type[msgspec.Struct], apart: set[str]) -> dict[str, Any]:
    return {name: getattr(policy, name) for name in struct.__struct_fields__ if name not in apart}


def _given(struct: msgspec.Struct, apart: set[str]) -> dict[str, Any]:
    """Fields that the file sets."""
    return {name: value for name, value in _plain(struct, type(struct), apart).items() if value is not None}


def _label(grade: Grade | None) -> str | None:
    return None if grade is None else grade.label


def _job_type_row(job: JobType) -> _JobType:
    return _JobType(
        job.name,
        {dimension.label: share for dimension, share in job.weights.items()},
        job.waits_for_slowest,
        job.sensitivity.label,
        _Shape(job.shape.pods, job.shape.gpus),
        job.chosen_when,
    )


def _grading(section: _Grading) -> GradingPolicy:
    base = GradingPolicy()
    jobs = {job.name: job for job in base.job_types}
    seen: set[str] = set()
    for i, row in enumerate(section.job_types):
        place = f"$.grading.jobTypes[{i}]"
        if row.name in seen:
            raise ValueError(f"{place}.name: {row.name!r} is given twice")
        seen.add(row.name)
        jobs[row.name] = _job_type(place, row)
    return replace(
        base,
        job_types=tuple(jobs.values()),
        thresholds=_thresholds(base.thresholds, section.thresholds),
        **_given(section, {"job_types", "thresholds"}),
    )


def _job_type(place: str, row: _JobType) -> JobType:
    weights: dict[Dimension, float] = {}
    for name, share in row.weights.items():
        try:
            weights[Dimension.parse(name)] = share
        except ValueError as error:
            raise ValueError(f"{place}.weights: {error}") from None
    total = math.fsum(weights.values())
    if abs(total - 1) > _SHARES_TOLERANCE:
        raise ValueError(f"{place}.weights: the shares sum to {total:.3f}; they must sum to 1")
    try:
        sensitivity = Sensitivity.parse(row.sensitivity)
    except ValueError as error:
        raise ValueError(f"{place}.sensitivity: {error}") from None
    shape = JobShape(row.shape.pods, row.shape.gpus)
    return JobType(row.name, weights, row.waits_for_slowest, sensitivity, shape, row.chosen_when)


def _thresholds(
    base: Mapping[Sensitivity, Thresholds], section: Mapping[str, _Thresholds]
) -> Mapping[Sensitivity, Thresholds]:
    found = dict(base)
    for name, row in section.items():
        place = f"$.grading.thresholds.{name}"
        try:
            sensitivity = Sensitivity.parse(name)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        if row.unknown_as not in _UNKNOWN_AS:
            raise ValueError(f"{place}.unknownAs: {row.unknown_as!r} is not green, yellow, red or null")
        if row.red < row.yellow:
            raise ValueError(f"{place}.red: {row.red} is below yellow, {row.yellow}")
        found[sensitivity] = Thresholds(row.yellow, row.red, _UNKNOWN_AS[row.unknown_as])
    return found


def _placement(section: _Placement) -> PlacementPolicy:
    base = PlacementPolicy()
    return replace(
        base,
        locality={**base.locality, **section.locality},
        topology=trees_of(section.topology, "$.placement.topology"),
        **_given(section, {"locality", "topology"}),
    )
