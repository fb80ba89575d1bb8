"""Parameters of a request, decoded; and lists that the server filters, sorts and cuts.

A list of thousands costs the node and its readers only the page that somebody views: `page_of`
returns so many of the matching rows, and the number of matches.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta, Struct
from starlette.datastructures import QueryParams

from dovetail.errors import InvalidInput

Row = TypeVar("Row")

#: Rows of an answer that names no limit.
ROWS_DEFAULT = 1_000
ROWS_MAX = 10_000


class ListQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which rows of a list, in which order."""

    filter: Annotated[str, Meta(max_length=249, description="Only names that contain this.")] = ""
    sort: Annotated[
        str, Meta(max_length=50, description="A column; with a leading -, in descending order.")
    ] = ""
    limit: Annotated[int, Meta(ge=1, le=ROWS_MAX, description="Most rows.")] = ROWS_DEFAULT
    offset: Annotated[int, Meta(ge=0, le=10_000_000, description="Rows to skip.")] = 0


def page_of(
    rows: Sequence[Row],
    query: ListQuery,
    name: Callable[[Row], str],
    columns: Mapping[str, Callable[[Row], Any]],
) -> tuple[list[Row], int]:
    """The wanted rows, and how many match; equals stay in the order of `rows`.

    Raises `InvalidInput` for a column that cannot be sorted by.
    """
    found = [row for row in rows if query.filter in name(row)] if query.filter else list(rows)
    if query.sort:
        down = query.sort.startswith("-")
        column = columns.get(query.sort.removeprefix("-"))
        if column is None:
            raise InvalidInput(f"cannot sort by {query.sort!r}; columns are {', '.join(columns)}")
        key = column

        def order(row: Row) -> tuple[bool, Any]:
            # What is not known is less than everything that is.
            value = key(row)
            return (False, 0) if value is None else (True, value)

        found.sort(key=order, reverse=down)
    return found[query.offset : query.offset + query.limit], len(found)


def decode_query(kind: type | None, given: QueryParams) -> Any:
    """The parameters. Raises `InvalidInput` for one that is unknown, twice or no such value."""
    if kind is None:
        if given:
            raise InvalidInput(f"unknown parameter {next(iter(given))[:50]!r}; this takes none")
        return None

    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for name in given:
        values_of = given.getlist(name)
        many = name in fields and _is_list(fields[name].type)
        if len(values_of) > 1 and not many:
            raise InvalidInput(f"parameter {name[:50]!r} is given twice")
        values[name] = values_of if many else values_of[0]
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{error}; parameters are {', '.join(fields)}") from error


def _is_list(kind: Any) -> bool:
    if get_origin(kind) is list:
        return True
    return any(get_origin(part) is list for part in get_args(kind))
