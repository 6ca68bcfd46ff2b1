"""Counts agree with their nouns, wherever people read them."""

import pytest

from scorer.cli.client import did_you_mean
from scorer.model.words import counted


@pytest.mark.parametrize(("count", "text"), [(0, "0 GPUs"), (1, "1 GPU"), (2, "2 GPUs")])
def test_a_count_agrees_with_its_noun(count: int, text: str) -> None:
    assert counted(count, "GPU") == text


@pytest.mark.parametrize(
    ("known", "text"),
    [([], "there is none"), (["n1"], "there is n1"), (["n1", "n2"], "there are n1, n2")],
)
def test_what_there_is_agrees_with_how_many_there_are(known: list[str], text: str) -> None:
    assert did_you_mean("node", "other", known) == f"no node is called 'other'; {text}"
