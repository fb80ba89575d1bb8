"""What compaction leaves of a log, against a model that knows records, keys and times alone."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.compression import deflate
from dovetail.errors import InvalidBatch
from dovetail.log.compaction.cleaning import AbortedTransactions, Cleaning, note_keys
from dovetail.log.compaction.key_map import PlainKeyMap, new_map
from dovetail.log.producers import AbortedRange
from dovetail.record_batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    TRANSACTIONAL,
    Marker,
    NewRecord,
    build_batch,
    build_marker,
    check_batch,
    decode_batch,
    encode_batch,
    read_header,
    resealed,
    stamp,
    varint,
)
from dovetail.record_check import check_records

TOMBSTONES_MS = 10


@dataclass
class Kept:
    """A record that should be there."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    producer: int | None


@dataclass
class Model:
    """A log as bytes, and what should be in it."""

    make: Callable[[int], PlainKeyMap]
    now_ms: int = 1_000
    log: list[bytes] = field(default_factory=list)
    offset: int = 0
    dirty: int = 0
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[AbortedRange] = field(default_factory=list)
    #: By the first offset of a batch: its records by offset, its horizon.
    batches: dict[int, dict[int, Kept]] = field(default_factory=dict)
    horizons: dict[int, int] = field(default_factory=dict)
    #: Markers by offset: their producer.
    markers: dict[int, int] = field(default_factory=dict)

    def _add(self, batch: bytes, count: int) -> None:
        raw = bytearray(batch)
        stamp(memoryview(raw), base_offset=self.offset, leader_epoch=3)
        self.log.append(bytes(raw))
        self.offset += count

    def put(self, pairs: list[tuple[bytes | None, bytes | None]], codec: int, who: int) -> None:
        """A plain batch, or for a producer from 1 on one of its transaction."""
        records = [NewRecord(self.now_ms + n, k, v) for n, (k, v) in enumerate(pairs)]
        producer, transaction = (who, TRANSACTIONAL) if who else (-1, 0)
        plain = build_batch(
            records,
            producer_id=producer,
            producer_epoch=0,
            sequence=0,
            attributes=transaction | codec,
        )
        packed = deflate(plain[HEADER_BYTES:], codec)
        batch = bytes(resealed(read_header(plain), packed)[0])
        if who:
            self.open.setdefault(who, self.offset)
        self.batches[self.offset] = {
            self.offset + n: Kept(r.key, r.value, r.timestamp, who or None)
            for n, r in enumerate(records)
        }
        self._add(batch, len(records))

    def end(self, who: int, *, commit: bool) -> None:
        first = self.open.pop(who, None)
        if first is None:
            return
        if not commit:
            self.aborted.append(AbortedRange(who, first, self.offset, 0))
        self.markers[self.offset] = who
        marker = build_marker(Marker(who, 0, commit, 1, 1), timestamp=self.now_ms)
        self._add(bytes(marker), 1)

    # A pass, and what it should leave

    def compact(self, keys_max: int) -> None:
        stable = min(self.open.values(), default=self.offset)
        transactions = AbortedTransactions(self.aborted)
        keys, end = self.make(keys_max), stable
        for batch in self.log:
            if read_header(batch).base_offset < stable:
                full_at = note_keys(keys, batch, transactions, first=self.dirty)
                if full_at is not None:
                    end = full_at
                    break
        cleaning = Cleaning(
            keys, transactions, end=end, now_ms=self.now_ms, tombstones_ms=TOMBSTONES_MS
        )
        cleaned = [cleaning.clean(batch) for batch in self.log]
        assert self._full_at(keys_max, stable) == end
        self._expect(end)
        for before, after in zip(self.log, cleaned, strict=True):
            if after is not None:
                self._check_header(before, bytes(after))
        self.log = [bytes(batch) for batch in cleaned if batch is not None]
        self.dirty = max(self.dirty, end)

    def _full_at(self, keys_max: int, stable: int) -> int:
        known: set[bytes] = set()
        for offset, kept in self._records():
            if self.dirty <= offset < stable and kept.key is not None and not self._gone(offset):
                if kept.key not in known and len(known) == keys_max:
                    return offset
                known.add(kept.key)
        return stable

    def _records(self) -> list[tuple[int, Kept]]:
        return [one for _, batch in sorted(self.batches.items()) for one in sorted(batch.items())]

    def _gone(self, offset: int) -> bool:
        """Whether the record was aborted."""
        owner = next(k.producer for o, k in self._records() if o == offset)
        return any(
            a.producer_id == owner and a.first_offset <= offset < a.last_offset
            for a in self.aborted
        )

    def _expect(self, end: int) -> None:
        """Keeps what should be left."""
        last: dict[bytes | None, int] = {}
        for offset, kept in self._records():
            if self.dirty <= offset < end and not self._gone(offset):
                last[kept.key] = offset
        for base, records in [*self.batches.items()]:
            if base >= end:
                continue
            horizon = self.horizons.get(base)
            stay = horizon is None or self.now_ms < horizon
            left = {
                o: k
                for o, k in records.items()
                if not self._gone(o)
                and (
                    o >= end
                    or (
                        k.key is not None
                        and o >= last.get(k.key, -1)
                        and (stay or k.value is not None)
                    )
                )
            }
            tombstones = any(k.value is None and o < end for o, k in left.items())
            if tombstones and horizon is None:
                self.horizons[base] = self.now_ms + TOMBSTONES_MS
            self.batches[base] = left
        self._expect_markers(end)

    def _expect_markers(self, end: int) -> None:
        before: dict[int, int] = {}
        for offset, who in sorted(self.markers.items()):
            if offset >= end:
                break
            first, before[who] = before.get(who, -1), offset
            if any(k.producer == who and first < o < offset for o, k in self._records()):
                continue
            if offset not in self.horizons:
                self.horizons[offset] = self.now_ms + TOMBSTONES_MS
            elif self.now_ms >= self.horizons[offset]:
                del self.markers[offset]

    def _check_header(self, before: bytes, after: bytes) -> None:
        """It keeps its offsets, its producer, its numbers and its codec, and checks."""
        old, new = read_header(before), read_header(after)
        same = ("base_offset", "last_offset_delta", "producer_id", "producer_epoch")
        for name in (*same, "base_sequence", "leader_epoch"):
            assert getattr(old, name) == getattr(new, name)
        assert old.attributes | DELETE_HORIZON == new.attributes | DELETE_HORIZON
        if not new.attributes & CONTROL and new.record_count == new.last_offset_delta + 1:
            check_batch(memoryview(bytearray(after)), bytes_max=1 << 20)

    def check(self) -> None:
        found = {
            record.offset: (record.key, record.value, record.timestamp)
            for batch in self.log
            for record in decode_batch(batch)
        }
        wanted = {o: (k.key, k.value, k.timestamp) for o, k in self._records()}
        assert found == wanted
        controls = [read_header(b) for b in self.log if read_header(b).attributes & CONTROL]
        assert [h.base_offset for h in controls] == sorted(self.markers)
        for batch in self.log:
            header = read_header(batch)
            times = [record.timestamp for record in decode_batch(batch)]
            assert not times or header.timestamp_max == max(times)


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b""])
PAIRS = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=3)), min_size=1, max_size=4)
KEYLESS = st.lists(st.tuples(st.none() | KEYS, st.binary(max_size=3)), min_size=1, max_size=2)
WHO = st.integers(1, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), PAIRS, st.integers(0, 4)),
        st.tuples(st.just("put"), KEYLESS, st.just(0)),
        st.tuples(st.just("in transaction"), PAIRS, WHO),
        st.tuples(st.just("end"), WHO, st.booleans()),
        st.tuples(st.just("compact"), st.sampled_from([1, 2, 3, 100]), st.integers(0, 11)),
    ),
    max_size=25,
)


