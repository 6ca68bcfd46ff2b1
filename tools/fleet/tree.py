"""The tables and trees that ``dcgmi`` prints, as text and as JSON."""

import json
import textwrap
from dataclasses import dataclass, field
from typing import Any

LABEL, VALUE = 25, 56
#: Longer texts are wrapped at this.
WRAP = 54


@dataclass(slots=True)
class Branch:
    """A label with lines of text and branches below it."""

    label: str
    lines: list[str] = field(default_factory=list)
    branches: list["Branch"] = field(default_factory=list)

    def add(self, label: str, *lines: str) -> "Branch":
        """Add a branch; long lines are wrapped."""
        wrapped = [part for line in lines for part in (textwrap.wrap(line, WRAP) or [""])]
        made = Branch(label, wrapped)
        self.branches.append(made)
        return made

    def _record(self) -> dict[str, Any]:
        record: dict[str, Any] = {}
        if self.lines:
            record["value"] = self.lines[0]
        if self.lines[1:]:
            record["overflow"] = self.lines[1:]
        if self.branches:
            record["children"] = {b.label: b._record() for b in self.branches}  # noqa: SLF001 - branches of one tree
        return record

    def as_json(self, header: bool = True) -> str:
        """The tree as the tool's JSON, with or without its title."""
        body = {"body": {b.label: b._record() for b in self.branches}}  # noqa: SLF001 - branches of one tree
        return json.dumps({**body, "header": [self.label]} if header else body, indent=1)

    def _rows(self, depth: int) -> list[str]:
        label = f"{'   ' * (depth - 1)}-> {self.label}" if depth else self.label
        lines = self.lines or [""]
        rows = [f"| {label if n == 0 else '':<{LABEL}} | {line:<{VALUE}} |" for n, line in enumerate(lines)]
        for branch in self.branches:
            rows += branch._rows(depth + 1)  # noqa: SLF001 - branches of one tree
        return rows

    def as_text(self) -> str:
        """The tree as the tool's table."""
        rule = f"+{'-' * (LABEL + 2)}+{'-' * (VALUE + 2)}+"
        rows = [row for branch in self.branches for row in branch._rows(0)]  # noqa: SLF001 - branches of one tree
        return "\n".join([rule, f"| {self.label:<{LABEL + VALUE + 3}} |", rule.replace("-", "="), *rows, rule])


def columns(widths: tuple[int, ...], title: tuple[str, ...], groups: list[list[tuple[str, ...]]]) -> str:
    """A table as ``dcgmi discovery`` prints it: a title row, then groups of rows with rules between."""
    rule = "+" + "+".join("-" * (w + 2) for w in widths) + "+"

    def row(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(f"{c:<{w}}" for c, w in zip(cells, widths, strict=True)) + " |"

    lines = [rule, row(title), rule]
    for group in groups:
        lines += [row(cells) for cells in group]
        lines.append(rule)
    if not groups:
        lines.append(rule)
    return "\n".join(lines)
