"""The time of an acknowledgement beside ten thousand strangers, over that without them.

    silent       says nothing, so its TLS handshake never begins
    half-open    sends the first bytes of a handshake, and no more
    dripping     agrees on TLS, begins a frame, and sends a byte a second
    announcing   agrees on TLS, promises a frame of 100 MiB, and sends nothing of it

The strangers live in a process of their own. Each holds its connection until the node closes it,
and connects again a second later. How many the node holds at a time is shown too.
"""

import asyncio
import multiprocessing
import resource
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.client import STALL_S_MAX, NotDelivered
from bench.node import Node
from bench.run import Run, percentile
from bench.table import Line
from dovetail.access.certificates import Authority

KINDS = ("silent", "half-open", "dripping", "announcing")
#: A client at its own work must not notice much of people outside.
RATIO_MAX = 3.0

_RATE = 200
_WARM = 200
_AGAIN_S = 1.0
_DRIP_S = 1.0
#: So many connect at the same time; a flood of handshakes is another question.
_AT_ONCE = 64
_PASSWORD = "correct horse battery staple"
#: The beginning of a TLS record.
_HALF = b"\x16\x03\x01\x02\x00\x01"
_LENGTHS = {"dripping": 1000, "announcing": 100 << 20}


def measure(kind: str, run: Run) -> list[Line]:
    """The p99 of both, best of the rounds by their ratio."""
    count = run.sized(10_000, quick=500)
    messages = run.sized(4_000, quick=800)
    _raise_files(2 * count + 1000)
    best: tuple[float, float, float, float] | None = None
    for at in range(run.rounds):
        found = _one(kind, run, run.folder / f"{kind}-{at}", count=count, messages=messages)
        best = found if best is None or found[0] / found[1] < best[0] / best[1] else best

    assert best is not None
    beside, alone, held, memory_mb = best
    case = f"strangers, {kind}"
    return [
        Line(
            case,
            f"p99 of an acknowledgement beside {count:,}",
            beside,
            "ms",
            "without them",
            alone,
            ratio_max=RATIO_MAX,
        ),
        Line(case, "connections that the node holds", held, "", f"{count:,} that try", count),
        Line(case, "memory that they take", memory_mb, "MB"),
    ]


def _one(
    kind: str, run: Run, folder: Path, *, count: int, messages: int
) -> tuple[float, float, float, float]:
    """p99 beside them and without, connections held, and megabytes more."""
    folder.mkdir(parents=True)
    node_settings, client_settings = _guarded(folder)
    with Node(folder / "data", node_settings) as node:
        given = {"bootstrap.servers": node.bootstrap, **client_settings}
        admin = AdminClient(given)
        admin.create_topics([NewTopic("busy", 1, -1)])["busy"].result(STALL_S_MAX)
        producer = Producer({**given, "acks": "all", "linger.ms": 0})
        run.step(f"{messages:,} messages without strangers")
        alone = percentile(_latencies(producer, messages)[_WARM:], 99)
        before_mb = node.memory_mb()

        run.step(f"{count:,} strangers, {kind}, connect")
        host, _, port = node.bootstrap.rpartition(":")
        with _Crowd(kind, host, int(port), count) as tried:
            _wait(lambda: tried.value >= count, "all strangers have tried")
            run.step(f"{messages:,} messages beside {count:,} strangers, {kind}")
            beside = percentile(_latencies(producer, messages)[_WARM:], 99)
            held = _connections(node)
            memory_mb = node.memory_mb() - before_mb
    return beside, alone, held, memory_mb


def _guarded(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """A node with TLS and login by the names of its environment, and a client of it."""
    authority = Authority(folder)
    made = authority.issue("node", hosts=("127.0.0.1", "localhost"))
    ca, certificate, key = map(str, (authority.file, made.certificate, made.key))
    (folder / "password").write_text(_PASSWORD)
    node = {
        "DOVETAIL_SECURITY_TLS_CERTIFICATE": certificate,
        "DOVETAIL_SECURITY_TLS_KEY": key,
        "DOVETAIL_SECURITY_TLS_CA": ca,
        "DOVETAIL_SECURITY_LOGIN": "scram-sha-256",
        "DOVETAIL_SECURITY_AUTHORIZE": "true",
        "DOVETAIL_SECURITY_ADMIN_PASSWORD_FILE": str(folder / "password"),
    }
    client = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": ca,
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "admin",
        "sasl.password": _PASSWORD,
    }
    return node, client


def _latencies(producer: Producer, messages: int) -> list[float]:
    """Milliseconds from `produce` to the acknowledgement, one message after the other."""
    found: list[float] = []
    failures: list[str] = []
    begun = time.perf_counter()
    for at in range(messages):
        early = begun + at / _RATE - time.perf_counter()
        if early > 0:
            time.sleep(early)
        sent = time.perf_counter()

        def on_delivery(error: object, _: object, sent: float = sent) -> None:
            if error is not None:
                failures.append(str(error))
            found.append((time.perf_counter() - sent) * 1000)

        producer.produce("busy", b"x" * 100, on_delivery=on_delivery)
        if producer.flush(STALL_S_MAX) or failures:
            raise NotDelivered(f"no acknowledgement: {failures[:3]}")
    return found


def _connections(node: Node) -> int:
    assert node._measured is not None
    there = node._measured.net_connections("tcp")
    return sum(one.status == psutil.CONN_ESTABLISHED for one in there)


def _raise_files(wanted: int) -> None:
    """For this process and those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _wait(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 10 * STALL_S_MAX
    while not reached():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not reached: {what}")
        time.sleep(0.1)


# The process of the strangers


class _Crowd:
    """Strangers in a process of their own; gives how many have connected at least once."""

    def __init__(self, kind: str, host: str, port: int, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._tried = context.Value("i", 0)
        given = (kind, host, port, count, self._tried)
        self._process = context.Process(target=_live, args=given, daemon=True)

    def __enter__(self):  # type: ignore[no-untyped-def]
        self._process.start()
        return self._tried

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.join()


def _live(kind: str, host: str, port: int, count: int, tried) -> None:  # type: ignore[no-untyped-def]
    _raise_files(2 * count + 1000)
    asyncio.run(_gather(kind, host, port, count, tried))


async def _gather(kind: str, host: str, port: int, count: int, tried) -> None:  # type: ignore[no-untyped-def]
    context: ssl.SSLContext | None = None
    if kind in _LENGTHS:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    entering = asyncio.Semaphore(_AT_ONCE)

    async def stranger() -> None:
        first = True
        while True:
            with suppress(OSError):
                async with entering:
                    try:
                        reader, writer = await asyncio.open_connection(host, port, ssl=context)
                    finally:
                        if first:
                            tried.value += 1
                        first = False
                try:
                    await _be(kind, reader, writer)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(_AGAIN_S)

    await asyncio.gather(*(stranger() for _ in range(count)))


async def _be(kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the node closes the connection."""
    if kind == "half-open":
        writer.write(_HALF)
    elif kind in _LENGTHS:
        writer.write(_LENGTHS[kind].to_bytes(4, "big"))
    if kind != "dripping":
        await reader.read()
        return
    closed = asyncio.ensure_future(reader.read())
    while not closed.done():
        writer.write(b"x")
        await asyncio.wait([closed], timeout=_DRIP_S)