@pytest.mark.parametrize("make", [new_map, lambda n: PlainKeyMap(n, bytes(16))])
@settings(max_examples=150)
@given(steps=STEPS)
def test_what_is_left_is_the_last_record_of_each_key(
    make: Callable[[int], PlainKeyMap], steps: list[tuple[str, object, object]]
) -> None:
    """L17: over many passes, with tombstones, transactions, every codec, records without a key and
    maps that are too small; offsets, times and producers' numbers stay."""
    model = Model(make)
    for name, first, second in steps:
        if name == "put":
            model.put(first, second, 0)  # type: ignore[arg-type]
        elif name == "in transaction":
            model.put(first, 0, second)  # type: ignore[arg-type]
        elif name == "end":
            model.end(first, commit=second)  # type: ignore[arg-type]
        else:
            model.now_ms += second  # type: ignore[operator]
            model.compact(first)  # type: ignore[arg-type]
            model.check()
    for who in (1, 2):
        model.end(who, commit=True)
    for _ in range(30):
        model.compact(2)
    model.check()
    assert model.dirty == model.offset
    keys = [kept.key for _, kept in model._records()]
    assert len(keys) == len(set(keys)), "a key is there twice"


def test_a_tombstone_of_an_impossible_time_stays() -> None:
    """L17: its horizon would not fit into the batch; it stays without one."""
    batch = build_batch([NewRecord(-(1 << 62), b"k", None)])
    keys = PlainKeyMap(10, bytes(16))
    note_keys(keys, batch, AbortedTransactions(()), first=0)
    cleaning = Cleaning(keys, AbortedTransactions(()), end=1, now_ms=0, tombstones_ms=(1 << 63) - 1)
    assert cleaning.clean(batch) == batch


