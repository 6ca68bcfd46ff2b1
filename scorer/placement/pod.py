"""What a pod asks for: GPUs, gang, job type and sensitivity, read from the pod alone."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scorer.model.cluster import GangKey
from scorer.model.grade import Sensitivity
from scorer.model.jobtype import JobShape, JobType
from scorer.model.policy import GradingPolicy, PlacementPolicy
from scorer.placement.gangs import Membership, PodFacts, Resources, find_gang

JOB_TYPE_LABEL = "gpugrade.dev/job-type"
SENSITIVITY_LABEL = "gpugrade.dev/sensitivity"
LEVEL_ANNOTATION = "gpugrade.dev/topology-level"
KUEUE_LEVEL_ANNOTATION = "kueue.x-k8s.io/podset-required-topology"

#: No pod holds more; a larger figure is a slip, and would overflow the arrays.
MAX_GPUS = 1_000_000
#: How much of a wrong value is repeated in a warning.
QUOTED_CHARACTERS = 63

_WHOLE_NUMBER = re.compile(r"\d{1,18}")


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What placement needs to know of a pod.

    Attributes:
        name: of the pod.
        namespace: of the pod.
        uid: may be empty.
        gpus: whole GPUs of this pod; 0 where it has slices only, or asks for none.
        wants_gpu: whether grades concern it at all.
        gang: its gang, where the pod itself tells.
        gang_size: pods that run in step; 1 where not known.
        gang_index: rank in the gang; ``None`` where not known.
        job_type: a name of the grading policy.
        sensitivity: its class.
        shape: what the whole job asks for.
        required_level: label key whose domain the gang must not leave; empty for none.
        warnings: wrong labels, each with the values that exist.
        label_errors: the labels that those warnings are about, for the metric.
    """

    name: str
    namespace: str
    uid: str
    gpus: int
    wants_gpu: bool
    gang: GangKey | None
    gang_size: int
    gang_index: int | None
    job_type: str
    sensitivity: Sensitivity
    shape: JobShape
    required_level: str = ""
    warnings: tuple[str, ...] = ()
    label_errors: tuple[str, ...] = ()

    @property
    def slots(self) -> int:
        """GPUs that one pod takes from a node's free ones; a slice or nothing takes one."""
        return max(1, self.gpus)


def resolve_pod(facts: PodFacts, grading: GradingPolicy, policy: PlacementPolicy) -> PodRequest:
    """Read a pod. Never fails: what is wrong becomes a warning and the default, so that no label stops scheduling.

    Args:
        facts: the pod as it was sent.
        grading: names the job types that exist.
        policy: names the resources that mean GPUs.
    """
    problems: list[tuple[str, str]] = []
    whole, slices = _gpus(facts, policy.gpu_resources, problems)
    member = find_gang(facts, problems)
    labelled = JOB_TYPE_LABEL in facts.labels or SENSITIVITY_LABEL in facts.labels
    size = min(member.size, MAX_GPUS) if member else 1
    shape = JobShape(pods=size, gpus=max(1, whole))
    job_type = _job_type(
        facts.labels.get(JOB_TYPE_LABEL), default_job_type(shape, grading.job_types), grading, problems
    )
    return _request(
        facts,
        member,
        shape,
        job_type,
        _sensitivity(facts, job_type, problems),
        problems,
        whole,
        wants_gpu=whole > 0 or slices > 0 or labelled,
    )


def _request(
    facts: PodFacts,
    member: Membership | None,
    shape: JobShape,
    job_type: JobType,
    sensitivity: Sensitivity,
    problems: Sequence[tuple[str, str]],
    whole: int,
    *,
    wants_gpu: bool,
) -> PodRequest:
    annotations = facts.annotations
    return PodRequest(
        name=facts.name,
        namespace=facts.namespace,
        uid=facts.uid,
        gpus=whole,
        wants_gpu=wants_gpu,
        gang=member.key if member else None,
        gang_size=shape.pods,
        gang_index=member.index if member else None,
        job_type=job_type.name,
        sensitivity=sensitivity,
        shape=shape,
        required_level=annotations.get(KUEUE_LEVEL_ANNOTATION) or annotations.get(LEVEL_ANNOTATION, ""),
        warnings=tuple(text for _, text in problems),
        label_errors=tuple(label for label, _ in problems),
    )


