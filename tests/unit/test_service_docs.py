"""The reference pages name every setting and every metric."""

import re

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from scorer.model.policy import Settings
from scorer.serve.metrics import ServiceMetrics
from scorer.serve.state import ServingState
from scorer.sources.settings_file import dump_settings, load_settings
from tests.conftest import ROOT


def test_every_setting_is_in_its_reference(tmp_path_factory: pytest.TempPathFactory) -> None:
    page = (ROOT / "docs/reference/settings.md").read_text("utf-8")
    shown = yaml.safe_load(dump_settings(Settings()))
    for section in ("grading", "placement"):
        part = page.partition(f"## `{section}`")[2].partition("\n## ")[0]
        assert set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)) == set(shown[section])
    example = tmp_path_factory.mktemp("s") / "s.yaml"
    example.write_text(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])
    assert load_settings(example).grading.job_types[-1].name == "reinforcement"


def test_every_metric_is_in_its_reference() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    named = set(re.findall(r"^\| `(gpugrade_\w+)` \|", page, re.MULTILINE))
    registry = CollectorRegistry()
    ServingState(registry)
    ServiceMetrics(registry)
    families = re.findall(r"^# TYPE (gpugrade_\w+)", generate_latest(registry).decode(), re.MULTILINE)
    assert families
    assert set(families) <= named