def test_a_longest_retention_does_not_overflow() -> None:
    """L17: delete.retention.ms can be 2^63 - 1, which is for ever."""
    batch = encode_batch([(b"k", None)], timestamp=1_700_000_000_000)
    keys = PlainKeyMap(10, bytes(16))
    note_keys(keys, batch, AbortedTransactions(()), first=0)
    for longest in ((1 << 63) - 1, 1 << 62):
        cleaning = Cleaning(
            keys,
            AbortedTransactions(()),
            end=1,
            now_ms=1_700_000_000_000,
            tombstones_ms=longest,
        )
        after = cleaning.clean(batch)
        assert after is not None
        (record,) = decode_batch(after)
        assert (record.key, record.value, record.timestamp) == (b"k", None, 1_700_000_000_000)


def test_what_cannot_be_read_is_said() -> None:
    """L17: a batch that is not what its header says raises, and is not taken for an empty one."""
    batch = encode_batch([(b"k", b"v")], timestamp=0)
    batch[HEADER_BYTES] = 0x7F
    keys, none = new_map(10), AbortedTransactions(())
    with pytest.raises(InvalidBatch):
        note_keys(keys, batch, none, first=0)
    with pytest.raises(InvalidBatch):
        Cleaning(keys, none, end=1, now_ms=0, tombstones_ms=0).clean(batch)


@pytest.mark.parametrize(("base", "delta"), [(2**63 - 1, 1), (-(2**63), -1), (0, 2**63 - 1)])
@pytest.mark.parametrize("value", [b"v", None])
def test_times_beyond_every_limit_do_not_stop_compaction(
    base: int, delta: int, value: bytes | None
) -> None:
    """L17, R8: the sum of two times that a client sends need not fit into either."""
    parts = []
    for number, key in enumerate((b"a", b"b")):
        body = b"\0" + varint(delta) + varint(number) + b"\2" + key
        body += (b"\2v" if value else b"\1") + b"\0"
        parts += [varint(len(body)), body]
    times = {"base_timestamp": base, "timestamp_max": 5, "attributes": 0}
    header = read_header(encode_batch([(b"a", b"v"), (b"b", b"v")], timestamp=1))
    batch = memoryview(resealed(header._replace(**times), b"".join(parts))[0])
    check_records(batch, check_batch(batch, bytes_max=1_000))

    newer = encode_batch([(b"a", b"w")], timestamp=1)
    stamp(memoryview(newer), base_offset=2, leader_epoch=0)
    keys, aborted = new_map(10), AbortedTransactions([])
    for each in (batch, newer):
        note_keys(keys, each, aborted, first=0)
    cleaning = Cleaning(keys, aborted, end=3, now_ms=1_000, tombstones_ms=TOMBSTONES_MS)
    left = cleaning.clean(batch)
    assert left is not None
    assert (read_header(left).record_count, cleaning.removed) == (1, 1)
