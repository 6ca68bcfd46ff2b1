"""Plain columns, ages and numbers; what comes from elsewhere never steers a terminal."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from scorer.cli.output import (
    Answer,
    Column,
    Facts,
    Table,
    age,
    clean,
    fitted,
    least_width,
    number,
    plain,
    renderable,
    text_of,
)

TABLE = Table(
    (Column("NODE"), Column("GPUS", right=True), Column("UUID", wide=True), Column("REASONS")),
    (("gpu-r01-n01", "8", "GPU-1", ""), ("n2", "16", "GPU-2", "slow; and [red]hot[/red]")),
)


def test_plain_columns_are_aligned_and_never_empty() -> None:
    assert plain([TABLE], wide=False) == (
        "NODE          GPUS   REASONS\ngpu-r01-n01      8   -\nn2              16   slow; and [red]hot[/red]"
    )


def test_wide_shows_the_wide_columns() -> None:
    assert plain([TABLE], wide=True).splitlines()[0].split() == ["NODE", "GPUS", "UUID", "REASONS"]


def test_a_table_without_rows_still_has_its_heads() -> None:
    assert plain([Table(TABLE.columns, ())], wide=False) == "NODE   GPUS   REASONS"


def test_facts_and_tables_are_parted_by_an_empty_line() -> None:
    text = plain([Facts((("bad gpus", "3"), ("grade", "red"))), TABLE], wide=False)
    assert text.startswith("BAD GPUS   3\nGRADE      red\n\nNODE")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "-"), (-5, "0s"), (0, "0s"), (119.9, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")],
)
def test_age(seconds: float | None, expected: str) -> None:
    assert age(seconds) == expected


@pytest.mark.parametrize(("value", "expected"), [(0.0, "-"), (1.186, "1.19"), (float("nan"), "-"), (float("inf"), "-")])
def test_number(value: float, expected: str) -> None:
    assert number(value) == expected


@given(st.text())
def test_cleaned_text_is_one_printable_line(text: str) -> None:
    cleaned = clean(text)
    assert cleaned
    assert cleaned.isprintable()


@given(st.lists(st.text(st.characters(exclude_categories=["Z"]), min_size=1), min_size=2, max_size=2), st.booleans())
def test_every_row_has_as_many_columns_as_the_head(cells: list[str], wide: bool) -> None:
    table = Table((Column("A"), Column("B")), (tuple(cells),))
    head, row = plain([table], wide).split("\n")
    assert len(head.split()) == len(row.split()) == 2


ANSWER = Answer(
    document={"items": [{"node": "n1", "reasons": ["heiß"]}]}, names=("node/n1", "node/\x1b[31m"), blocks=(TABLE,)
)


def test_json_and_yaml_say_the_same() -> None:
    assert json.loads(text_of(ANSWER, "json")) == yaml.safe_load(text_of(ANSWER, "yaml")) == ANSWER.document


def test_letters_have_the_colours_of_their_grades() -> None:
    columns = (Column("NODE"), Column("TRAIN-MULTI", brief="TM"), Column("INFER-GPU", brief="IG"), Column("REASONS"))
    table = Table(columns, (("n1", "red", "green", "no good probe yet"),))
    console = Console(force_terminal=True, width=40, color_system="standard")
    with console.capture() as capture:
        console.print(fitted(console, [table], wide=False))
    assert "\x1b[1;31mR\x1b[0m  \x1b[32mG\x1b[0m" in capture.get()


def test_names_are_one_a_line_without_control_characters() -> None:
    assert text_of(ANSWER, "name") == "node/n1\nnode/\\x1b[31m"


def test_a_terminal_gets_colour_for_grades_and_no_markup_of_others() -> None:
    table = Table((Column("GRADE"), Column("REASONS")), (("red", "[blink]now[/blink]\x1b]0;title\x07"),))
    console = Console(force_terminal=True, width=80, color_system="standard", markup=False, highlight=False)
    with console.capture() as capture:
        console.print(renderable([Facts((("node", "n1"),)), table], wide=False))
    drawn = capture.get()
    assert "\x1b[1;31mred" in drawn
    assert "[blink]now[/blink]\\x1b]0;title\\x07" in drawn


def test_on_a_narrow_terminal_sentences_stay_readable() -> None:
    table = Table((Column("NODE"), Column("REASONS")), (("gpu-r01-n01", "no good probe yet " * 3),))
    console = Console(width=24, force_terminal=True)
    drawn = fitted(console, [table], wide=False)
    assert least_width(console, drawn) >= len("gpu-r01-n01") + 20
    console.width = least_width(console, drawn)
    with console.capture() as capture:
        console.print(drawn)
    assert "gpu-r01-n01" in capture.get()


@pytest.mark.parametrize(
    ("width", "words", "letters"),
    [(80, True, False), (48, True, False), (47, False, True), (39, False, True), (38, False, False)],
)
def test_a_narrow_terminal_shows_letters_and_a_narrower_one_goes_without(
    width: int, words: bool, letters: bool
) -> None:
    columns = (Column("NODE"), Column("TRAIN-MULTI", brief="TM"), Column("REASONS"))
    table = Table(columns, (("gpu-r01-n01", "yellow", "no good probe yet"),))
    console = Console(width=width)
    with console.capture() as capture:
        console.print(fitted(console, [table], wide=False))
    drawn = capture.get()
    assert ("TRAIN-MULTI" in drawn, "yellow" in drawn.splitlines()[2]) == (words, words)
    assert ("TM" in drawn, "TM train-multi" in drawn) == (letters, letters)
    if letters:
        assert drawn.splitlines()[2].split()[:2] == ["gpu-r01-n01", "Y"]
    assert max(map(len, drawn.splitlines())) <= width
    assert "TRAIN-MULTI" in plain([table], wide=False)
