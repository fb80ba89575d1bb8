"""Requests that would take more memory than they bring, or keep it for longer."""

import select
import threading
import time
from dataclasses import replace

import pytest
from tests.conftest import NodeFactory
from tests.fuzz.hostile_client import (
    PREY,
    SCRATCH,
    Caller,
    Watch,
    batch,
    framed,
    offset_at,
    produce_request,
)
from tests.fuzz.test_listener_batches import carrying, compressed

from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.codec.frames import encode_request
from dovetail.kafka.codec.headers import RequestHeader

_MIB = 1 << 20
_HEADER = RequestHeader(ApiKey.PRODUCE, 9, 1, "greedy")


class Peak:
    """The most memory that a node had while this was open, above what it had before."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._before = self._highest = 0

    def __enter__(self) -> "Peak":
        self._before = self._watch.rss_bytes()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.is_set():
            self._highest = max(self._highest, self._watch.rss_bytes())
            time.sleep(0.005)

    @property
    def grown(self) -> int:
        return self._highest - self._before


@pytest.mark.parametrize(("acks", "timeout_ms"), [(0, 10_000), (1, 1)])
def test_bytes_on_their_way_to_the_disk_count(
    node_factory: NodeFactory, acks: int, timeout_ms: int
) -> None:
    """R3: who waits for no answer, or not for long, is read no faster than the disk writes."""
    node = node_factory(
        kafka_request_bytes_in_flight_max="32 MiB",
        kafka_frame_bytes_max="16 MiB",
        log_tail_cache_bytes_max="1 MiB",
    )
    watch = Watch(node)
    request = produce_request(SCRATCH, batch(1, bytes(1000 * 1024)), acks=acks)
    data = b"".join(encode_request(_HEADER, replace(request, timeout_ms=timeout_ms)))
    callers = [Caller(node) for _ in range(4)]

    def push(caller: Caller) -> None:
        for _ in range(100):
            caller.send(data)

    with Peak(watch) as peak:
        threads = [threading.Thread(target=push, args=(caller,)) for caller in callers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        watch.serve_well()
    for caller in callers:
        caller.close()
    assert peak.grown < 160 * _MIB


def test_tail_does_not_keep_whole_requests(watch: Watch) -> None:
    """R3: a small batch in a large request does not keep the request in memory."""
    small = b"".join(encode_request(_HEADER, produce_request(SCRATCH, batch())))[4:]
    with Caller(watch.node) as caller, Peak(watch) as peak:
        for _ in range(30):
            caller.send(framed(small + bytes(10 * _MIB)))
            assert caller.read_frame() is not None
    assert peak.grown < 64 * _MIB


@pytest.mark.parametrize(
    ("codec", "size"), [(1, 1 << 30), (2, 20 << 20), (3, 200 << 20), (4, 1 << 30)]
)
def test_bombs(watch: Watch, codec: int, size: int) -> None:
    """F13, R3: a batch that inflates to a gigabyte is refused, and not inflated beyond a bound."""
    bomb = carrying(codec, compressed(codec, bytes(size)), timestamp_max=2**60 + codec)
    with Caller(watch.node) as caller, Peak(watch) as peak:
        assert caller.produce(PREY, bomb).error_code == ErrorCode.INVALID_RECORD
    assert peak.grown < 256 * _MIB


def test_searching_by_time_leaves_others_alone(watch: Watch) -> None:
    """F43, F44: a batch of millions of records is searched off the loop, and not for nobody."""
    count = 1_000_000
    body = compressed(4, b"".join(record(0, number) for number in range(count)))
    made = carrying(
        4, body, record_count=count, last_offset_delta=count - 1, timestamp_max=2**60 + 9
    )
    with Caller(watch.node) as caller:
        assert caller.produce(PREY, made).error_code == 0
    wanted = m.ListOffsetsRequestPartition(partition_index=0, timestamp=2**60 + 9)
    request = m.ListOffsetsRequest(
        replica_id=-1, topics=(m.ListOffsetsRequestTopic(name=PREY, partitions=(wanted,)),)
    )
    header = RequestHeader(ApiKey.LIST_OFFSETS, 5, 1, "searching")

    def overtaken() -> bool:
        """Whether others were served while it was being searched."""
        with Caller(watch.node) as searching:
            searching.send(b"".join(encode_request(header, request)))
            watch.serve_well()
            return not select.select([searching.socket], [], [], 0)[0]

    # On a busy machine a search can end before this test has its turn, but not every time.
    assert any(overtaken() for _ in range(60))

    # Its client is gone: the search ends, and the next one has its turn.
    with Caller(watch.node) as caller:
        plain = batch(2000)
        offset = caller.produce(SCRATCH, plain).base_offset
        assert offset_at(caller, SCRATCH, 0, 1_700_000_000_000).offset <= offset


def test_times_and_offsets_beyond_their_range(watch: Watch) -> None:
    """R3: a record that claims a time or a place beyond 64 bits, or its batch, is not believed."""
    with watch.undisturbed(counter="dovetail_produced_records_total"), Caller(watch.node) as caller:
        for time_delta, offset_delta in ((2**62, 0), (0, 2**62), (-(2**62), -1)):
            body = record(time_delta, offset_delta)
            made = carrying(0, body, base_timestamp=2**63 - 1, timestamp_max=2**63 - 1)
            outcome = caller.produce(PREY, made)
            refused = outcome.error_code == ErrorCode.INVALID_RECORD
            assert refused == (offset_delta != 0)
            found = offset_at(caller, PREY, 0, 2**63 - 1)
            assert found.error_code == 0
            assert refused or found.offset <= outcome.base_offset


def record(time_delta: int, offset_delta: int) -> bytes:
    """A record with a one-byte value."""
    content = b"\0" + varint(time_delta) + varint(offset_delta) + varint(-1) + varint(1) + b"x\0"
    return varint(len(content)) + content


def varint(value: int) -> bytes:
    """Zigzag, base 128."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes([*out, value])
