"""Every evidence bundle with a known answer, through the command that people use."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scorer.cli.main import main

CASES = (
    "01-xid31-gauge-never-resets",
    "03-xid62-hidden-behind-45",
    "05-xid-series-gone-after-upgrade",
    "08-time-slicing-duplicates",
    "09-blank-sentinels",
    "11-xid79-blocks-device-plugin",
    "13-fallen-off-bus-without-xid",
    "15-xid94-plugin-never-forgets",
    "16-row-remap-pending",
    "19-h100-nvl-12-links-by-design",
    "20-v100-two-links-inactive",
    "22-idle-link-downclock",
    "24-power-cap-below-limit",
    "26-silent-hang-util-100",
    "30-xid145-followers-45",
    "33-ib-flap-long-ago",
    "35-gpu-nic-numa-misaligned",
    "37-xid95-unknown-health-system",
    "50-healthy-8xh100",
    "51-one-gpu-12-percent-slow",
    "52-one-gpu-30-percent-slow",
    "53-one-transient-slow-probe",
    "54-no-recent-evidence",
    "55-healthy-1xa10",
)

#: Cases that do not grade as their expert would, with the reason. One that starts to pass must leave this list.
NOT_YET: tuple[tuple[str, str], ...] = ()


def differences(answer: dict[str, Any], expect: dict[str, Any]) -> list[str]:
    """What an answer has otherwise than expected."""
    found = [
        f"{name}: {answer['grades'][name]['grade']}, expected {grade}"
        for name, grade in expect["grades"].items()
        if answer["grades"][name]["grade"] != grade
    ]
    found += [
        f"{k}: {answer[k]}, expected {expect[k]}"
        for k in ("bad_gpus", "action")
        if k in expect and answer[k] != expect[k]
    ]
    reasons = " ".join(r.lower() for g in answer["grades"].values() for r in g["reasons"])
    words = expect.get("reason_any")
    if words and not any(w.lower() in reasons for w in words):
        found.append(f"none of {words} in: {reasons}")
    return found


def grade(bundle: Path) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(main, ["grade", "--bundle", str(bundle), "-o", "json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.parametrize("case", CASES)
def test_a_case_grades_as_its_expert_would(case: str, shared: Path) -> None:
    bundle = shared / "cases" / case
    expect = json.loads((bundle / "case.json").read_text())["expect"]
    code, answer = grade(bundle)
    wrong = differences(answer, expect)
    if case in dict(NOT_YET):
        assert wrong, f"{case} passes now: take it off the list"
        pytest.xfail(dict(NOT_YET)[case])
    assert wrong == []
    assert code == int(any(g["grade"] == "red" for g in answer["grades"].values()))


def test_every_case_is_listed(shared: Path) -> None:
    assert {p.name for p in (shared / "cases").iterdir() if p.is_dir()} == set(CASES)


def test_no_case_is_recognised_by_its_names(shared: Path, tmp_path: Path) -> None:
    """The answer must not change when host names, ids and titles do."""
    for case in ("03-xid62-hidden-behind-45", "51-one-gpu-12-percent-slow", "54-no-recent-evidence"):
        bundle = shared / "cases" / case
        copy = tmp_path / f"x{case[-5:]}"
        for source in bundle.rglob("*"):
            target = copy / source.relative_to(bundle)
            if source.is_dir():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text()
            if source.name == "case.json":
                facts = json.loads(text)
                text = json.dumps({k: facts[k] for k in ("now", "product", "gpus")})
            target.write_text(text.replace("gpu-h100-", "w").replace("gpu-a100-", "w"))
        (_, a), (_, b) = grade(bundle), grade(copy)
        assert {k: g["grade"] for k, g in a["grades"].items()} == {k: g["grade"] for k, g in b["grades"].items()}
        assert (a["bad_gpus"], a["action"]) == (b["bad_gpus"], b["action"])


def test_the_json_has_the_shape_that_programs_read(shared: Path) -> None:
    code, answer = grade(shared / "cases" / "52-one-gpu-30-percent-slow")
    assert code == 1
    assert {"node", "at", "grades", "gpus", "bad_gpus", "action", "evidence"} <= set(answer)
    assert answer["at"] == "2026-11-19T06:00:00Z"
    for entry in answer["grades"].values():
        assert {"grade", "sensitivity", "slowdown", "low", "high", "reasons"} <= set(entry)
        assert entry["low"] <= entry["slowdown"] <= entry["high"]
        assert entry["reasons"]
    assert [g["index"] for g in answer["gpus"]] == list(range(8))
    assert answer["gpus"][1]["slowdown"]["compute"] == pytest.approx(1.30, abs=0.01)
    assert answer["gpus"][1]["grades"]["train-multi"] == "red"


def test_the_table_is_for_people(shared: Path) -> None:
    result = CliRunner().invoke(main, ["grade", "--bundle", str(shared / "cases" / "51-one-gpu-12-percent-slow")])
    assert result.exit_code == 0
    assert "GPU 6 compute 1.12x slower than 512 peers in 12 probes over 6.4 days, last 2 h ago" in result.stdout
    assert "BAD GPUS   6" in result.stdout


@pytest.mark.parametrize("form", ["wide", "yaml", "name"])
def test_it_prints_as_the_other_commands_do(form: str, shared: Path) -> None:
    bundle = str(shared / "cases" / "51-one-gpu-12-percent-slow")
    result = CliRunner().invoke(main, ["grade", "--bundle", bundle, "-o", form])
    assert result.exit_code == 0
    first = {"wide": "NODE", "yaml": "node: gpu-h100-", "name": "node/"}[form]
    assert result.stdout.startswith(first)


def test_words_of_a_bundle_do_not_steer_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "case.json").write_text('{"gpus": 1, "id": "\\u001b[2Jn1"}')
    result = CliRunner().invoke(main, ["grade", "--bundle", str(tmp_path)])
    assert "\x1b" not in result.stdout
    assert "\\x1b[2Jn1" in result.stdout


def test_a_damaged_bundle_is_a_failure_with_a_text(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "absent"):
        result = CliRunner().invoke(main, ["grade", "--bundle", str(directory)])
        assert result.exit_code == 2
        assert str(directory) in result.stderr
    (tmp_path / "probes.jsonl").write_text('{"at": "2026-11-20T10:00:00Z", "gpu": 0, "dim')
    result = CliRunner().invoke(main, ["grade", "--bundle", str(tmp_path)])
    assert result.exit_code == 2
    assert "probes.jsonl, line 1" in result.stderr
    assert "Traceback" not in result.stderr
