"""The pure parts of the log room: batches, records, producers, chains, the tail, checkpoints."""

import gzip
import random
import struct

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from dovetail.buffers import Buffer
from dovetail.errors import (
    BatchTooLarge,
    ChecksumMismatch,
    InvalidBatch,
    InvalidInput,
    ProducerFenced,
    SequenceGap,
    Unavailable,
)
from dovetail.foreign import check_topic
from dovetail.log.checkpoint import (
    LedgerIndex,
    decode_checkpoint,
    encode_checkpoint,
    is_checkpoint,
)
from dovetail.log.producers import IN_ORDER_MS, ProducerTable
from dovetail.log.tail import Tail, TailBudget
from dovetail.log.topic import TopicConfig, check_config, check_partitions
from dovetail.record_batch import (
    HEADER_BYTES,
    check_batch,
    decode_batch,
    encode_batch,
    read_header,
    stamp,
)
from dovetail.storage import SINGLE, EntryId, Placement, chain
from dovetail.storage.chain import LedgerInfo, PartitionRecord
from dovetail.storage.placement import Fragment

ROOM = 1 << 20


def batch_of(*values: bytes, timestamp: int = 1000) -> bytearray:
    return encode_batch([(None, value) for value in values], timestamp=timestamp)


def with_field(raw: bytearray, form: str, at: int, value: int) -> memoryview:
    """The batch with one header field changed and a checksum that fits again."""
    struct.pack_into(form, raw, at, value)
    struct.pack_into(">I", raw, 17, crc32c(bytes(raw[21:])))
    return memoryview(raw)


# Batches and records


@given(
    st.lists(st.tuples(st.none() | st.binary(), st.none() | st.binary()), min_size=1, max_size=20),
    st.integers(0, 1 << 50),
)
def test_records_come_back_as_they_were(
    records: list[tuple[bytes | None, bytes | None]], timestamp: int
) -> None:
    """K2: keys and values, null and empty, and the time."""
    raw = encode_batch(records, timestamp=timestamp)
    header = check_batch(memoryview(raw), bytes_max=ROOM)
    assert header.record_count == len(records)
    stamp(memoryview(raw), base_offset=100, leader_epoch=7)
    assert check_batch(memoryview(raw), bytes_max=ROOM).leader_epoch == 7
    found = list(decode_batch(raw))
    assert [(r.key, r.value) for r in found] == records
    assert [r.offset for r in found] == list(range(100, 100 + len(records)))
    assert {r.timestamp for r in found} == {timestamp}


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_every_codec_is_opened_for_a_look_up_of_time(codec: int) -> None:
    """K2: only there; batches are stored unopened."""
    raw = batch_of(b"a" * 100, b"b" * 100)
    plain = bytes(raw[HEADER_BYTES:])
    squeezed = {
        1: lambda: gzip.compress(plain),
        2: lambda: bytes(cramjam.snappy.compress_raw(plain)),
        3: lambda: bytes(cramjam.lz4.compress(plain)),
        4: lambda: bytes(cramjam.zstd.compress(plain)),
    }[codec]()
    packed = bytearray(raw[:HEADER_BYTES]) + squeezed
    struct.pack_into(">i", packed, 8, len(packed) - 12)
    batch = with_field(packed, ">h", 21, codec)
    check_batch(batch, bytes_max=ROOM)
    assert [r.value for r in decode_batch(batch)] == [b"a" * 100, b"b" * 100]


def test_a_bomb_does_not_go_off() -> None:
    """R3: 80 MB of zeros in 400 KB are refused while they are being inflated."""
    raw = batch_of(b"a")
    packed = bytearray(raw[:HEADER_BYTES]) + gzip.compress(bytes(80 << 20), 1)
    batch = with_field(packed, ">h", 21, 1)
    with pytest.raises(InvalidBatch, match="more than 67108864 bytes"):
        list(decode_batch(batch))


@pytest.mark.parametrize(
    ("form", "at", "value"),
    [
        (">b", 16, 1),
        (">i", 8, 5),
        (">i", 57, 0),
        (">i", 57, -1),
        (">i", 23, 5),
        (">h", 21, 0x10),
        (">h", 21, 0x20),
        (">h", 21, 7),
    ],
)
def test_malformed_batches_are_refused(form: str, at: int, value: int) -> None:
    """K2, K5: format, length, counts, flags and codec."""
    with pytest.raises(InvalidBatch):
        check_batch(with_field(batch_of(b"a", b"b"), form, at, value), bytes_max=ROOM)


