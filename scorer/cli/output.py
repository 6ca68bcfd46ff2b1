"""How commands print: tables for people on a terminal, plain columns for pipes, JSON and YAML for programs."""

import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from scorer.model.errors import GpugradeError
from scorer.model.grade import Grade

FORMATS = ("table", "wide", "json", "yaml", "name")

#: What a cell shows when there is nothing to show; never empty, so that columns can be counted.
NOTHING = "-"

GRADE_STYLES = {"green": "green", "yellow": "yellow", "red": "bold red", "unknown": "magenta"}
LETTERS = {grade.label: grade.letter for grade in Grade}
_LETTER_STYLES = {LETTERS[label]: style for label, style in GRADE_STYLES.items()}

#: A column of sentences that is narrower than this cannot be read.
MIN_LAST_WIDTH = 20
MAX_WIDTH = 1000

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        head: uppercase, without spaces.
        wide: shown by ``-o wide`` alone.
        right: numbers stand right.
        brief: a head of two letters or so, under which grades are letters, on a terminal that is too narrow for words;
            one that is too narrow even for that goes without the column. Never in a pipe.
    """

    head: str
    wide: bool = False
    right: bool = False
    brief: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under heads. Text with spaces belongs into the last columns, so that awk can count the first."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values, one a line."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command has to say, for every format.

    Attributes:
        document: for JSON and YAML.
        names: for ``-o name``, such as ``node/gpu-r01-n01``.
        blocks: for people, in order.
        bad: whether it is bad news: exit status 1.
        notes: warnings for people; they go to standard error and never mix with the answer.
    """

    document: Any
    names: tuple[str, ...]
    blocks: tuple[Table | Facts, ...]
    bad: bool = False
    notes: tuple[str, ...] = field(default=())


def clean(text: str) -> str:
    """One line without control characters: names and reasons come from elsewhere and must not steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text) or NOTHING


def number(value: float, digits: int = 2) -> str:
    """A slowdown or share with a fixed count of digits; zero stands for "not given" on the wire."""
    return f"{value:.{digits}f}" if 0 < value < float("inf") else NOTHING


def age(seconds: float | None) -> str:
    """A time span in kubectl's short form: ``45s``, ``12m``, ``5h``, ``3d``."""
    if seconds is None:
        return NOTHING
    whole = max(0, int(seconds))
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    if whole < 2 * _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < 2 * _DAY:
        return f"{whole // _HOUR}h"
    return f"{whole // _DAY}d"


def shown(columns: Sequence[Column], wide: bool) -> list[int]:
    """Indices of the columns that are to be seen."""
    return [i for i, column in enumerate(columns) if wide or not column.wide]


def plain(blocks: Sequence[Table | Facts], wide: bool) -> str:
    """Lay blocks out for pipes: no borders, no colour, columns three spaces apart, an empty line between blocks."""
    return "\n\n".join(_plain_facts(b) if isinstance(b, Facts) else _plain_table(b, wide) for b in blocks)


