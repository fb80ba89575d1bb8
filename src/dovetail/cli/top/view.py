"""What is on the screen: the tables, as many rows as fit, and what the keys have chosen."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dovetail.cli.printable import printable
from dovetail.cli.top.picture import SORTS, Sort, Table, ordered, totals

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Lines of a table beside its rows: its header, a line about it if need be, an empty one.
_FRAME_LINES = 3
#: The two lines at the top and the one at the bottom.
_EDGE_LINES = 3

HELP = "q quit  p pause  s sort  r reverse  i internal topics  h help"
_HELP_LONG = (
    "q or Ctrl-C   quit\n"
    "p or space    pause, and go on\n"
    "s             sort by name, by rate, by size (records, lag, bytes)\n"
    "r             reverse the order\n"
    "i             show internal topics, or not\n"
    "h or ?        this help, and back"
)


@dataclass(frozen=True, slots=True)
class Choice:
    """What the keys have chosen."""

    sort: Sort = "rate"
    descending: bool = True
    internal: bool = False
    paused: bool = False
    help: bool = False
    done: bool = False


def pressed(choice: Choice, key: str) -> Choice:
    """The choice after a key; keys that mean nothing change nothing."""
    if key in ("q", "\x03", "\x04"):
        return replace(choice, done=True)
    if key in ("p", " "):
        return replace(choice, paused=not choice.paused)
    if key == "s":
        following = SORTS[(SORTS.index(choice.sort) + 1) % len(SORTS)]
        return replace(choice, sort=following, descending=following != "name")
    if key == "r":
        return replace(choice, descending=not choice.descending)
    if key == "i":
        return replace(choice, internal=not choice.internal)
    if key in ("h", "?"):
        return replace(choice, help=not choice.help)
    return choice


def shares(wanted: list[int], room: int) -> list[int]:
    """Rows for each table: one for each, then one more in turn to those that have more."""
    given, left = [0] * len(wanted), room
    while left > 0 and given != wanted:
        for index, rows in enumerate(wanted):
            if left > 0 and given[index] < rows:
                given[index] += 1
                left -= 1
    return given


def rendered(
    tables: tuple[Table, ...], choice: Choice, *, where: str, at: str, height: int | None
) -> "RenderableType":
    """The whole screen; `height` None shows every row, for what is printed once."""
    from rich.console import Group
    from rich.text import Text

    head = _head(tables, choice, where=where, at=at)
    if choice.help:
        return Group(head, Text(), Text(_HELP_LONG))

    # A part with nothing in it and nothing to say takes no room.
    shown = [table for table in tables if table.rows or table.trouble]
    wanted = [len(table.rows) for table in shown]
    if height is None:
        counts = wanted
    else:
        frames = sum(_FRAME_LINES if table.rows else 1 for table in shown)
        counts = shares(wanted, height - _EDGE_LINES - frames)

    parts: list[RenderableType] = [head, Text()]
    for table, count in zip(shown, counts, strict=True):
        parts.append(_table(ordered(table, choice.sort, descending=choice.descending), count))
    if height is not None:
        parts.append(Text(HELP, style="dim"))
    return Group(*parts)


def _head(tables: tuple[Table, ...], choice: Choice, *, where: str, at: str) -> "RenderableType":
    from rich.text import Text

    sums = totals(tables)
    figures = [
        f"{_number(sums['records_per_s'])} records/s",
        f"lag {_number(sums['lag'])}",
        f"waiting {_number(sums['waiting'])}",
    ]
    line = Text.assemble((f"dovetail top  {where}  {at}  ", "bold"), "  ".join(figures))
    if sums["without_leader"]:
        line.append(f"  {_number(sums['without_leader'])} partitions without a leader", "bold red")
    if choice.paused:
        line.append("  paused", "bold yellow")
    line.append(f"  by {choice.sort}", "dim")
    line.no_wrap = True
    return line


def _table(table: Table, count: int) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    if not table.rows:
        return Text(f"{table.part}: {table.trouble}", style="yellow", no_wrap=True)
    about = []
    if len(table.rows) > count:
        about.append(f"{count} of {len(table.rows)} {table.part}")
    if table.trouble:
        about.append(f"{table.part} as of {table.stale_s:.0f} s ago: {table.trouble}")

    drawn = RichTable(box=None, header_style="bold underline", pad_edge=False)
    for index, column in enumerate(table.columns):
        values = [row.get(column) for row in table.rows]
        numeric = all(value is None or isinstance(value, int | float) for value in values)
        right = numeric and index > 0
        drawn.add_column(
            column, justify="right" if right else "left", no_wrap=True, overflow="ellipsis"
        )

    style = "dim" if table.trouble else ""
    for row in table.rows[:count]:
        drawn.add_row(*(Text(_cell(column, row)) for column in table.columns), style=style)
    line = Text("; ".join(about), style="yellow" if table.trouble else "dim", no_wrap=True)
    return Group(drawn, *([line] if about else []), Text())


def _cell(column: str, row: dict[str, object]) -> str:
    value = row.get(column)
    if column == "stored" and isinstance(value, int):
        return f"{value / 1e6:,.1f} MB"
    if isinstance(value, int | float):
        return _number(value)
    return "-" if value is None else printable(str(value))


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