def test_changed_and_oversize_batches_are_refused() -> None:
    """K2: the checksum is verified, and the topic's limit."""
    raw = batch_of(b"abc")
    with pytest.raises(BatchTooLarge):
        check_batch(memoryview(raw), bytes_max=10)
    raw[-3] ^= 1
    with pytest.raises(ChecksumMismatch):
        check_batch(memoryview(raw), bytes_max=ROOM)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_refused(data: bytes) -> None:
    """R3: nothing but `InvalidBatch` comes out."""
    try:
        check_batch(memoryview(bytearray(data)), bytes_max=ROOM)
    except InvalidBatch:
        pass


@given(st.integers(0, 150), st.integers(0, 255))
def test_broken_records_are_refused(at: int, byte: int) -> None:
    """R3: also where the checksum fits, because a client made it."""
    raw = batch_of(b"a" * 30, b"b" * 30, b"c" * 10)
    if at + HEADER_BYTES < len(raw):
        raw[HEADER_BYTES + at] = byte
    try:
        list(decode_batch(raw))
    except InvalidBatch:
        pass


# Producers


def numbered(sequence: int, count: int, *, epoch: int = 0) -> bytearray:
    raw = batch_of(*(b"x" for _ in range(count)))
    struct.pack_into(">qhi", raw, 43, 5, epoch, sequence)
    return raw


@given(st.randoms(use_true_random=False))
def test_producers_against_a_dumb_version(rng: random.Random) -> None:
    """K4: any mixture of new, repeated and skipped batches; each is stored once, in order."""
    table = ProducerTable()
    stored: list[tuple[int, int]] = []
    offset = 0
    for _ in range(40):
        expected = sum(count for _, count in stored)
        choice = rng.random()
        if choice < 0.5 or not stored:
            sequence, count = expected, rng.randint(1, 4)
        elif choice < 0.8:
            sequence, count = rng.choice(stored)
        else:
            sequence, count = expected + rng.randint(-3, 3), rng.randint(1, 4)
        if sequence < 0:
            continue
        header = read_header(numbered(sequence, count))._replace(base_offset=offset)
        try:
            found = table.duplicate_of(header, now_ms=0)
        except SequenceGap:
            assert sequence != expected
            assert (sequence, count) not in stored[-5:]
            continue
        if found is None:
            assert sequence == expected
            table.note(header, now_ms=0)
            stored.append((sequence, count))
            offset += count
        else:
            assert (sequence, count) in stored[-5:]
            assert found == sequence
        if rng.random() < 0.1:
            table = ProducerTable(table.snapshot(now_ms=0))


def test_sequences_wrap_around() -> None:
    """K4: after 2^31 - 1 comes 0."""
    table = ProducerTable()
    table.note(read_header(numbered((1 << 31) - 2, 2)), now_ms=0)
    assert table.duplicate_of(read_header(numbered(0, 1)), now_ms=0) is None
    with pytest.raises(SequenceGap):
        table.duplicate_of(read_header(numbered(1, 1)), now_ms=0)
    table.note(read_header(numbered(0, 1, epoch=3)), now_ms=0)
    with pytest.raises(ProducerFenced):
        table.duplicate_of(read_header(numbered(0, 1, epoch=2)), now_ms=0)


def test_who_is_ahead_of_a_new_owner_is_told_to_begin_again() -> None:
    """K4: what came before was refused a moment ago. A gap would renumber all of its partitions."""
    table = ProducerTable()
    table.note(read_header(numbered(0, 3)), now_ms=0)
    table.begin_term(now_ms=1_000)
    second = read_header(numbered(4, 1))
    for now_ms in (1_000, 1_000 + IN_ORDER_MS - 1):
        with pytest.raises(Unavailable, match="send again, in order"):
            table.duplicate_of(second, now_ms=now_ms)
    with pytest.raises(SequenceGap):
        table.duplicate_of(read_header(numbered(1, 1)), now_ms=1_000)
    with pytest.raises(SequenceGap):
        table.duplicate_of(second, now_ms=1_000 + IN_ORDER_MS)
    assert table.duplicate_of(read_header(numbered(0, 3)), now_ms=1_000) == 0
    first = read_header(numbered(3, 1))
    assert table.duplicate_of(first, now_ms=1_000) is None
    table.note(first, now_ms=1_000)
    assert table.duplicate_of(second, now_ms=1_000) is None
    with pytest.raises(SequenceGap):
        table.duplicate_of(read_header(numbered(9, 1)), now_ms=1_000)