def _plain_table(table: Table, wide: bool) -> str:
    indices = shown(table.columns, wide)
    lines = [[table.columns[i].head for i in indices]]
    lines += [[clean(row[i]) for i in indices] for row in table.rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(indices))]
    right = [table.columns[i].right for i in indices]
    return "\n".join(
        "   ".join(
            cell.rjust(width) if r else cell.ljust(width) for cell, width, r in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _plain_facts(facts: Facts) -> str:
    width = max(len(name) for name, _ in facts.pairs)
    return "\n".join(f"{name.upper().ljust(width)}   {clean(value)}" for name, value in facts.pairs)


def text_of(answer: Answer, form: str) -> str:
    """The whole answer as text without colour.

    Args:
        answer: what to say.
        form: one of :data:`FORMATS`.
    """
    if form == "json":
        return json.dumps(answer.document, indent=2, ensure_ascii=False)
    if form == "yaml":
        import yaml  # noqa: PLC0415 -- only this format needs it

        return str(yaml.safe_dump(answer.document, sort_keys=False, allow_unicode=True)).rstrip("\n")
    if form == "name":
        return "\n".join(clean(name) for name in answer.names)
    return plain(answer.blocks, wide=form == "wide")


def fitted(console: Any, blocks: Sequence[Table | Facts], wide: bool) -> Any:  # noqa: ANN401 -- rich is imported on terminals alone
    """Blocks for a console: where it is too narrow for words, with letters; where for those too, without them."""
    drawn = renderable(blocks, wide)
    if wide or least_width(console, drawn) <= console.width:
        return drawn
    heads = {c.brief: c.head.lower() for b in blocks if isinstance(b, Table) for c in b.columns if c.brief}
    drawn = renderable([_in_letters(block) if isinstance(block, Table) else block for block in blocks], wide)
    if heads and least_width(console, drawn) <= console.width:
        from rich.console import Group  # noqa: PLC0415 -- pipes do without
        from rich.text import Text  # noqa: PLC0415 -- pipes do without

        letters = ", ".join(f"{grade.letter} {grade.label}" for grade in Grade)
        told = f"{', '.join(f'{brief} {head}' for brief, head in heads.items())}; {letters}"
        return Group(drawn, Text(""), Text(clean(told), style="dim"))
    return renderable([_without_brief(block) if isinstance(block, Table) else block for block in blocks], wide)


def _in_letters(table: Table) -> Table:
    """Make one column of those that can be brief: their heads side by side, and a letter under each."""
    brief = [i for i, column in enumerate(table.columns) if column.brief]
    if not brief:
        return table

    def joined(cells: Sequence[str]) -> str:
        pairs = ((cell, len(table.columns[i].brief)) for cell, i in zip(cells, brief, strict=True))
        return " ".join(cell.ljust(width) for cell, width in pairs).rstrip()

    def replaced(cells: tuple[Any, ...], one: Any) -> tuple[Any, ...]:  # noqa: ANN401 -- columns or cells
        kept = [one if i == brief[0] else cell for i, cell in enumerate(cells) if i not in brief[1:]]
        return tuple(kept)

    head = joined([table.columns[i].brief for i in brief])
    rows = tuple(replaced(row, joined([LETTERS.get(row[i], row[i]) for i in brief])) for row in table.rows)
    return Table(replaced(table.columns, Column(head)), rows)


def _without_brief(table: Table) -> Table:
    kept = [i for i, column in enumerate(table.columns) if not column.brief]
    return Table(tuple(table.columns[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in table.rows))


def renderable(blocks: Sequence[Table | Facts], wide: bool) -> Any:  # noqa: ANN401 -- rich is imported on terminals alone
    """Blocks for a terminal: colours for grades, heads underlined, long text wrapped."""
    from rich.console import Group  # noqa: PLC0415 -- pipes do without
    from rich.text import Text  # noqa: PLC0415 -- pipes do without

    parts: list[Any] = []
    for block in blocks:
        if parts:
            parts.append(Text(""))
        parts.append(_rich_facts(block) if isinstance(block, Facts) else _rich_table(block, wide))
    return Group(*parts)


def _styled(cell: str) -> Any:  # noqa: ANN401 -- a rich Text
    from rich.text import Text  # noqa: PLC0415 -- pipes do without

    text = Text(clean(cell), style=GRADE_STYLES.get(cell, ""))
    if all(part in _LETTER_STYLES for part in cell.split()):
        for place, letter in enumerate(text.plain):
            text.stylize(_LETTER_STYLES.get(letter, ""), place, place + 1)
    return text


def _rich_table(block: Table, wide: bool) -> Any:  # noqa: ANN401 -- a rich Table
    from rich import box  # noqa: PLC0415 -- pipes do without
    from rich.table import Table as RichTable  # noqa: PLC0415 -- pipes do without

    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    indices = shown(block.columns, wide)
    for i in indices:
        column = block.columns[i]
        last = i == indices[-1]
        table.add_column(
            column.head,
            justify="right" if column.right else "left",
            no_wrap=not last,
            overflow="fold" if last else "ellipsis",
            min_width=MIN_LAST_WIDTH if last and block.rows and not column.right else None,
        )
    for row in block.rows:
        table.add_row(*(_styled(row[i]) for i in indices))
    return table


def _rich_facts(facts: Facts) -> Any:  # noqa: ANN401 -- a rich Table
    from rich.table import Table as RichTable  # noqa: PLC0415 -- pipes do without

    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.pairs:
        grid.add_row(name[:1].upper() + name[1:], _styled(value))
    return grid


def least_width(console: Any, drawn: Any) -> int:  # noqa: ANN401 -- rich is imported on terminals alone
    """Columns of a terminal below which cells would be cut off."""
    return int(console.measure(drawn, options=console.options.update(max_width=MAX_WIDTH)).minimum)


def terminal(no_color: bool) -> Any:  # noqa: ANN401 -- a rich Console, or None
    """The console to draw on, or ``None`` where standard output is no terminal."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console  # noqa: PLC0415 -- pipes do without

    plain_wanted = no_color or bool(os.environ.get("NO_COLOR"))
    return Console(highlight=False, markup=False, emoji=False, no_color=plain_wanted or None)


def show(answer: Answer, form: str, no_color: bool) -> bool:
    """Print an answer and its notes.

    Returns:
        Whether anybody still reads; false once the reader of a pipe has left.

    Raises:
        GpugradeError: if the answer cannot be written, such as on a full disk.
    """
    if sys.stdout is None:
        raise GpugradeError("cannot write the answer: standard output is closed")
    for note in answer.notes:
        click.echo(f"Note: {clean(note)}", err=True)
    console = terminal(no_color) if form in {"table", "wide"} else None
    if console is not None:
        drawn = fitted(console, answer.blocks, form == "wide")
        # What is wider than the terminal is wrapped by it: better than columns cut to nothing.
        console.width = max(console.width, least_width(console, drawn))
        console.print(drawn)
        return True
    return write(text_of(answer, form))


def write(text: str) -> bool:
    """Write to standard output. A reader that left early (``| head -1``) changes neither the answer nor its status.

    Returns:
        Whether anybody still reads.

    Raises:
        GpugradeError: if the system refuses for another reason.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        click.echo(text.encode(encoding, "backslashreplace").decode(encoding))
    except BrokenPipeError:
        _drop_output()
        return False
    except OSError as error:
        _drop_output()
        raise GpugradeError(f"cannot write the answer: {error.strerror}") from error
    return True


def _drop_output() -> None:
    """Let what is still buffered go nowhere, so that leaving does not fail on it again."""
    try:
        target = sys.stdout.fileno()
    except (io.UnsupportedOperation, AttributeError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, target)
    os.close(null)
