"""Probe, baseline, grade and place over the whole chain, judged by the emulator, which knows the truth."""

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from scorer.model.dimension import Dimension
from scorer.model.grade import DEFAULT_THRESHOLDS, Sensitivity
from scorer.model.jobtype import DEFAULT_JOB_TYPES
from tests.process.conftest import WholeChain
from tools.fleet.truth import truth

TRAIN = next(job for job in DEFAULT_JOB_TYPES if job.name == "train-multi")


def ask(chain: WholeChain, *arguments: str, status: tuple[int, ...] = (0, 1)) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "scorer.cli.main", *arguments, "-o", "json"],
        env=chain.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in status, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def true_time(whole_chain: WholeChain) -> dict[str, float]:
    """What train-multi really takes on the worst GPU of each node that no episode disturbs now."""
    weights = TRAIN.weights_for(TRAIN.shape.variant)
    times: dict[str, float] = {}
    disturbed = set()
    for row in truth(whole_chain.fleet, time.time()):
        time_of_gpu = sum(float(weights[Dimension.parse(name)]) * value for name, value in row["slowdown"].items())
        times[row["node"]] = max(times.get(row["node"], 0.0), time_of_gpu)
        if row["episode"] or row["injected"]:
            disturbed.add(row["node"])
    return {name: value for name, value in times.items() if name not in disturbed}


@pytest.fixture(scope="module")
def graded(whole_chain: WholeChain) -> dict[str, Any]:
    return {item["node"]: item for item in ask(whole_chain, "nodes")["items"]}


def test_predictions_are_near_the_truth(graded: dict[str, Any], true_time: dict[str, float]) -> None:
    measured = {name: item for name, item in graded.items() if item["age_s"] is not None and item["age_s"] < 72 * 3600}
    errors = sorted(
        abs(measured[name]["slowdowns"]["train-multi"] - value) for name, value in true_time.items() if name in measured
    )
    assert len(errors) > 50
    assert errors[len(errors) // 2] < 0.01
    assert errors[int(len(errors) * 0.95)] < 0.03


def test_truly_slow_nodes_are_not_green_and_fast_ones_are(
    whole_chain: WholeChain, graded: dict[str, Any], true_time: dict[str, float]
) -> None:
    faulty = {row["node"] for row in truth(whole_chain.fleet, time.time()) if row["faults"]}
    bounds = DEFAULT_THRESHOLDS[Sensitivity.SENSITIVE]
    margin = 0.015
    slow = fast = 0
    wrong = []
    for name, value in true_time.items():
        grade = graded[name]["grades"]["train-multi"]
        if value > bounds.yellow + margin:
            slow += 1
            assert grade in ("yellow", "red"), (name, value, graded[name])
        elif value < bounds.yellow - margin and name not in faulty and grade != "unknown":
            fast += 1
            if grade != "green":
                wrong.append((name, value, graded[name]))
    # The newest probe of a node may have met an episode that is over by now.
    assert len(wrong) <= 1, wrong
    assert slow >= 5
    assert fast >= 40


def test_every_physical_fault_is_told(whole_chain: WholeChain, graded: dict[str, Any]) -> None:
    faulty = {(row["node"], row["gpu"]) for row in truth(whole_chain.fleet, time.time()) if row["faults"]}
    assert faulty
    for node, gpu in faulty:
        assert graded[node]["grade"] in ("yellow", "red"), graded[node]
        assert gpu in ask(whole_chain, "explain", node)["bad_gpus"]


def test_a_node_without_recent_probes_is_unknown(graded: dict[str, Any]) -> None:
    silent = [item for item in graded.values() if item["age_s"] is None or item["age_s"] > 72 * 3600]
    assert silent
    assert all(item["grades"]["train-multi"] == "unknown" for item in silent)


def test_a_planned_gang_is_faster_than_a_blind_one(whole_chain: WholeChain, true_time: dict[str, float]) -> None:
    plan = ask(whole_chain, "place", "--gpus", "8", "--pods", "4", "--job-type", "train-multi", status=(0,))
    nodes = [entry["node"] for entry in plan["assignments"]]
    assert len(nodes) == 4
    assert plan["predicted_relative_time"] < plan["blind_relative_time"]
    assert max(true_time[node] for node in nodes if node in true_time) < 1.03
