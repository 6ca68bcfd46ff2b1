"""Looking up lists of names on their bytes finds what a dictionary would, or says that it cannot."""

import json
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.serve.names import Found, NameIndex, NameMemory

words = st.text(min_size=1, max_size=40) | st.from_regex(r"[a-z]{0,3}node-[0-9]{1,4}", fullmatch=True)


@given(known=st.lists(words, unique=True, min_size=1, max_size=30), data=st.data())
def test_it_finds_what_a_dictionary_would(known: list[str], data: st.DataObject) -> None:
    asked = data.draw(st.lists(st.sampled_from(known) | words, max_size=30))
    raw = msgspec.json.encode(asked)
    found = NameIndex(tuple(known)).find(raw)
    if found is not None:
        assert found.rows.tolist() == [known.index(name) for name in asked]
        assert list(found.names) == asked
    elif set(asked) <= set(known) and asked:
        # Only names that JSON escapes, or that are no plain ASCII, are left to the slow way.
        assert any(not n.isascii() or not n.isprintable() or '"' in n or "\\" in n for n in asked)


@given(st.binary(max_size=80), st.integers(0, 80))
def test_no_bytes_whatsoever_are_misread(noise: bytes, cut: int) -> None:
    index = NameIndex(("a", "bc", "node-17"))
    for raw in (noise, b'["' + noise + b'"]', b'["a","bc"]'[:cut] + noise):
        found = index.find(raw)
        if found is not None:
            assert [("a", "bc", "node-17")[row] for row in found.rows] == json.loads(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b'["a", "b"]',
        b'["a","c"]',
        b'["a""b"]',
        b'["a";"b"]',
        b'["a","b","]',
        b'["\\u0061"]',
        b'["a\0"]',
        b'["aaaaaaaaaaaaaaaaaa"]',
        b"",
    ],
)
def test_what_is_not_plain_or_not_known_is_left_to_the_slow_way(raw: bytes) -> None:
    assert NameIndex(("a", "b")).find(raw) is None


def test_names_of_one_hash_slot_are_told_apart() -> None:
    names = tuple(f"ip-10-{i // 250}-{i % 250}-7.eu-west-1.compute.internal" for i in range(5000))
    asked = list(names)
    random.Random(5).shuffle(asked)
    found = NameIndex(names).find(msgspec.json.encode(asked))
    assert found is not None
    assert [names[row] for row in found.rows] == asked


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_leaving_names_out_splices_the_json(kept: list[bool]) -> None:
    names = tuple(f"node-{i}" for i in range(len(kept)))
    found = NameIndex(names).find(msgspec.json.encode(names))
    assert found is not None
    rest = found.keep(np.array(kept))
    assert rest is not None
    assert all(kept) or rest.keep(np.zeros(len(rest.names), bool)) is (None if any(kept) else rest)
    assert json.loads(rest.names.raw) == [n for n, k in zip(names, kept, strict=True) if k]
    assert (rest.rows.tolist(), len(rest.names)) == ([i for i, k in enumerate(kept) if k], sum(kept))


def test_short_lists_are_left_to_the_slow_way() -> None:
    names = tuple(f"node-{i:04d}" for i in range(3000))
    memory = NameMemory(names)
    assert memory.find(msgspec.json.encode(names[:500])) is None
    assert memory.find(msgspec.json.encode(names)) is not None


def test_memory_is_bounded_and_drops_the_oldest() -> None:
    names = tuple(f"n{i}" for i in range(40))
    memory = NameMemory(names, shortest=0)
    kept: list[Found] = []
    for name in names:
        found = memory.recall(msgspec.json.encode([name]))
        assert found is not None
        memory.keep(found)
        kept.append(found)
    recalled = [memory.recall(found.names.raw) is found for found in kept]
    assert recalled == [False] * (40 - NameMemory.LISTS) + [True] * NameMemory.LISTS
