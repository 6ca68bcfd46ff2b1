"""Outputs of the real tools' formats: exporter versions, health and diagnostic reports, nvidia-smi, kernel lines."""

import json
import math
import shutil
from pathlib import Path

import pytest

from scorer.grading import explain_node, fold
from scorer.grading import metrics as m
from scorer.model.errors import BundleError
from scorer.model.grade import Grade
from scorer.model.policy import GradingPolicy
from scorer.sources.bundle import load_bundle
from scorer.sources.dcgmi_output import read_diag, read_discovery, read_health
from scorer.sources.exposition import parse_scrape
from scorer.sources.nvidia_smi import read_query
from tests.grading_fleet import NOW, Fleet

POLICY = GradingPolicy()


@pytest.mark.parametrize("name", ["dcgm_exporter_4.5_Hostname.prom", "dcgm_exporter_4.8.3_hostname.prom"])
def test_exporter_versions_say_the_same(name: str, shared: Path) -> None:
    scrape = parse_scrape((shared / "samples" / name).read_text())
    found = {(s.gpu_index, s.field): s.value for s in scrape.series}
    assert found[1, m.XID] == 79.0
    assert found[0, m.XID] == 0.0
    assert found[0, m.TEMPERATURE] == 45.0
    assert scrape.hostname == "node-a"
    assert scrape.gpus[0].product == "NVIDIA H100 80GB HBM3"
    assert scrape.gpus[0].driver == "550.54.15"


def test_sentinels_are_missing_and_a_broken_line_costs_only_itself(shared: Path) -> None:
    scrape = parse_scrape((shared / "samples" / "dcgm_exporter_sentinels.prom").read_text())
    assert scrape.series
    assert all(math.isnan(s.value) for s in scrape.series)
    assert scrape.dropped["bad-line"] == 1


def test_what_prometheus_stores_without_honor_labels(shared: Path) -> None:
    scrape = parse_scrape((shared / "samples" / "dcgm_exporter_scraped_honor_labels_false.prom").read_text())
    assert [(s.gpu_index, s.field) for s in scrape.series] == [(0, m.TEMPERATURE)]
    assert scrape.hostname == "node-a"


def test_a_metric_of_mig_slices_that_no_rule_reads_is_counted_and_makes_no_gpu(shared: Path) -> None:
    scrape = parse_scrape((shared / "samples/dcgm_exporter_mig.prom").read_text())
    assert scrape.series == ()
    assert not scrape.gpus
    assert scrape.dropped == {"unknown-metric": 2}


def test_health_reports(shared: Path) -> None:
    samples = shared / "samples"
    assert read_health(samples / "dcgmi_health_check_healthy.json") == {}
    assert read_health(samples / "dcgmi_health_check_not_enabled.txt") == {}
    failed = read_health(samples / "dcgmi_health_check_failure.json")
    assert failed[0]["Memory system"].startswith("Failure: Detected 1 volatile double-bit ECC error(s) in GPU 0.")
    assert failed[0]["PCIe system"].startswith("Warning: ")
    assert isinstance(read_health(samples / "dcgmi_health_fetch_json_GOTCHA.txt"), dict)


@pytest.mark.parametrize("name", ["dcgmi_diag_v3.json", "dcgmi_diag_v4.json"])
def test_diagnostics_of_both_versions(name: str, shared: Path) -> None:
    found = read_diag(shared / "samples" / name)
    assert list(found) == [1]
    assert "link width 8X" in next(iter(found[1].values()))


def test_a_diagnostic_that_could_not_run_says_nothing_of_gpus(shared: Path) -> None:
    assert read_diag(shared / "samples" / "dcgmi_diag_v4_runtime_error.json") == {}


def test_discovery(shared: Path) -> None:
    found = read_discovery(shared / "samples" / "dcgmi_discovery_l.txt")
    assert [(g.index, g.product, g.pci_bus_id) for g in found.values()] == [
        (0, "NVIDIA H100 80GB HBM3", "00000000:18:00.0"),
        (1, "NVIDIA H100 80GB HBM3", "00000000:2A:00.0"),
    ]
    assert found[1].uuid.endswith("0001")


def test_nvidia_smi(shared: Path) -> None:
    found = read_query(shared / "samples" / "nvidia_smi_query.csv", "n", 1000.0)
    by_field = {(r.gpu_index, r.field): r.value for r in found.readings}
    assert by_field[2, m.PCIE_WIDTH] == 8.0
    assert by_field[3, m.EVENT_REASONS] == 0x88
    assert by_field[0, m.POWER] == 688.10
    assert found.lost == {4: "Unknown Error"}
    assert found.gpus[1].pci_bus_id == "00000000:2A:00.0"


def test_kernel_lines_of_many_drivers_name_what_they_mean(shared: Path) -> None:
    fleet = Fleet().quiet()
    for i, text in enumerate((shared / "samples" / "kmsg_xid.txt").read_text().splitlines()):
        fleet.say(text, age_s=600 - 0.1 * i)
    found = explain_node(fold(fleet.evidence(), POLICY, NOW), 0, POLICY)
    assert {j.grade for j in found.jobs} == {Grade.RED}
    rules = {f.rule for f in found.findings}
    assert {"off-bus", "xid-fatal", "remap-pending", "xid-warn"} <= rules
    text = " ".join(f.text for f in found.findings)
    for words in ("XID 79", "XID 119", "XID 63", "XID 149", "0000:b3:00.0 has fallen off the bus"):
        assert words in text
    assert "XID 45" not in text


def test_damage_anywhere_in_a_real_bundle_is_an_error_or_an_answer(shared: Path, tmp_path: Path) -> None:
    """Cut each file of a bundle in half: the reader names the file, or the grader still answers."""
    source = shared / "cases" / "50-healthy-8xh100"
    refused: dict[str, str] = {}
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        copy = tmp_path / path.name
        shutil.copytree(source, copy)
        victim = copy / path.relative_to(source)
        victim.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        try:
            bundle = load_bundle(copy)
        except BundleError as error:  # any other kind fails this test
            refused[victim.name] = str(error)
            continue
        answer = explain_node(fold(bundle.evidence, POLICY, bundle.now), 0, POLICY)
        assert len(answer.jobs) == len(POLICY.job_types)
        assert json.dumps([j.grade.label for j in answer.jobs])
    assert all(name in text for name, text in refused.items())
    assert {"case.json", "node.json", "peers.json", "probes.jsonl"} <= set(refused)
