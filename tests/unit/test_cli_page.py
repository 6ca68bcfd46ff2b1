"""The page: what it shows, and that nothing from elsewhere becomes markup."""

import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from scorer.model.board import Action, Finding, GradeBoard, Reach
from scorer.model.cluster import ClusterView
from scorer.model.grade import Grade
from scorer.model.policy import GradingPolicy
from scorer.serve.page import MAX_ROWS, render_page, span
from tests.cli_board import NOW, make_board, make_view, worst_of

VOID = {"meta", "link", "rect"}
HOSTILE = "x\"><script>alert(1)</script><b onmouseover='y'>&amp;"


class Page(HTMLParser):
    """Reads a document, and insists that every tag is closed in order."""

    def __init__(self, document: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[tuple[str, str]] = []
        self.feed(document.decode("utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.text.append((self.open[-1] if self.open else "", data.strip()))

    def of(self, tag: str) -> list[str]:
        return [text for inside, text in self.text if inside == tag]

    def classes(self) -> list[str]:
        return [name for _, attrs in self.tags for name in (attrs.get("class") or "").split()]


def render(
    board: GradeBoard | None, view: ClusterView | None, job_type: str | None = None, mode: str = "observe"
) -> Page:
    overall = np.empty(0, np.uint8) if board is None else worst_of(board)
    return Page(render_page(board, view, GradingPolicy(), overall, NOW, mode, job_type))


SLOW = Finding("slow", Grade.RED, Reach.SLOWDOWN, 3, "GPU 3 takes 31 % longer on compute than its peers")
LINKS = Finding("nvlink-count", Grade.RED, Reach.MULTI_GPU, 3, "GPU 3 has 16 of 18 NVLinks", run="run-9")


@pytest.fixture
def board() -> GradeBoard:
    return make_board(
        {
            "gpu-r01-n01": {},
            "gpu-r01-n02": {"train-multi": Grade.RED, "train-node": Grade.YELLOW},
            "gpu-r02-n01": dict.fromkeys(("train-multi", "train-node", "infer-gpu", "batch-io"), Grade.UNKNOWN),
            "gpu-r02-n02": {"train-multi": Grade.YELLOW},
        },
        {"gpu-r01-n02": [SLOW, LINKS]},
        {"gpu-r01-n02": [3]},
    )


@pytest.fixture
def view() -> ClusterView:
    return make_view({"gpu-r01-n01": "r01", "gpu-r01-n02": "r01", "gpu-r02-n01": "r02", "gpu-r02-n02": "r02"})


def test_it_has_no_scripts_and_loads_nothing(board: GradeBoard, view: ClusterView) -> None:
    page = render(board, view)
    assert "script" not in {tag for tag, _ in page.tags}
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on") or name == "src"]
    assert {attrs["href"] for tag, attrs in page.tags if tag == "link"} == {"data:,"}
    assert "prefers-color-scheme: dark" in " ".join(page.of("style"))


def test_racks_with_their_counts_worst_first(board: GradeBoard, view: ClusterView) -> None:
    page = render(board, view)
    labels = [attrs["aria-label"] for tag, attrs in page.tags if tag == "svg" and attrs.get("role") == "group"]
    assert labels == ["r01: 1 red, 1 green", "r02: 1 yellow, 1 unknown"]


def test_every_grade_has_a_letter_a_class_and_its_reason(board: GradeBoard, view: ClusterView) -> None:
    page = render(board, view)
    assert page.of("title")[1:] == [
        "gpu-r01-n01: green",
        (
            "gpu-r01-n02: red, GPU 3 takes 31 % longer on compute than its peers; "
            "GPU 3 has 16 of 18 NVLinks (concerns jobs of several GPUs) (injected by run run-9)"
        ),
        "gpu-r02-n01: unknown, no good probe yet",
        "gpu-r02-n02: yellow, predicted to be slower than its peers",
    ]
    cells = [
        (attrs.get("class") or "").split()[1]
        for tag, attrs in page.tags
        if tag == "g" and (attrs.get("class") or "").startswith("cell")
    ]
    assert cells == ["g-green", "g-red", "g-unknown", "g-yellow"]
    assert [text for text in page.of("text") if text.startswith("n0") or text in {"G", "R", "?", "Y"}][-8:] == [
        "G", "n01", "R", "n02", "?", "n01", "Y", "n02"
    ]  # fmt: skip


def test_the_table_is_worst_first_with_ages(board: GradeBoard, view: ClusterView) -> None:
    page = render(board, view)
    codes = [code for code in page.of("code") if code.startswith("gpu-")]
    assert codes == ["gpu-r01-n02", "gpu-r02-n02", "gpu-r02-n01"]
    cells = page.of("td")
    assert cells[-9:] == ["1.19", "25 min", "4 h", "1.07", "25 min", "4 h", "\N{EN DASH}", "\N{EN DASH}", "4 h"]
    # Each slowdown says of which job type it is; where there is none, none is named.
    body = render_page(board, view, GradingPolicy(), worst_of(board), NOW, "observe").decode()
    assert re.findall(r'<td class="num">(?:1\.\d\d|\N{EN DASH}) ?(?:<small>(.*?)</small>)?</td>\n<td>', body) == [
        "train-multi", "train-multi", ""
    ]  # fmt: skip


def test_cells_link_to_their_row(board: GradeBoard, view: ClusterView) -> None:
    page = render(board, view)
    links = {attrs["href"] for tag, attrs in page.tags if tag == "a" and (attrs["href"] or "").startswith("#")}
    rows = {f"#{attrs['id']}" for tag, attrs in page.tags if tag == "tr" and "id" in attrs}
    assert links == rows == {"#n0", "#n1", "#n2"}


def test_the_gpu_at_fault_stands_out(board: GradeBoard, view: ClusterView) -> None:
    assert render(board, view).classes().count("g-red") == 1 + 1 + 2 + 1  # cell, GPU, two bars, legend


def test_a_job_type_draws_its_own_grades(board: GradeBoard, view: ClusterView) -> None:
    page = render(board, view, "train-node")
    assert page.of("title")[2].startswith("gpu-r01-n02: yellow")
    assert page.of("title")[4] == "gpu-r02-n02: green"
    current = [attrs["href"] for tag, attrs in page.tags if tag == "a" and "aria-current" in attrs]
    assert current == ["?job-type=train-node"]
    assert any("for train-node at sensitive" in text for text in page.of("h2"))


def test_a_wrong_job_type_draws_the_worst_and_says_so(board: GradeBoard, view: ClusterView) -> None:
    page = render(board, view, HOSTILE)
    assert page.of("p")[0] == f"No job type is called “{HOSTILE}”; this is the worst of all of them."
    assert page.of("title")[2].startswith("gpu-r01-n02: red")


def test_hostile_names_and_texts_stay_text() -> None:
    finding = Finding("x", Grade.RED, Reach.ALL, 0, HOSTILE, action=Action.RMA)
    board = make_board({HOSTILE: {"train-multi": Grade.RED}}, {HOSTILE: [finding]})
    page = render(board, make_view({HOSTILE: HOSTILE}, problems=(HOSTILE,)), mode=HOSTILE)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script"})
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert page.of("dd")[0] == HOSTILE
    assert HOSTILE in page.of("code")
    assert page.of("title")[1] == f"{HOSTILE}: red, {HOSTILE}"
    assert f"Topology: {HOSTILE}" in page.of("p")


def test_before_anything_is_known_it_says_so() -> None:
    page = render(None, None)
    assert page.of("p") == [
        "No grades yet: the first ones are there once the evidence has been read.",
        "The cluster has not been read yet: racks and free GPUs are not known.",
        "There are no nodes.",
        "There is nothing to show yet.",
    ]


def test_nodes_of_the_view_alone_are_unknown_and_nodes_of_the_board_alone_are_shown(board: GradeBoard) -> None:
    page = render(board, make_view({"gpu-r01-n01": "r01", "gpu-r09-n01": "r09", "gpu-r09-n02": None}))
    titles = page.of("title")[1:]
    assert "gpu-r09-n01: unknown, not graded yet" in titles
    assert len(titles) == 6
    captions = [text for tag, text in page.text if tag == "b"]
    assert captions[-3:] == ["r01", "r09", "not in a known one"]


def test_a_fleet_that_is_all_green(view: ClusterView) -> None:
    assert "All nodes are green." in render(make_board({name: {} for name in view.nodes}), view).of("p")


def test_a_large_fleet_keeps_the_table_short_and_leaves_out_the_gpus() -> None:
    names = [f"n{i:04}" for i in range(1100)]
    board = make_board({name: {"train-multi": Grade.RED} for name in names})
    page = render(board, make_view({name: f"r{i // 16:02}" for i, name in enumerate(names)}))
    assert sum(tag == "tr" and "id" in attrs for tag, attrs in page.tags) == MAX_ROWS
    assert any(f"And {1100 - MAX_ROWS} more:" in text for text in page.of("p"))
    assert "pip" not in page.classes()


def test_a_board_of_fewer_job_types_than_the_policy_is_drawn_without_the_others(view: ClusterView) -> None:
    whole = make_board({name: {} for name in view.nodes})
    board = dataclasses.replace(
        whole, job_types=whole.job_types[:1], grade=whole.grade[:, :1], gpu_grade=whole.gpu_grade[:, :1]
    )
    page = Page(render_page(board, view, GradingPolicy(), np.zeros(4, np.uint8), NOW, "observe"))
    assert [text for text in page.of("a") if text] == ["all job types", "train-multi"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(float("nan"), "\N{EN DASH}"), (-3.0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_span(seconds: float, expected: str) -> None:
    assert span(seconds) == expected


def test_names_are_in_the_order_of_counting_and_labels_without_what_all_share() -> None:
    names = [f"ip-10-0-0-{i}.eu.compute.internal" for i in (133, 22, 4)]
    page = render(make_board({name: {} for name in names}), make_view(dict.fromkeys(names, "r1")))
    assert [text for text in page.of("text") if text.isdigit()] == ["4", "22", "133"]


def test_racks_are_in_the_order_of_counting() -> None:
    racks = {"a": "r10", "b": "r2", "c": "row", "d": "r"}
    page = render(make_board({name: {} for name in racks}), make_view(dict(racks)))
    assert [text for tag, text in page.text if tag == "b"][-4:] == ["r", "r2", "r10", "row"]


def test_a_grade_that_waits_for_a_probe_says_so_but_remarks_never_stand_beside_reasons() -> None:
    remark = Finding("waiting", Grade.GREEN, Reach.ALL, -1, "waiting for a clean probe")
    grades = {name: {"train-multi": Grade.YELLOW} for name in ("n1", "n2")}
    page = render(make_board(grades, {"n1": [remark], "n2": [SLOW, remark]}), make_view({"n1": "r1", "n2": "r1"}))
    assert page.of("title")[1:] == [f"n1: yellow, {remark.text}", f"n2: yellow, {SLOW.text}"]
