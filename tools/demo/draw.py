"""What the story shows: the grade map, tables of reasons, and where a job went."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from gpugrade.v1 import grading_pb2 as g
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

#: Letter and colour of a grade: the letter tells them apart without colour.
FACES: Mapping[int, tuple[str, str]] = {
    g.GRADE_GREEN: ("G", "black on green"),
    g.GRADE_YELLOW: ("Y", "black on yellow"),
    g.GRADE_RED: ("R", "white on red"),
    g.GRADE_UNKNOWN: ("?", "white on grey37"),
}

RACK = "example.dev/rack"
LEAF = "network.topology.nvidia.com/leaf"


def heading(console: Console, number: int, title: str) -> None:
    """A step of the story."""
    console.print()
    console.rule(Text(f" {number}  {title} ", style="bold cyan"), align="left", style="cyan")


def say(console: Console, text: str) -> None:
    """A sentence of the story."""
    console.print(Padding(Text.from_markup(text), (0, 0, 0, 3)))


def grade_word(grade: int) -> str:
    """``green``, ``yellow``, ...: for text."""
    return g.Grade.Name(g.Grade.ValueType(grade)).removeprefix("GRADE_").lower()


def grade_map(console: Console, nodes: Iterable[g.Node], job_type: str) -> None:
    """One row a rack, one cell a node, coloured by its grade for a job type."""
    racks: dict[tuple[str, str], list[g.Node]] = defaultdict(list)
    for node in nodes:
        racks[node.labels.get(LEAF, ""), node.labels.get(RACK, "")].append(node)
    counts: Counter[int] = Counter()
    for (leaf, rack), members in sorted(racks.items()):
        row = Text(f"   {leaf:>4} {rack:>4}  ")
        for node in sorted(members, key=lambda member: member.name):
            grade = node.grades.get(job_type, g.GRADE_UNKNOWN)
            counts[grade] += 1
            letter, style = FACES[grade]
            row.append(f" {letter} ", style=style)
            row.append(" ")
        products = ", ".join(sorted({node.product for node in members}))
        row.append(f"  {products}", style="dim")
        console.print(row)
    total = Text(f"   for {job_type}: ")
    for grade in (g.GRADE_GREEN, g.GRADE_YELLOW, g.GRADE_RED, g.GRADE_UNKNOWN):
        letter, style = FACES[grade]
        total.append(f" {letter} ", style=style)
        total.append(f" {counts[grade]} {grade_word(grade)}   ")
    console.print()
    console.print(total)


def reasons_table(console: Console, rows: Iterable[tuple[str, int, float, str]]) -> None:
    """Nodes that are not green: name, grade, slowdown, reason."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("NODE", "GRADE", "SLOWDOWN", "WHY"):
        table.add_column(column, overflow="fold")
    for name, grade, slowdown, reason in rows:
        letter, style = FACES[grade]
        del letter
        table.add_row(name, Text(f" {grade_word(grade)} ", style=style), f"{slowdown:.3f}", reason)
    console.print(Padding(table, (0, 0, 0, 3)))
