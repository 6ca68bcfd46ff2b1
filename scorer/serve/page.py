"""The page for people: one HTML document with a heat map by rack, made on the server, without scripts."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import jinja2
import numpy as np
from numpy.typing import NDArray

from scorer.model.board import GradeBoard
from scorer.model.cluster import ClusterView
from scorer.model.grade import Grade
from scorer.model.policy import GradingPolicy
from scorer.serve.heatmap import CELL, LETTERS, WORST_FIRST, Fleet, racks_of, reasons_of

#: Rows of the table of what is not green. A fleet with more has one cause, and it shows in the first ones.
MAX_ROWS: Final = 300
BAR_WIDTH: Final = 240
UNKNOWN_FIGURE: Final = "\N{EN DASH}"
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


@dataclass(frozen=True, slots=True)
class Part:
    """One grade's share of a bar."""

    grade: str
    letter: str
    count: int
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Choice:
    """A job type that the map can be drawn for, with the counts of its grades; the first is the worst of all."""

    name: str
    label: str
    hint: str
    chosen: bool
    parts: tuple[Part, ...]
    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One node that is not green."""

    anchor: str
    node: str
    grade: str
    letter: str
    types: tuple[tuple[str, str, str], ...]
    slowdown: str
    slowdown_of: str
    reasons: tuple[str, ...]
    age: str
    since: str


def _environment() -> jinja2.Environment:
    files = resources.files("scorer.serve")
    sources = {name: files.joinpath(name).read_text("utf-8") for name in ("page.html.j2", "page.css")}
    return jinja2.Environment(
        loader=jinja2.DictLoader(sources), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )


_ENVIRONMENT: Final = _environment()


def render_page(
    board: GradeBoard | None,
    view: ClusterView | None,
    policy: GradingPolicy,
    overall: NDArray[np.uint8],
    now: float,
    mode: str,
    job_type: str | None = None,
) -> bytes:
    """Draw the fleet.

    Args:
        board: the grades; ``None`` before the first fold.
        view: the cluster; ``None`` before it was first read.
        policy: job types and thresholds.
        overall: uint8 (N,): worst grade of each node of the board, in its order; anything where there is no board.
        now: Unix seconds.
        mode: how far the extender goes: observe, advise, enforce.
        job_type: draw the grades for this one; ``None`` or an unknown name draws the worst of all.

    Returns:
        An HTML document in UTF-8. Everything that came from elsewhere is escaped in it.
    """
    there = {t.name: t for t in policy.job_types if board is not None and t.name in board.job_types}
    fleet = Fleet(board, view, policy, overall, there.get(job_type or ""))
    wrong = job_type if job_type and fleet.chosen is None else None
    return (
        _ENVIRONMENT.get_template("page.html.j2").render(mode=mode, wrong_type=wrong, **_content(fleet, now)).encode()
    )


def _content(fleet: Fleet, now: float) -> dict[str, Any]:
    """What the template shows of a fleet, by the names that it uses."""
    board, view, chosen = fleet.board, fleet.view, fleet.chosen
    anchors = _anchors(fleet)
    level, racks = racks_of(fleet, anchors)
    return {
        "nodes": len(fleet.names),
        "gpus": _gpu_count(board, view),
        "board_version": None if board is None else board.version,
        "board_age": None if board is None else span(now - board.at),
        "has_view": view is not None,
        "problems": [] if view is None else list(view.problems),
        "choices": _choices(fleet),
        "chosen": None if chosen is None else chosen.name,
        "chosen_sensitivity": None if chosen is None else chosen.sensitivity.label,
        "bar_width": BAR_WIDTH,
        "cell": CELL,
        "legend": [(grade.label, LETTERS[grade], _meaning(grade)) for grade in reversed(WORST_FIRST)],
        "level": level,
        "racks": racks,
        "rows": [_table_row(fleet, name, anchor, now) for name, anchor in anchors.items()],
        "left_out": sum(grade is not Grade.GREEN for grade in fleet.grades.values()) - len(anchors),
    }


def span(seconds: float) -> str:
    """A time span for people: ``40 s``, ``12 min``, ``5 h``, ``3 d``; a dash where it is not known."""
    if math.isnan(seconds):
        return UNKNOWN_FIGURE
    whole = max(0.0, seconds)
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if whole >= 2 * unit:
            return f"{int(whole // unit)} {name}"
    return f"{int(whole)} s"


def _gpu_count(board: GradeBoard | None, view: ClusterView | None) -> int:
    if view is not None:
        return int(view.gpus.sum())
    return 0 if board is None else int(board.gpu_start[-1])


def _meaning(grade: Grade) -> str:
    return {
        Grade.GREEN: "as fast as its peers, nothing wrong",
        Grade.UNKNOWN: "not enough evidence; never counted as green",
        Grade.YELLOW: "slower than the class bears well, or a warning",
        Grade.RED: "too slow for the class, or a fault",
    }[grade]


def _choices(fleet: Fleet) -> tuple[Choice, ...]:
    def choice(name: str, label: str, hint: str, grades: Iterable[Grade], chosen: bool) -> Choice:
        found = list(grades)
        counts = [(grade, sum(g is grade for g in found)) for grade in WORST_FIRST]
        return Choice(
            name,
            label,
            hint,
            chosen,
            _parts(counts, len(found)),
            tuple((grade.label, count) for grade, count in counts),
        )

    none = fleet.chosen is None
    return (
        choice("", "all job types", "the worst of them", fleet.worst.values(), none),
        *(
            choice(t.name, t.name, f"at {t.sensitivity.label}", fleet.by_type[t.name].values(), t is fleet.chosen)
            for t in fleet.types
        ),
    )


def _parts(counts: Sequence[tuple[Grade, int]], total: int) -> tuple[Part, ...]:
    parts: list[Part] = []
    x = 0.0
    for grade, count in counts:
        if count:
            width = BAR_WIDTH * count / total
            parts.append(Part(grade.label, LETTERS[grade], count, round(x, 2), round(width, 2)))
            x += width
    return tuple(parts)


def _anchors(fleet: Fleet) -> dict[str, str]:
    """Nodes that get a row in the table, worst first, each with the fragment that cells link to."""
    bad = [name for name in fleet.names if fleet.grades[name] is not Grade.GREEN]
    bad.sort(key=lambda name: -fleet.grades[name])
    return {name: f"n{i}" for i, name in enumerate(bad[:MAX_ROWS])}


def _table_row(fleet: Fleet, node: str, anchor: str, now: float) -> Row:
    grade = fleet.grades[node]
    by_type = {t.name: fleet.by_type[t.name][node] for t in fleet.types}
    age, since, slowdown, slowdown_of = _figures(fleet, node, now)
    return Row(
        anchor,
        node,
        grade.label,
        LETTERS[grade],
        tuple((name, each.label, LETTERS[each]) for name, each in by_type.items()),
        slowdown,
        slowdown_of,
        reasons_of(fleet, node),
        age,
        since,
    )


def _figures(fleet: Fleet, node: str, now: float) -> tuple[str, str, str, str]:
    """Age of the newest good GPU probe, how long the grade stands, the slowdown that gives it, and for which type."""
    board, row = fleet.board, fleet.row(node)
    if board is None or row is None:
        return UNKNOWN_FIGURE, UNKNOWN_FIGURE, UNKNOWN_FIGURE, ""
    grade = fleet.grades[node]
    types = [t for t in fleet.types if fleet.by_type[t.name][node] is grade]
    asked = types if fleet.chosen is None else [fleet.chosen]
    at = [(board.job_types.index(t.name), t.shape.variant, t.sensitivity) for t in asked]
    begun = [float(board.since[row, j, v, s]) for j, v, s in at]
    slowdowns = [(float(board.slowdown[row, j, v]), board.job_types[j]) for j, v, _ in at]
    probed = float(board.evidence_at[row])
    return (
        span(now - probed),
        span(now - min((time for time in begun if not math.isnan(time)), default=math.nan)),
        *(_worst(slowdowns) if not math.isnan(probed) else (UNKNOWN_FIGURE, "")),
    )


def _worst(slowdowns: Sequence[tuple[float, str]]) -> tuple[str, str]:
    """The largest slowdown, and the job type that it is of: the first of those that are as slow."""
    figure, of = max(slowdowns, key=lambda pair: pair[0], default=(math.nan, ""))
    return (UNKNOWN_FIGURE, "") if math.isnan(figure) else (f"{figure:.2f}", of)
