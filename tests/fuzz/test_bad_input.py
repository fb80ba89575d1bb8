"""Bad input at the door of a real node: it answers, closes or waits, and never grows or dies.

After each kind of abuse the same things are asked: a good client is served as before, what was
stored is untouched, memory has not grown, and the node says what happened in its log and metrics
without having met a defect of its own. `FUZZ_CASES` sets how many random frames are sent.
"""

import os
import random
import resource
import socket
import struct
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest
from crc32c import crc32c
from tests.conftest import NodeFactory, RunningNode

from dovetail.kafka import messages as m
from dovetail.kafka.apis import SUPPORTED, ApiKey
from dovetail.kafka.codec import decode_response, encode_request
from dovetail.kafka.error_codes import ErrorCode
from dovetail.kafka.headers import RequestHeader
from dovetail.log.records import encode_batch

CASES = int(os.environ.get("FUZZ_CASES", "3000"))
#: Memory may rise by this much over a whole abuse: buffers, caches, the allocator's slack.
GROWTH_BYTES_MAX = 40 * 1024 * 1024


class Door:
    """A node under abuse, and what it was before."""

    def __init__(self, node: RunningNode) -> None:
        self.node = node
        host, _, port = node.bootstrap.rpartition(":")
        self.address = (host, int(port))
        self.process = psutil.Process(node.pid)
        self.ask(
            ApiKey.CREATE_TOPICS,
            5,
            m.CreateTopicsRequest(
                topics=(
                    m.CreateTopicsRequestTopic(
                        name="known",
                        num_partitions=1,
                        replication_factor=1,
                        assignments=(),
                        configs=(),
                    ),
                )
            ),
        )
        assert self.produce(encode_batch([(None, b"first")], timestamp=1)) == ErrorCode.NONE
        self.memory = self.process.memory_info().rss
        self.violations = self.metric("dovetail_protocol_violations_total")

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=20)

    def send(self, data: bytes) -> bytes:
        """Sends bytes and reads until the node closes or says nothing for a moment."""
        answer = b""
        with closing(self.connect()) as sock:
            try:
                sock.sendall(data)
                sock.settimeout(0.2)
                while chunk := sock.recv(65536):
                    answer += chunk
            except (TimeoutError, ConnectionError):
                pass
        return answer

    def ask(self, key: int, version: int, body: object) -> object:
        """One good request and its answer."""
        header = RequestHeader(key, version, 7, "good")
        with closing(self.connect()) as sock:
            sock.sendall(b"".join(encode_request(header, body)))
            size = struct.unpack(">i", _exactly(sock, 4))[0]
            return decode_response(header, memoryview(_exactly(sock, size)))

    def produce(self, *batches: bytes, acks: int = -1) -> ErrorCode:
        request = m.ProduceRequest(
            acks=acks,
            timeout_ms=5000,
            topic_data=(
                m.ProduceRequestTopic(
                    name="known",
                    partition_data=(
                        m.ProduceRequestPartition(index=0, records=memoryview(b"".join(batches))),
                    ),
                ),
            ),
        )
        answer = self.ask(ApiKey.PRODUCE, 9, request)
        assert isinstance(answer, m.ProduceResponse)
        found = answer.responses[0].partition_responses[0]
        assert found.error_code == ErrorCode.NONE or found.error_message
        return ErrorCode(found.error_code)

    def end_offset(self) -> int:
        request = m.ListOffsetsRequest(
            replica_id=-1,
            topics=(
                m.ListOffsetsRequestTopic(
                    name="known",
                    partitions=(m.ListOffsetsRequestPartition(partition_index=0, timestamp=-1),),
                ),
            ),
        )
        answer = self.ask(ApiKey.LIST_OFFSETS, 7, request)
        assert isinstance(answer, m.ListOffsetsResponse)
        return answer.topics[0].partitions[0].offset

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.node.http_url}/metrics", timeout=20) as page:
            for line in page.read().decode().splitlines():
                if line.startswith(f"{name} "):
                    return float(line.split()[1])
        return 0.0

    def check(self, *, violations: bool = True, stored: int = 1) -> None:
        """As before; and what happened was told."""
        assert self.end_offset() == stored
        grown = self.process.memory_info().rss - self.memory
        assert grown < GROWTH_BYTES_MAX, f"memory grew by {grown} bytes"
        assert self.metric("dovetail_internal_errors_total") == 0
        assert "met a defect" not in self.node.log()
        assert "Traceback" not in self.node.log()
        if violations:
            assert self.metric("dovetail_protocol_violations_total") > self.violations
            assert "connection closed" in self.node.log()


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        assert chunk, "the node closed the connection"
        data += chunk
    return data


