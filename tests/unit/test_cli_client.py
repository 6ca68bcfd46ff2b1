"""Addresses, wrong names, and the clocks that are no change."""

import pytest

from scorer.cli.client import did_you_mean, target_of
from scorer.cli.watch import without_clocks
from scorer.model.errors import InputError


@pytest.mark.parametrize(
    ("server", "target"),
    [
        ("localhost:9441", "localhost:9441"),
        ("scorer.gpugrade.svc", "scorer.gpugrade.svc:9441"),
        ("10.0.0.1:1", "10.0.0.1:1"),
        ("[::1]:9441", "[::1]:9441"),
        ("[::1]", "[::1]:9441"),
        ("unix:/run/gpugrade.sock", "unix:/run/gpugrade.sock"),
    ],
)
def test_addresses(server: str, target: str) -> None:
    assert target_of(server) == target


@pytest.mark.parametrize(
    "server",
    ["", "http://localhost:9441", "host:", ":9441", "host:http", "host:0", "host:65536", "a b:1", "::1", "h:\u0661"],
)
def test_what_is_no_address_is_refused_with_what_to_do(server: str) -> None:
    with pytest.raises(InputError, match="--server wants HOST:PORT, such as localhost:9441"):
        target_of(server)


def test_a_near_name_is_suggested_and_few_are_listed() -> None:
    assert did_you_mean("job type", "train_multi", ["train-multi", "infer-gpu"]) == (
        "no job type is called 'train_multi'; did you mean train-multi?"
    )
    assert did_you_mean("node", "zzz", ["n1", "n2"]) == "no node is called 'zzz'; there are n1, n2"
    assert did_you_mean("node", "zzz", []) == "no node is called 'zzz'; there is none"
    assert did_you_mean("node", "zzz", [f"n{i}" for i in range(15)]).endswith("n11 and 3 more")


def test_how_long_ago_is_no_change_but_how_much_is() -> None:
    def reason(text: str) -> object:
        return without_clocks({"reasons": [text]})

    assert reason("1.32x slower in 16 probes over 7.5 days, last 59 min ago") == reason(
        "1.32x slower in 16 probes over 7.6 days, last 2 h ago"
    )
    assert reason("1.32x slower, last 2 h ago") != reason("1.33x slower, last 2 h ago")
    assert reason("GPU 3") != reason("GPU 4")


def test_time_alone_is_no_change() -> None:
    before = {"items": [{"node": "n1", "age_s": 1.0}], "board": {"version": 1}, "at": "x"}
    after = {"items": [{"node": "n1", "age_s": 3.0}], "board": {"version": 2}, "at": "y"}
    assert without_clocks(before) == without_clocks(after) == {"items": [{"node": "n1"}]}
