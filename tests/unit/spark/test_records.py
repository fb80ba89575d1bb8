"""Records to columns and back: the compiled half against the plain one, against our encoder, and
against what librdkafka writes."""

import importlib
import os
import sys
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from dovetail.compression import (  # noqa: E402
    CODECS,
    INFLATED_BYTES_MAX,
    codec_number,
    deflate,
    inflate,
)
from dovetail.errors import ChecksumMismatch, InvalidBatch, InvalidInput  # noqa: E402
from dovetail.spark import _plain_records as plain  # noqa: E402
from dovetail.spark import records  # noqa: E402
from dovetail.spark.decoder import COLUMNS_WITH_HEADERS, batches_in, times_ms, to_arrow  # noqa: E402
from dovetail.spark.encoder import Rows, encode_batches  # noqa: E402

PAIR = st.tuples(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=40))
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3)
ROWS = st.lists(st.tuples(PAIR, HEADERS, st.integers(-(2**40), 2**45)), min_size=1, max_size=30)


def table(rows: list[Any]) -> pa.RecordBatch:
    """Rows of ((key, value), headers, milliseconds) as the columns that a sink is given."""
    element = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.record_batch(
        {
            "key": pa.array([row[0][0] for row in rows], pa.binary()),
            "value": pa.array([row[0][1] for row in rows], pa.binary()),
            "headers": pa.array(
                [[{"key": n, "value": v} for n, v in row[1]] for row in rows], pa.list_(element)
            ),
            "timestamp": pa.array([row[2] * 1000 for row in rows], pa.timestamp("us", tz="UTC")),
        }
    )


def encoded(batch: pa.RecordBatch, **options: Any) -> list[bytes]:
    """The batches of all rows, for one partition."""
    rows = Rows.of(batch)
    everything = pa.array(range(batch.num_rows), pa.int32()).buffers()[1]
    defaults = {"codec": 0, "bytes_max": 1 << 20, "now_ms": 7, "producer_id": 5}
    defaults |= {"producer_epoch": 1, "sequence": 0}
    return [
        made.data
        for made in encode_batches(rows, everything, **(defaults | options))  # type: ignore[arg-type]
    ]


def decoded(data: bytes, *, low: int = 0, end: int = 2**62) -> list[dict[str, Any]]:
    batches = list(batches_in(data, where="t-0"))
    arrow = to_arrow(
        batches, ("t", 3), offset_min=low, offset_end=end, columns=COLUMNS_WITH_HEADERS
    )
    arrow.validate(full=True)
    rows: list[dict[str, Any]] = arrow.to_pylist()
    return rows


@given(ROWS, st.sampled_from(CODECS), st.integers(100, 2000))
@settings(max_examples=60, deadline=None)
def test_what_is_encoded_decodes_to_the_same(rows: Any, codec: str, bytes_max: int) -> None:
    """T9: rows come back as they were, in every codec, however they are cut into batches."""
    made = encoded(table(rows), codec=codec_number(codec), bytes_max=bytes_max)
    offset, data = 0, b""
    for one in made:
        data += offset.to_bytes(8, "big") + one[8:]
        offset += next(batches_in(one, where="t")).record_count
    found = decoded(data)
    assert [(row["key"], row["value"]) for row in found] == [row[0] for row in rows]
    assert [row["offset"] for row in found] == list(range(len(rows)))
    assert [row["timestamp"] for row in found] == table(rows).column("timestamp").to_pylist()
    assert [[(h["key"], h["value"]) for h in row["headers"]] for row in found] == [
        row[1] for row in rows
    ]
    assert {row["topic"] for row in found} == {"t"}
    assert {row["partition"] for row in found} == {3}


SECTION = st.tuples(
    st.binary(max_size=60), st.integers(-1, 12), st.integers(0, 99), st.integers(-9, 9)
)


@pytest.mark.skipif(not records.COMPILED, reason="installed without a compiler")
@given(st.lists(SECTION, max_size=3), st.booleans(), st.integers(0, 60))
@settings(max_examples=300, deadline=None)
def test_the_compiled_decoder_and_the_plain_one_agree_on_anything(
    garbage: Any, with_headers: bool, low: int
) -> None:
    """T9: any bytes give the same columns, or the same refusal; none gives a crash."""
    sections = [(*section, False, 0) for section in garbage]
    assert _outcome(records.decode, sections, low, 90, with_headers) == _outcome(
        plain.decode, sections, low, 90, with_headers
    )


