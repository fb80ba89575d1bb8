"""Records of a batch are what its header says: compiled and plain alike."""

import os
import struct
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from dovetail import record_check
from dovetail.buffers import Buffer
from dovetail.compression import CODECS, deflate
from dovetail.errors import InvalidBatch
from dovetail.record_batch import (
    HEADER_BYTES,
    NewRecord,
    build_batch,
    check_batch,
    decode_batch,
    recompressed,
    varint,
)
from dovetail.record_check import check, check_records, plain_check

Check = Callable[[Buffer, int, int], None]

RECORDS = st.lists(
    st.builds(
        NewRecord,
        st.integers(0, 2**45),
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3),
    ),
    min_size=1,
    max_size=20,
)


def test_the_compiled_check_is_there() -> None:
    """F13: without it a broker spends half of its time on records."""
    assert record_check.COMPILED or os.environ.get("CI") != "true"


@given(RECORDS)
def test_what_is_whole_passes(records: list[NewRecord]) -> None:
    """F13: with and without keys, values and headers."""
    batch = build_batch(records)
    check(batch, HEADER_BYTES, len(records))
    plain_check(batch, HEADER_BYTES, len(records))


def verdict(which: Check, data: bytes, count: int) -> bool:
    try:
        which(data, 0, count)
    except ValueError:
        return False
    return True


@given(RECORDS, st.data())
def test_compiled_and_plain_agree_on_what_was_changed(
    records: list[NewRecord], data: st.DataObject
) -> None:
    """F13: bytes changed, cut off and added, and counts that lie."""
    section = bytearray(build_batch(records)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(0, 3))):
        section[data.draw(st.integers(0, len(section) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(section)))
    kept = bytes(section[:cut]) + data.draw(st.binary(max_size=3))
    count = data.draw(st.sampled_from([len(records), 1, len(records) + 1, 2**31 - 1]))
    assert verdict(check, kept, count) == verdict(plain_check, kept, count)


@given(st.binary(max_size=60), st.integers(1, 5))
def test_compiled_and_plain_agree_on_noise(noise: bytes, count: int) -> None:
    """F13: nothing is read beyond the end, nothing raises anything else."""
    assert verdict(check, noise, count) == verdict(plain_check, noise, count)


def one(body: bytes) -> bytes:
    """A section of one record."""
    return varint(len(body)) + body


WHOLE = b"\0" + varint(0) + varint(0) + varint(1) + b"k" + varint(-1) + varint(0)

LIES = {
    "offset 1 of the first": one(b"\0" + varint(0) + varint(1) + WHOLE[3:]),
    "offset -1": one(b"\0" + varint(0) + varint(-1) + WHOLE[3:]),
    "key beyond the record": one(b"\0\0\0" + varint(99) + b"k" + varint(-1) + varint(0)),
    "key of length -2": one(b"\0\0\0" + varint(-2) + varint(-1) + varint(0)),
    "headers that are not there": one(WHOLE[:-1] + varint(1)),
    "a negative count of headers": one(WHOLE[:-1] + varint(-1)),
    "a header without a name": one(WHOLE[:-1] + varint(1) + varint(-1) + varint(-1)),
    "bytes behind the headers": one(WHOLE + b"\0"),
    "bytes behind the record": one(WHOLE) + b"\0",
    "an empty record": one(b""),
    "a length of 2^62": varint(2**62) + WHOLE,
    "a number without end": b"\xff" * 11 + WHOLE,
    "nothing": b"",
}


@pytest.mark.parametrize("section", LIES.values(), ids=LIES.keys())
@pytest.mark.parametrize("which", [check, plain_check], ids=["compiled", "plain"])
def test_a_record_that_lies_is_refused(section: bytes, which: Check) -> None:
    """F13: each in one way; the whole one passes."""
    which(one(WHOLE), 0, 1)
    with pytest.raises(ValueError, match="record"):
        which(section, 0, 1)


@pytest.mark.parametrize("codec", range(len(CODECS)))
def test_compressed_records_are_examined_too(codec: int) -> None:
    """F13: what is sound passes, and is read as it was; garbage inside is refused."""
    raw = memoryview(bytearray(build_batch([NewRecord(5, b"k", b"v" * 300)] * 3)))
    batch, header = recompressed(raw, check_batch(raw, bytes_max=1 << 20), codec, None)
    check_records(batch, header)
    assert [record.value for record in decode_batch(batch)] == [b"v" * 300] * 3

    body = deflate(b"garbage" * 40, codec)
    bad = bytearray(bytes(batch[:HEADER_BYTES]) + body)
    struct.pack_into(">i", bad, 8, len(bad) - 12)
    struct.pack_into(">I", bad, 17, crc32c(bytes(bad[21:])))
    forged = memoryview(bad)
    with pytest.raises(InvalidBatch, match="malformed record"):
        check_records(forged, check_batch(forged, bytes_max=1 << 20))


@pytest.mark.parametrize("checks", [check, plain_check])
def test_a_number_has_64_bits_at_most(checks: Check) -> None:
    """F13: compiled and plain agree on it, and no sum of times is larger than its place."""
    for last, fits in ((b"\x01", True), (b"\x02", False), (b"\x7f", False)):
        record = b"\0" + b"\xff" * 9 + last + b"\0\1\1\0"
        data = varint(len(record)) + record
        if fits:
            checks(data, 0, 1)
            continue
        with pytest.raises(ValueError, match="record 0"):
            checks(data, 0, 1)
