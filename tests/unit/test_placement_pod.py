"""What is read from a pod: GPUs, gang, job type, sensitivity."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.model.cluster import GangKey
from scorer.model.grade import Sensitivity
from scorer.model.policy import GradingPolicy, PlacementPolicy
from scorer.placement import PodFacts, PodRequest, Resources, job_request, resolve_pod
from tests.placement_worlds import gang_facts, pod_facts

GRADING, POLICY = GradingPolicy(), PlacementPolicy()


def resolve(facts: PodFacts) -> PodRequest:
    return resolve_pod(facts, GRADING, POLICY)


def containers(*amounts: Mapping[str, object], init: tuple[Resources, ...] = ()) -> PodFacts:
    return PodFacts("p", "ns", "u", containers=tuple(Resources(a, {}) for a in amounts), init_containers=init)


@pytest.mark.parametrize(
    ("facts", "gpus", "wants", "job_type"),
    [
        (containers({"nvidia.com/gpu": "8"}), 8, True, "train-node"),
        (containers({"nvidia.com/gpu": 4}, {"nvidia.com/gpu": "4"}), 8, True, "train-node"),
        (containers({"nvidia.com/gpu": "1"}), 1, True, "infer-gpu"),
        (containers({"nvidia.com/mig-1g.10gb": "2"}), 0, True, "infer-gpu"),
        (containers({"cpu": "4", "amd.com/gpu": "1"}), 0, False, "infer-gpu"),
        (containers({"cpu": "1"}, init=(Resources({"nvidia.com/gpu": "2"}, {}),)), 2, True, "train-node"),
        (
            containers({"nvidia.com/gpu": "1"}, init=(Resources({}, {"nvidia.com/gpu": "1"}, sidecar=True),)),
            2,
            True,
            "train-node",
        ),
        (containers(), 0, False, "infer-gpu"),
    ],
)
def test_gpus_and_default_type_follow_the_shape(facts: PodFacts, gpus: int, wants: bool, job_type: str) -> None:
    pod = resolve(facts)
    assert (pod.gpus, pod.wants_gpu, pod.job_type, pod.warnings) == (gpus, wants, job_type, ())


def test_another_resource_counts_where_the_policy_names_it() -> None:
    policy = PlacementPolicy(gpu_resources=("example.com/gpu",))
    assert resolve_pod(containers({"example.com/gpu": "8", "nvidia.com/gpu": "3"}), GRADING, policy).gpus == 8


def test_a_quantity_that_is_no_whole_number_is_named_and_counts_as_one() -> None:
    pod = resolve(containers({"nvidia.com/gpu": "1.5"}))
    assert pod.gpus == 1
    assert "nvidia.com/gpu: '1.5' is not a whole number" in pod.warnings[0]


def test_an_absurd_quantity_is_bounded() -> None:
    assert resolve(containers({"nvidia.com/gpu": "9" * 18})).gpus == 1_000_000


@pytest.mark.parametrize("text", ["critical", "CRITICAL", " C ", "c"])
def test_sensitivity_by_name_or_letter(text: str) -> None:
    assert resolve(pod_facts(8, {"gpugrade.dev/sensitivity": text})).sensitivity is Sensitivity.CRITICAL


def test_wrong_labels_name_the_values_and_fall_back() -> None:
    pod = resolve(pod_facts(8, {"gpugrade.dev/sensitivity": "high", "gpugrade.dev/job-type": "trian"}))
    assert (pod.job_type, pod.sensitivity) == ("train-node", Sensitivity.SENSITIVE)
    assert pod.label_errors == ("gpugrade.dev/job-type", "gpugrade.dev/sensitivity")
    assert "'trian'; there are train-multi, train-node, infer-gpu, batch-io; answered as train-node" in pod.warnings[0]
    assert "'high'; there are critical, sensitive, tolerant (or C, B, A); answered as sensitive" in pod.warnings[1]


def test_a_long_wrong_label_is_not_repeated_whole() -> None:
    warning = resolve(pod_facts(8, {"gpugrade.dev/job-type": "x" * 5000})).warnings[0]
    assert len(warning) < 250


LWS, LIGHT = "leaderworkerset.sigs.k8s.io", "pod-group.scheduling.sigs.k8s.io"
GANGS = [
    ({"scheduling_group": "g"}, GangKey("pod-group", "ns", "g"), 1, None),
    ({"workload_ref": "w"}, GangKey("workload", "ns", "w"), 1, None),
    ({"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, GangKey("x-pod-group", "ns", "g"), 1, None),
    (
        {"annotations": {"scheduling.k8s.io/group-name": "v", "volcano.sh/task-index": "2"}},
        GangKey("volcano", "ns", "v"),
        1,
        2,
    ),
    (
        {
            "labels": {"kueue.x-k8s.io/pod-group-name": "k", "kueue.x-k8s.io/pod-group-pod-index": "3"},
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": "4"},
        },
        GangKey("kueue-pod-group", "ns", "k"),
        4,
        3,
    ),
    (
        {
            "labels": {f"{LWS}/name": "l", f"{LWS}/group-index": "1", f"{LWS}/worker-index": "0"},
            "annotations": {f"{LWS}/size": "2"},
        },
        GangKey("leader-worker-set", "ns", "l/1"),
        2,
        0,
    ),
    (
        {
            "labels": {"jobset.sigs.k8s.io/jobset-name": "j", "batch.kubernetes.io/job-name": "j-w-0"},
            "annotations": {"jobset.sigs.k8s.io/global-replicas": "3"},
        },
        GangKey("jobset", "ns", "j"),
        3,
        None,
    ),
    (
        {"labels": {"training.kubeflow.org/job-name": "t", "training.kubeflow.org/replica-index": "1"}},
        GangKey("kubeflow", "ns", "t"),
        1,
        1,
    ),
    ({"labels": {"ray.io/cluster": "r"}}, GangKey("ray", "ns", "r"), 1, None),
    (
        {"labels": {"batch.kubernetes.io/job-name": "b", "batch.kubernetes.io/job-completion-index": "5"}},
        GangKey("job", "ns", "b"),
        1,
        5,
    ),
    (
        {
            "annotations": {
                "gang.scheduling.koordinator.sh/name": "q",
                "gang.scheduling.koordinator.sh/min-available": "6",
            }
        },
        GangKey("koordinator", "ns", "q"),
        6,
        None,
    ),
    ({"labels": {f"{LIGHT}/name": "s", f"{LIGHT}/min-available": "2"}}, GangKey("light-pod-group", "ns", "s"), 2, None),
]


@pytest.mark.parametrize(("parts", "key", "size", "index"), GANGS, ids=[key.kind for _, key, _, _ in GANGS])
def test_gang_identity(parts: dict[str, object], key: GangKey, size: int, index: int | None) -> None:
    pod = resolve(PodFacts(name="p", namespace="ns", uid="u", **parts))  # type: ignore[arg-type]  # rows of a table
    assert (pod.gang, pod.gang_size, pod.gang_index) == (key, size, index)


def test_first_row_wins_and_our_annotation_gives_the_size() -> None:
    pod = resolve(
        PodFacts(
            name="p-7",
            namespace="ns",
            uid="u",
            labels={"batch.kubernetes.io/job-name": "b"},
            annotations={"gpugrade.dev/gang-size": "4"},
            scheduling_group="g",
        )
    )
    assert pod.gang == GangKey("pod-group", "ns", "g")
    assert (pod.gang_size, pod.gang_index, pod.job_type) == (4, 7, "train-multi")


def test_a_wrong_gang_size_is_told_and_left_out() -> None:
    facts = pod_facts(8, {"kueue.x-k8s.io/pod-group-name": "k"}, {"kueue.x-k8s.io/pod-group-total-count": "many"})
    pod = resolve(facts)
    assert pod.gang_size == 1
    assert "'many' is not a whole number" in pod.warnings[0]


def test_gang_of_several_pods_is_train_multi() -> None:
    assert resolve(gang_facts(4, 0)).job_type == "train-multi"
    assert resolve(gang_facts(4, 0, gpus=1)).job_type == "train-multi"


def test_job_request_takes_figures_and_warns_like_a_pod() -> None:
    job = job_request(8, 4, "", "B", GRADING)
    assert (job.job_type, job.sensitivity, job.shape.variant) == ("train-multi", Sensitivity.SENSITIVE, 3)
    wrong = job_request(0, 0, "nope", "nope", GRADING)
    assert (wrong.gpus, wrong.gang_size, wrong.job_type, len(wrong.warnings)) == (1, 1, "infer-gpu", 2)


words = st.text(max_size=80)


@given(
    labels=st.dictionaries(
        st.sampled_from(["gpugrade.dev/job-type", "gpugrade.dev/sensitivity", "kueue.x-k8s.io/pod-group-name"]), words
    ),
    annotations=st.dictionaries(
        st.sampled_from(["kueue.x-k8s.io/pod-group-total-count", "gpugrade.dev/gang-size"]), words
    ),
    amount=st.one_of(words, st.integers(), st.floats()),
)
def test_no_pod_whatsoever_fails(labels: dict[str, str], annotations: dict[str, str], amount: object) -> None:
    facts = PodFacts("p", "ns", "u", labels, annotations, (Resources({"nvidia.com/gpu": amount}, {}),))
    pod = resolve(facts)
    assert pod.job_type in {t.name for t in GRADING.job_types}
    assert 0 <= pod.gpus <= 1_000_000
    assert 1 <= pod.gang_size <= 1_000_000
