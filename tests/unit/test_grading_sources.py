"""Scrapes, their history, and bundles: what is read, and what is refused with which text."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.grading import metrics as m
from scorer.model.dimension import Dimension
from scorer.model.errors import BundleError, InputError
from scorer.model.evidence import Reading, SampleStatus
from scorer.sources.bundle import load_bundle
from scorer.sources.exposition import Scrape, parse_scrape
from scorer.sources.telemetry import FORGET_S, TelemetryTracker

LINE = '{name}{{gpu="{gpu}",UUID="GPU-{gpu}",modelName="NVIDIA H100 80GB HBM3",Hostname="a"{more}}} {value}\n'


def line(name: str, value: object, gpu: int = 0, more: str = "") -> str:
    return LINE.format(name=name, gpu=gpu, value=value, more=more)


def values(scrape: Scrape) -> dict[tuple[int, int], float]:
    return {(s.gpu_index, s.field): s.value for s in scrape.series}


def test_both_spellings_of_labels() -> None:
    text = 'DCGM_FI_DEV_GPU_TEMP{gpu="1",gpu_uuid="GPU-x",hostname="node-b"} 45\n'
    scrape = parse_scrape(text)
    assert scrape.hostname == "node-b"
    assert scrape.series[0].gpu_uuid == scrape.gpus[1].uuid == "GPU-x"
    assert values(scrape) == {(1, m.TEMPERATURE): 45.0}


def test_names_of_several_versions_are_one_field() -> None:
    for name in m.BY_ID[m.EVENT_REASONS].names:
        assert values(parse_scrape(line(name, 4))) == {(0, m.EVENT_REASONS): 4.0}


def test_counters_keep_their_field() -> None:
    text = "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n" + line(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 47795351424
    )
    assert values(parse_scrape(text)) == {(0, m.ENERGY): 47795351424.0}


def test_unknown_metrics_and_unreadable_lines_are_skipped_and_counted() -> None:
    text = (
        line("DCGM_FI_DEV_BRAND_NEW", 1)
        + 'DCGM_FI_DEV_VGPU_INSTANCE_IDS{gpu="0"} ERROR - FAILED TO CONVERT TO STRING\n'
        + line("DCGM_FI_DEV_GPU_TEMP", 45)
        + 'DCGM_FI_DEV_GPU_TEMP{device="x"} 45\n'
    )
    scrape = parse_scrape(text)
    assert values(scrape) == {(0, m.TEMPERATURE): 45.0}
    assert scrape.dropped == {"unknown-metric": 1, "bad-line": 1, "no-gpu": 1}


@pytest.mark.parametrize(
    "value", [4294967295, 140737488355328, 9223372036854775792, 9223372036854775794, 183424, -1, "NaN", "+Inf"]
)
def test_blanks_and_impossible_numbers_are_missing(value: object) -> None:
    scrape = parse_scrape(line("DCGM_FI_DEV_GPU_UTIL", value))
    assert math.isnan(values(scrape)[0, m.GPU_UTIL])
    assert scrape.dropped["sentinel"] == 1


@pytest.mark.parametrize(
    "bad",
    [
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 9\n'.replace("9", "9" * 400),
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 45 ' + "9" * 400 + "\n",
    ],
    ids=["a value without bounds", "a time without bounds"],
)
def test_numbers_without_bounds_cost_only_their_own_line(bad: str) -> None:
    scrape = parse_scrape(bad + line("DCGM_FI_DEV_XID_ERRORS", 0, gpu=1))
    assert values(scrape)[1, m.XID] == 0.0
    assert math.isnan(values(scrape).get((0, m.TEMPERATURE), math.nan))
    assert sum(scrape.dropped.values()) == 1


@pytest.mark.parametrize("gpu", ["9" * 5000, "99999999999", "1024", "-1", "\u00b2"])
def test_an_index_that_no_gpu_has_is_none(gpu: str) -> None:
    text = f'DCGM_FI_DEV_GPU_TEMP{{gpu="{gpu}"}} 45\n' + line("DCGM_FI_DEV_GPU_TEMP", 46, gpu=1023)
    scrape = parse_scrape(text)
    assert (values(scrape), scrape.dropped) == ({(1023, m.TEMPERATURE): 46.0}, {"no-gpu": 1})


def test_a_line_cut_off_never_becomes_a_value() -> None:
    whole = line("DCGM_FI_DEV_GPU_TEMP", 45) + line("DCGM_FI_DEV_XID_ERRORS", 790)
    scrape = parse_scrape(whole[:-2])
    assert values(scrape) == {(0, m.TEMPERATURE): 45.0}
    assert scrape.dropped["truncated"] == 1


@settings(max_examples=60)
@given(cut=st.integers(0, 400))
def test_wherever_a_scrape_is_cut_no_value_is_invented(cut: int) -> None:
    whole = (
        line("DCGM_FI_DEV_GPU_TEMP", 45) + line("DCGM_FI_DEV_XID_ERRORS", 0) + line("DCGM_FI_DEV_XID_ERRORS", 79, gpu=1)
    )
    full = values(parse_scrape(whole))
    assert values(parse_scrape(whole[:cut])).items() <= full.items()


def test_duplicates_are_one_gpu_and_the_whole_gpu_wins_over_its_instances() -> None:
    text = "".join(line("DCGM_FI_DEV_POWER_USAGE", 212, more=f',pod="p-{i}"') for i in range(3))
    text += line("DCGM_FI_DEV_GPU_TEMP", 60) + line("DCGM_FI_DEV_GPU_TEMP", 90, more=',GPU_I_ID="12"')
    text += line("DCGM_FI_DEV_XID_ERRORS", 0, more=',pod="a"') + line("DCGM_FI_DEV_XID_ERRORS", 79, more=',pod="b"')
    assert values(parse_scrape(text)) == {(0, m.POWER): 212.0, (0, m.TEMPERATURE): 60.0, (0, m.XID): 79.0}


def test_a_page_that_is_no_scrape_is_refused_with_its_beginning() -> None:
    with pytest.raises(InputError, match=r"<html>.*check the exporter"):
        parse_scrape("<html><body>502 Bad Gateway</body></html>\n")
    assert parse_scrape("").series == ()


def scrape(value: float | None, field: str = "DCGM_FI_DEV_XID_ERRORS", gpu: int = 0) -> Scrape:
    text = line("DCGM_FI_DEV_GPU_TEMP", 45, gpu)
    return parse_scrape(text if value is None else text + line(field, value, gpu))


def xid(readings: tuple[Reading, ...]) -> Reading:
    return next(r for r in readings if r.field == m.XID)


def test_a_tracker_knows_since_when() -> None:
    tracker = TelemetryTracker("n0")
    first = xid(tracker.update(100.0, scrape(0)))
    assert (first.value, first.since, math.isnan(first.previous)) == (0.0, 100.0, True)
    assert xid(tracker.update(200.0, scrape(0))).since == 100.0
    changed = xid(tracker.update(300.0, scrape(79)))
    assert (changed.value, changed.since, changed.previous, changed.node) == (79.0, 300.0, 0.0, "n0")
    assert xid(tracker.update(400.0, scrape(79))) == Reading("n0", 0, "GPU-0", m.XID, 79.0, 400.0, 300.0, 0.0)
    assert xid(tracker.update(350.0, scrape(0))).value == 79.0  # an older one changes nothing
    assert tracker.scraped == 400.0


def test_a_blank_keeps_the_last_value_and_its_time() -> None:
    tracker = TelemetryTracker("n0")
    tracker.update(100.0, scrape(31))
    kept = xid(tracker.update(200.0, scrape(9223372036854775794)))
    assert (kept.value, kept.at, kept.since) == (31.0, 100.0, 100.0)


def test_a_series_that_stops_is_a_gap_until_it_is_forgotten_or_returns() -> None:
    tracker = TelemetryTracker("n0")
    tracker.update(100.0, scrape(0))
    gone = xid(tracker.update(200.0, scrape(None)))
    assert (math.isnan(gone.value), gone.since, gone.previous) == (True, 200.0, 0.0)
    assert xid(tracker.update(300.0, scrape(None))).since == 200.0
    back = xid(tracker.update(400.0, scrape(79)))
    assert (back.value, back.since, back.previous) == (79.0, 400.0, 0.0)
    tracker.update(500.0, scrape(None))
    assert m.XID not in {r.field for r in tracker.update(501.0 + FORGET_S, scrape(None))}


def test_gpus_that_an_exporter_makes_up_do_not_fill_the_memory() -> None:
    def made_up(turn: int) -> Scrape:
        lines = (f'DCGM_FI_DEV_GPU_TEMP{{gpu="{i % 8}",UUID="{turn}-{i}"}} 40\n' for i in range(300))
        return parse_scrape(line("DCGM_FI_DEV_GPU_TEMP", 41) + "".join(lines))

    first = made_up(0)
    assert len(first.series) == 256
    assert first.dropped == {"too-many-gpus": 300 - 255}
    tracker = TelemetryTracker("n0")
    tracker.update(50.0, first)
    tracker.update(100.0, parse_scrape(line("DCGM_FI_DEV_GPU_TEMP", 41)))
    assert len(tracker.readings) == 256
    tracker.update(150.0, made_up(1))
    assert {r.gpu_uuid[:2] for r in tracker.readings} - {"1-"} == {tracker.readings[0].gpu_uuid[:2]}
    assert len(tracker.readings) == 256


def test_a_gpu_that_is_gone_as_a_whole_is_no_gap_in_coverage() -> None:
    tracker = TelemetryTracker("n0")
    tracker.update(100.0, scrape(0))
    assert xid(tracker.update(200.0, scrape(None, gpu=1))).value == 0.0
    assert {r.gpu_index for r in tracker.update(201.0 + FORGET_S, scrape(None, gpu=1))} == {1}


PROBE = {
    "at": "2026-11-20T10:00:00Z",
    "gpu": 0,
    "dimension": "compute",
    "value": 781.4,
    "unit": "TFLOP/s",
    "status": "ok",
}


def probes(path: Path, **change: object) -> Path:
    (path / "probes.jsonl").write_text(json.dumps(PROBE | change) + "\n")
    return path


def test_a_bundle_of_one_file_is_enough(tmp_path: Path) -> None:
    bundle = load_bundle(probes(tmp_path))
    assert bundle.node == tmp_path.name
    assert bundle.now == 1795168800.0
    assert bundle.evidence.samples.value.tolist() == [781.4]
    assert bundle.evidence.nodes[0].expected is None


def test_uuids_name_gpus_and_gpus_that_are_gone_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi.csv").write_text("index, uuid, name\n3, GPU-abc, NVIDIA H100 NVL\n")
    rows = [PROBE | {"gpu": "GPU-abc"}, PROBE | {"gpu": 9}, PROBE | {"gpu": 3, "status": "timeout", "value": None}]
    (tmp_path / "probes.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    evidence = load_bundle(tmp_path).evidence
    assert evidence.samples.gpu.tolist() == [0, 0]
    assert evidence.samples.status.tolist() == [SampleStatus.OK, SampleStatus.TIMEOUT]
    assert evidence.dropped == {"unknown-gpu": 1}


def test_a_rejected_pod_says_something_of_the_kubelet_only(tmp_path: Path) -> None:
    probes(tmp_path, status="failed", value=None, detail="pod rejected: UnexpectedAdmissionError")
    evidence = load_bundle(tmp_path).evidence
    assert evidence.samples.value.size == 0
    assert "kubelet" in evidence.health[tmp_path.name][0]


def test_an_offer_of_slices_is_counted_in_gpus(tmp_path: Path) -> None:
    node = {
        "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.replicas": "3"}},
        "status": {"allocatable": {"nvidia.com/gpu": "12"}},
    }
    (tmp_path / "node.json").write_text(json.dumps(node))
    facts = load_bundle(probes(tmp_path)).evidence.nodes[0]
    assert (facts.name, facts.offered) == ("n1", 4)


@pytest.mark.parametrize("memory", ["9" * 400, "0x" + "f" * 400, "[N/A]", ""])
def test_a_figure_of_nvidia_smi_that_is_none_is_unknown(memory: str, tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi.csv").write_text(f"index, uuid, name, memory.total\n3, GPU-abc, H100, {memory}\n")
    (gpu,) = load_bundle(tmp_path).evidence.nodes[0].gpus
    assert (gpu.index, gpu.memory_mib) == (3, 0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"at": "yesterday"}, "line 1: 'yesterday' is no RFC 3339 time"),
        ({"dimension": "speed"}, "no dimension is called 'speed'; there are compute"),
        ({"unit": "GFLOP/s"}, "compute is measured in TFLOP/s"),
        ({"status": "fine"}, "none of ok, failed, timeout"),
        ({"value": None}, "no finite number"),
        ({"value": "fast"}, "no finite number"),
        ({"gpu": None}, "the GPU is missing"),
    ],
)
def test_a_wrong_probe_is_refused_with_its_line(change: dict[str, object], text: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"probes\.jsonl, line 1") as caught:
        load_bundle(probes(tmp_path, **change))
    assert text in str(caught.value)


PROBE_LINE = b'{"at": "2026-11-20T10:00:00Z", "gpu": 0, "dimension": "compute", "value": %s}\n'


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("case.json", b'{"now": "then"}', "case.json: now"),
        ("case.json", b"[]", "a JSON object is expected"),
        ("case.json", b'{"gpus": "many"}', "no number of GPUs"),
        ("case.json", '{"gpus": "\u00b2"}'.encode(), "no number of GPUs"),
        ("case.json", b'{"gpus": ' + b"9" * 5000 + b"}", "4300 digits"),
        ("links.csv", "at,gpu,link,kind,state\n2026-11-20T10:00:00Z,\u00b2,1,nvlink,active\n".encode(), "line 2: gpu"),
        ("node.json", b'{"metadata": {', "node.json, line 1: not JSON"),
        ("node.json", b'{"status": []}', "an object is expected, not list"),
        ("peers.json", b'{"compute": {"median": 0, "mad": 1, "n": 9}}', "median must be above zero"),
        ("peers.json", b'{"compute": {"mad": 1, "n": 9}}', "peers.json: compute.median"),
        ("kmsg.log", b"NVRM: Xid without a time\n", "kmsg.log, line 1"),
        ("kmsg.log", b"\xff\xfe\x00", "no UTF-8"),
        ("kmsg.log", b"0001-01-01T00:00:00+14:00 x\n", "kmsg.log, line 1"),
        ("kmsg.log", b"9999-12-31T23:59:59-14:00 x\n", "kmsg.log, line 1"),
        ("links.csv", b"gpu,link\n0,1\n", "the column 'at' is missing"),
        ("links.csv", b"at,gpu,link,kind,state\n2026-11-20T10:00:00Z,zero,1,nvlink,active\n", "line 2: gpu 'zero'"),
        ("links.csv", b"at,gpu,link,kind,state\n2026-11-20T10:00:00Z,0\n", "line 2: 2 cells where the header has 5"),
        ("nvidia-smi.csv", b"index, uuid\n0\n", "nvidia-smi.csv, line 2"),
        ("dcgmi-health.json", b'{"body": 3}', "an object is expected"),
        ("dcgmi-diag.json", b'{"DCGM Diagnostic": {"test_categories": {}}}', "a list is expected"),
        ("case.json", b"[" * 200_000, "JSON that no tool writes"),
        ("case.json", b'{"gpus": ' + b"9" * 5000 + b"}", "JSON that no tool writes"),
        ("probes.jsonl", b'{"at":' + b"[" * 200_000, "probes.jsonl, line 1: JSON that no tool writes"),
        ("probes.jsonl", PROBE_LINE % (b"9" * 400), "line 1: value: '9999999"),
        ("links.csv", "at,gpu,link,kind,state\n2026-11-20T10:00:00Z,²,1,nvlink,up\n".encode(), "line 2: gpu '²'"),
        ("links.csv", b"at,gpu,link,kind,state\n" + b"x" * 200_000, "links.csv, line 2: not CSV"),
        ("metrics/noon.prom", b"x 1\n", "scrape's time in Unix seconds"),
        ("metrics/².prom", b"x 1\n", "scrape's time in Unix seconds"),
        ("metrics/1795168800.prom", b"<html>\n", "not a scrape"),
    ],
)
def test_a_damaged_file_is_named(name: str, content: bytes, text: str, tmp_path: Path) -> None:
    probes(tmp_path)
    target = tmp_path / name
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(content)
    with pytest.raises(BundleError) as caught:
        load_bundle(tmp_path)
    assert text in str(caught.value)
    assert str(target) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    ["index, name\n²,x\n", f"index, memory.total [MiB]\n0,{'9' * 5000} MiB\n", f"index, a\n0,0x{'f' * 999}\n"],
)
def test_numbers_that_nvidia_smi_never_prints_are_left_out(content: str, tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi.csv").write_text(content)
    (gpu,) = load_bundle(tmp_path).evidence.nodes[0].gpus
    assert (gpu.index, gpu.memory_mib) == (0, 0)


def test_an_indented_kernel_line_belongs_to_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "kmsg.log").write_text("2026-11-20T10:00:00Z NVRM: one\n  two\n2026-11-20T10:00:01Z three\n")
    assert [k.text for k in load_bundle(tmp_path).evidence.kernel] == ["NVRM: one two", "three"]


def test_peers_reach_the_evidence(tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text('{"pcie": {"median": 50.6, "mad": 0.3, "n": 64, "unit": "GB/s"}}')
    assert load_bundle(probes(tmp_path)).evidence.peers[Dimension.PCIE].count == 64
