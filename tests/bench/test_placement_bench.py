"""The benchmark runs and judges rightly. Nothing here asserts a time."""

import sys
from pathlib import Path

import pytest

from tools.bench import cells, load, reference_server
from tools.bench.__main__ import measure_size
from tools.bench.cells import Latency
from tools.bench.fleet import Job, body_of, build_world, node_names
from tools.bench.report import BOUND_SIZE, Report


def test_a_size_is_measured_from_end_to_end() -> None:
    report = Report()
    measure_size(report, 20, 0.1, with_reference=False)
    assert {(verb, connections) for verb, _, connections in report.ours} == {
        ("filter", 1),
        ("prioritize", 1),
        ("filter", 8),
        ("prioritize", 8),
        ("prioritize, gang of 4 x 8", 1),
        ("gRPC Score", 1),
    }
    assert all(0 < latency.p50 <= latency.p99 for latency in report.ours.values())


def test_an_error_of_the_server_ends_the_run() -> None:
    with reference_server.started([sys.executable, "-m", "tools.bench.server", "5"]) as (process, line):
        port = int(line.split('"http": ')[1].split(",")[0])
        server = cells.Server(process.pid, port)
        bad = load.request_of("prioritize", b"{")
        with pytest.raises(RuntimeError, match="400"):
            load.run(server.port, [bad, bad], 1, 0.1)
    assert process.returncode is not None


def test_a_server_that_does_not_start_is_told() -> None:
    with (
        pytest.raises(RuntimeError, match="ended before it listened"),
        reference_server.started([sys.executable, "-c", "pass"]),
    ):
        pytest.fail("there is no server")


def test_without_go_the_reference_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert reference_server.build(tmp_path / "reference") == "there is no go on PATH"


def test_bounds_are_judged_by_ratio_and_growth() -> None:
    report = Report()
    for size, p50 in ((500, 0.2), (5_000, 1.0), (15_000, 4.0)):
        report.ours["filter", size, 1] = report.ours["prioritize", size, 1] = Latency(p50, p50)
    report.reference["filter", BOUND_SIZE, 1] = Latency(4.0, 2.0)
    report.reference["filter", 500, 1] = Latency(0.1, 0.1)
    report.cpu[BOUND_SIZE] = (1.0, 1.6)
    assert [held for _, held in report.verdicts()] == [True, False, False, True, False, True, False]


def test_quantiles() -> None:
    timings = load.Timings([i / 1000 for i in range(1, 101)])
    assert (timings.quantile(0.5), timings.quantile(0.99), timings.quantile(1.0)) == pytest.approx((51, 100, 100))


def test_the_pod_has_the_size_of_a_real_one_and_the_world_some_red() -> None:
    assert 1_500 < len(body_of(Job(), [])) < 2_500
    assert len(node_names(1)[0]) == 31
    world = build_world(1_000, 0.0)
    red = (world.code[world.types["train-node"], 1, 1, :-1] > 0).mean()
    assert 0.01 < red < 0.1
