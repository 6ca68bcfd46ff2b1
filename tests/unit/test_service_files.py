"""Fleet and settings files: what is right is taken, what is wrong is named with its place, the last good one stays."""

import dataclasses
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scorer.model.dimension import Dimension
from scorer.model.errors import ConfigError
from scorer.model.grade import Grade, Sensitivity
from scorer.model.policy import GradingPolicy, Mode, PlacementPolicy, Settings, UnknownPolicy
from scorer.sources.fleet_file import FleetFileSource, load_fleet
from scorer.sources.settings_file import dump_settings, load_settings
from scorer.sources.yaml_file import WatchedFile, read_bounded
from tests.service_support import fleet_document, until, write_fleet

HEAD = "apiVersion: config.gpugrade.dev/v1alpha1\nkind: Fleet\n"


def test_a_fleet_becomes_a_view(tmp_path: Path) -> None:
    pods = [
        {"name": "a", "node": "gpu-1", "gpus": 1, "gang": {"kind": "kueue-pod-group", "name": "g"}},
        {"name": "b", "node": "gpu-2", "gpus": 5},
    ]
    state = load_fleet(write_fleet(tmp_path / "f.yaml", fleet_document(pods=pods)), 7, 100.0)
    view = state.view
    assert (view.version, view.nodes, view.gpus.tolist()) == (7, ("gpu-0", "gpu-1", "gpu-2", "gpu-3"), [2] * 4)
    assert view.free.tolist() == [2, 1, 0, 2]
    assert view.pods[0].gang is not None
    assert view.pods[0].gang.namespace == "default"
    assert view.trees[0].keys[0] == "example.dev/rack"
    assert view.trees[0].domain[0].tolist()[0] != view.trees[0].domain[0].tolist()[2]
    assert len(state.nodes["gpu-3"].probe_token_sha256) == 64


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nodes: [", "is not YAML"),
        ("[" * 5000, "is not YAML"),
        ("- a\n- b\n", "must be a mapping"),
        ("kind: Fleet\nnodes: []\n", "apiVersion is None"),
        (HEAD.replace("Fleet", "Pod"), "kind is 'Pod'; it must be Fleet"),
        (HEAD, "missing required field `nodes`"),
        (HEAD + "nodes: [{name: a, gpus: 8, gpu: 8}]", r"unknown field `gpu` - at `\$.nodes\[0\]`; remove it"),
        (HEAD + "nodes: [{name: a, gpus: -1}]", r"at `\$.nodes\[0\].gpus`"),
        (HEAD + "nodes: [{name: a, gpus: 8, labels: {rack: 1}}]", "quote the value"),
        (
            HEAD + "nodes: [{name: a, gpus: 8}, {name: a, gpus: 8}]",
            r"\$.nodes\[1\].name: 'a' is the name of \$.nodes\[0\]",
        ),
        (HEAD + "nodes: [{name: a, gpus: 8, exporter: 'file:///etc/passwd'}]", "must be an http or https URL"),
        (HEAD + "nodes: [{name: a, gpus: 8, exporter: 'http://h:99999/'}]", "is not a URL"),
        (HEAD + "nodes: [{name: !!bool maybe, gpus: 8}]", "is not YAML: 'maybe' is no bool .*line 3"),
        (HEAD + "nodes: [{name: !!timestamp x, gpus: 8}]", "'x' is no timestamp"),
        (HEAD + "nodes: [{name: !!float '', gpus: 8}]", "'' is no float"),
        (
            "a: &a [x, x]\n"
            + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
            + "kind: *i",
            "apiVersion is None",
        ),
        (
            "a: &a [x, x]\n"
            + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
            + "apiVersion: *i",
            "apiVersion is .*must be",
        ),
        (HEAD + "nodes: [{name: a, gpus: 8, probeTokenSha256: abc}]", "probeTokenSha256"),
        (
            HEAD + "nodes: [{name: a, gpus: 8}]\npods: [{name: p, node: a, gpus: 1, gang: {kind: kueue, name: g}}]",
            r"\$.pods\[0\].gang.kind: there is no kind 'kueue'; there are pod-group, .*kueue-pod-group",
        ),
        (
            HEAD + "nodes: [{name: a, gpus: 8}]\npods: [{name: p, node: b, gpus: 1}]",
            r"\$.pods\[0\].node: there is no node 'b'",
        ),
        (HEAD + "nodes: [{name: a, gpus: 8}]\nnodes: []", "'nodes' is given twice"),
        (HEAD + "nodes: [{name: a, gpus: 8}]\ntopology: [{name: t, keys: [k, k]}]", "listed twice"),
        ("\x00\x01", "is not YAML"),
    ],
)
def test_mistakes_in_a_fleet_file_are_named(tmp_path: Path, text: Any, says: Any) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        load_fleet(path, 1, 0.0)
    assert str(path) in str(caught.value)