@pytest.fixture
def door(node_factory: NodeFactory) -> Iterator[Door]:
    node = node_factory(kafka_frame_read_ms="700ms", kafka_connections_max="6000")
    yield Door(node)
    assert psutil.pid_exists(node.pid)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 2**31 - 1) + bytes(100),
        framed(b""),
        framed(b"\x00"),
        framed(struct.pack(">hhi", 9999, 0, 1)),
        framed(struct.pack(">hhih", 3, 99, 1, -1)),
        framed(struct.pack(">hhih", 1, 4, 1, 30_000)),
        framed(struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 2**31 - 1)),
        framed(struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", -7)),
        framed(os.urandom(5000)),
    ],
    ids=lambda data: repr(data[:12]),
)
def test_garbage_closes_the_connection_and_nothing_else(door: Door, data: bytes) -> None:
    """R3: frames that are none, wrong versions, lengths and counts."""
    door.send(data)
    door.check()


def test_versions_that_are_refused_politely(door: Door) -> None:
    """K5, R3: ApiVersions from the future is answered with what the node speaks."""
    answer = door.send(framed(struct.pack(">hhih", 18, 99, 5, -1) + b"\x00"))
    size, correlation, code = struct.unpack(">iih", answer[:10])
    assert (size, correlation, code) == (len(answer) - 4, 5, ErrorCode.UNSUPPORTED_VERSION)
    door.check(violations=False)


def good_frames() -> list[bytes]:
    """A valid request of every kind that needs few fields."""
    bodies: list[tuple[int, int, object]] = [
        (ApiKey.API_VERSIONS, 3, m.ApiVersionsRequest(client_software_name="a")),
        (ApiKey.METADATA, 9, m.MetadataRequest(topics=None, allow_auto_topic_creation=False)),
        (ApiKey.FIND_COORDINATOR, 2, m.FindCoordinatorRequest(key="g")),
        (ApiKey.LIST_GROUPS, 3, m.ListGroupsRequest()),
        (ApiKey.DESCRIBE_GROUPS, 4, m.DescribeGroupsRequest(groups=("g", "h"))),
        (ApiKey.HEARTBEAT, 3, m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")),
        (ApiKey.OFFSET_FETCH, 7, m.OffsetFetchRequest(group_id="g", topics=None)),
        (ApiKey.DELETE_GROUPS, 1, m.DeleteGroupsRequest(groups_names=("x",))),
        (
            ApiKey.DESCRIBE_CLUSTER,
            0,
            m.DescribeClusterRequest(include_cluster_authorized_operations=False),
        ),
        (
            ApiKey.FETCH,
            11,
            m.FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                topics=(
                    m.FetchRequestTopic(
                        topic="known",
                        partitions=(
                            m.FetchRequestPartition(
                                partition=0, fetch_offset=0, partition_max_bytes=1000
                            ),
                        ),
                    ),
                ),
            ),
        ),
    ]
    frames = []
    for key, version, body in bodies:
        assert SUPPORTED[key].answers(version)
        frames.append(b"".join(encode_request(RequestHeader(key, version, 1, "fuzz"), body)))
    return frames


