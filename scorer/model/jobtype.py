"""Job types: how a job's step time divides over the dimensions, and what shape it has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scorer.model.dimension import Dimension
from scorer.model.grade import Sensitivity


@dataclass(frozen=True, slots=True)
class JobShape:
    """What a job asks for.

    Attributes:
        pods: number of pods that run in step (1: no gang).
        gpus: GPUs of each pod.
    """

    pods: int = 1
    gpus: int = 1

    @property
    def variant(self) -> int:
        """The index of this shape on the variant axis of a board: bit 0 several GPUs a pod, bit 1 several pods."""
        return int(self.gpus > 1) | (int(self.pods > 1) << 1)


#: Length of the variant axis: which of NVLink and fabric a job's shape uses.
VARIANTS = 4


@dataclass(frozen=True, slots=True)
class JobType:
    """What a kind of job needs.

    Attributes:
        name: as in the label ``gpugrade.dev/job-type``.
        weights: share of the step time by dimension; the shares sum to 1.
        waits_for_slowest: whether all members wait for the slowest one.
        sensitivity: the class when no label says so.
        shape: the shape for which the published grade of this type is computed.
        chosen_when: for people: when this type is chosen if no label says so.
    """

    name: str
    weights: Mapping[Dimension, float]
    waits_for_slowest: bool
    sensitivity: Sensitivity
    shape: JobShape
    chosen_when: str = ""

    def weights_for(self, variant: int) -> NDArray[np.float64]:
        """Shares over the dimensions that a shape uses, rescaled to sum to 1.

        One GPU a pod uses no NVLink, one pod uses no fabric: those are left out.

        Args:
            variant: see :attr:`JobShape.variant`.

        Returns:
            float64 array of shape (dimensions,).
        """
        row = np.zeros(len(Dimension))
        for dimension, share in self.weights.items():
            row[dimension] = share
        if not variant & 1:
            row[Dimension.NVLINK] = 0.0
        if not variant & 2:
            row[Dimension.FABRIC] = 0.0
        total = row.sum()
        return row / total if total > 0 else row


def find_job_type(job_types: Sequence[JobType], name: str) -> JobType:
    """Return the job type of that name.

    Raises:
        ValueError: if there is none; the text lists those there are.
    """
    for job_type in job_types:
        if job_type.name == name:
            return job_type
    names = ", ".join(t.name for t in job_types)
    raise ValueError(f"no job type is called {name!r}; there are {names}")


def _d(**shares: float) -> Mapping[Dimension, float]:
    return {Dimension.parse(name): share for name, share in shares.items()}


DEFAULT_JOB_TYPES: tuple[JobType, ...] = (
    JobType(
        "train-multi",
        _d(compute=0.60, memory=0.15, nvlink=0.10, fabric=0.10, pcie=0.05),
        waits_for_slowest=True,
        sensitivity=Sensitivity.SENSITIVE,
        shape=JobShape(pods=2, gpus=8),
        chosen_when="gang of several pods",
    ),
    JobType(
        "train-node",
        _d(compute=0.65, memory=0.15, nvlink=0.15, pcie=0.05),
        waits_for_slowest=True,
        sensitivity=Sensitivity.SENSITIVE,
        shape=JobShape(pods=1, gpus=8),
        chosen_when="one pod, several GPUs",
    ),
    JobType(
        "infer-gpu",
        _d(compute=0.40, memory=0.55, pcie=0.05),
        waits_for_slowest=False,
        sensitivity=Sensitivity.TOLERANT,
        shape=JobShape(pods=1, gpus=1),
        chosen_when="one pod, one GPU or a slice",
    ),
    JobType(
        "batch-io",
        _d(pcie=0.50, host=0.20, numa=0.10, compute=0.20),
        waits_for_slowest=False,
        sensitivity=Sensitivity.TOLERANT,
        shape=JobShape(pods=1, gpus=1),
        chosen_when="by label only",
    ),
)
