"""The group: help without the subcommands, wrong names, exit status."""

import subprocess
import sys
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from scorer.cli import explain, gpus, job_types, main, nodes, place
from scorer.model.errors import ConfigError


def test_the_help_imports_neither_grpc_nor_numpy_nor_any_subcommand() -> None:
    script = (
        "import sys\n"
        "from scorer.cli.main import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "heavy = {'grpc', 'numpy', 'rich', 'yaml', 'google.protobuf'} | {m for m in sys.modules if m.startswith('scorer.cli.')}\n"
        "print(sorted((heavy - {'scorer.cli.main'}) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    *help_text, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    assert "  job-types  List job types and sensitivity classes." in help_text


@pytest.mark.parametrize(
    ("name", "module"),
    [("nodes", nodes), ("gpus", gpus), ("explain", explain), ("place", place), ("job-types", job_types)],
)
def test_each_name_of_the_table_is_a_command_of_that_name(name: str, module: ModuleType) -> None:
    command = main.main.get_command(click.Context(main.main), name)
    assert command is module.command
    assert command.name == name


def test_the_table_lists_every_subcommand() -> None:
    assert list(main.SUBCOMMANDS) == ["nodes", "gpus", "explain", "place", "job-types", "grade", "serve"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nodez"], "no command is called 'nodez'; did you mean nodes?"),
        (["qqq"], "no command is called 'qqq'; there are nodes, gpus"),
        (["nodes", "--grade", "pink"], "no grade is called 'pink'; there are green, unknown, yellow, red"),
        (["explain"], "name a NODE, a pod with --pod NAMESPACE/NAME, or a decision with"),
        (["explain", "n1", "--pod", "ml/x"], "--pod stands alone"),
        (["explain", "--pod", "ml/x", "--decision", "d"], "--decision stands alone"),
        (["explain", "n1", "--decision", "d"], "--decision stands alone"),
        (["place"], "Missing option '--gpus'"),
        (["place", "--gpus", "0"], "0 is not in the range"),
        (["place", "--gpus", "8", "--sensitivity", "hot"], "no sensitivity is called 'hot'; there are critical"),
        (["--timeout", "0", "nodes"], "0.0 is not in the range"),
        (["--server", "http://x", "nodes"], "'http://x' is not an address"),
        (["nodes", "-o", "xml"], "'xml' is not one of"),
    ],
)
def test_wrong_usage_leaves_with_2_and_says_what_is_right(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(main.main, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert says in result.stderr


def test_errors_on_purpose_leave_with_2_and_unlike_them_click_s_own_never_with_1() -> None:
    @click.group(cls=main.LazyGroup, invoke_without_command=True)
    def group() -> None:
        """Stand in for the real one, with commands that fail."""

    raised: list[BaseException] = [
        ConfigError("fleet.yaml: no nodes"),
        click.ClickException("broken"),
        KeyboardInterrupt(),
        ZeroDivisionError("a fault of ours"),
        UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"),
    ]

    def run(error: BaseException) -> tuple[int, str]:
        group.callback = lambda: (_ for _ in ()).throw(error)
        result = CliRunner().invoke(group, [])
        return result.exit_code, result.stderr

    assert run(raised[0]) == (2, "Error: fleet.yaml: no nodes\n")
    assert run(raised[1]) == (2, "Error: broken\n")
    assert run(raised[2])[0] == 130
    status, told = run(raised[3])
    assert status == 2
    assert "Traceback" in told
    assert "ZeroDivisionError: a fault of ours" in told
    assert run(raised[4]) == (2, "Error: '\\udcff' is not UTF-8 text\n")


def test_as_a_plugin_of_kubectl_the_usage_says_so() -> None:
    result = CliRunner().invoke(main.main, ["--help"], prog_name="kubectl-gpugrade")
    assert result.stdout.startswith("Usage: kubectl gpugrade [OPTIONS] COMMAND")


def test_version() -> None:
    result = CliRunner().invoke(main.main, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("gpugrade ")