@pytest.mark.parametrize("known", [True, False])
def test_who_begins_an_epoch_with_a_new_owner_begins_at_nought(known: bool) -> None:
    """K4: its first batch was refused a moment ago; taking the second would make it a gap."""
    table = ProducerTable()
    if known:
        table.note(read_header(numbered(0, 3)), now_ms=0)
    table.begin_term(now_ms=1_000)
    first, second = (read_header(numbered(at, 2, epoch=1)) for at in (0, 2))
    with pytest.raises(Unavailable, match=r"expected 0.*send again, in order"):
        table.duplicate_of(second, now_ms=1_000)
    assert table.duplicate_of(first, now_ms=1_000) is None
    if known:
        with pytest.raises(SequenceGap, match="expected 0"):
            table.duplicate_of(second, now_ms=1_000 + IN_ORDER_MS)
    else:
        assert table.duplicate_of(second, now_ms=1_000 + IN_ORDER_MS) is None
    table.note(first, now_ms=1_000)
    assert table.duplicate_of(second, now_ms=1_000) is None


def test_silent_producers_are_forgotten() -> None:
    """K4: the table does not grow for ever."""
    table = ProducerTable()
    table.note(read_header(numbered(0, 1)), now_ms=0)
    assert len(table.snapshot(now_ms=1000)) == 1
    assert table.snapshot(now_ms=25 * 3600 * 1000) == {}


# Chains


def placed(number: int) -> Placement:
    return Placement(number, SINGLE, (Fragment(0, (1,)),))


def ledger(number: int, first: int, end: int, *, closed: bool = True, time: int = 0) -> LedgerInfo:
    return LedgerInfo(
        placed(number),
        1,
        0,
        first,
        closed,
        0,
        end,
        payload_bytes=(end - first) * 10,
        timestamp_max=time,
    )


def test_a_chain_is_closed_in_order_and_without_gaps() -> None:
    """L2: an empty ledger is left out; the next one starts where the last one ends."""
    record = PartitionRecord("id", 0)
    record = chain.with_open(record, LedgerInfo(placed(1), 1, 0))
    record = chain.with_open(record, LedgerInfo(placed(2), 1, 0))
    with pytest.raises(AssertionError):
        chain.with_open(record, LedgerInfo(placed(3), 1, 0))
    with pytest.raises(AssertionError):
        chain.with_closed(record, ledger(2, 0, 5))
    with pytest.raises(AssertionError):
        chain.with_closed(record, ledger(1, 3, 5))
    record = chain.with_closed(record, ledger(1, 0, 5))
    assert record.closed_end == record.open[0].first_offset == 5
    record = chain.with_closed(record, ledger(2, 5, 5))
    assert [info.ledger for info in record.ledgers] == [1]
    assert chain.decode(chain.encode(record)) == record


def test_offsets_do_not_go_back_when_everything_is_trimmed() -> None:
    """L11: an empty chain remembers where it ended."""
    record = chain.with_closed(
        chain.with_open(PartitionRecord("id", 0), LedgerInfo(placed(1), 1, 0)), ledger(1, 0, 9)
    )
    record, gone = chain.trimmed(record, log_start=9)
    assert [info.ledger for info in gone] == [1]
    assert record.closed_end == record.log_start == 9


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 100)), max_size=8),
    st.integers(-1, 120),
    st.integers(-1, 3000),
    st.integers(0, 500),
)
def test_retention_keeps_what_it_must(
    sizes: list[tuple[int, int]], age: int, room: int, open_bytes: int
) -> None:
    """L11: whole ledgers from the front; what is kept is within the age or needed for the room."""
    infos, at = [], 0
    for number, (size, time) in enumerate(sizes):
        infos.append(ledger(number, at, at + size, time=time))
        at += size
    start = chain.expired_before(
        infos,
        ended_ms=None,
        log_start=0,
        total_bytes=open_bytes + sum(info.payload_bytes for info in infos),
        now_ms=100,
        retention_ms=age,
        retention_bytes=room,
    )
    kept = [info for info in infos if info.offset_end > start]
    gone = [info for info in infos if info.offset_end <= start]
    assert start in {0, *(info.offset_end for info in infos)}
    left = open_bytes + sum(info.payload_bytes for info in kept)
    for place, info in enumerate(gone):
        behind = open_bytes + sum(later.payload_bytes for later in infos[place + 1 :])
        assert 0 <= age < 100 - info.timestamp_max or 0 <= room <= behind
    if kept:
        too_old = 0 <= age < 100 - kept[0].timestamp_max
        too_much = 0 <= room <= left - kept[0].payload_bytes
        assert not too_old
        assert not too_much


