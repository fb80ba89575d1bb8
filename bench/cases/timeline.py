"""Timelines: throughput, lateness, and a million waiting messages, beside peers in the same run.

Ours: one node in a process of its own, one client process, batches of 1,000 with 100-byte bodies,
every commit synced.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from bench.node import Node
from bench.peers import beanstalkd, plain_sql, task_queues
from bench.peers.redis import queue_server
from bench.peers.server import PeerMissing
from bench.run import Run, percentile
from bench.table import Line
from dovetail.timeline import Dovetail, Message, connect
from dovetail.timeline.message import NewMessage

BODY = b"x" * 100
BATCH = 1_000
#: Requests of a producer that are under way at once.
PIPELINE = 4
MILLION = 1_000_000


# Ours


async def insert(
    d: Dovetail, name: str, *, messages: int, due_ms: int = 0, order_keys: int = 0
) -> float:
    """Messages a second; with so many order keys, in turn."""
    timeline = d.timeline(name)
    at_ms = due_ms or int(time.time() * 1000)
    keys = [f"key-{at % order_keys}" if order_keys else None for at in range(BATCH)]
    batch = [NewMessage(at_ms, BODY, order_key=key) for key in keys]
    left = messages // BATCH
    started = time.perf_counter()

    async def send() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await timeline.insert(batch)

    await asyncio.gather(*(send() for _ in range(PIPELINE)))
    return messages / (time.perf_counter() - started)


async def consume(d: Dovetail, name: str, *, messages: int) -> float:
    """Messages a second, from the first to the last deletion."""
    seen = 0
    all_seen = asyncio.Event()
    started = time.perf_counter()

    @d.consumer(name, lease="60s", concurrency=2, batch=BATCH)
    async def handle(batch: list[Message]) -> None:
        nonlocal seen
        seen += len(batch)
        if seen >= messages:
            all_seen.set()

    await all_seen.wait()
    (consumer,) = [c for c in d.consumers if c.timeline == name]
    while not consumer.idle:
        await asyncio.sleep(0.001)
    rate = messages / (time.perf_counter() - started)
    await d.stop()
    return rate


async def lateness(d: Dovetail, name: str, *, per_second: int, seconds: float) -> list[float]:
    """Milliseconds from the due time to the handler, of messages spread evenly."""
    late: list[float] = []
    count = int(per_second * seconds)
    all_seen = asyncio.Event()

    @d.consumer(name, lease="30s", concurrency=256)
    async def handle(message: Message) -> None:
        late.append(time.time() * 1000 - message.due_ms)
        if len(late) == count:
            all_seen.set()

    first_ms = int(time.time() * 1000) + 2_000
    due = [first_ms + at * 1000 // per_second for at in range(count)]
    for start in range(0, count, BATCH):
        await d.timeline(name).insert([NewMessage(at, BODY) for at in due[start : start + BATCH]])
    await asyncio.wait_for(all_seen.wait(), seconds + 60)
    await d.stop()
    return late


def ours(bootstrap: str, work: Callable[[Dovetail], Any]) -> Any:
    """Runs the work with a client of its own."""

    async def run() -> Any:
        async with connect(bootstrap) as d:
            return await work(d)

    return uvloop.run(run())


# Cases


def throughput(run: Run) -> Sequence[Line]:
    """Insert, and consume to delete, on SQLite and PostgreSQL; peers at the same work."""
    messages = run.sized(200_000, quick=20_000)
    lines: list[Line] = []
    put, got = _best([_round(run, "sqlite", at, {}, messages) for at in range(run.rounds)])
    for sync_ms, rule, note in (
        (0, 8.0, "each job synced, as ours"),
        (50, 1.0, "synced each 50 ms"),
    ):
        name = f"beanstalkd -f{sync_ms}"
        run.step(name)
        peer: tuple[float | None, float | None] = (None, None)
        try:
            with beanstalkd.server(run.folder / f"beanstalkd-{sync_ms}", sync_ms=sync_ms) as where:
                count = run.sized(20_000, quick=2_000)
                peer = beanstalkd.measure(where, messages=count, body=BODY)
        except PeerMissing as error:
            run.note(str(error))
        lines += _pair("SQLite", put, got, name, peer, rule, note)
    lines += _task_queues(run, put, got)
    lines += _postgres(run, messages)
    return lines


def _round(
    run: Run, label: str, number: int, settings: dict[str, str], messages: int
) -> tuple[float, float]:
    run.step(f"ours on {label}, {number + 1} of {run.rounds}")
    with node(run.folder / f"{label}-{number}", settings) as bootstrap:

        async def work(d: Dovetail) -> tuple[float, float]:
            await d.timeline("bench").create()
            put = await insert(d, "bench", messages=messages)
            return put, await consume(d, "bench", messages=messages)

        put, got = ours(bootstrap, work)
    run.note(f"ours on {label}: insert {put:,.0f}, consume {got:,.0f} a second")
    return put, got


def _best(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return max(put for put, _ in found), max(got for _, got in found)


def _task_queues(run: Run, put: float, got: float) -> list[Line]:
    lines: list[Line] = []
    try:
        with queue_server(run.folder / "redis") as url:
            for name in ("Celery", "Dramatiq", "Huey", "RQ"):
                run.step(name)
                peer: tuple[float | None, float | None] = (None, None)
                try:
                    count = run.sized(3_000, quick=300)
                    peer = task_queues.measure(name, redis_url=url, messages=count, body="x" * 100)
                except (ImportError, RuntimeError) as error:
                    run.note(f"{name}: {error}")
                note = "on Redis without sync: weaker than ours"
                lines += _pair("SQLite", put, got, name, peer, 20.0, note)
    except PeerMissing as error:
        run.note(str(error))
    return lines


def _postgres(run: Run, messages: int) -> list[Line]:
    from tests.database_servers import running_postgres

    lines: list[Line] = []
    mine, theirs = [], []
    # In turns, and as many messages, so that both see the same moods of the machine; each time on
    # a new server, so that neither pays for what the other has left to be written and vacuumed.
    for at in range(run.rounds):
        with running_postgres(durable=True) as server:
            settings = {"TIMELINE_STORE": "postgres", "TIMELINE_DSN": server.create_database().dsn}
            mine.append(_round(run, "postgres", at, settings, messages))
        run.step("plain SQL")
        with running_postgres(durable=True) as server:
            dsn = server.create_database().dsn
            theirs.append(plain_sql.measure(dsn, messages=messages, body=BODY))
        put, got = theirs[-1]
        run.note(f"plain SQL: insert {put:,.0f}, consume {got:,.0f} a second")
    (put, got), peer = _best(mine), _best(theirs)
    lines += _pair("PostgreSQL", put, got, "plain SQL, SKIP LOCKED by 100", peer, 2.0, "")
    run.step("procrastinate")
    with running_postgres(durable=True) as server:
        other: tuple[float | None, float | None] = (None, None)
        try:
            with queue_server(run.folder / "redis-2") as url:
                dsn = server.create_database().dsn
                _prepare_procrastinate(dsn)
                count = run.sized(1_000, quick=100)
                other = task_queues.measure(
                    "procrastinate", redis_url=url, dsn=dsn, messages=count, body="x" * 100
                )
        except (ImportError, RuntimeError, PeerMissing) as error:
            run.note(f"procrastinate: {error}")
        lines += _pair("PostgreSQL", put, got, "procrastinate", other, 50.0, "")
    return lines


def _prepare_procrastinate(dsn: str) -> None:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=dsn))
    with app.open():
        app.schema_manager.apply_schema()


def late(run: Run) -> Sequence[Line]:
    """How late messages reach their handlers, on SQLite."""
    lines: list[Line] = []
    for per_second, seconds, p50_max, p99_max in ((200, 10.0, 1.5, 5.0), (5_000, 4.0, 0.0, 50.0)):
        run.step(f"lateness at {per_second} a second")
        with node(run.folder / f"late-{per_second}", {}) as bootstrap:

            async def work(
                d: Dovetail, per_second: int = per_second, seconds: float = seconds
            ) -> list[float]:
                await d.timeline("late").create()
                length = seconds if not run.quick else 2.0
                return await lateness(d, "late", per_second=per_second, seconds=length)

            found = ours(bootstrap, work)
        name = f"{per_second} a second"
        early = sum(each < 0 for each in found)
        lines.append(
            Line("late", f"{name}: early", float(early), "messages", "allowed", 1, None, 0)
        )
        if p50_max:
            value = percentile(found, 50)
            lines.append(Line("late", f"{name}: p50", value, "ms", "limit", p50_max, None, 1))
        value = percentile(found, 99)
        lines.append(Line("late", f"{name}: p99", value, "ms", "limit", p99_max, None, 1))
    return lines


def million(run: Run) -> Sequence[Line]:
    """The same work with a million messages waiting that are not due."""
    messages = run.sized(100_000, quick=10_000)
    waiting = run.sized(MILLION, quick=50_000)
    lines: list[Line] = []
    run.step(f"{waiting:,} messages waiting")
    with node(run.folder / "million", {}) as bootstrap:

        async def work(d: Dovetail) -> dict[str, tuple[float, float]]:
            process = node_process(bootstrap)
            rates: dict[str, list[tuple[float, float]]] = {"empty": [], "full": []}
            lags: dict[str, list[float]] = {"empty": [], "full": []}
            for name in rates:
                await d.timeline(name).create()
            await round_of(d, "empty", messages=messages)
            before = process.memory_info().rss / 1e6
            later_ms = int(time.time() * 1000) + 10**9
            await insert(d, "full", messages=waiting, due_ms=later_ms)
            # In turns, so that both see the same moods of the machine.
            for _ in range(run.sized(4, quick=1)):
                for name, found in rates.items():
                    found.append(await round_of(d, name, messages=messages))
            for _ in range(run.sized(2, quick=1)):
                for name, late_ms in lags.items():
                    d._consumers.clear()
                    late = await lateness(d, name, per_second=200, seconds=3.0)
                    late_ms.append(percentile(late, 99))
            after = process.memory_info().rss / 1e6
            return {
                "insert": (max(r[0] for r in rates["empty"]), max(r[0] for r in rates["full"])),
                "consume": (max(r[1] for r in rates["empty"]), max(r[1] for r in rates["full"])),
                "late p99": (min(lags["empty"]), min(lags["full"])),
                "memory": (before, after),
            }

        found = ours(bootstrap, work)
    for name in ("insert", "consume"):
        empty, full = found[name]
        lines.append(Line("million", name, full, "msg/s", "empty", empty, 0.8))
    empty, full = found["late p99"]
    lines.append(Line("million", "late p99", full, "ms", "empty", max(empty, 2.0), None, 1.2))
    before, after = found["memory"]
    lines.append(Line("million", "memory grown", after - before, "MB", "limit", 50, None, 1))
    return lines


async def round_of(d: Dovetail, name: str, *, messages: int) -> tuple[float, float]:
    """Messages a second in, and out to their deletion."""
    d._consumers.clear()
    put = await insert(d, name, messages=messages)
    return put, await consume(d, name, messages=messages)


def node_process(bootstrap: str) -> Any:
    """The process that listens there."""
    import psutil  # type: ignore[import-untyped]

    port = int(bootstrap.rpartition(":")[2])
    for process in psutil.Process().children():
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                return process
    raise RuntimeError(f"nobody listens on {bootstrap}")


@contextmanager
def node(folder: Path, settings: dict[str, str]) -> Iterator[str]:
    """A node of ours; settings by the names of their variables."""
    variables = {f"DOVETAIL_{name}": value for name, value in settings.items()}
    made = Node(folder, variables)
    with made:
        yield made.bootstrap


def _pair(
    store: str,
    put: float,
    got: float,
    name: str,
    peer: tuple[float | None, float | None],
    rule: float,
    note: str,
) -> list[Line]:
    return [
        Line("throughput", f"{store}: insert", put, "msg/s", name, peer[0], rule, None, note),
        Line("throughput", f"{store}: to delete", got, "msg/s", name, peer[1], rule, None, note),
    ]
