"""A client that says whatever a test likes to a real node, and a watch over the node meanwhile.

The watch proves, after each attack, what R3 asks: a good client is served as before, a known topic
is as it was, memory has not grown beyond the stated bound, a line was logged, a counter went up,
and nothing was called a defect.
"""

import contextlib
import os
import socket
import struct
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psutil
from crc32c import crc32c
from tests.conftest import RunningNode

from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import SUPPORTED, ApiKey
from dovetail.kafka.codec.frames import decode_response, encode_request
from dovetail.kafka.codec.headers import RequestHeader
from dovetail.record_batch import encode_batch

#: Whatever is waited for comes within this, or never.
DEADLINE_S = 60.0

#: Random cases of each test; `make soak` sets more.
FUZZ_CASES = int(os.environ.get("FUZZ_CASES", "200"))

_MIB = 1 << 20

#: What the node may keep after an attack: caches, and the allocator's habits.
RSS_GROWTH_BYTES_MAX = 48 * _MIB

KNOWN = "known-facts"
KNOWN_PARTITIONS = 2
SCRATCH = "scratch"
#: Exists, and may come to harm.
PREY = "prey"

VIOLATIONS = "dovetail_protocol_violations_total"
REQUEST_ERRORS = "dovetail_request_errors_total"
_DEFECTS = "dovetail_internal_errors_total"

#: Lines that no input may cause.
_DEFECT_WORDS = ("Traceback", "met a defect", "never retrieved", "never awaited", "Task was destr")


class Caller:
    """One connection."""

    def __init__(self, node: RunningNode, *, timeout_s: float = DEADLINE_S) -> None:
        host, _, port = node.bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._correlation_id = 0

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Raw bytes; that the node has closed meanwhile is no error."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def read_frame(self) -> bytes | None:
        """An answer, or None if the node closed the connection. Raises `TimeoutError`."""
        length = self._read(4)
        return None if length is None else self._read(int.from_bytes(length, "big"))

    def _read(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self.socket.recv(count - len(parts))
            except ConnectionError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)

    def closed_by_node(self) -> bool:
        """Whether the node closes the connection without another answer."""
        return self.read_frame() is None

    def ask(self, key: ApiKey, version: int, body: Any) -> Any:
        """A good request and its answer."""
        self._correlation_id += 1
        header = RequestHeader(int(key), version, self._correlation_id, "good")
        self.socket.sendall(b"".join(encode_request(header, body)))
        frame = self.read_frame()
        assert frame is not None, "the node closed the connection on a good request"
        return decode_response(header, memoryview(frame))

    def produce(self, topic: str, records: bytes | None, *, partition: int = 0) -> Any:
        """The outcome for one partition, with its message."""
        answer = self.ask(
            ApiKey.PRODUCE, 9, produce_request(topic, records, partition=partition, acks=-1)
        )
        return answer.responses[0].partition_responses[0]


def produce_request(
    topic: str, records: bytes | None, *, partition: int = 0, acks: int = -1
) -> m.ProduceRequest:
    data = m.ProduceRequestPartition(
        index=partition, records=None if records is None else memoryview(records)
    )
    return m.ProduceRequest(
        acks=acks,
        timeout_ms=50_000,
        topic_data=(m.ProduceRequestTopic(name=topic, partition_data=(data,)),),
    )


def batch(count: int = 3, value: bytes = b"value") -> bytes:
    """A good record batch."""
    return bytes(encode_batch([(b"key", value)] * count, timestamp=1_700_000_000_000))


