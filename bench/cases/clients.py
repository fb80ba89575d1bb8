"""Many clients: what idle ones cost, and whether a thousand are as quick as ten.

Idle: each has connected, asked which requests the node knows, and says nothing more. At work:
producers and consumers of one message at a time, one partition to each pair, all together at the
same rate; so ten pairs send as much as a thousand. A message's time begins when it is due. They are
plain sockets on one event loop: a thousand clients with threads of their own would measure the
machine's scheduler.
"""

import asyncio
import resource
import struct
import time
from itertools import count

import uvloop

from bench import client
from bench.node import Node
from bench.run import Run, percentile
from bench.table import Line
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.frames import encode_request
from dovetail.kafka.codec.headers import RequestHeader
from dovetail.record_batch import encode_batch

_IDLE = 10_000
_IDLE_MB_MAX = 100.0
_PAIRS = (10, 1000)
_RATE = 500
_TIMES_MAX = 3.0
#: Room for the node's other connections; its own limit is as many as this case opens.
CONNECTIONS_MAX = str(3 * _IDLE)
#: Connections that are opened at the same time.
_AT_ONCE = 100

_MARK = b"stamped:"
_STAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_PRODUCE_VERSION, _FETCH_VERSION, _API_VERSIONS_VERSION = 9, 12, 0


class _Caller:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._ids = count(1)

    @staticmethod
    async def connect(bootstrap: str, limit: asyncio.Semaphore) -> "_Caller":
        host, _, port = bootstrap.rpartition(":")
        async with limit:
            return _Caller(*await asyncio.open_connection(host, int(port)))

    async def call(self, api_key: ApiKey, version: int, body: object) -> bytes:
        """The bytes of the answer."""
        header = RequestHeader(api_key, version, next(self._ids), "bench")
        self._writer.writelines(map(bytes, encode_request(header, body)))
        size = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))[0]
        return await self._reader.readexactly(size)

    def close(self) -> None:
        self._writer.close()


def measure(run: Run) -> list[Line]:
    idle = run.sized(_IDLE, quick=1000)
    few, many = (_PAIRS[0], run.sized(_PAIRS[1], quick=200))
    raise_files(2 * _IDLE + 1000)
    best: dict[int, tuple[float, float, float]] = {}
    idle_mb = float("inf")
    with Node(run.folder / "clients", {"DOVETAIL_KAFKA_CONNECTIONS_MAX": CONNECTIONS_MAX}) as node:
        for _ in range(run.rounds):
            run.step(f"{idle:,} idle connections")
            idle_mb = min(idle_mb, uvloop.run(idle_memory_mb(node, idle)))
            for pairs in (few, many):
                topic = client.create_topic(node.bootstrap, "pairs", partitions=pairs)
                run.step(f"{pairs} producers and {pairs} consumers")
                seconds = run.sized(20, quick=5)
                before = node.cpu_s()
                found = uvloop.run(_pairs(node.bootstrap, topic, pairs, seconds))
                spent_ms = 1000 * (node.cpu_s() - before) / (len(found) + pairs)
                now = (percentile(found, 99), percentile(found, 50), spent_ms)
                best[pairs] = min(best.get(pairs, now), now)
    case = "n clients"
    return [
        Line(
            case,
            f"memory of {idle:,} idle connections",
            idle_mb,
            "MB",
            "limit",
            _IDLE_MB_MAX * idle / _IDLE,
            ratio_max=1.0,
        ),
        Line(
            case,
            f"p99 of {many} producers and {many} consumers, {_RATE} messages/s in all",
            best[many][0],
            "ms",
            f"{few} of each, as many messages",
            best[few][0],
            ratio_max=_TIMES_MAX,
        ),
        Line(case, "the same, p50", best[many][1], "ms", f"{few} of each", best[few][1]),
        Line(
            case,
            "the node's processor for a message, sent and read",
            best[many][2],
            "ms",
            f"{few} of each",
            best[few][2],
        ),
    ]


