"""From looks to tables: rates, order, silent sources; pure.

A rate is the difference of two looks that both got an answer, by their own times: an outage in
between makes it an average over the outage, never a jump. A count that fell (a topic was created
again) has no rate until the next look.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

Part = Literal["attention", "nodes", "topics", "groups", "timelines", "streams", "pipelines"]
PARTS: tuple[Part, ...] = get_args(Part)

Sort = Literal["name", "rate", "size"]
SORTS: tuple[Sort, ...] = ("name", "rate", "size")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """What one source answered about one part, and when by the monotonic clock; or its trouble."""

    at_s: float
    rows: tuple[Row, ...] = ()
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """One part as it is shown; `stale_s` is how old the rows are if its source does not answer."""

    part: Part
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    trouble: str = ""
    stale_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a part is shown: its columns, and by which of them it is sorted."""

    columns: tuple[str, ...]
    name: str
    rate: str
    size: str


_SHAPES: Mapping[Part, _Shape] = {
    "attention": _Shape(
        ("grade", "where", "needs attention", "since", "do"), "where", "rank", "rank"
    ),
    "nodes": _Shape(
        ("node", "roles", "health", "partitions", "stored", "answers ms", "reasons"),
        "node",
        "partitions",
        "stored",
    ),
    "topics": _Shape(
        ("topic", "partitions", "records", "records/s", "no leader"),
        "topic",
        "records/s",
        "records",
    ),
    "groups": _Shape(
        ("group", "state", "members", "lag", "lag/s", "topics"), "group", "lag/s", "lag"
    ),
    "timelines": _Shape(
        ("timeline", "waiting", "due", "leased", "dead", "in/s", "done/s", "late p99 ms"),
        "timeline",
        "in/s",
        "waiting",
    ),
    "streams": _Shape(
        ("stream", "environment", "leader", "term", "members", "lag"), "stream", "term", "lag"
    ),
    "pipelines": _Shape(
        ("pipeline", "state", "teams", "lag", "jobs/s", "failures", "dead"),
        "pipeline",
        "jobs/s",
        "lag",
    ),
}


def pictured(
    before: Mapping[Part, Look], now: Mapping[Part, Look], *, internal: bool = False
) -> tuple[Table, ...]:
    """The tables of this moment; `before` are the last looks that got an answer."""
    tables = []
    for part in PARTS:
        if part not in now:
            continue
        look, last = now[part], before.get(part)
        columns = _SHAPES[part].columns
        if look.trouble:
            rows = () if last is None else _with_rates(part, None, last)
            stale_s = None if last is None else look.at_s - last.at_s
            tables.append(Table(part, columns, rows, look.trouble, stale_s))
        else:
            tables.append(Table(part, columns, _with_rates(part, last, look)))
    return tuple(tables if internal else map(without_internal, tables))


def without_internal(table: Table) -> Table:
    """The table without topics in which nodes keep their own state."""
    return replace(table, rows=tuple(row for row in table.rows if not row.get("internal")))


def _with_rates(part: Part, last: Look | None, look: Look) -> tuple[Row, ...]:
    counted = {"topics": ("end", "records/s", False), "groups": ("lag", "lag/s", True)}.get(part)
    if counted is None:
        return look.rows
    count, rate, may_fall = counted
    name = _SHAPES[part].name
    known = {} if last is None else {row[name]: row[count] for row in last.rows}
    seconds = 0.0 if last is None else look.at_s - last.at_s
    rows = []
    for row in look.rows:
        was, now = known.get(row[name]), row[count]
        comparable = None not in (was, now) and seconds > 0 and (may_fall or now >= was)
        rows.append({**row, rate: round((now - was) / seconds, 1) if comparable else None})
    return tuple(rows)


def ordered(table: Table, sort: Sort, *, descending: bool) -> Table:
    """The table in the wanted order; what is not known goes last, equals go by name."""
    shape = _SHAPES[table.part]
    column = {"name": shape.name, "rate": shape.rate, "size": shape.size}[sort]
    known = [row for row in table.rows if row.get(column) is not None]
    unknown = [row for row in table.rows if row.get(column) is None]
    by_name: Callable[[Row], str] = lambda row: str(row[shape.name])  # noqa: E731
    known.sort(key=by_name)
    known.sort(key=lambda row: row[column], reverse=descending)
    return replace(table, rows=(*known, *sorted(unknown, key=by_name)))


def totals(tables: tuple[Table, ...]) -> dict[str, float | None]:
    """Sums over everything: records a second, lag, messages that wait, partitions unserved."""
    return {
        "records_per_s": _sum(tables, "topics", "records/s"),
        "lag": _sum(tables, "groups", "lag"),
        "waiting": _sum(tables, "timelines", "waiting"),
        "without_leader": _sum(tables, "topics", "no leader"),
    }


def _sum(tables: tuple[Table, ...], part: Part, column: str) -> float | None:
    """None if nothing is known."""
    values = [row.get(column) for table in tables if table.part == part for row in table.rows]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def as_json(tables: tuple[Table, ...], *, at: str) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "at": at,
        "totals": totals(tables),
        **{
            table.part: [
                {_plain(column): row.get(column) for column in table.columns} for row in table.rows
            ]
            for table in tables
        },
        "troubles": {table.part: table.trouble for table in tables if table.trouble},
    }


def _plain(column: str) -> str:
    """The name of a column as a program likes it: `records/s` is `records_per_s`."""
    return column.replace("/s", "_per_s").replace(" ", "_")
