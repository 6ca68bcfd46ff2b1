"""The heat map of the page: nodes as cells, by rack, with their GPUs and the reasons of what is not green."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scorer.grading import telling, untold
from scorer.model.board import Finding, GradeBoard, Reach
from scorer.model.cluster import ClusterView
from scorer.model.grade import Grade
from scorer.model.jobtype import JobType
from scorer.model.policy import GradingPolicy
from scorer.placement.topology import natural_key

#: Above this many GPUs cells show no GPUs: the page would be too big to load at a glance.
MAX_PIPS: Final = 8192
#: Findings of a node that are told; the commands tell the rest.
MAX_REASONS: Final = 3
#: Characters of a node's name that fit into its cell.
LABEL_CHARS: Final = 7

CELL: Final = 52
GAP: Final = 6
COLUMNS: Final = 4

LETTERS: Final[Mapping[Grade, str]] = {grade: grade.letter for grade in Grade}
#: The order of counts, of the legend and of the table.
WORST_FIRST: Final = (Grade.RED, Grade.YELLOW, Grade.UNKNOWN, Grade.GREEN)
_REACH_WORDS: Final[Mapping[Reach, str]] = {
    Reach.MULTI_GPU: "jobs of several GPUs",
    Reach.GANG: "gangs",
    Reach.WHOLE_NODE: "jobs of the whole node",
    Reach.PCIE_HEAVY: "jobs heavy on PCIe",
}


@dataclass(frozen=True, slots=True)
class Pip:
    """One GPU of a cell."""

    x: float
    width: float
    grade: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One node of the heat map, in pixels of its rack's drawing."""

    x: int
    y: int
    grade: str
    letter: str
    label: str
    title: str
    link: str
    pips: tuple[Pip, ...]


@dataclass(frozen=True, slots=True)
class Rack:
    """One domain of the nearest topology level."""

    name: str
    summary: str
    width: int
    height: int
    cells: tuple[Cell, ...]


class Fleet:
    """Board and view brought together: nodes of either, by name, with what the chosen job type makes of them."""

    def __init__(
        self,
        board: GradeBoard | None,
        view: ClusterView | None,
        policy: GradingPolicy,
        overall: NDArray[np.uint8],
        chosen: JobType | None,
    ) -> None:
        self.board, self.view = board, view
        known: set[str] = set(view.nodes if view is not None else ())
        known.update(board.nodes if board is not None else ())
        self.names = sorted(known, key=natural_key)
        self.types: list[JobType] = []
        self.by_type: dict[str, dict[str, Grade]] = {}
        if board is not None:
            self.types = [t for t in policy.job_types if t.name in board.job_types]
            self.by_type = {t.name: self._of_type(board, t) for t in self.types}
        self.worst = self._aligned(overall)
        self.grades = self.by_type[chosen.name] if chosen is not None and chosen.name in self.by_type else self.worst
        self.chosen = chosen

    def row(self, name: str) -> int | None:
        """Row of a node on the board, if it has one."""
        return None if self.board is None else self.board.row.get(name)

    def _aligned(self, of_board: NDArray[np.uint8]) -> dict[str, Grade]:
        rows = {name: self.row(name) for name in self.names}
        return {
            name: Grade.UNKNOWN if row is None or row >= len(of_board) else Grade(int(of_board[row]))
            for name, row in rows.items()
        }

    def _of_type(self, board: GradeBoard, job_type: JobType) -> dict[str, Grade]:
        j = board.job_types.index(job_type.name)
        return self._aligned(board.grade[:, j, job_type.shape.variant, job_type.sensitivity])

    def gpu_grades(self, board: GradeBoard, row: int) -> NDArray[np.uint8]:
        """Grades of a node's GPUs for the chosen job type, or the worst over all: uint8 (GPUs of the node,)."""
        rows = slice(int(board.gpu_start[row]), int(board.gpu_start[row + 1]))
        types = [self.chosen] if self.chosen is not None else self.types
        columns = [board.gpu_grade[rows, board.job_types.index(t.name), t.shape.variant, t.sensitivity] for t in types]
        if not columns:
            return np.full(rows.stop - rows.start, Grade.UNKNOWN, np.uint8)
        worst: NDArray[np.uint8] = np.max(np.stack(columns), axis=0)
        return worst


