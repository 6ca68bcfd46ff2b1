"""The pages about the experiments say what the code says, and the example of the guide works."""

import re
from pathlib import Path
from types import ModuleType

import pytest
from prometheus_client import generate_latest

from chaos_probe.devices.cuda import Cuda
from chaos_probe.experiments import EXPERIMENTS
from chaos_probe.experiments.base import Experiment, Parameter
from chaos_probe.experiments.dcgm_inject import FAULTS
from chaos_probe.halt import Halt
from chaos_probe.journal import Journal
from chaos_probe.machine import Machine
from chaos_probe.metrics import Metrics
from chaos_probe.request import Request
from chaos_probe.run import Runner
from chaos_probe.settings import AgentSettings, GuardSettings, Settings
from tests.conftest import ROOT

PAGE = ROOT / "docs/reference/experiments.md"
GUIDE = ROOT / "docs/guides/write-an-experiment.md"


def section(kind: str) -> str:
    return PAGE.read_text("utf-8").partition(f"\n## `{kind}`\n")[2].partition("\n## ")[0]


def row(parameter: Parameter) -> str:
    bounds = f"{parameter.low:g} to {parameter.high:g} {parameter.unit}".rstrip() if not parameter.choices else ""
    allowed = ", ".join(f"`{choice}`" for choice in parameter.choices) or bounds
    return f"| `{parameter.name}` | {parameter.default} | {allowed} | {parameter.help} |"


@pytest.mark.parametrize("kind", EXPERIMENTS)
def test_the_section_of_an_experiment_says_what_the_code_says(kind: str) -> None:
    one, text = EXPERIMENTS[kind], section(kind)
    table = text.partition("| parameter | default | allowed | meaning |\n|---|---|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == [row(parameter) for parameter in one.parameters]
    assert f"- Surfaces: {', '.join(f'`{surface}`' for surface in one.surfaces)}\n" in text
    assert f"- Needs: {'; '.join(one.needs) or 'nothing'}\n" in text
    assert f"- Risk: {one.risk}\n" in text
    assert re.search(rf"```sh\nchaos-probe run {kind}\b", text)


def test_every_section_is_an_experiment_and_the_overview_is_right() -> None:
    page = PAGE.read_text("utf-8")
    assert set(re.findall(r"^## `([\w-]+)`$", page, re.MULTILINE)) == set(EXPERIMENTS)
    planned = {item.kind: item.every.replace("h", " h") for item in AgentSettings().experiments}
    rows = dict(re.findall(r"^\| \[`([\w-]+)`\]\(#[\w-]+\) \| [^|]+ \| (.*) \|$", page, re.MULTILINE))
    assert set(rows) == set(EXPERIMENTS)
    for kind, one in EXPERIMENTS.items():
        risk, _, when = rows[kind].partition(" | ")
        assert risk == one.risk
        assert when.startswith(f"every {planned[kind]}" if kind in planned else "only if told")
        assert ("allowInjection" in when) is one.injects


def test_the_faults_of_dcgm_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (.+) \| its (value|growth) \|$", section("dcgm-inject"), re.MULTILINE)
    assert {(name, int(field), judged == "growth") for name, field, _, judged in rows} == {
        (name, fault.field, fault.delta) for name, fault in FAULTS.items()
    }
    for name, _, words, _ in rows:
        number = float(re.findall(r"\d+", words)[0]) * (1e9 if "in ns" in words else 1.0)
        assert number == FAULTS[name].value


def test_the_example_of_the_guide_runs(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)[0]
    module = ModuleType("example")
    exec(compile(code, str(GUIDE), "exec"), module.__dict__)
    (made,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Experiment) and value is not Experiment
    ]
    guard = GuardSettings(kill_switch=str(tmp_path / "stop"), pod_resources_socket=str(tmp_path / "sock"))
    machine = Machine((), "none", None, None, None, Cuda(None, None, None), (0,), numactl=False)
    runner = Runner(Settings(node="n1", guard=guard), machine, Journal(tmp_path))
    outcome = runner.execute(Request(made(), {"seconds": "50ms"}), Halt())
    assert outcome.good, outcome.steps
    assert outcome.figures[0].value > 0


def test_the_page_of_metrics_lists_those_of_the_agent() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    named = re.findall(r"^\| `(chaos_probe_\w+)` \|", page, re.MULTILINE)
    families = re.findall(r"^# TYPE (\w+)", generate_latest(Metrics().registry).decode(), re.MULTILINE)
    assert sorted(named) == sorted(families)


@pytest.mark.parametrize("page", [PAGE, GUIDE, ROOT / "chaos_probe/README.md", ROOT / "tools/fleet/README.md"])
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target