def job_request(gpus: int, pods: int, job_type: str, sensitivity: str, grading: GradingPolicy) -> PodRequest:
    """The request of a job that is described by figures rather than by a pod.

    Args:
        gpus: GPUs of each pod; below 1 counts as 1.
        pods: pods that run in step; below 1 counts as 1.
        job_type: empty for the default of the shape; a wrong one gives a warning and the default.
        sensitivity: empty for the default of the job type; likewise.
        grading: names the job types that exist.
    """
    problems: list[tuple[str, str]] = []
    shape = JobShape(pods=_bounded(pods), gpus=_bounded(gpus))
    labels = {SENSITIVITY_LABEL: sensitivity} if sensitivity else {}
    chosen = _job_type(job_type or None, default_job_type(shape, grading.job_types), grading, problems)
    facts = PodFacts(name="", namespace="", uid="", labels=labels)
    member = Membership(GangKey("job", "", ""), shape.pods, None) if shape.pods > 1 else None
    return _request(
        facts, member, shape, chosen, _sensitivity(facts, chosen, problems), problems, shape.gpus, wants_gpu=True
    )


def default_job_type(shape: JobShape, job_types: Sequence[JobType]) -> JobType:
    """The type that a shape suggests: of several pods, of several GPUs, or of one.

    Args:
        shape: what the job asks for.
        job_types: at least one; the first of the same kind of shape is taken, else the first of all.
    """

    def kind(other: JobShape) -> int:
        return 2 if other.pods > 1 else int(other.gpus > 1)

    wanted = kind(shape)
    return next((t for t in job_types if kind(t.shape) == wanted), job_types[0])


def _bounded(number: int) -> int:
    return min(max(1, number), MAX_GPUS)


def _job_type(text: str | None, default: JobType, grading: GradingPolicy, problems: list[tuple[str, str]]) -> JobType:
    if text is None:
        return default
    wanted = text.strip().lower()
    for job_type in grading.job_types:
        if job_type.name == wanted:
            return job_type
    names = ", ".join(t.name for t in grading.job_types)
    text = f"{JOB_TYPE_LABEL}: no job type is called {_quote(text)}; there are {names}; answered as {default.name}"
    problems.append((JOB_TYPE_LABEL, text))
    return default


def _sensitivity(facts: PodFacts, job_type: JobType, problems: list[tuple[str, str]]) -> Sensitivity:
    text = facts.labels.get(SENSITIVITY_LABEL)
    if text is None:
        return job_type.sensitivity
    try:
        return Sensitivity.parse(text[: QUOTED_CHARACTERS + 1])
    except ValueError:
        names = ", ".join(s.label for s in Sensitivity)
        default = job_type.sensitivity
        wrong = f"{SENSITIVITY_LABEL}: no sensitivity is called {_quote(text)}"
        problems.append((SENSITIVITY_LABEL, f"{wrong}; there are {names} (or C, B, A); answered as {default.label}"))
        return job_type.sensitivity


def _quote(text: str) -> str:
    return repr(text if len(text) <= QUOTED_CHARACTERS else text[:QUOTED_CHARACTERS] + "...")


def _gpus(facts: PodFacts, resources: Iterable[str], problems: list[tuple[str, str]]) -> tuple[int, int]:
    """Whole GPUs and slices of a pod.

    Containers and sidecars run together and add up; an init container runs alone and counts where it asks for more.
    """
    exact = frozenset(r for r in resources if not r.endswith("*"))
    prefixes = tuple(r[:-1] for r in resources if r.endswith("*"))
    together, alone = [0, 0], [0, 0]
    for container in facts.containers:
        counts = _container_gpus(container, exact, prefixes, problems)
        together = [a + b for a, b in zip(together, counts, strict=True)]
    for container in facts.init_containers:
        counts = _container_gpus(container, exact, prefixes, problems)
        if container.sidecar:
            together = [a + b for a, b in zip(together, counts, strict=True)]
        else:
            alone = [max(a, b) for a, b in zip(alone, counts, strict=True)]
    whole, slices = (min(max(a, b), MAX_GPUS) for a, b in zip(together, alone, strict=True))
    return whole, slices


def _container_gpus(
    container: Resources, exact: frozenset[str], prefixes: tuple[str, ...], problems: list[tuple[str, str]]
) -> tuple[int, int]:
    whole, slices = 0, 0
    for name in {**container.requests, **container.limits}:
        if name not in exact and not name.startswith(prefixes):
            continue
        count = max(_count(name, amounts.get(name), problems) for amounts in (container.requests, container.limits))
        if name in exact:
            whole += count
        else:
            slices += count
    return whole, slices


def _count(name: str, amount: object, problems: list[tuple[str, str]]) -> int:
    if amount is None:
        return 0
    text = str(amount)
    if not _WHOLE_NUMBER.fullmatch(text):
        problems.append((name, f"{name}: {_quote(text)} is not a whole number of GPUs; counted as 1"))
        return 1
    return min(int(text), MAX_GPUS)