# The tail


@given(st.randoms(use_true_random=False))
def test_the_tail_against_a_dumb_version(rng: random.Random) -> None:
    """L7: what is read from memory is what was written, without a gap, within the budget."""
    budget = TailBudget(rng.choice([0, 50, 500]))
    tails = [Tail(budget) for _ in range(3)]
    written: list[list[tuple[int, bytes]]] = [[], [], []]
    for step in range(200):
        at = rng.randrange(3)
        base = sum(len(data) for _, data in written[at])
        data = bytes([step]) * rng.randint(1, 20)
        if rng.random() < 0.03:
            tails[at].clear()
        tails[at].add(base, base + len(data), data)
        written[at].append((base, data))
        probe = rng.randrange(3)
        end = sum(len(data) for _, data in written[probe])
        offset = rng.randint(0, end + 2)
        found: list[Buffer] | None = tails[probe].read(offset, rng.choice([1, 30, 1000]))
        if found is not None:
            first = next(n for n, (b, d) in enumerate(written[probe]) if b <= offset < b + len(d))
            expected = [d for _, d in written[probe][first : first + len(found)]]
            assert found == expected


# The index


@given(st.randoms(use_true_random=False))
def test_the_sparse_index_against_a_dumb_version(rng: random.Random) -> None:
    """L7: an offset is found at or behind the answer; so is a time."""
    index, rows, checkpoints = LedgerIndex(), [], []
    offset, entry = 0, 0
    for _ in range(120):
        if rng.random() < 0.1:
            taken = index.take_checkpoint(
                EntryId(entry), ProducerTable(), offset_next=offset, now_ms=0
            )
            payload = encode_checkpoint(taken)
            assert is_checkpoint(payload)
            checkpoints.append((entry, decode_checkpoint(payload)))
            entry += 1
        count, time = rng.randint(1, 5), rng.randint(0, 1000)
        header = read_header(batch_of(*(b"x" for _ in range(count)), timestamp=time))
        index.note_batch(
            EntryId(entry), header._replace(base_offset=offset), rng.choice([100, 40_000])
        )
        rows.append((entry, offset, count, time))
        offset, entry = offset + count, entry + 1
    rebuilt = LedgerIndex()
    if checkpoints:
        last_entry, last = checkpoints[-1]
        every = [row for _, c in checkpoints for row in c.rows]
        rebuilt.adopt(EntryId(last_entry), last, every, [])
        covered = last.offset_next
    else:
        covered = 0
    for which, limit in ((index, offset), (rebuilt, covered)):
        for asked in range(limit):
            real = next(e for e, o, c, _ in rows if o <= asked < o + c)
            assert which.entry_for_offset(asked) <= real
    for asked in range(0, 1100, 50):
        real_time = next((e for e, _, _, t in rows if t >= asked), None)
        found = index.entry_for_time(asked)
        assert (found is None) == (real_time is None)
        if found is not None and real_time is not None:
            assert found <= real_time


# Topics


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "a/b", "ä", "a\n"])
def test_bad_names_are_refused(name: str) -> None:
    """K3: with a message that says what a name is."""
    with pytest.raises(InvalidInput, match="letters"):
        check_topic(name)


def test_bad_settings_are_refused_by_name() -> None:
    """K3: unknown, no number, out of bounds, not one of the choices."""
    for config in (
        {"retention.mss": "1"},
        {"retention.ms": "soon"},
        {"retention.ms": "-2"},
        {"cleanup.policy": "compacted"},
        {"retention.ms": "9" * 30},
    ):
        with pytest.raises(InvalidInput, match=next(iter(config))):
            check_config(config)
    check_config({"retention.ms": "-1", "message.timestamp.type": "LogAppendTime"})
    for count in (0, -1, 10_001):
        with pytest.raises(InvalidInput):
            check_partitions(count)


def test_a_topic_overrides_the_defaults() -> None:
    """K3: what it does not set stays as it was, and can be shown."""
    defaults = TopicConfig(1, 2, 3, 4, 5)
    assert defaults.with_overrides({}) == defaults
    own = defaults.with_overrides({"retention.ms": "9", "message.timestamp.type": "LogAppendTime"})
    assert (own.retention_ms, own.retention_bytes, own.stamps_append_time) == (9, 2, True)
    assert own.as_strings()["retention.ms"] == "9"
    assert defaults.with_overrides(own.as_strings()) == own
