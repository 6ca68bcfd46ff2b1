"""The scheduler's JSON: any key case in, Go case out."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from scorer.model.errors import RequestError
from scorer.placement import Reason
from scorer.serve import answers, wire

POD = {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"containers": []}}


def encode_filter(call: wire.ExtenderCall, codes: NDArray[np.uint8], reasons: tuple[Reason, ...]) -> bytes:
    failing = [name for name, code in zip(call.names, codes, strict=True) if code]
    return answers.encode_filter(call, None, codes, reasons, failing)


def body(**parts: object) -> bytes:
    return json.dumps(parts).encode()


@pytest.mark.parametrize(
    "parts",
    [
        {"Pod": POD, "Nodes": None, "NodeNames": ["a", "b"]},
        {"pod": POD, "nodes": None, "nodenames": ["a", "b"]},
        {"pod": POD, "nodeNames": ["a", "b"]},
        {"POD": POD, "NODENAMES": ["a", "b"], "extra": {"x": 1}},
    ],
)
def test_names_with_keys_in_any_case(parts: dict[str, object]) -> None:
    call = wire.decode_call(body(**parts))
    assert (call.names, call.items, call.pod.name, call.pod.uid) == (["a", "b"], None, "p", "u")


@pytest.mark.parametrize("items", ["items", "Items"])
@pytest.mark.parametrize("nodes", ["Nodes", "nodes"])
def test_whole_nodes_are_kept_as_they_came(nodes: str, items: str) -> None:
    raw = b'{"metadata":{"name":"a","labels":{"x":"\\u00e9"}},"status":{"n":1.50}}'
    call = wire.decode_call(
        b'{"Pod":%s,"%s":{"%s":[%s]}}' % (json.dumps(POD).encode(), nodes.encode(), items.encode(), raw)
    )
    assert call.names == ["a"]
    assert raw in encode_filter(call, np.zeros(1, np.uint8), ())


@pytest.mark.parametrize("empty", [{"NodeNames": []}, {"Nodes": {"items": []}}, {"Nodes": {"items": None}}])
def test_no_candidates_is_an_answer_in_kind(empty: dict[str, object]) -> None:
    call = wire.decode_call(body(Pod=POD, **empty))
    answer = json.loads(encode_filter(call, np.zeros(0, np.uint8), ()))
    assert call.names == []
    assert (answer["NodeNames"] == []) is ("NodeNames" in empty)
    assert ((answer["Nodes"] or {}).get("items") == []) is ("Nodes" in empty)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (body(Pod=POD, NodeNames=["a"])[:-8], "not JSON: Input data was truncated"),
        (b"\xff\xfe", "not JSON"),
        (b'{"Pod":' * 100_000, "the body"),
        (b"[" * 100_000, "Expected `object`"),
        (b"[]", "Expected `object`"),
        (body(Pod=POD, NodeNames="a"), "NodeNames is a list of strings"),
        (body(Pod=POD, NodeNames=["a", 7]), "Expected `str`, got `int` - at `$[1]`; NodeNames"),
        (body(Pod=POD, NodeNames=[None]), "at `$[0]`; NodeNames"),
        (body(Pod=7, NodeNames=["a"]), "$.Pod"),
        (body(Pod={"metadata": {"labels": {"a": 1}}}, NodeNames=["a"]), "$.Pod.metadata.labels"),
        (body(Pod=POD, Nodes={"items": [{"metadata": {}}]}), "missing required field `name`"),
        (body(Pod=None, NodeNames=["a"]), "no pod"),
        (body(NodeNames=["a"]), "no pod"),
        (body(Pod={}, NodeNames=["a"]), "no pod"),
        (body(Pod=POD), "no nodes"),
        (body(Pod=POD, Nodes=None, NodeNames=None), "no nodes"),
    ],
)
def test_bad_arguments_are_named(given: bytes, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        wire.decode_call(given)
    assert text in str(caught.value)
    assert "send" in str(caught.value)


def test_null_parts_of_a_pod_are_empty() -> None:
    pod = {
        "metadata": {"name": None, "labels": None, "annotations": None},
        "spec": {"containers": None, "initContainers": [{"resources": None}], "schedulingGroup": {"podGroupName": "g"}},
    }
    facts = wire.decode_call(body(Pod=pod, NodeNames=[])).pod
    assert (facts.name, facts.containers, len(facts.init_containers)) == ("", (), 1)
    assert facts.scheduling_group == "g"


def test_failures_go_to_the_map_that_preemption_reads() -> None:
    call = wire.decode_call(body(Pod=POD, NodeNames=["a", "b", "c"]))
    reasons = (Reason("red"), Reason("numa", unresolvable=False))
    answer = json.loads(encode_filter(call, np.array([1, 0, 2], np.uint8), reasons))
    assert answer == {
        "Nodes": None,
        "NodeNames": ["b"],
        "FailedNodes": {"c": "numa"},
        "FailedAndUnresolvableNodes": {"a": "red"},
        "Error": "",
    }


META = {"n1": {"Pods": [{"UID": "x"}], "NumPDBViolations": 2}, "n2": {"Pods": []}, "n3": {"Pods": None}, "n4": None}


def test_preempt_takes_uids_and_tolerates_emptiness() -> None:
    call = wire.decode_preempt(body(Pod=POD, NodeNameToVictims=None, NodeNameToMetaVictims=META))
    assert call.victims["n1"] == wire.Victims(("x",), 2)
    assert [call.victims[n] for n in ("n2", "n3", "n4")] == [wire.Victims((), 0)] * 3
    answer = json.loads(answers.encode_preempt(call.victims))
    assert answer["NodeNameToMetaVictims"]["n1"] == {"Pods": [{"UID": "x"}], "NumPDBViolations": 2}


def test_preempt_with_whole_pods_gives_their_uids() -> None:
    victims = {"n1": {"Pods": [{"metadata": {"uid": "x"}}, None], "NumPDBViolations": 0}, "n2": None}
    call = wire.decode_preempt(body(Pod=POD, NodeNameToVictims=victims, NodeNameToMetaVictims=None))
    assert call.victims == {"n1": wire.Victims(("x",), 0), "n2": wire.Victims((), 0)}


def test_preempt_with_keys_in_other_cases() -> None:
    meta = {"n1": {"pods": [{"uid": "x"}, None], "numpdbviolations": 1}, "n2": None}
    assert wire.decode_preempt(body(pod=POD, nodenametometavictims=meta)).victims == {
        "n1": wire.Victims(("x",), 1),
        "n2": wire.Victims((), 0),
    }
    whole = {"n1": {"pods": [{"metadata": {"uid": "y"}}]}}
    assert wire.decode_preempt(body(pod=POD, nodeNameToVictims=whole)).victims == {"n1": wire.Victims(("y",), 0)}


@pytest.mark.parametrize("given", [b"{", b'{"Pod":null}', b'{"Pod":{"metadata":{}},"NodeNameToMetaVictims":[]}'])
def test_bad_preempt_arguments_are_refused(given: bytes) -> None:
    with pytest.raises(RequestError):
        wire.decode_preempt(given)


names = st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=8)


@given(known=names, asked=names, data=st.data())
def test_score_lines_say_what_json_would(known: list[str], asked: list[str], data: st.DataObject) -> None:
    known = [*known, "x" * 200]
    asked = [*asked, "x" * 200]
    scores = [data.draw(st.integers(0, 10)) for _ in asked]
    rows = np.array([known.index(n) if n in known else -1 for n in asked], np.int32)
    encoded = answers.ScoreTable(tuple(known)).encode(asked, rows, np.array(scores, np.uint8))
    found = json.loads(encoded)
    assert {entry["Host"]: entry["Score"] for entry in found} == dict(zip(asked, scores, strict=True))
    assert len(found) == len(asked)


def test_score_lines_of_nobody() -> None:
    none = np.empty(0, np.int32)
    assert answers.ScoreTable(("a",)).encode([], none, none.astype(np.uint8)) == b"[]"
    assert answers.ScoreTable(()).encode([], none, none.astype(np.uint8)) == b"[]"


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_body_whatsoever_raises_anything_else(given_body: bytes) -> None:
    for decode in (wire.decode_call, wire.decode_preempt, wire.decode_pod):
        try:
            decode(given_body)
        except RequestError as error:
            assert str(error)  # noqa: PT017  most bodies are refused, a few are not, and both are right
