"""What the emulated tools print has the structure of what the real ones print, and its figures are those of the data."""

import csv
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tools.fleet import burn, dcgmi, diag, smi
from tools.fleet.create import create
from tools.fleet.exporter import render
from tools.fleet.faults import XID_NAMES, kernel_line
from tools.fleet.fields import XID
from tools.fleet.hostengine import inject
from tools.fleet.inventory import Fault
from tools.fleet.node import Here, Machine
from tools.fleet.options import RefusedError
from tools.fleet.quality import COMPUTE, MEMORY
from tools.fleet.state import FleetDir, State

NOW = 1_796_000_000.0
SERIES = re.compile(r"^(?P<name>[A-Z0-9_]+)\{(?P<labels>.*)\} (?P<value>\S+)$")
LABEL = re.compile(r'([A-Za-z_]+)="([^"]*)"')
WORKLOAD = {"container", "namespace", "pod"}


@pytest.fixture
def fleet(tmp_path: Path) -> FleetDir:
    return create(tmp_path / "fleet", 1, 4, 8, NOW)


@pytest.fixture
def here(fleet: FleetDir) -> Here:
    return Here(fleet, fleet.names[0])


def keys(value: Any) -> Any:
    """The structure of a JSON value: its keys and kinds, of lists their first item's."""
    if isinstance(value, dict):
        return {k: keys(v) for k, v in value.items()}
    if isinstance(value, list):
        return [keys(value[0])] if value else []
    return type(value).__name__


def exposition(text: str) -> dict[str, dict[str, Any]]:
    """Per metric: type, help, and the label names of each series in order."""
    metrics: dict[str, dict[str, Any]] = defaultdict(lambda: {"labels": set()})
    for line in text.splitlines():
        if line.startswith("# "):
            _, kind, name, rest = line.split(" ", 3)
            metrics[name][kind] = rest
        elif line:
            match = SERIES.match(line)
            assert match, line
            float(match["value"])
            names = tuple(n for n, _ in LABEL.findall(match["labels"]) if n not in WORKLOAD)
            metrics[match["name"]]["labels"].add(names)
    return metrics


def test_exporter_has_the_types_help_and_label_order_of_the_sample(shared: Path, fleet: FleetDir, here: Here) -> None:
    sample = exposition((shared / "samples/dcgm_exporter_4.5_Hostname.prom").read_text())
    fleet.change(here.name, lambda state: inject(state, 1, XID, 79.0, NOW + 1, NOW))
    ours = exposition(render(here.machine(), NOW + 2))
    for name, found in sample.items():
        assert ours[name] == found, name
    assert 'err_code="0",err_msg="No Error"} 0' in render(here.machine(), NOW + 2)


def test_exporter_serves_every_series_of_the_cases_about_this_hardware(shared: Path, here: Here) -> None:
    ours = exposition(render(here.machine(), NOW))
    for case in ("50-healthy-8xh100", "51-one-gpu-12-percent-slow"):
        for scrape in (shared / "cases" / case / "metrics").iterdir():
            theirs = exposition(scrape.read_text())
            assert {n: m["labels"] for n, m in theirs.items()}.items() <= {
                n: m["labels"] for n, m in ours.items()
            }.items()


@pytest.mark.parametrize("where", ["samples/nvidia_smi_query.csv", "cases/50-healthy-8xh100/nvidia-smi.csv"])
def test_smi_answers_the_header_of_the_sample_with_cells_of_its_form(shared: Path, here: Here, where: str) -> None:
    sample = [[c.strip() for c in row] for row in csv.reader((shared / where).read_text().splitlines())]
    names = ",".join(head.partition(" ")[0] for head in sample[0])
    lines = smi.run(here, [f"--query-gpu={names}", "--format=csv"])
    ours = [[c.strip() for c in line.split(",")] for line in lines]
    assert ours[0] == sample[0]

    def form(cell: str) -> object:
        return re.sub(r"[0-9a-fA-F]+", "0", re.sub(r"GPU-[0-9a-f-]+", "GPU-0", cell)) if "0x" not in cell else len(cell)

    for column, head in enumerate(sample[0]):
        if head != "name":
            assert form(ours[1][column]) == form(sample[1][column]), head