def raise_files(wanted: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, most), most))


async def idle_memory_mb(node: Node, connections: int) -> float:
    """Megabytes that the node has more of with so many connections."""
    before_mb, limit = node.memory_mb(), asyncio.Semaphore(_AT_ONCE)

    async def one() -> _Caller:
        caller = await _Caller.connect(node.bootstrap, limit)
        await caller.call(ApiKey.API_VERSIONS, _API_VERSIONS_VERSION, m.ApiVersionsRequest())
        return caller

    callers = await asyncio.gather(*(one() for _ in range(connections)))
    more_mb = node.memory_mb() - before_mb
    for caller in callers:
        caller.close()
    return more_mb


async def _pairs(bootstrap: str, topic: str, pairs: int, seconds: int) -> list[float]:
    """Milliseconds from each message's sending to its arrival."""
    found: list[float] = []
    limit, begun = asyncio.Semaphore(_AT_ONCE), asyncio.Event()
    readers = [await _Caller.connect(bootstrap, limit) for _ in range(pairs)]
    senders = [await _Caller.connect(bootstrap, limit) for _ in range(pairs)]
    reading = [
        asyncio.ensure_future(_read(reader, topic, number, found))
        for number, reader in enumerate(readers)
    ]
    each = max(1, _RATE * seconds // pairs)
    sending = [
        asyncio.ensure_future(_send(sender, topic, number, pairs, each, begun))
        for number, sender in enumerate(senders)
    ]
    # One message each before it counts: the first one makes a partition open its ledger.
    deadline = time.monotonic() + client.STALL_S_MAX
    while len(found) < pairs and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    found.clear()
    begun.set()
    await asyncio.gather(*sending)
    deadline = time.monotonic() + client.STALL_S_MAX
    while len(found) < each * pairs and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    for caller in (*readers, *senders):
        caller.close()
    if len(found) < each * pairs:
        raise client.NotDelivered(f"{len(found)} of {each * pairs} messages arrived")
    return found


async def _send(
    caller: _Caller, topic: str, number: int, pairs: int, messages: int, begun: asyncio.Event
) -> None:
    await _send_one(caller, topic, number, time.perf_counter())
    await begun.wait()
    # Spread evenly, so that the rate is the same at every moment, however many there are.
    first = time.perf_counter() + number / _RATE
    for at in range(messages):
        due = first + at * pairs / _RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        # From when it should be sent: ten that wait for their answers would else send less.
        await _send_one(caller, topic, number, due)


async def _send_one(caller: _Caller, topic: str, number: int, due: float) -> None:
    value = _MARK + _STAMP.pack(int(due * 1e9)) + b"x" * 84
    raw = memoryview(encode_batch([(None, value)], timestamp=int(time.time() * 1000)))
    part = m.ProduceRequestPartition(index=number, records=raw)
    body = m.ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=(m.ProduceRequestTopic(name=topic, partition_data=(part,)),),
    )
    await caller.call(ApiKey.PRODUCE, _PRODUCE_VERSION, body)


async def _read(caller: _Caller, topic: str, number: int, found: list[float]) -> None:
    offset = 0
    while True:
        wanted = m.FetchRequestPartition(
            partition=number, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        body = m.FetchRequest(
            max_wait_ms=5000,
            min_bytes=1,
            session_id=0,
            session_epoch=-1,
            topics=(m.FetchRequestTopic(topic=topic, partitions=(wanted,)),),
        )
        answer = await caller.call(ApiKey.FETCH, _FETCH_VERSION, body)
        now_ns, at = time.perf_counter_ns(), answer.find(_MARK)
        while at >= 0:
            sent_ns = _STAMP.unpack_from(answer, at + len(_MARK))[0]
            found.append((now_ns - sent_ns) / 1e6)
            offset += 1
            at = answer.find(_MARK, at + 1)
