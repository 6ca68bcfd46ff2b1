"""The knobs: what an operator may set, with the defaults and why they are so."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from scorer.model.grade import DEFAULT_THRESHOLDS, Sensitivity, Thresholds
from scorer.model.jobtype import DEFAULT_JOB_TYPES, JobType


class Mode(StrEnum):
    """How far the extender goes."""

    OBSERVE = "observe"
    ADVISE = "advise"
    ENFORCE = "enforce"


class UnknownPolicy(StrEnum):
    """What filter does with a node of unknown grade."""

    ALLOW = "allow"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class GradingPolicy:
    """How evidence becomes grades."""

    job_types: tuple[JobType, ...] = DEFAULT_JOB_TYPES
    """One entry a job type; the order is the J axis of a board."""
    thresholds: Mapping[Sensitivity, Thresholds] = field(default_factory=lambda: dict(DEFAULT_THRESHOLDS))
    """Yellow and red bounds by sensitivity."""
    max_probe_age_s: float = 72 * 3600.0
    """No good probe within this time: unknown."""
    stale_telemetry_s: float = 15 * 60.0
    """Telemetry older than this says nothing about now."""
    min_peers: int = 8
    """A reference group needs at least this many GPUs ..."""
    min_peer_nodes: int = 3
    """... on at least this many nodes."""
    fault_window_s: float = 24 * 3600.0
    """How long a fatal event counts when nothing says that it was cured."""


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """How grades become answers to the scheduler."""

    mode: Mode = Mode.OBSERVE
    """Observe computes and answers neutrally: installing gpugrade changes nothing until somebody asks for it."""
    unknown_policy: UnknownPolicy = UnknownPolicy.ALLOW
    """Whether unknown nodes are filtered."""
    unknown_share_limit: float = 0.20
    """Above this share of unknown nodes none is filtered for being unknown: then it is our eyes that are broken."""
    stale_board_s: float = 15 * 60.0
    """A board older than this gives neutral answers, counted in a metric."""
    locality: Mapping[str, float] = field(
        default_factory=lambda: {"node": 1.0, "rack": 1.0, "leaf": 1.1, "across": 1.7}
    )
    """Relative time of a gang by the level that it spans; across is PAL's default."""
    topology: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Trees as (name, label keys nearest first); empty: known presets are detected."""
    gpu_resources: tuple[str, ...] = ("nvidia.com/gpu", "nvidia.com/mig-*")
    """Extended resources that mean GPUs. A name that ends in ``*`` is a prefix and means slices of a GPU."""
    max_body_bytes: int = 64 * 1024 * 1024
    """Bodies above this are refused. 15,000 names with a pod are 0.6 MB; whole Node objects are 17 KB each."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything in the configuration file."""

    grading: GradingPolicy = field(default_factory=GradingPolicy)
    placement: PlacementPolicy = field(default_factory=PlacementPolicy)
