"""What commands print: tables and notes for people, JSON for programs.

Answers go to standard output; notes, progress and errors to standard error, so that an answer can
be piped. Text from a node is never read as markup, and what is not printable in it is escaped.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dovetail.cli.printable import json_text, printable

#: Width of tables that go into a pipe or a file, where there is no window to fit.
WIDTH_PIPED = 160

#: Longer words, such as paths and ids, may be broken where a column has to be narrow.
WORD_WIDTH_MAX = 20


def answers(*, width_min: int = 0) -> Console:
    """The console for answers; in a pipe or a file, where nothing must fit, it has `width_min`."""
    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(width=None if known else max(WIDTH_PIPED, width_min), highlight=False)


def notes() -> Console:
    """The console for everything that is not the answer."""
    return Console(stderr=True, highlight=False)


def note(text: str) -> None:
    """Prints one line for a person, beside the answer."""
    sys.stderr.write(printable(text, keep="\n") + "\n")


def plural(count: int, noun: str) -> str:
    """The count with its noun, such as `1 record` or `2,000 records`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def print_json(value: object) -> None:
    """Prints `value` as indented JSON."""
    sys.stdout.write(json_text(value, indent=2) + "\n")


def print_json_line(value: object) -> None:
    """Prints `value` as one line of JSON, at once."""
    sys.stdout.write(json_text(value) + "\n")
    sys.stdout.flush()


def print_done(as_json: bool, document: object, text: str) -> None:
    """Reports what a command did: the document for programs, or a line for people."""
    if as_json:
        print_json(document)
    else:
        note(text)


def print_rows(
    as_json: bool,
    rows: Sequence[Mapping[str, object]],
    *,
    columns: Sequence[str] | None = None,
    empty: str,
    title: str | None = None,
) -> None:
    """Prints rows as JSON, or their `columns` (all of the first row's) as a table.

    Without rows, a person reads `empty`.
    """
    if as_json:
        print_json(rows)
    elif not rows:
        note(empty)
    else:
        shown = list(rows[0]) if columns is None else columns
        print_table(shown, ([row.get(column) for column in shown] for row in rows), title=title)


@dataclass(frozen=True, slots=True)
class _Column:
    index: int
    name: str
    numeric: bool
    whole: bool
    width_min: int


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> None:
    """Prints a table; numbers are set to the right, None is a dash.

    Numbers and the names in the first column stay whole. Columns in which no row has anything are
    left out, and so are, with a note, the last ones that do not fit into a narrow window.
    """
    listed = [list(row) for row in rows]
    shown = [
        _column(columns[index], index, [row[index] for row in listed])
        for index in range(len(columns))
        if not listed or any(row[index] not in (None, "") for row in listed)
    ]
    console = answers(width_min=_width_of(shown))
    left_out: list[str] = []
    while len(shown) > 1 and _width_of(shown) > console.width:
        left_out.insert(0, shown.pop().name)

    table = Table(title=title, title_justify="left", header_style="bold")
    for column in shown:
        table.add_column(
            column.name,
            justify="right" if column.numeric else "left",
            overflow="fold",
            no_wrap=column.whole,
            min_width=column.width_min,
        )
    for row in listed:
        table.add_row(*(Text(_cell(row[column.index])) for column in shown))
    console.print(table)

    if left_out:
        console.file.flush()
        note(f"the window is too narrow for: {', '.join(left_out)} (--json shows all)")


def _column(name: str, index: int, values: Sequence[object]) -> _Column:
    numeric = bool(values) and all(
        value is None or (isinstance(value, int | float) and not isinstance(value, bool))
        for value in values
    )
    whole = numeric or index == 0
    cells = [name, *map(_cell, values)]
    if whole:
        width = max(map(len, cells))
    else:
        words = [len(word) for cell in cells for word in cell.split()]
        width = min(max(words), WORD_WIDTH_MAX)
    return _Column(index, name, numeric, whole, width)


def _width_of(columns: Sequence[_Column]) -> int:
    """With a space on both sides of each column, and lines between and around them."""
    return sum(column.width_min + 3 for column in columns) + 1


def print_panel(
    title: str,
    rows: Sequence[tuple[str, str]],
    *,
    heading: str,
    commands: Sequence[str],
    ending: str,
) -> None:
    """What runs now, commands to go on with, and how it ends."""
    width = max(len(name) for name, _ in rows) + 2
    text = Text()
    for name, value in rows:
        text.append(f"{name:<{width}}", style="dim").append(f"{value}\n")
    if commands:
        text.append(f"\n{heading}\n", style="dim")
    for command in commands:
        text.append(f"  {command}\n", style="bold")
    text.append(f"\n{ending}", style="dim")

    console = answers()
    console.print(Panel(text, title=title, title_align="left", expand=False))
    console.file.flush()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, list | tuple):
        return printable(", ".join(map(str, value)))
    return printable(str(value))
