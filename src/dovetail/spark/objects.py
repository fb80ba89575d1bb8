"""Records as Python objects and back, without Arrow: for teams, which take each record by itself.

Cells of Arrow columns cost three times as much to get at, and Arrow loads pandas for the first of
them. What is malformed is refused as `decoder` refuses it.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise, starmap
from typing import NamedTuple

from dovetail.kafka.client.client import Partition
from dovetail.spark._plain_records import Column, HeaderColumn, Strings
from dovetail.spark.decoder import OFFSET_END, BatchView, decoded

Header = tuple[str, bytes]


class Found(NamedTuple):
    """A record as a fetch brought it."""

    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None
    #: A header without a value has an empty one.
    headers: tuple[Header, ...]


def found_in(
    batches: list[BatchView],
    partition: Partition,
    *,
    offset_min: int = 0,
    offset_end: int = OFFSET_END,
) -> list[Found]:
    """The records with `offset_min` <= offset < `offset_end`, in order. Raises `InvalidBatch`."""
    rows, offsets, times, keys, values, headers = decoded(
        batches, partition, offset_min=offset_min, offset_end=offset_end, with_headers=True
    )
    assert headers is not None, "they were asked for"
    ends, names, contents = headers
    bounds = memoryview(ends).cast("i").tolist()
    lists: list[tuple[Header, ...]] = [()] * rows
    if rows and bounds[-1]:
        texts = [(name or b"").decode(errors="replace") for name in _cells(names, bounds[-1])]
        pairs = list(zip(texts, (one or b"" for one in _cells(contents, bounds[-1])), strict=True))
        lists = [tuple(pairs[start:end]) for start, end in pairwise(bounds)]

    at_ms = [at_us // 1000 for at_us in memoryview(times).cast("q").tolist()]
    columns = (memoryview(offsets).cast("q").tolist(), at_ms, _cells(keys, rows))
    return list(starmap(Found, zip(*columns, _cells(values, rows), lists, strict=True)))


def _cells(column: Strings, rows: int) -> list[bytes | None]:
    offsets, data, valid = column
    bounds = memoryview(offsets).cast("i").tolist()
    cells: list[bytes | None] = [data[start:end] for start, end in pairwise(bounds)]
    if valid is not None:
        for row in range(rows):
            if not valid[row // 8] >> row % 8 & 1:
                cells[row] = None
    return cells


def column_of(cells: Sequence[bytes | None]) -> Column:
    """Byte strings as a column that `records.encode` takes."""
    valid = None
    if None in cells:
        bits = bytearray(-(-len(cells) // 8))
        for row, cell in enumerate(cells):
            if cell is not None:
                bits[row // 8] |= 1 << row % 8
        valid = bytes(bits)
    present = [cell or b"" for cell in cells]
    ends = array("i", accumulate(map(len, present), initial=0))
    return ends.tobytes(), b"".join(present), valid, 0


def headers_column_of(lists: Sequence[Sequence[Header]]) -> HeaderColumn:
    """The headers of records as a column that `records.encode` takes."""
    ends = array("i", accumulate(map(len, lists), initial=0))
    names = [name.encode() for pairs in lists for name, _ in pairs]
    contents = [content for pairs in lists for _, content in pairs]
    return ends.tobytes(), 0, column_of(names), column_of(contents)
