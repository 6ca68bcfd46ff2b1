"""Real tool outputs beside the checkout, read by the probes' parsers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos_probe.devices.dcgm import (
    parse_discovery,
    parse_dmon,
    parse_health,
    parse_pcie_diag,
    parse_watches,
)
from chaos_probe.devices.gpu_burn import parse_burn
from chaos_probe.devices.nvidia_smi import parse_gpus, parse_vitals, reason_words
from chaos_probe.errors import ToolError
from chaos_probe.kernel_log import parse_line


@pytest.fixture
def sample(shared: Path) -> Callable[[str], str]:
    return lambda name: (shared / "samples" / name).read_text()


@pytest.mark.parametrize(
    ("name", "problems"),
    [
        ("gpu_burn_ok.txt", [""]),
        ("gpu_burn_died.txt", ["died", "died"]),
        ("gpu_burn_false_ok_no_work.txt", ["no work", "no work"]),
        ("gpu_burn_faulty_exit0.txt", ["", "wrong results"]),
    ],
)
def test_burns_are_judged_by_work_and_errors(sample: Callable[[str], str], name: str, problems: list[str]) -> None:
    found = [reading.problem for reading in parse_burn(sample(name))]
    assert len(found) == len(problems)
    for problem, words in zip(found, problems, strict=True):
        assert (words in problem) if words else problem == ""


def test_a_good_burn_gives_its_rate(sample: Callable[[str], str]) -> None:
    (reading,) = parse_burn(sample("gpu_burn_ok.txt"))
    assert (reading.work, reading.tflops, reading.verdict) == (2800, 48.05, "OK")
    first, _ = parse_burn(sample("gpu_burn_faulty_exit0.txt"))
    assert first.tflops == 6.311


def test_health_reports(sample: Callable[[str], str]) -> None:
    assert parse_health(sample("dcgmi_health_check_healthy.json")) == ("Healthy", {})
    verdict, gpus = parse_health(sample("dcgmi_health_check_failure.json"))
    assert verdict == "Failure"
    assert gpus[0]["Memory system"].startswith("Failure: Detected 1 volatile double-bit ECC error(s) in GPU 0.")
    assert gpus[0]["PCIe system"].endswith("for GPU 0 : 500")
    with pytest.raises(ToolError, match="Health watches not enabled"):
        parse_health(sample("dcgmi_health_check_not_enabled.txt"))


def test_watches_come_after_a_plain_line(sample: Callable[[str], str]) -> None:
    watches = parse_watches(sample("dcgmi_health_fetch_json_GOTCHA.txt"))
    assert len(watches) == 8
    assert [name for name, on in watches.items() if not on] == ["SM"]


def test_discovery_and_dmon(sample: Callable[[str], str]) -> None:
    assert parse_discovery(sample("dcgmi_discovery_l.txt")) == {
        "GPU-00000000-0000-0000-0000-000000000000": 0,
        "GPU-00000000-0000-0000-0000-000000000001": 1,
    }
    rows = parse_dmon(sample("dcgmi_dmon.txt"), [230, 150, 155, 311])
    assert rows[0] == {230: None, 150: 45.0, 155: 118.206, 311: 0.0}
    assert rows[1] == {230: 79.0, 150: None, 155: None, 311: None}


def test_diagnoses_of_both_versions(sample: Callable[[str], str]) -> None:
    old, new = parse_pcie_diag(sample("dcgmi_diag_v3.json")), parse_pcie_diag(sample("dcgmi_diag_v4.json"))
    assert (old[0].status, old[0].host_to_device, old[0].device_to_host) == ("pass", 24.6, 24.9)
    assert (new[0].status, new[0].host_to_device, new[0].device_to_host) == ("pass", None, 54.9)
    for found in (old, new):
        assert found[1].status == "fail"
        assert "below the minimum allowed link width" in found[1].warnings[0]
    with pytest.raises(ToolError, match="requested tests were not found"):
        parse_pcie_diag(sample("dcgmi_diag_v4_runtime_error.json"))


def test_a_lost_gpu_is_still_one(sample: Callable[[str], str]) -> None:
    text = sample("nvidia_smi_query.csv")
    gpus = parse_gpus(text)
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 3, 4]
    assert (gpus[4].uuid, gpus[4].pci_bus_id) == ("", "")
    vitals = parse_vitals(text)
    assert (vitals[0].temperature_c, vitals[0].power_w, vitals[0].reasons) == (62.0, 688.10, 0x4)
    assert (vitals[4].temperature_c, vitals[4].reasons) == (None, None)
    assert reason_words(0x88) == "hardware slowdown, power brake"


def test_every_kernel_line_matters_but_the_continuations(sample: Callable[[str], str]) -> None:
    lines = sample("kmsg_xid.txt").splitlines()
    found = [parse_line(line, 1000.0, 0.0) for line in lines]
    assert all(found)
    assert found[0] is not None
    assert found[0].text == lines[0]
    assert found[0].at == 1000.0


def test_policy_and_injection_transcripts_are_told_apart(sample: Callable[[str], str]) -> None:
    # The success line is what an injection is judged by; the error line must not contain it.
    lines = sample("dcgmi_test_inject.txt").splitlines()
    assert [line for line in lines if "Successfully injected" in line] == ["Successfully injected field info."]