def test_mutated_requests(door: Door) -> None:
    """R3: valid requests with random changes: bytes, cuts, insertions; whole or in pieces."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed={seed}")
    rng = random.Random(seed)
    frames = good_frames()
    for _ in range(CASES // 20):
        with closing(door.connect()) as sock:
            sock.settimeout(5)
            try:
                for _ in range(20):
                    sock.sendall(mutated(rng, rng.choice(frames)))
            except ConnectionError:
                continue
    door.check()


def mutated(rng: random.Random, frame: bytes) -> bytes:
    body = bytearray(frame[4:])
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(2, len(body))
        choice = rng.random()
        if choice < 0.5:
            body[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif choice < 0.75:
            del body[at : at + rng.randint(1, 8)]
        else:
            body[at:at] = rng.randbytes(rng.randint(1, 8))
        if len(body) < 4:
            break
    return framed(bytes(body))


def test_a_client_that_sends_a_byte_at_a_time_is_cut_off(door: Door) -> None:
    """R3: a frame once begun must be complete in time; others are served meanwhile."""
    with closing(door.connect()) as slow:
        slow.settimeout(10)
        slow.sendall(struct.pack(">i", 1000))
        deadline = time.monotonic() + 10
        closed = False
        while not closed and time.monotonic() < deadline:
            assert door.end_offset() == 1
            try:
                slow.sendall(b"x")
            except ConnectionError:
                closed = True
        assert closed, "a slow client was never cut off"
    door.check()


def test_a_frame_byte_by_byte_is_a_frame(door: Door) -> None:
    """R3: slow but in time is served."""
    frame = good_frames()[0]
    with closing(door.connect()) as sock:
        sock.settimeout(10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(frame)):
            sock.sendall(frame[at : at + 1])
        assert struct.unpack(">i", _exactly(sock, 4))[0] > 0
    door.check(violations=False)


def test_five_thousand_idle_connections(door: Door) -> None:
    """R3: they cost little, and a good client is served among them; too many are refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    idle: list[socket.socket] = []
    try:
        for _ in range(5000):
            idle.append(door.connect())
        assert door.end_offset() == 1
        grown = door.process.memory_info().rss - door.memory
        assert grown < 100 * 1024 * 1024, f"{grown / 5000:.0f} bytes a connection"
        for _ in range(1100):
            idle.append(door.connect())
        refused = 0
        for sock in idle[-20:]:
            sock.settimeout(5)
            try:
                refused += sock.recv(1) == b""
            except ConnectionError:
                refused += 1
            except TimeoutError:
                pass
        assert refused > 0, "there is no limit"
    finally:
        for sock in idle:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert door.end_offset() == 1


def test_a_client_that_never_reads(door: Door) -> None:
    """R3: its answers wait in its own sockets, not in the node's memory."""
    frame = good_frames()[1]
    with closing(door.connect()) as sock:
        sock.settimeout(0.5)
        sent = 0
        try:
            for _ in range(20_000):
                sock.sendall(frame)
                sent += 1
        except TimeoutError:
            pass
        assert sent > 100
        door.check(violations=False)


def batch_with(form: str, at: int, value: int) -> bytes:
    raw = encode_batch([(None, b"a"), (None, b"b")], timestamp=1)
    struct.pack_into(form, raw, at, value)
    struct.pack_into(">I", raw, 17, crc32c(bytes(raw[21:])))
    return bytes(raw)


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (b"\x00" * 61, ErrorCode.INVALID_RECORD),
        (batch_with(">b", 16, 1), ErrorCode.INVALID_RECORD),
        (batch_with(">i", 8, 3), ErrorCode.INVALID_RECORD),
        (batch_with(">i", 57, 0), ErrorCode.INVALID_RECORD),
        (batch_with(">i", 57, -5), ErrorCode.INVALID_RECORD),
        (batch_with(">i", 57, 2**31 - 1), ErrorCode.INVALID_RECORD),
        (batch_with(">i", 23, 77), ErrorCode.INVALID_RECORD),
        (batch_with(">h", 21, 7), ErrorCode.INVALID_RECORD),
        (batch_with(">h", 21, 0x10), ErrorCode.INVALID_RECORD),
        (batch_with(">h", 21, 0x20), ErrorCode.INVALID_RECORD),
        (bytes(encode_batch([(None, b"a")], timestamp=1)) * 2, ErrorCode.INVALID_RECORD),
        (bytes(encode_batch([(None, b"a")], timestamp=1))[:-1] + b"x", ErrorCode.CORRUPT_MESSAGE),
        (bytes(encode_batch([(None, bytes(2_000_000))], timestamp=1)), ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_malformed_batches_get_kafkas_own_codes(
    bad_batches: Door, batch: bytes, code: ErrorCode
) -> None:
    """K2, R3, U7: with a message, and nothing is stored."""
    assert bad_batches.produce(batch) == code
    bad_batches.check(violations=False)


@pytest.fixture(scope="module")
def bad_batches(node: RunningNode) -> Door:
    return Door(node)


def test_acks_that_do_not_exist(bad_batches: Door) -> None:
    """U7: 0, 1 and -1 are all there is."""
    good = encode_batch([(None, b"a")], timestamp=1)
    assert bad_batches.produce(good, acks=2) == ErrorCode.INVALID_REQUIRED_ACKS
    bad_batches.check(violations=False)
