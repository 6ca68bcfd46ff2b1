"""Every question against a real server with canned answers."""

import json
import threading
from collections.abc import Iterator

import grpc
import pytest
import yaml
from click.testing import CliRunner, Result
from rich.console import Console

from scorer.cli.client import Client, grade_of
from scorer.cli.main import main
from scorer.cli.nodes import initials, nodes_table
from scorer.cli.output import fitted
from tests.cli_support import Canned, running


@pytest.fixture
def canned() -> Iterator[Canned]:
    with running(Canned()) as server:
        yield server


def ask(canned: Canned, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--server", canned.address, *arguments], catch_exceptions=False)


def test_nodes(canned: Canned) -> None:
    result = ask(canned, "nodes")
    assert result.exit_code == 1
    assert result.stderr == ""
    assert result.stdout == (
        "NODE          GRADE     TRAIN-MULTI   TRAIN-NODE   INFER-GPU   BATCH-IO   GPUS   FREE   AGE   REASONS\n"
        "gpu-r01-n01   green     green         green        green       green         8      8   12m   -\n"
        "gpu-r01-n02   red       red           red          green       green         8      0   60s   "
        "GPU 3 takes 31 % longer on compute than its peers; HW slowdown seen\n"
        "gpu-r02-n01   unknown   unknown       unknown      unknown     unknown       8      4     -   "
        "no good probe yet\n"
        "gpu-r02-n02   yellow    yellow        green        green       green         4      4    2d   "
        "row remap pending on GPU 0\n"
    )


def test_nodes_of_some_grades_for_one_job_type(canned: Canned) -> None:
    result = ask(canned, "nodes", "--grade", "Yellow, unknown", "--job-type", "train-multi")
    assert result.exit_code == 0
    assert result.stdout == (
        "NODE          GRADE     SLOWDOWN   GPUS   FREE   AGE   REASONS\n"
        "gpu-r02-n01   unknown          -      8      4     -   no good probe yet\n"
        "gpu-r02-n02   yellow        1.06      4      4    2d   row remap pending on GPU 0\n"
    )


def test_the_grade_of_a_job_type_decides_the_exit_status(canned: Canned) -> None:
    assert ask(canned, "nodes", "--job-type", "infer-gpu").exit_code == 0
    assert ask(canned, "nodes", "--job-type", "train-node").exit_code == 1


def test_nodes_wide_adds_slowdowns_runs_and_product(canned: Canned) -> None:
    lines = ask(canned, "nodes", "-o", "wide").stdout.splitlines()
    assert lines[0].split()[9:13] == [f"{t}-SLOWDOWN" for t in ("TRAIN-MULTI", "TRAIN-NODE", "INFER-GPU", "BATCH-IO")]
    assert lines[2].split()[9:17] == ["1.19", "1.20", "1.12", "1.06", "run-7", "NVIDIA", "H100", "80GB"]


def test_nodes_json_has_the_documented_shape(canned: Canned) -> None:
    document = json.loads(ask(canned, "nodes", "-o", "json").stdout)
    assert document["job_type"] is None
    assert document["board"] == {"version": 7, "at": "2026-12-01T10:00:00Z"}
    assert document["items"][1] == {
        "node": "gpu-r01-n02",
        "grade": "red",
        "grades": {"train-multi": "red", "train-node": "red", "infer-gpu": "green", "batch-io": "green"},
        "gpus": 8,
        "free": 0,
        "age_s": 60.0,
        "reasons": ["GPU 3 takes 31 % longer on compute than its peers", "HW slowdown seen"],
        "product": "NVIDIA H100 80GB HBM3",
        "slowdowns": {"train-multi": 1.186, "train-node": 1.2015, "infer-gpu": 1.124, "batch-io": 1.06},
        "active_runs": ["run-7"],
        "labels": {"example.dev/rack": "r01"},
    }
    assert document["items"][2]["age_s"] is None


def test_a_grade_that_is_not_known_here_is_unknown_and_never_green(canned: Canned) -> None:
    canned.nodes[0].grade = 99  # type: ignore[assignment]  # a server of a later version
    canned.nodes[0].grades.clear()
    items = json.loads(ask(canned, "nodes", "-o", "json").stdout)["items"]
    assert items[0]["grade"] == "unknown"
    assert ask(canned, "nodes", "--job-type", "infer-gpu").stdout.splitlines()[1].split()[1] == "unknown"


def test_names_alone(canned: Canned) -> None:
    assert ask(canned, "nodes", "-o", "name", "--grade", "red").stdout == "node/gpu-r01-n02\n"
    assert ask(canned, "gpus", "gpu-r01-n02", "-o", "name").stdout == "gpu/gpu-r01-n02/2\ngpu/gpu-r01-n02/3\n"
    assert ask(canned, "job-types", "-o", "name").stdout.splitlines()[0] == "job-type/train-multi"


def test_gpus(canned: Canned) -> None:
    result = ask(canned, "gpus", "gpu-r01-n02")
    assert result.exit_code == 1
    assert result.stdout == (
        "GPU   GRADE   BAD   COMPUTE   MEMORY\n"
        "  2   green   no       1.00     1.00\n"
        "  3   red     yes      1.31     1.00\n"
    )


def test_gpus_json_leaves_out_what_was_never_measured(canned: Canned) -> None:
    result = ask(canned, "gpus", "gpu-r01-n01", "-o", "json")
    assert result.exit_code == 0
    gpu = json.loads(result.stdout)["gpus"][1]
    assert gpu == {
        "index": 3,
        "uuid": "GPU-0000-3",
        "grade": "green",
        "grades": {"train-multi": "green", "infer-gpu": "green"},
        "slowdown": {"compute": 1.0, "memory": 1.002},
        "low": {"compute": 0.99, "memory": 0.99},
        "high": {"compute": 1.01, "memory": 1.01},
        "samples": {"compute": 14, "memory": 14},
    }


def test_explain_says_reasons_evidence_age_confidence_and_action(canned: Canned) -> None:
    result = ask(canned, "explain", "gpu-r01-n02")
    assert result.exit_code == 1
    facts, job_types, gpus, findings = result.stdout.split("\n\n")
    assert facts == (
        "NODE              gpu-r01-n02\n"
        "GRADE             red\n"
        "PRODUCT           NVIDIA H100 80GB HBM3\n"
        "GPUS              8, 0 free\n"
        "BAD GPUS          3\n"
        "LAST GOOD PROBE   60s ago\n"
        "RUNNING NOW       run-7\n"
        "ACTION            check_cooling_power"
    )
    assert job_types.splitlines()[1] == (
        "train-multi   sensitive     red         1.19   1.18..1.21         0.97      3h   "
        "GPU 3 takes 31 % longer on compute than its peers"
    )
    assert gpus.splitlines()[2] == "  3   red     yes      1.31     1.00"
    assert findings == (
        "RULE   GRADE   GPU   CONCERNS   SOURCE   FIRST   LAST   FINDING\n"
        "slow   red       3   slowdown   probe       3h    60s   "
        "GPU 3 takes 31 % longer on compute than its peers [gpu-burn 701 TFLOP/s, peers 918]\n"
    )


def test_explain_for_one_job_type_at_one_sensitivity(canned: Canned) -> None:
    result = ask(canned, "explain", "gpu-r01-n02", "--job-type", "infer-gpu", "--sensitivity", "c", "-o", "json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["grade"] == "green"
    assert list(document["grades"]) == ["infer-gpu"]
    assert document["grades"]["infer-gpu"] == {
        "grade": "green",
        "sensitivity": "tolerant",
        "slowdown": 1.124,
        "low": 1.114,
        "high": 1.144,
        "confidence": 0.97,
        "since": "2026-12-01T07:00:00Z",
        "reasons": [],
    }
    assert document["evidence"] == [
        "GPU 3 takes 31 % longer on compute than its peers [probe gpu-burn 701 TFLOP/s, peers 918]"
    ]
    assert document["findings"][0]["first_seen"] == "2026-12-01T07:00:00Z"
    assert document["action"] == "check_cooling_power"
    assert (canned.seen[-1].job_type, canned.seen[-1].sensitivity) == ("infer-gpu", "critical")


def test_explain_a_node_of_which_nothing_is_known(canned: Canned) -> None:
    result = ask(canned, "explain", "gpu-r02-n01")
    assert result.exit_code == 0
    assert "GRADE             unknown\n" in result.stdout
    assert "LAST GOOD PROBE   never\n" in result.stdout


def test_explain_a_decision(canned: Canned) -> None:
    result = ask(canned, "explain", "--decision", "d-42")
    assert result.exit_code == 0
    assert result.stderr == "Note: gpugrade.dev/sensitivity: no sensitivity is called 'hot'\n"
    assert result.stdout.endswith(
        "NODE          PASSED   SCORE   REASON\n"
        "gpu-r01-n01   yes         97   green, in the gang's rack\n"
        "gpu-r02-n02   yes          0   yellow\n"
    )
    document = yaml.safe_load(ask(canned, "explain", "--decision", "d-42", "-o", "yaml").stdout)
    assert document["nodes"][1] == {"node": "gpu-r02-n02", "passed": True, "score": 0, "reason": "yellow"}


def test_explain_a_pod(canned: Canned) -> None:
    result = ask(canned, "explain", "--pod", "ml/train-0")
    assert result.exit_code == 0
    assert result.stderr == "Note: gpugrade.dev/sensitivity: no sensitivity is called 'hot'\n"
    assert result.stdout == (
        "POD   ml/train-0\n"
        "\n"
        "DECISION   VERB     AGO   JOB-TYPE      SENSITIVITY   MODE      ASKED   PASSED   NEUTRAL\n"
        "d-42       score    60s   train-multi   critical      enforce       3        3   -\n"
        "d-41       filter   61s   train-multi   critical      enforce       3        1   -\n"
        "\n"
        "DECISION   BEST          SCORE   REASON\n"
        "d-42       gpu-r01-n01      97   green, in the gang's rack\n"
        "\n"
        "DECISION   REFUSED   REASON\n"
        "d-41             2   gpugrade: GPUs too slow for train-multi (critical)\n"
    )
    document = yaml.safe_load(ask(canned, "explain", "--pod", "ml/train-0", "-o", "yaml").stdout)
    assert document["decisions"][1]["refused"] == [
        {"reason": "gpugrade: GPUs too slow for train-multi (critical)", "nodes": 2}
    ]
    assert document["decisions"][0]["at"] == "2026-12-01T09:59:00Z"
    assert ask(canned, "explain", "--pod", "ml/train-0", "-o", "name").stdout == "decision/d-42\ndecision/d-41\n"


def test_place(canned: Canned) -> None:
    result = ask(canned, "place", "--gpus", "8", "--pods", "4", "--job-type", "train-multi")
    assert result.exit_code == 0
    assert result.stdout == (
        "NODE          PODS   GRADE   SLOWDOWN   REASONS\n"
        "gpu-r01-n01      4   green       1.01   whole gang in r01\n"
        "\n"
        "JOB              4 pods of 8 GPUs, train-multi, sensitive\n"
        "SPANS            rack r01 (locality factor 1.00)\n"
        "PREDICTED TIME   1.01 of typical\n"
        "BLIND CHOICE     1.26 of typical, so this one takes 20 % less\n"
    )


def test_place_without_some_nodes(canned: Canned) -> None:
    result = ask(
        canned, "place", "--gpus", "8", "--exclude", "gpu-r01-n01, gpu-r01-n02", "--sensitivity", "B", "-o", "json"
    )
    document = json.loads(result.stdout)
    assert [each["node"] for each in document["assignments"]] == ["gpu-r02-n02"]
    assert document["feasible"] is True
    assert document["predicted_relative_time"] == 1.011
    assert document["blind_relative_time"] == 1.264
    assert document["sensitivity"] == "sensitive"
    assert list(canned.seen[-1].exclude) == ["gpu-r01-n01", "gpu-r01-n02"]


def test_a_job_that_does_not_fit_is_bad_news(canned: Canned) -> None:
    result = ask(canned, "place", "--gpus", "8", "--pods", "16")
    assert result.exit_code == 1
    assert "DOES NOT FIT   128 GPUs wanted, 16 are free on usable nodes\n" in result.stdout
    document = json.loads(ask(canned, "place", "--gpus", "8", "--pods", "16", "-o", "json").stdout)
    assert document["feasible"] is False
    assert document["blind_relative_time"] is None


def test_job_types(canned: Canned) -> None:
    result = ask(canned, "job-types")
    assert result.exit_code == 0
    assert result.stdout == (
        "JOB-TYPE      SENSITIVITY   WAITS   STEP-TIME                                                    CHOSEN-WHEN\n"
        "train-multi   sensitive     yes     compute=0.60,memory=0.15,pcie=0.05,nvlink=0.10,fabric=0.10   "
        "gang of several pods\n"
        "train-node    sensitive     yes     compute=0.65,memory=0.15,pcie=0.05,nvlink=0.15               "
        "one pod, several GPUs\n"
        "infer-gpu     tolerant      no      compute=0.40,memory=0.55,pcie=0.05                           "
        "one pod, one GPU or a slice\n"
        "batch-io      tolerant      no      compute=0.20,pcie=0.50,numa=0.10,host=0.20                   "
        "by label only\n"
        "\n"
        "SENSITIVITY   YELLOW-FROM   RED-FROM   UNKNOWN-SCORES-AS\n"
        "critical             1.02       1.05   below-yellow\n"
        "sensitive            1.05       1.15   yellow\n"
        "tolerant             1.25       2.00   green\n"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gpus", "gpu-r01-no2"], "no node is called 'gpu-r01-no2'; did you mean gpu-r01-n02?"),
        (["explain", "r"], "no node is called 'r'; there are gpu-r01-n01, gpu-r01-n02, gpu-r02-n01, gpu-r02-n02"),
        (["nodes", "--job-type", "train-mult"], "no job type is called 'train-mult'; did you mean train-multi?"),
        (["explain", "gpu-r01-n01", "--job-type", "infer"], "no job type is called 'infer'; did you mean infer-gpu?"),
        (["place", "--gpus", "8", "--job-type", "x"], "no job type is called 'x'; there are train-multi, train-node"),
        (["place", "--gpus", "8", "--exclude", "gpu-r1-n01"], "did you mean gpu-r01-n01?"),
        (["explain", "--pod", "ml/x"], "no decision is about pod 'ml/x'; a pod is asked about only where"),
        (["explain", "--decision", "d-1"], "the server has no decision 'd-1'"),
    ],
)
def test_wrong_names_leave_with_2_and_one_line(canned: Canned, arguments: list[str], says: str) -> None:
    result = ask(canned, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "details", "says"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "pods must be\nat least 1", "the server refused: pods must be\\nat least 1"),
        (grpc.StatusCode.INTERNAL, "boom", "failed (INTERNAL): boom; see its log"),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", "is not this gpugrade's server"),
        (grpc.StatusCode.UNAVAILABLE, "draining", "start it with gpugrade serve, or say where it is with --server"),
    ],
)
def test_errors_of_the_server_are_one_line(canned: Canned, code: grpc.StatusCode, details: str, says: str) -> None:
    canned.before = lambda context: context.abort(code, details)
    result = ask(canned, "nodes")
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_server_that_hangs_is_left_after_the_timeout(canned: Canned) -> None:
    def hang(context: grpc.ServicerContext) -> None:
        left = threading.Event()
        context.add_callback(left.set)
        left.wait(30)

    canned.before = hang
    result = ask(canned, "--timeout", "0.2", "nodes")
    assert result.exit_code == 2
    assert "did not answer within 0.2 s: try a longer --timeout" in result.stderr


