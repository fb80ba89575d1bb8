"""Clients that are too slow, too many or too eager."""

import contextlib
import resource
import socket
import time
from collections.abc import Iterator

import pytest
from tests.conftest import NodeFactory
from tests.fuzz.hostile_client import (
    DEADLINE_S,
    KNOWN,
    Caller,
    Watch,
    fetch_request,
)

from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.frames import encode_request
from dovetail.kafka.codec.headers import RequestHeader

_MIB = 1 << 20
_IDLE = 5000
#: What 5000 idle connections may cost the node: 8 KiB each.
_IDLE_BYTES_MAX = 40 * _MIB


@contextlib.contextmanager
def file_limit(count: int) -> Iterator[None]:
    """Raises this process's limit on open files for a while; skips where that is not allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"{count} open files are needed, {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def opened(watch: Watch) -> float:
    return watch.metrics()["dovetail_connections"]


def wait_for(watch: Watch, count: int) -> None:
    """Waits until so many connections are open."""
    deadline = time.monotonic() + DEADLINE_S
    while opened(watch) != count:
        assert time.monotonic() < deadline, f"{opened(watch)} connections, not {count}"
        time.sleep(0.05)


def test_a_byte_now_and_then(watch: Watch) -> None:
    """R3: clients that send a byte now and then are cut off; others are served meanwhile."""
    with watch.undisturbed(rss_growth_max=8 * _MIB):
        slow = [Caller(watch.node, timeout_s=DEADLINE_S) for _ in range(50)]
        for byte in b"\0\0\x10\0\0\3":  # The beginning of a frame of 4 KiB.
            for caller in slow:
                caller.send(bytes([byte]))
            watch.serve_well()
        for caller in slow:
            assert caller.closed_by_node()
            caller.close()


def test_thousands_of_idle_connections(watch: Watch) -> None:
    """R3: 5000 idle connections cost little, and a good client is served among them."""
    host, _, port = watch.node.bootstrap.rpartition(":")
    idle: list[socket.socket] = []
    with file_limit(_IDLE + 500), watch.undisturbed(counter="dovetail_produced_records_total"):
        watch.settle()
        before = watch.rss_bytes()
        try:
            for _ in range(_IDLE // 500):
                idle += [socket.create_connection((host, int(port))) for _ in range(500)]
                wait_for(watch, len(idle))
            watch.serve_well()
            assert watch.rss_bytes() - before < _IDLE_BYTES_MAX
        finally:
            for connection in idle:
                connection.close()
        watch.settle()


def test_more_connections_than_allowed(node_factory: NodeFactory) -> None:
    """R3: beyond the limit connections are closed at once; who is inside is served."""
    watch = Watch(node_factory(kafka_connections_max="50"))
    with watch.undisturbed():
        with Caller(watch.node) as inside:
            crowd = [Caller(watch.node) for _ in range(300)]
            outside = sum(caller.closed_by_node() for caller in crowd[49:])
            assert outside == len(crowd) - 49
            for _ in range(10):
                inside.ask(ApiKey.API_VERSIONS, 2, m.ApiVersionsRequest())
            assert opened(watch) == 50
            for caller in crowd:
                caller.close()
        watch.settle()


def test_connections_that_come_and_go(watch: Watch) -> None:
    """R3: thousands of connections that are reset at once leave nothing behind."""
    host, _, port = watch.node.bootstrap.rpartition(":")
    with watch.undisturbed(rss_growth_max=16 * _MIB):
        for number in range(3000):
            with socket.create_connection((host, int(port))) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                one.sendall((b"", b"\0", b"\0\0\1\0", b"\xff\xff\xff\xff")[number % 4])
        watch.settle()


def requests(count: int, version: int, key: ApiKey, body: object) -> bytes:
    """So many good requests in a row."""
    return b"".join(
        b"".join(encode_request(RequestHeader(key, version, number, "eager"), body))
        for number in range(count)
    )


@pytest.mark.parametrize("kind", ["metadata", "fetch"])
def test_ten_thousand_requests_without_reading(watch: Watch, kind: str) -> None:
    """R3: who asks without reading is held up, not served from memory; then all is answered."""
    count = 10_000
    if kind == "metadata":
        data = requests(count, 9, ApiKey.METADATA, m.MetadataRequest(topics=None))
    else:
        data = requests(count, 11, ApiKey.FETCH, fetch_request(KNOWN, 0, 0))
    with watch.undisturbed(counter="dovetail_sent_bytes_total", rss_growth_max=16 * _MIB):
        with Caller(watch.node) as caller:
            caller.socket.settimeout(0.3)  # Nobody reads at the other end: the rest must wait.
            sent = send_until_held_up(caller.socket, data)
            watch.serve_well()
            caller.socket.settimeout(DEADLINE_S)
            answered = 0
            while answered < count:
                caller.socket.settimeout(DEADLINE_S)
                frame = caller.read_frame()
                assert frame is not None
                assert int.from_bytes(frame[:4], "big") == answered
                answered += 1
                if sent < len(data):
                    caller.socket.settimeout(0)
                    sent += send_until_held_up(caller.socket, data[sent : sent + 65_536])
        watch.settle()


def send_until_held_up(one: socket.socket, data: bytes) -> int:
    """Sends what the other end takes; returns how much that was."""
    sent = 0
    with contextlib.suppress(TimeoutError, BlockingIOError):
        while sent < len(data):
            sent += one.send(data[sent : sent + 65_536])
    return sent


def test_many_that_do_not_read(watch: Watch) -> None:
    """R3: a hundred clients that ask and never read leave nothing when they go."""
    data = requests(200, 11, ApiKey.FETCH, fetch_request(KNOWN, 0, 0))
    with watch.undisturbed(counter="dovetail_received_bytes_total", rss_growth_max=32 * _MIB):
        deaf = [Caller(watch.node, timeout_s=0.05) for _ in range(100)]
        for caller in deaf:
            send_until_held_up(caller.socket, data)
        watch.serve_well()
        for caller in deaf:
            caller.close()
        watch.settle()