def test_smi_writes_a_lost_gpu_as_the_sample_does(shared: Path, fleet: FleetDir) -> None:
    name = fleet.names[0]
    fleet.change(name, lambda state: state["faults"].append([4, "lost", NOW - 100, 0.0]))
    sample = (shared / "samples/nvidia_smi_query.csv").read_text().splitlines()
    names = ",".join(head.strip().partition(" ")[0] for head in sample[0].split(","))
    assert smi.run(Here(fleet, name), [f"--query-gpu={names}", "--format=csv"])[5] == sample[5]


def test_health_prints_what_the_samples_print(
    shared: Path, here: Here, fleet: FleetDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = shared / "samples"
    with pytest.raises(RefusedError) as refused:
        dcgmi.health_command(here, ["-c"])
    assert f"{refused.value}\n" == (samples / "dcgmi_health_check_not_enabled.txt").read_text()
    assert dcgmi.health_command(here, ["-s", "a"]) == (samples / "dcgmi_health_set.txt").read_text().rstrip("\n")
    for arguments, name in ((["-c", "-j"], "healthy.json"), (["-c"], "healthy.txt")):
        assert dcgmi.health_command(here, arguments) == (samples / f"dcgmi_health_check_{name}").read_text().rstrip(
            "\n"
        )
    fetched = dcgmi.health_command(here, ["-f", "-j"])
    assert fetched == (samples / "dcgmi_health_fetch_json_GOTCHA.txt").read_text().rstrip("\n")

    monkeypatch.setattr(dcgmi, "now", lambda: NOW + 3)

    def break_it(state: State) -> None:
        inject(state, 0, 311, 1.0, NOW + 3, NOW)
        inject(state, 0, 202, 0.0, NOW + 1, NOW)
        inject(state, 0, 202, 500.0, NOW + 2, NOW)

    fleet.change(here.name, break_it)
    for arguments, name in ((["-c", "-j"], "failure.json"), (["-c"], "failure.txt")):
        assert dcgmi.health_command(here, arguments) == (samples / f"dcgmi_health_check_{name}").read_text().rstrip(
            "\n"
        )


def test_diag_has_the_structure_of_version_four(shared: Path, fleet: FleetDir) -> None:
    name = fleet.names[0]
    fleet.change(name, lambda state: state["faults"].append([1, "pcie-x8", NOW - 100, 0.0]))
    here = Here(fleet, name)
    ours = json.loads(diag.command(here, ["-r", "software,pcie", "-i", "0,1", "-j"]))
    sample = json.loads((shared / "samples/dcgmi_diag_v4.json").read_text())
    assert keys(ours) == keys(sample)

    def second(found: Any) -> Any:
        return found["DCGM Diagnostic"]["test_categories"][1]["tests"][0]

    assert keys(second(ours)["results"][1]) == keys(second(sample)["results"][1])
    assert second(ours)["results"][1]["warnings"] == second(sample)["results"][1]["warnings"]
    assert keys(second(ours)["test_summary"]) == keys(second(sample)["test_summary"])
    wrong = json.loads(diag.command(here, ["-r", "nonsense", "-j"]))
    assert wrong == json.loads((shared / "samples/dcgmi_diag_v4_runtime_error.json").read_text())


def skeleton(text: str) -> str:
    """A printed text with its figures and names taken out."""
    text = re.sub(r"GPU-[0-9a-f-]{36}", "UUID", text)
    return re.sub(r"\d+", "0", re.sub(r"0000[0-9A-F:.]+", "BUS", text))


def test_discovery_looks_like_the_sample(shared: Path, here: Here) -> None:
    sample = skeleton((shared / "samples/dcgmi_discovery_l.txt").read_text()).splitlines()
    ours = skeleton(dcgmi.discovery(here, ["-l"])).splitlines()
    gpu = slice(4, 8)
    assert ours[:8] == sample[:8]
    assert ours[gpu] * 8 == ours[4:36]
    assert ours[36:] == sample[12:]


def test_dmon_looks_like_the_sample(
    shared: Path, fleet: FleetDir, here: Here, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcgmi, "now", lambda: NOW + 1)
    fleet.change(here.name, lambda state: inject(state, 1, XID, 79.0, NOW + 1, NOW))
    dcgmi.dmon(here, ["-e", "230,150,155,311", "-c", "1"])
    ours = capsys.readouterr().out.splitlines()
    sample = (shared / "samples/dcgmi_dmon.txt").read_text().splitlines()
    assert ours[:2] == sample[:2]
    columns = [m.start() for m in re.finditer(r"\S+", sample[0])]
    assert [m.start() for m in re.finditer(r"(?<=\s{3})\S+", ours[2])] == columns[1:]
    assert ours[2].split()[2] == "N/A"
    assert ours[3].split()[2] == "79"


def test_a_burn_prints_the_lines_of_the_sample(
    shared: Path, here: Here, fleet: FleetDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUGRADE_FLEET_SPEED", "3600")
    assert burn.run(here, burn.parse(["-i", "0", "60"])) == 0

    def shapes(text: str) -> list[str]:
        found: list[str] = []
        for line in text.replace("\r", "\n").splitlines():
            dated = re.sub(r"[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d:]+ UTC \d+", "DATE", line)
            shape = re.sub(r"\d+(\.\d+)?", "0", re.sub(r"GPU-[0-9a-f-]{36}", "UUID", dated)).rstrip()
            if shape and shape not in found:
                found.append(shape)
        return found

    sample = shapes((shared / "samples/gpu_burn_ok.txt").read_text())
    assert shapes(capsys.readouterr().out) == sample

    # A node with broken memory is "FAULTY", yet the program ends with 0.
    fleet.change(here.name, lambda state: state["faults"].append([1, "dbe", NOW - 100, 0.0]))
    assert burn.run(here, burn.parse(["20"])) == 0
    faulty = capsys.readouterr().out
    assert "(WARNING!)" in faulty
    assert "\tGPU 1: FAULTY" in faulty
    assert "\tGPU 0: OK" in faulty


def test_a_burn_of_lost_gpus_dies_like_the_sample(
    shared: Path, here: Here, fleet: FleetDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUGRADE_FLEET_SPEED", "3600")
    lost = [[gpu, "lost", NOW - 100, 0.0] for gpu in range(8)]
    fleet.change(here.name, lambda state: state["faults"].extend(lost))
    # Lost before it starts, they are no devices at all; these fall off the bus once it has begun.
    assert burn.run(here, burn.parse(["20"])) != 0
    assert "CUDA_ERROR_INVALID_DEVICE" in capsys.readouterr().err
    assert burn._burn(here, here.facts.gpus, burn.parse(["20"])) != 0
    printed = capsys.readouterr()
    sample = (shared / "samples/gpu_burn_died.txt").read_text()
    assert printed.out.count("(DIED!)") == 8
    assert "proc'd: -1 (0 Gflop/s)" in printed.out
    assert printed.err.strip() == sample.splitlines()[-1]


def test_kernel_lines_are_those_of_the_driver(shared: Path, here: Here) -> None:
    sample = (shared / "samples/kmsg_xid.txt").read_text().splitlines()
    line = kernel_line(Fault(0, "lost", NOW), here.facts.gpus[0])
    assert line is not None
    assert line[1].replace("0000:18:00", "0000:a1:00") == sample[0]
    assert line[1].startswith("NVRM: Xid (PCI:0000:18:00): 79")


def test_the_exporters_names_of_xids_are_codes_of_the_catalogue(shared: Path) -> None:
    known = {int(row["code"]) for row in csv.DictReader((shared / "data/xid.csv").read_text().splitlines())}
    assert set(XID_NAMES) - {0} <= known


@pytest.mark.parametrize(
    ("cluster", "app", "table", "count"),
    [("longhorn", "sgemm", COMPUTE, 392), ("frontera", "bert", MEMORY, 276)],
)
def test_the_percentiles_are_those_of_the_published_data(
    shared: Path, cluster: str, app: str, table: tuple[tuple[float, float], ...], count: int
) -> None:
    rows = csv.DictReader((shared / "data/pal_gpu_profiles.csv").read_text().splitlines())
    scores = sorted(float(r["pm_score"]) for r in rows if (r["cluster"], r["app"]) == (cluster, app))
    assert len(scores) == count
    for percent, value in table[:-1]:
        place = percent / 100 * (count - 1)
        low = int(place)
        high = min(low + 1, count - 1)
        assert scores[low] + (scores[high] - scores[low]) * (place - low) == pytest.approx(value, abs=2e-4), percent


def test_a_machine_is_one_reading_of_the_state(fleet: FleetDir) -> None:
    machine = Machine(fleet.node(fleet.names[0]), fleet.state(fleet.names[0]))
    fleet.change(fleet.names[0], lambda state: state["gpus"]["0"].update(power_limit=300.0))
    assert machine.settings(machine.facts.gpus[0]).power_limit == 700.0