@pytest.mark.skipif(not records.COMPILED, reason="installed without a compiler")
@given(ROWS, st.data())
@settings(max_examples=100, deadline=None)
def test_the_compiled_half_and_the_plain_one_agree_on_records(rows: Any, data: Any) -> None:
    """T9: the same bytes from the same rows, whole, sliced and damaged; the same partitions."""
    whole = table(rows)
    skip = data.draw(st.integers(0, len(rows) - 1))
    given_rows = Rows.of(whole.slice(skip))
    count = len(rows) - skip
    numbers = pa.array(range(count), pa.int32()).buffers()[1]
    arguments = (given_rows.keys, given_rows.values, given_rows.headers, given_rows.times)
    room = data.draw(st.integers(1, 200))
    fast = records.encode(*arguments, 5, numbers, 0, room)
    assert fast == plain.encode(*arguments, 5, numbers, 0, room)
    body, made, base_ms, _ = fast
    cut = data.draw(st.integers(0, len(body)))
    flip = bytearray(body[:cut])
    if flip:
        flip[data.draw(st.integers(0, len(flip) - 1))] ^= data.draw(st.integers(0, 255))
    for section in (body, bytes(flip)):
        sections = [(section, made, 40, base_ms, False, 0)]
        assert _outcome(records.decode, sections, 0, 99, True) == _outcome(
            plain.decode, sections, 0, 99, True
        )
    partitions = data.draw(st.integers(1, 9))
    assigned = records.assign(given_rows.keys, count, partitions, 3, 2)
    assert assigned == plain.assign(given_rows.keys, count, partitions, 3, 2)
    assert records.group(assigned, partitions) == plain.group(assigned, partitions)


def _outcome(decode: Any, *arguments: Any) -> Any:
    try:
        return decode(*arguments)
    except ValueError as error:
        return str(error)


def test_only_what_is_in_range_comes_out() -> None:
    """T9: a range that begins or ends inside a batch gives just its own records."""
    (data,) = encoded(table([((b"k", bytes([n])), [], 0) for n in range(10)]))
    assert [row["offset"] for row in decoded(data, low=3, end=6)] == [3, 4, 5]


def test_a_name_of_a_header_that_is_not_text_holds_nobody_up() -> None:
    """R6, T17: Kafka takes any bytes there; what is not UTF-8 is replaced, its record is read."""
    ((data),) = encoded(table([((b"k", b"v"), [("name", b"x")], 1)]))
    changed = bytearray(data.replace(b"name", b"n\xff\xfee"))
    changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4, "big")
    (row,) = decoded(bytes(changed))
    assert row["headers"] == [{"key": "n\ufffd\ufffde", "value": b"x"}]


def test_times_that_no_calendar_has_are_numbers() -> None:
    """R8, T17: a client that gives microseconds for milliseconds must not stop who reads."""
    ((data),) = encoded(table([((b"k", b"v"), [], 2**52)]))
    arrow = to_arrow(list(batches_in(data, where="t-0")), ("t", 3))
    assert times_ms(arrow) == [2**52]


def test_damage_is_refused() -> None:
    """T9: a changed byte, an unknown format, a codec that does not inflate: each has its word."""
    (data,) = encoded(table([((b"k", b"v"), [], 0)]))
    with pytest.raises(ChecksumMismatch, match="offset 0 changed on its way"):
        decoded(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(InvalidBatch, match="record format 1"):
        decoded(data[:16] + b"\x01" + data[17:])
    with pytest.raises(InvalidBatch, match="cannot decompress a batch as lz4"):
        inflate(b"no lz4 at all", 3)
    with pytest.raises(InvalidInput, match="'brotli' is unknown; choose one of none"):
        codec_number("brotli")
    assert decoded(data + data[:50])[0]["value"] == b"v"


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_bomb_does_not_go_off(codec: int) -> None:
    """T9: a small batch that inflates to more than the limit is refused."""
    bomb = deflate(bytes(INFLATED_BYTES_MAX + 1), codec)
    with pytest.raises(InvalidBatch):
        inflate(bomb, codec)


def test_keys_go_where_kafkas_own_clients_send_them() -> None:
    """T9: murmur2 as Kafka's clients have it (the values are those of its own unit test)."""
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    for key, value in known.items():
        assert plain.murmur2(key) == records.murmur2(key) == value & 0xFFFFFFFF
        column = pa.array([key], pa.binary()).buffers()
        found = records.assign((column[1], column[2], None, 0), 1, 7, 0, 1)
        assert int.from_bytes(found, "little") == (value & 0x7FFFFFFF) % 7


def test_rows_without_a_key_go_in_turn() -> None:
    """T9: by their number alone, so that the same rows go to the same places again."""
    assert memoryview(records.assign(None, 6, 3, 1, 2)).cast("i").tolist() == [0, 1, 1, 2, 2, 0]


def test_the_plain_half_stands_in_where_nothing_was_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T9, F7a: an installation without a compiler does the same, more slowly, and its log says so
    once; in CI there is one."""
    assert records.COMPILED or os.environ.get("CI") != "true"
    (data,) = encoded(table([((b"k", b"v"), [("h", b"x")], 5)]))
    expected = decoded(data)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "dovetail.spark._records", None)
        patched.delattr("dovetail.spark._records", raising=False)
        importlib.reload(records)
        assert not records.COMPILED
        assert encoded(table([((b"k", b"v"), [("h", b"x")], 5)])) == [data]
        assert decoded(data) == expected
        records.warn_if_plain()
        records.warn_if_plain()
    assert caplog.text.count("no compiled decoder") == 1
    importlib.reload(records)
    records.warn_if_plain()
    assert not records.COMPILED or caplog.text.count("no compiled decoder") == 1
