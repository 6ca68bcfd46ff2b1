"""Probe reports: every record is kept or refused by itself, with its reason."""

import math
from typing import Any

import pytest
from gpugrade.v1 import probe_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from scorer.model.errors import RequestError
from scorer.model.evidence import RunPhase, SampleStatus
from scorer.sources.probe_reports import MAX_SAMPLES, ParsedReport, parse_report, token_matches
from tests.service_support import pb_sample, stamp

NOW = 1_780_000_000.0
OLDEST = NOW - 30 * 86400


def parse(*samples: pb.Sample, **more: Any) -> ParsedReport:
    return parse_report(pb.ReportRequest(node="gpu-0", samples=samples, **more), NOW, OLDEST)


def test_a_good_sample_arrives_whole() -> None:
    context = pb.SampleContext(driver="570.1", power_limit_w=700, sm_clock_mhz=1980, temperature_c=math.nan)
    report = parse(pb_sample("a", NOW - 5.25, gpu=3, gpu_uuid="GPU-x", run="r", detail="d", context=context))
    (found,) = report.samples
    assert (found.id, found.at, found.node, found.gpu_index, found.value) == ("a", NOW - 5.25, "gpu-0", 3, 700.0)
    assert (found.run, found.driver, found.power_limit_w) == ("r", "570.1", 700.0)
    assert math.isnan(found.temperature_c)
    assert report.rejections == ()
    assert report.gpus is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"id": ""}, "no id"),
        ({"id": "x" * 129}, "129 characters"),
        ({"node": "gpu-9"}, "of node 'gpu-9'; 'gpu-0' may report only its own"),
        ({"at": None}, "has no at"),
        ({"at": stamp(NOW + 3600)}, "ahead of the server"),
        ({"at": stamp(253402300799.0)}, "ahead of the server"),
        ({"at": stamp(5.0)}, "older than what is kept"),
        ({"dimension": "speed"}, "no dimension is called 'speed'; there are compute"),
        ({"unit": "GB/s"}, "measured in TFLOP/s"),
        ({"unit": ""}, "measured in TFLOP/s"),
        ({"status": pb.SAMPLE_STATUS_UNSPECIFIED}, "not one of OK"),
        ({"status": 77}, "not one of OK"),
        ({"value": None}, "no value"),
        ({"gpu_index": -2}, "not between -1"),
        ({"gpu_index": 5000}, "not between -1"),
        ({"source": "s" * 500}, "source has 500"),
    ],
)
def test_a_wrong_sample_is_refused_by_itself(fields: Any, says: Any) -> None:
    report = parse(pb_sample("good", NOW), pb_sample("bad", NOW, **fields), pb_sample("good2", NOW))
    assert [s.id for s in report.samples] == ["good", "good2"]
    assert len(report.rejections) == 1
    assert says in report.rejections[0][1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -3.0, 1e300, -0.0])
def test_an_impossible_value_is_a_failed_measurement(value: Any) -> None:
    report = parse(pb_sample("a", NOW, value=value, detail="burn said so"))
    (found,) = report.samples
    assert found.status is SampleStatus.FAILED
    assert math.isnan(found.value)
    assert "impossible value" in found.detail
    assert "burn said so" in found.detail
    assert report.impossible == 1
    assert report.rejections == ()


def test_failed_samples_need_no_value_or_unit() -> None:
    report = parse(pb_sample("a", NOW, value=None, unit="", status=pb.SAMPLE_STATUS_TIMEOUT))
    assert report.samples[0].status is SampleStatus.TIMEOUT


def test_long_details_are_cut_not_refused() -> None:
    report = parse(pb_sample("a", NOW, detail="é" * 5000))
    assert len(report.samples[0].detail) == 2048


def test_runs() -> None:
    good = pb.Run(
        id="r1",
        kind="dcgm-inject",
        gpu_indices=[2, 1, 2],
        phase=pb.RUN_PHASE_REVERTED,
        started=stamp(NOW - 90),
        ended=stamp(NOW - 30),
        residues=[pb.Residue(surface="kmsg", code="xid:79", gpu_index=1)],
    )
    active = pb.Run(id="r2", kind="gpu-throttle", phase=pb.RUN_PHASE_ACTIVE, started=stamp(NOW))
    backwards = pb.Run(id="r3", kind="k", phase=pb.RUN_PHASE_REVERTED, started=stamp(NOW), ended=stamp(NOW - 1))
    endless = pb.Run(id="r4", kind="k", phase=pb.RUN_PHASE_REVERTED, started=stamp(NOW))
    nameless = pb.Run(kind="k", phase=pb.RUN_PHASE_ACTIVE, started=stamp(NOW))
    report = parse(runs=[good, active, backwards, endless, nameless])
    assert [(r.id, r.phase, r.gpus) for r in report.runs] == [
        ("r1", RunPhase.REVERTED, (1, 2)),
        ("r2", RunPhase.ACTIVE, ()),
    ]
    assert report.runs[0].residues[0].code == "xid:79"
    assert math.isnan(report.runs[1].ended)
    assert [name for name, _ in report.rejections] == ["r3", "r4", ""]


def test_inventory_and_kernel_messages() -> None:
    gpus = [pb.Gpu(index=1, uuid="GPU-b"), pb.Gpu(index=0, uuid="GPU-a", default_power_limit_w=math.nan)]
    lines = [
        pb.KernelMessage(at=stamp(NOW), text="NVRM: Xid"),
        pb.KernelMessage(at=stamp(NOW)),
        pb.KernelMessage(text="x"),
    ]
    report = parse(gpus=gpus, kernel_messages=lines)
    assert report.gpus is not None
    assert [(g.index, g.uuid, g.default_power_limit_w) for g in report.gpus] == [(0, "GPU-a", 0.0), (1, "GPU-b", 0.0)]
    assert [m.text for m in report.kernel] == ["NVRM: Xid"]
    assert len(report.rejections) == 2


def test_a_batch_that_is_too_large_is_refused_whole() -> None:
    with pytest.raises(RequestError, match=f"at most {MAX_SAMPLES}"):
        parse(*[pb_sample("a", NOW)] * (MAX_SAMPLES + 1))


def test_tokens() -> None:
    assert token_matches("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    assert not token_matches("abd", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    assert not token_matches("", "")
    assert not token_matches("ü\x00", "00" * 32)


@given(st.binary(max_size=300))
def test_no_bytes_from_the_wire_raise_anything_else(data: Any) -> None:
    request = pb.ReportRequest()
    try:
        request.ParseFromString(data)
    except Exception:  # noqa: BLE001 - protobuf's own error: such bytes never reach us
        return
    request.node = "gpu-0"
    report = parse_report(request, NOW, OLDEST)
    records = len(request.samples) + len(request.runs) + len(request.kernel_messages)
    kept = len(report.samples) + len(report.runs) + len(report.kernel)
    assert kept <= records
    assert all(s.value > 0 for s in report.samples if s.status is SampleStatus.OK)
