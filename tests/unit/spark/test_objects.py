"""Records as Python objects: the same as Arrow's columns say, without Arrow's cost."""

import subprocess
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from dovetail.errors import InvalidBatch
from dovetail.record_batch import seal
from dovetail.spark import _plain_records as plain
from dovetail.spark import records
from dovetail.spark._plain_records import Column, HeaderColumn
from dovetail.spark.decoder import COLUMNS_WITH_HEADERS, batches_in, times_ms, to_arrow
from dovetail.spark.objects import Found, Header, found_in

BYTES = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=9)), max_size=3)
ROWS = st.lists(st.tuples(BYTES, BYTES, HEADERS), min_size=1, max_size=30)
TEAM_ROWS = st.lists(
    st.tuples(
        st.integers(-(2**63), 2**63 - 1),
        st.binary(max_size=3),
        BYTES,
        BYTES,
        HEADERS.map(tuple),
    ),
    max_size=12,
)
PLACE = ("t", 3)


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


def encoded(rows: list[Any], *, names: list[bytes] | None = None) -> bytes:
    """One batch of the rows; `names` are raw names of headers, in their place."""
    headers = headers_column_of([row[2] for row in rows])
    if names is not None:
        headers = (*headers[:2], column_of(names), headers[3])
    columns = (column_of([row[0] for row in rows]), column_of([row[1] for row in rows]))
    numbers = array("i", range(len(rows))).tobytes()
    given_all = (*columns, headers, None, 1_000, numbers, 0, 1 << 20)
    body, count, base_ms, ms_max = records.encode(*given_all)
    assert plain.encode(*given_all) == (body, count, base_ms, ms_max)
    return seal(body, count, base_timestamp=base_ms, timestamp_max=ms_max)


@given(ROWS, st.integers(0, 5), st.integers(5, 40))
@settings(max_examples=100, deadline=None)
def test_objects_say_what_columns_say(rows: Any, low: int, end: int) -> None:
    """T9, T15: keys, values and headers come back as they were given, as through Arrow."""
    batches = list(batches_in(encoded(rows), where="t-3"))
    found = found_in(batches, PLACE, offset_min=low, offset_end=end)
    assert [(one.key, one.value, list(one.headers)) for one in found] == rows[low:end]

    bounds: dict[str, Any] = {"offset_min": low, "offset_end": end}
    arrow = to_arrow(batches, PLACE, columns=COLUMNS_WITH_HEADERS, **bounds)
    assert [one.offset for one in found] == arrow.column("offset").to_pylist()
    assert [one.at_ms for one in found] == times_ms(arrow)
    for one, cells in zip(found, arrow.column("headers").to_pylist(), strict=True):
        assert list(one.headers) == [(cell["key"], cell["value"]) for cell in cells]


def test_the_header_of_a_foreign_producer_may_hold_anything() -> None:
    """T9: a name that is not UTF-8 is replaced, and no value is an empty one."""
    [batch] = batches_in(encoded([(b"k", None, [("n", b"")])], names=[b"\xff"]), where="t-3")
    [found] = found_in([batch], PLACE)
    assert (found.key, found.value, found.headers) == (b"k", None, (("�", b""),))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_the_compiled_half_and_the_plain_one_make_the_same_objects(data: Any) -> None:
    """T9, T15: of whole records and of damaged ones, which both refuse."""
    row = st.tuples(BYTES, BYTES, HEADERS)
    [batch] = batches_in(encoded(data.draw(st.lists(row, min_size=1, max_size=5))), where="t-3")
    body, count, *rest = batch.section()
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    section = (bytes(damaged), data.draw(st.sampled_from((count, count + 1, 0, -1))), *rest)
    given_all = ([section], data.draw(st.integers(0, 3)), data.draw(st.integers(0, 9)), Found)
    assert _made(records.objects, *given_all) == _made(plain.objects, *given_all)


@given(TEAM_ROWS, st.integers(-1, 15), st.integers(0, 400))
@settings(max_examples=200, deadline=None)
def test_the_compiled_half_and_the_plain_one_write_the_same_rows(
    rows: Any, rows_max: int, bytes_max: int
) -> None:
    """T15: as many as fit, byte for byte; brokers and other attempts compare them."""
    given_all = (rows, b"dovetail-id", b"7-", rows_max, bytes_max)
    assert _made(records.encode_rows, *given_all) == _made(plain.encode_rows, *given_all)


def _made(function: Any, *given_all: Any) -> Any:
    """What it returns, or what kind of error it raises."""
    try:
        return function(*given_all)
    except (ValueError, TypeError, OverflowError) as error:
        return type(error)


def test_nothing_in_range_is_nothing() -> None:
    [batch] = batches_in(encoded([(b"k", b"v", [])]), where="t-3")
    assert found_in([batch], PLACE, offset_min=1) == []
    assert found_in([], PLACE) == []


def test_malformed_records_are_refused() -> None:
    """T9: by their partition and first offset, as Arrow's decoder does."""
    [batch] = batches_in(encoded([(b"k", b"v", [])]), where="t-3")
    with pytest.raises(InvalidBatch, match="t-3: records from offset 0 on are malformed"):
        found_in([batch._replace(records=batch.records[:-1])], PLACE)


_ROWS = """
import sys
from dovetail.spark.decoder import batches_in
from dovetail.teams.chains.rows import Row, decode_rows, encode_rows
from dovetail.teams.tasks.seen_log import records_of
from dovetail.spark.objects import found_in

row = Row(3, b"", b"k", b"v", (("a", b"b"),))
batch = encode_rows([row], partition=0, producer_id=1, sequence=0, now_ms=5)
views = list(batches_in(batch.data, where="t-0"))
assert decode_rows(views[0], ("t", 0)) == [row]
assert records_of(found_in(views, ("t", 0)), ("t", 0))[0].job.payload == b"v"
print("pandas" in sys.modules)
"""


def test_a_row_does_not_load_pandas() -> None:
    """T15: Arrow loads it for its first cell, a second before a team's first result."""
    done = subprocess.run([sys.executable, "-c", _ROWS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