def test_options_of_the_subcommand_win_over_those_before_it(canned: Canned) -> None:
    result = CliRunner().invoke(main, ["--server", "127.0.0.1:1", "nodes", "--server", canned.address, "-o", "name"])
    assert result.exit_code == 1
    assert result.stdout.startswith("node/gpu-r01-n01\n")


def test_the_server_may_come_from_the_environment(canned: Canned) -> None:
    result = CliRunner().invoke(main, ["job-types", "-o", "name"], env={"GPUGRADE_SERVER": canned.address})
    assert result.exit_code == 0


def test_eighty_columns_show_the_grades_by_job_type(canned: Canned) -> None:
    """They are the point of the list, so a terminal of the usual width must have room for them."""
    with Client(canned.address, 10.0) as client:
        response, types = client.nodes(), client.job_type_names()
    table = nodes_table([(node, grade_of(node.grade)) for node in response.nodes], types, None)
    console = Console(width=80)
    with console.capture() as capture:
        console.print(fitted(console, [table], wide=False))
    lines = [line.split() for line in capture.get().splitlines()]
    assert lines[0] == ["NODE", "GRADE", "TM", "TN", "IG", "BI", "GPUS", "FREE", "AGE", "REASONS"]
    grades = {line[0]: line[1:6] for line in lines if line and line[0].startswith("gpu-")}
    assert grades == {
        "gpu-r01-n01": ["green", "G", "G", "G", "G"],
        "gpu-r01-n02": ["red", "R", "R", "G", "G"],
        "gpu-r02-n01": ["unknown", "?", "?", "?", "?"],
        "gpu-r02-n02": ["yellow", "Y", "G", "G", "G"],
    }
    told = " ".join(word for line in lines[-2:] for word in line)
    assert told.endswith(
        "TM train-multi, TN train-node, IG infer-gpu, BI batch-io; G green, ? unknown, Y yellow, R red"
    )


def test_job_types_with_the_same_initials_are_numbered() -> None:
    assert initials(["train-multi", "tune-model", "infer-gpu", "test-more"]) == {
        "train-multi": "TM",
        "tune-model": "TM2",
        "infer-gpu": "IG",
        "test-more": "TM3",
    }