def test_a_fleet_file_that_is_missing_binary_or_huge(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_fleet(tmp_path / "none.yaml", 1, 0.0)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_fleet(tmp_path / "b.yaml", 1, 0.0)
    with (tmp_path / "h.yaml").open("wb") as file:
        file.truncate(65 * 1024 * 1024)
    with pytest.raises(ConfigError, match="more than 67108864 bytes"):
        load_fleet(tmp_path / "h.yaml", 1, 0.0)


def test_a_changed_file_is_followed_and_a_bad_one_is_not(tmp_path: Path) -> None:
    path = write_fleet(tmp_path / "f.yaml")
    source = FleetFileSource(path, poll_s=0.02)
    first = source.current
    changes: list[int] = []
    source.start(lambda: changes.append(source.current.view.version))
    path.write_text("nodes: [")
    until(lambda: source.problem, "the bad file is noticed")
    assert source.current is first
    write_fleet(path, fleet_document(nodes=6))
    until(lambda: changes, "the good file is taken")
    assert len(source.current.view.nodes) == 6
    assert source.current.view.version > first.view.version
    assert source.problem == ""
    source.stop()


def test_a_pipe_is_no_file_to_follow(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is not a regular file"):
        FleetFileSource(tmp_path / "pipe")


def test_each_mistake_is_told_in_its_turn(tmp_path: Path) -> None:
    path = write_fleet(tmp_path / "f.yaml", fleet_document())
    source = FleetFileSource(path)
    for spoil, says in (
        (path.unlink, "No such file"),
        (path.mkdir, "not a regular file"),
        (path.rmdir, "No such file"),
        (lambda: path.symlink_to(path), "symbolic links"),
        (path.unlink, "No such file"),
        (lambda: os.mkfifo(path), "not a regular file"),
    ):
        spoil()
        source._file.poll()
        assert says in source.problem
    path.unlink()
    write_fleet(path, fleet_document())
    assert source._file.poll()
    assert not source.problem


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("whole")
    file = WatchedFile(path, Path.read_text)
    path.write_text("ha")
    done = threading.Event()

    def write() -> None:
        while not done.wait(0.005):
            with path.open("a") as out:
                out.write("lf")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert not any(file.poll() for _ in range(3))
        assert file.current == "whole"
    finally:
        done.set()
        writer.join()
    assert file.poll()
    assert file.current == path.read_text()


def test_a_fault_of_the_reader_is_told_and_the_next_change_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("1")
    taken: list[int] = []

    def parse(source: Path) -> int:
        value = int(source.read_text())
        if value == 2:
            raise ZeroDivisionError
        return value

    file = WatchedFile(path, parse, poll_s=0.01)
    file.start(lambda: taken.append(file.current))
    try:
        path.write_text("2")
        until(lambda: file.problem, "the fault being told")
        assert file.current == 1
        path.write_text("33")
        until(lambda: taken == [33], "the next change")
        assert not file.problem
    finally:
        file.stop()


def test_a_touched_file_is_not_a_changed_one(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("a")
    watched = WatchedFile(path, lambda p: read_bounded(p, 100))
    os.utime(path, ns=(1, 1))
    assert not watched.poll()
    path.write_text("b")
    assert watched.poll()
    assert watched.current == b"b"
    path.unlink()
    watched.poll()
    assert watched.current == b"b"


SETTINGS = "apiVersion: config.gpugrade.dev/v1alpha1\nkind: Settings\n"


def test_settings_default_add_and_replace(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SETTINGS)
    assert load_settings(path) == Settings()
    path.write_text(
        SETTINGS
        + "grading:\n"
        + "  jobTypes:\n"
        + "  - {name: rl, weights: {compute: 0.5, host: 0.5}, waitsForSlowest: true, sensitivity: C}\n"
        + "  thresholds: {critical: {yellow: 1.01, red: 1.2, unknownAs: green}}\n"
        + "  maxProbeAgeS: 3600\n"
        + "placement: {mode: enforce, unknownPolicy: reject, locality: {across: 2.0}}\n"
    )
    settings = load_settings(path)
    assert [job.name for job in settings.grading.job_types][-2:] == ["batch-io", "rl"]
    assert settings.grading.job_types[-1].weights[Dimension.HOST] == 0.5
    assert settings.grading.thresholds[Sensitivity.CRITICAL].unknown_as is Grade.GREEN
    assert settings.grading.max_probe_age_s == 3600
    assert (settings.placement.mode, settings.placement.unknown_policy) == (Mode.ENFORCE, UnknownPolicy.REJECT)
    assert settings.placement.locality == {**PlacementPolicy().locality, "across": 2.0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "grading: {jobTypes: [{name: x, weights: {gpu: 1}, waitsForSlowest: true, sensitivity: C}]}",
            "no dimension is called 'gpu'",
        ),
        (
            "grading: {jobTypes: [{name: x, weights: {pcie: 0.9}, waitsForSlowest: true, sensitivity: C}]}",
            "sum to 0.900",
        ),
        (
            "grading: {jobTypes: [{name: x, weights: {pcie: 1}, waitsForSlowest: true, sensitivity: D}]}",
            "no sensitivity is called 'D'",
        ),
        ("grading: {thresholds: {critical: {yellow: 1.2, red: 1.1}}}", "below yellow"),
        ("grading: {thresholds: {critical: {yellow: .nan, red: 1.1}}}", "yellow"),
        ("grading: {thresholds: {critical: {yellow: 1.1, red: 1.2, unknownAs: unknown}}}", "unknownAs: 'unknown'"),
        ("grading: {maxProbeAgeS: -1}", "maxProbeAgeS"),
        ("placement: {topology: [{name: t, keys: [a]}, {name: t, keys: [b]}]}", "topology.1..name: 't' is given twice"),
        ("placement: {topology: [{name: t, keys: [k, k]}]}", "topology.0..keys: a label key is listed twice"),
        ("placement: {mode: on}", "mode"),
        ("placement: {colour: red}", "unknown field `colour`"),
    ],
)
def test_mistakes_in_settings_are_named(tmp_path: Path, text: Any, says: Any) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SETTINGS + text)
    with pytest.raises(ConfigError, match=says):
        load_settings(path)


@given(
    st.builds(
        Settings,
        st.builds(
            GradingPolicy,
            max_probe_age_s=st.floats(1, 1e7),
            stale_telemetry_s=st.floats(1, 1e5),
            min_peers=st.integers(2, 100),
        ),
        st.builds(
            PlacementPolicy,
            mode=st.sampled_from(Mode),
            unknown_share_limit=st.floats(0, 1),
            topology=st.just((("fabric", ("a/b", "c/d")),)),
        ),
    )
)
def test_what_is_dumped_reads_back_the_same(tmp_path_factory: pytest.TempPathFactory, settings: Any) -> None:
    path = tmp_path_factory.mktemp("s") / "s.yaml"
    path.write_text(dump_settings(settings))
    assert load_settings(path) == settings


def test_a_dump_shows_every_setting() -> None:
    shown = yaml.safe_load(dump_settings(Settings()))
    for section in ("grading", "placement"):
        fields = {f.name.replace("_", "").lower() for f in dataclasses.fields(getattr(Settings(), section))}
        assert fields == {key.lower() for key in shown[section]}