#: Where the fields of a batch's header are, and how they are packed.
FIELDS = {
    "base_offset": (0, ">q"),
    "length": (8, ">i"),
    "leader_epoch": (12, ">i"),
    "magic": (16, ">b"),
    "checksum": (17, ">I"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "timestamp_max": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "record_count": (57, ">i"),
}


def forged(good: bytes, *, mend_checksum: bool = True, **fields: int) -> bytes:
    """The batch with other values in its header, and the checksum that goes with them."""
    made = bytearray(good)
    for name, value in fields.items():
        at, code = FIELDS[name]
        struct.pack_into(code, made, at, value)
    if mend_checksum and "checksum" not in fields:
        struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    return bytes(made)


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


class Watch:
    """Looks at a node before and after."""

    def __init__(self, node: RunningNode) -> None:
        self.node = node
        self._attacked_s = 0.0
        with Caller(node) as caller:
            names = [(KNOWN, KNOWN_PARTITIONS), (SCRATCH, 1), (PREY, 1)]
            topics = tuple(
                m.CreateTopicsRequestTopic(
                    name=name,
                    num_partitions=count,
                    replication_factor=1,
                    assignments=(),
                    configs=(),
                )
                for name, count in names
            )
            caller.ask(
                ApiKey.CREATE_TOPICS, 5, m.CreateTopicsRequest(topics=topics, timeout_ms=10_000)
            )
            for partition in range(KNOWN_PARTITIONS):
                for number in range(3):
                    sent = batch(value=f"fact {number}".encode())
                    assert caller.produce(KNOWN, sent, partition=partition).error_code == 0
        for _ in range(20):  # So that what is built on first use is not taken for growth.
            self.serve_well()
            self.metrics()

    def metrics(self) -> dict[str, float]:
        """Every series by its name, those with labels summed up."""
        with urllib.request.urlopen(f"{self.node.http_url}/metrics", timeout=DEADLINE_S) as page:
            lines = page.read().decode().splitlines()
        found: dict[str, float] = {}
        for line in lines:
            if not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                name = series.partition("{")[0]
                found[name] = found.get(name, 0.0) + float(value)
        return found

    def series_count(self) -> int:
        with urllib.request.urlopen(f"{self.node.http_url}/metrics", timeout=DEADLINE_S) as page:
            return len(page.read().splitlines())

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.node.pid).memory_info().rss)

    def facts(self) -> list[Any]:
        """All that a client can see of the known topic."""
        with Caller(self.node) as caller:
            wanted = (m.MetadataRequestTopic(name=KNOWN),)
            request = m.MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
            seen = [caller.ask(ApiKey.METADATA, 9, request).topics]
            for partition in range(KNOWN_PARTITIONS):
                for place in (-2, -1):
                    seen.append(offset_at(caller, KNOWN, partition, place))
                seen.append(fetched(caller, KNOWN, partition))
        return seen

    def serve_well(self) -> None:
        """A good client: asks for versions, writes a batch and reads it back."""
        with Caller(self.node) as caller:
            versions = caller.ask(ApiKey.API_VERSIONS, 2, m.ApiVersionsRequest())
            assert len(versions.api_keys) == len(SUPPORTED)
            sent = batch(value=b"good")
            outcome = caller.produce(SCRATCH, sent)
            assert outcome.error_code == 0
            got = fetched(caller, SCRATCH, 0, offset=outcome.base_offset)
            # What others wrote meanwhile may lie behind it.
            assert got[61 : len(sent)] == sent[61:]

    @contextlib.contextmanager
    def undisturbed(
        self, *, counter: str = VIOLATIONS, rss_growth_max: int = RSS_GROWTH_BYTES_MAX
    ) -> Iterator[None]:
        """What happens inside must not show, but in the log and on `counter`."""
        # A kind of line is written a few times a second; this attack should have its own.
        time.sleep(max(0.0, self._attacked_s + 1.1 - time.monotonic()))
        facts, counted, logged = self.facts(), self.metrics(), self.node.log()
        rss_bytes = self.rss_bytes()
        yield
        self._attacked_s = time.monotonic()
        self.serve_well()
        assert self.facts() == facts
        after = self.metrics()
        assert after[counter] > counted.get(counter, 0.0)
        assert after[_DEFECTS] == 0
        new = self.node.log()[len(logged) :]
        assert not [word for word in _DEFECT_WORDS if word in new], new[-4000:]
        if counter == VIOLATIONS:
            assert "connection closed" in new
        grown = self.rss_bytes() - rss_bytes
        assert grown < rss_growth_max, f"{grown} bytes more than before"

    def settle(self) -> None:
        """Waits until only this watch's own connections are left."""
        deadline = time.monotonic() + DEADLINE_S
        while self.metrics()["dovetail_connections"] > 0:
            assert time.monotonic() < deadline, "connections were left behind"
            time.sleep(0.02)


def offset_at(caller: Caller, topic: str, partition: int, timestamp: int) -> Any:
    """What ListOffsets says."""
    wanted = m.ListOffsetsRequestPartition(partition_index=partition, timestamp=timestamp)
    request = m.ListOffsetsRequest(
        replica_id=-1, topics=(m.ListOffsetsRequestTopic(name=topic, partitions=(wanted,)),)
    )
    answer = caller.ask(ApiKey.LIST_OFFSETS, 5, request)
    return answer.topics[0].partitions[0]


def fetch_request(topic: str, partition: int, offset: int, **others: Any) -> m.FetchRequest:
    wanted = m.FetchRequestPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=50 * _MIB
    )
    request = m.FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=50 * _MIB,
        topics=(m.FetchRequestTopic(topic=topic, partitions=(wanted,)),),
    )
    return replace(request, **others)


def fetched(caller: Caller, topic: str, partition: int, *, offset: int = 0) -> bytes:
    """The batches of a partition from an offset on."""
    answer = caller.ask(ApiKey.FETCH, 11, fetch_request(topic, partition, offset))
    read = answer.responses[0].partitions[0]
    assert read.error_code == 0
    return b"".join(bytes(part) for part in read.records or ())