def racks_of(fleet: Fleet, anchors: Mapping[str, str]) -> tuple[str | None, tuple[Rack, ...]]:
    """Group the cells by the nearest level of the first topology tree.

    Returns:
        The label key of that level, if there is one, and its domains by name.
    """
    view = fleet.view
    tree = view.trees[0] if view is not None and view.trees else None
    domain: dict[str, str] = {}
    if view is not None and tree is not None:
        numbers = tree.domain[0]
        domain = {n: tree.names[0][numbers[i]] for n, i in view.row.items() if numbers[i] >= 0}
    members: defaultdict[str | None, list[str]] = defaultdict(list)
    for name in fleet.names:
        members[domain.get(name)].append(name)
    order = sorted((name for name in members if name is not None), key=natural_key)
    racks = [_rack(fleet, name, members[name], anchors) for name in order]
    if None in members:
        racks.append(_rack(fleet, "not in a known one" if order else "all nodes", members[None], anchors))
    return (tree.keys[0] if tree is not None else None), tuple(racks)


def _rack(fleet: Fleet, name: str, nodes: list[str], anchors: Mapping[str, str]) -> Rack:
    shared = _shared(min(nodes), max(nodes))
    cells = []
    for i, node in enumerate(nodes):
        row, column = divmod(i, COLUMNS)
        grade = fleet.grades[node]
        cells.append(
            Cell(
                x=column * (CELL + GAP),
                y=row * (CELL + GAP),
                grade=grade.label,
                letter=LETTERS[grade],
                label=_short(node, shared),
                title=_title(fleet, node),
                link=anchors.get(node, ""),
                pips=_pips(fleet, node),
            )
        )
    columns = min(COLUMNS, len(nodes))
    rows = -(-len(nodes) // COLUMNS)
    counts = [(grade, sum(fleet.grades[n] is grade for n in nodes)) for grade in WORST_FIRST]
    return Rack(
        name,
        ", ".join(f"{count} {grade.label}" for grade, count in counts if count),
        columns * (CELL + GAP) - GAP,
        rows * (CELL + GAP) - GAP,
        tuple(cells),
    )


def _shared(first: str, last: str) -> int:
    """How many characters all names begin with alike, by the first and the last of them in plain order."""
    alike = zip(first, last, strict=False)
    return next((i for i, (a, b) in enumerate(alike) if a != b), 0)


def _short(node: str, shared: int) -> str:
    """What tells a node from its neighbours: the last parts of its name, without the domain that clouds append."""
    start = node.rfind("-", 0, shared) + 1
    tail = node[start:].partition(".")[0] or node
    return tail if len(tail) <= LABEL_CHARS else f"\N{HORIZONTAL ELLIPSIS}{tail[-(LABEL_CHARS - 1) :]}"


def _title(fleet: Fleet, node: str) -> str:
    reasons = "; ".join(reasons_of(fleet, node))
    head = f"{node}: {fleet.grades[node].label}"
    return f"{head}, {reasons}" if reasons else head


def _pips(fleet: Fleet, node: str) -> tuple[Pip, ...]:
    row = fleet.row(node)
    if row is None or fleet.board is None or int(fleet.board.gpu_start[-1]) > MAX_PIPS:
        return ()
    grades = fleet.gpu_grades(fleet.board, row)
    if not len(grades):
        return ()
    inside = CELL - 8
    step = inside / len(grades)
    width = max(step - 1.0, step / 2)
    return tuple(
        Pip(round(4 + i * step, 2), round(width, 2), Grade(int(grade)).label) for i, grade in enumerate(grades)
    )


def reasons_of(fleet: Fleet, node: str) -> tuple[str, ...]:
    """Why a node is not green: what gave it its grade, else what is known besides, else what the figures say."""
    row = fleet.row(node)
    if row is None or fleet.board is None:
        return ("not graded yet",)
    if fleet.grades[node] is Grade.GREEN:
        return ()
    findings = telling(fleet.board.findings[row])
    if findings:
        more = len(findings) - MAX_REASONS
        told = tuple(_told(finding) for finding in findings[:MAX_REASONS])
        return (*told, f"and {more} more: gpugrade explain {node}") if more > 0 else told
    return (untold(fleet.board, row, fleet.grades[node]),)


def _told(finding: Finding) -> str:
    reach = _REACH_WORDS.get(finding.reach)
    told = finding.text if reach is None else f"{finding.text} (concerns {reach})"
    return f"{told} (injected by run {finding.run})" if finding.run else told
