"""Whom a finding reaches: from a reach to job types and shapes."""

import numpy as np

from scorer.grading.series import Bools
from scorer.model.board import Reach
from scorer.model.dimension import Dimension
from scorer.model.jobtype import VARIANTS, JobType
from scorer.model.policy import GradingPolicy

#: A job type leans on PCIe from this share of its step time on.
PCIE_HEAVY_SHARE = 0.10
_SEVERAL_GPUS = 1
_SEVERAL_PODS = 2


def reaches(reach: Reach, job: JobType, variant: int, offered: int) -> bool:
    """Whether a finding concerns jobs of a type in a shape.

    Args:
        reach: of the finding.
        job: the type.
        variant: the shape's index, see :attr:`JobShape.variant`.
        offered: GPUs that the kubelet offers: more than that cannot be had.
    """
    if reach is Reach.ALL:
        return True
    if reach is Reach.MULTI_GPU:
        return bool(variant & _SEVERAL_GPUS)
    if reach is Reach.GANG:
        return bool(variant & _SEVERAL_PODS)
    if reach is Reach.WHOLE_NODE:
        return bool(variant & _SEVERAL_GPUS) and job.shape.gpus > offered
    if reach is Reach.PCIE_HEAVY:
        return bool(job.weights_for(variant)[Dimension.PCIE] >= PCIE_HEAVY_SHARE)
    return False


def reach_mask(reach: Reach, policy: GradingPolicy, offered: int) -> Bools:
    """Return bool (J, V): which job types and shapes a finding concerns."""
    return np.array([[reaches(reach, job, v, offered) for v in range(VARIANTS)] for job in policy.job_types])
