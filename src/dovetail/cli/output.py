"""What commands print: tables and notes for people, JSON for programs.

Answers go to standard output; notes, progress and errors to standard error, so that an answer can
be piped. Text from a node is printed as it is, never read as markup.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

#: Width of tables that go into a pipe or a file, where there is no window to fit.
WIDTH_PIPED = 160


def answers() -> "Console":
    """The console for answers."""
    from rich.console import Console

    on_terminal = sys.stdout.isatty()
    return Console(width=None if on_terminal else WIDTH_PIPED, highlight=False)


def notes() -> "Console":
    """The console for everything that is not the answer."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def note(text: str) -> None:
    """Prints one line for a person, beside the answer."""
    notes().print(text, markup=False, soft_wrap=True)


def print_json(value: object) -> None:
    """Prints `value` as indented JSON."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> None:
    """Prints a table; numbers are set to the right, None is a dash."""
    from rich.table import Table
    from rich.text import Text

    listed = [list(row) for row in rows]
    table = Table(title=title, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(listed) and all(
            row[index] is None or isinstance(row[index], int | float) for row in listed
        )
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        table.add_row(*(Text(_cell(value)) for value in row))
    answers().print(table)


def progress_bar(*, quiet: bool = False) -> "Progress":
    """A progress bar with rate and time left; silent unless standard error is a terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = notes()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
        transient=True,
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return str(value)
