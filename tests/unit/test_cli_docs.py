"""The manifest has the recommended settings, and the documentation names options that exist."""

import re
from pathlib import Path

import click
import pytest
import yaml

from scorer.cli.main import SUBCOMMANDS, main
from scorer.model.grade import DEFAULT_THRESHOLDS, Sensitivity
from scorer.model.jobtype import DEFAULT_JOB_TYPES
from scorer.placement.gangs import GANG_ROWS
from scorer.placement.pod import JOB_TYPE_LABEL, SENSITIVITY_LABEL
from tests.conftest import ROOT

MANIFEST = ROOT / "manifests/scheduler/kube-scheduler-config.yaml"
OURS = ("nodes", "gpus", "explain", "place", "job-types")
PAGES = ("docs/reference/cli.md", "docs/concepts/grades.md", "docs/guides/operate.md")


def read(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def test_the_scheduler_s_configuration_has_the_recommended_settings() -> None:
    config = yaml.safe_load(MANIFEST.read_text("utf-8"))
    assert (config["apiVersion"], config["kind"]) == (
        "kubescheduler.config.k8s.io/v1",
        "KubeSchedulerConfiguration",
    )
    assert config["percentageOfNodesToScore"] == 100
    (extender,) = config["extenders"]
    assert {
        key: extender[key] for key in ("weight", "httpTimeout", "ignorable", "nodeCacheCapable", "enableHTTPS")
    } == {
        "weight": 20,
        "httpTimeout": "500ms",
        "ignorable": True,
        "nodeCacheCapable": True,
        "enableHTTPS": True,
    }
    assert extender["urlPrefix"].endswith(":9440/scheduler")
    assert (extender["filterVerb"], extender["prioritizeVerb"], extender["preemptVerb"]) == (
        "filter",
        "prioritize",
        "preempt",
    )
    assert extender["tlsConfig"]["caFile"]
    assert "bindVerb" not in extender


def test_each_resource_is_named_once_and_the_whole_gpu_is_among_them() -> None:
    (extender,) = yaml.safe_load(MANIFEST.read_text("utf-8"))["extenders"]
    names = [resource["name"] for resource in extender["managedResources"]]
    assert len(names) == len(set(names))
    assert names[0] == "nvidia.com/gpu"
    assert all(re.fullmatch(r"nvidia\.com/mig-\dg\.\d+gb(\.me)?", name) for name in names[1:])


def test_the_guide_shows_what_the_manifest_says() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", read("docs/guides/operate.md"), re.DOTALL)
    shown = yaml.safe_load(next(block for block in blocks if "extenders" in block))
    config = yaml.safe_load(MANIFEST.read_text("utf-8"))
    shown["extenders"][0]["managedResources"] = config["extenders"][0]["managedResources"]
    assert shown["extenders"] == config["extenders"]


def test_the_page_of_grades_begins_with_what_a_team_sets_on_a_pod() -> None:
    head = read("docs/concepts/grades.md").partition("## The four grades")[0]
    (block,) = re.findall(r"```yaml\n(.*?)```", head, re.DOTALL)
    labels = yaml.safe_load(block)["metadata"]["labels"]
    assert labels.keys() == {JOB_TYPE_LABEL, SENSITIVITY_LABEL}
    assert labels[JOB_TYPE_LABEL] in {t.name for t in DEFAULT_JOB_TYPES}
    assert Sensitivity.parse(labels[SENSITIVITY_LABEL])
    assert re.findall(r"^\| `(\w+)` \|", head, re.MULTILINE) == [s.label for s in Sensitivity]
    for shown, of in (
        ("5 % longer", DEFAULT_THRESHOLDS[Sensitivity.CRITICAL].red),
        ("15 % slower", DEFAULT_THRESHOLDS[Sensitivity.SENSITIVE].red),
        ("less than 5 %", DEFAULT_THRESHOLDS[Sensitivity.SENSITIVE].yellow),
    ):
        assert shown in head
        assert f"{round(100 * (of - 1))} %" in shown


@pytest.mark.parametrize("page", ["README.md", "docs/guides/operate.md"])
def test_the_references_can_be_reached(page: str) -> None:
    text = read(page)
    assert [name for name in ("labels", "settings", "metrics") if f"reference/{name}.md)" not in text] == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_documentation_parse(page: str) -> None:
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", read(page), re.DOTALL)
    lines = [line.split("|")[0].split() for block in blocks for line in block.splitlines() if line.strip()]
    ours = [line for line in lines if line[0] == "gpugrade"]
    assert ours
    for _, name, *arguments in ours:
        assert name in SUBCOMMANDS
        if name in OURS:
            command = main.get_command(click.Context(main), name)
            assert command is not None
            command.make_context(name, list(arguments))


@pytest.mark.parametrize("name", OURS)
def test_the_reference_names_every_option(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    text = read("docs/reference/cli.md")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            long = next(option for option in parameter.opts if option.startswith("--"))
            assert re.search(rf"[` ]{long}[` ]", text), long


def test_the_tables_of_job_types_and_classes_are_those_of_the_code() -> None:
    text = read("docs/reference/labels.md")
    for job_type in DEFAULT_JOB_TYPES:
        shares = ", ".join(f"{d.label} {share:.2f}".replace(" 0.", " .") for d, share in job_type.weights.items())
        waits = "yes" if job_type.waits_for_slowest else "no"
        row = f"| `{job_type.name}` | {job_type.chosen_when} | {shares} | {waits} | {job_type.sensitivity.label} |"
        assert row in text
    for sensitivity in Sensitivity:
        bounds = DEFAULT_THRESHOLDS[sensitivity]
        assert re.search(rf"\| `{sensitivity.label}` \| \w \| {bounds.yellow:.2f} \| {bounds.red:.2f} \|", text)


def test_the_table_of_gangs_names_every_kind_in_the_order_in_which_they_decide() -> None:
    table = read("docs/reference/labels.md").partition("| framework | kind |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| [^|]+ \| `([\w-]+)` \|", table, re.MULTILINE) == list(
        dict.fromkeys(r.kind for r in GANG_ROWS)
    )


@pytest.mark.parametrize("page", [*PAGES, "docs/reference/labels.md", "manifests/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    here = Path(ROOT / page).parent
    for target in re.findall(r"\]\(([^)#]+)\)", read(page)):
        assert (here / target).exists(), target
