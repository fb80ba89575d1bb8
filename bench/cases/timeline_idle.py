"""Timelines that wait: what idle ones cost PostgreSQL (F63), what a reconnection costs among many
leases (F64), and what many recurring schedules cost a node (F65).
"""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from functools import partial

from bench.cases.timeline import BATCH, BODY, node, ours
from bench.node import Node
from bench.run import Run
from bench.table import Line
from dovetail.timeline import Dovetail, Message
from dovetail.timeline.message import NewMessage, TimelineId
from dovetail.timeline.stores.postgres_database import PostgresStores
from dovetail.timeline.stores.protocol import LeaseAsk, Stores
from dovetail.timeline.stores.sqlite import SqliteStores

_TIMELINES = 20
#: A new timeline is trimmed once, within a minute.
_SETTLE_S = 75
#: A line of PostgreSQL's log: simple statements, and those that were prepared.
_STATEMENT = re.compile(r"LOG:  (?:statement|execute)")
_LEASE_MS = 600_000
#: Leases of the consumer that comes back.
_OWN = 100
#: How many calls to put a schedule are under way at once.
_PIPELINE = 16


def idle(run: Run) -> Sequence[Line]:
    """Statements a second that PostgreSQL executes for timelines whose consumers wait."""
    import psycopg
    from tests.database_servers import running_postgres

    run.step(f"{_TIMELINES} idle timelines on PostgreSQL")
    seconds = run.sized(60, quick=20)
    with running_postgres(durable=True) as server:
        database = server.create_database()
        # Its counters of transactions count those of autovacuum too, and some seconds late.
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE \"{database.name}\" SET log_statement = 'all'")
        settings = {"TIMELINE_STORE": "postgres", "TIMELINE_DSN": database.dsn}
        with node(run.folder / "idle", settings) as bootstrap:
            rate = ours(bootstrap, partial(_statements, server.log, seconds))
    return [Line("idle", f"{_TIMELINES} timelines", rate, "statements/s", "limit", 1.0, None, 1)]


async def _statements(log: Callable[[], str], seconds: float, d: Dovetail) -> float:
    async def handle(message: Message) -> None:
        raise AssertionError("nothing was scheduled")

    for number in range(_TIMELINES):
        await d.timeline(f"idle-{number}").create()
        d.consumer(f"idle-{number}", lease="30s", concurrency=1)(handle)
    await asyncio.sleep(_SETTLE_S)

    def counted() -> int:
        return len(_STATEMENT.findall(log()))

    before, started = counted(), time.perf_counter()
    await asyncio.sleep(seconds)
    return (counted() - before) / (time.perf_counter() - started)


def reconnect(run: Run) -> Sequence[Line]:
    """How long a consumer takes to find its leases among those of others."""
    from tests.database_servers import running_postgres

    leases = run.sized(100_000, quick=10_000)
    lines = []
    run.step(f"a consumer comes back, {leases} leases, SQLite")
    took_ms = asyncio.run(_take_up(SqliteStores(run.folder / "leases"), leases, run.rounds))
    lines.append(Line("reconnect", f"{leases} leases, SQLite", took_ms, "ms", "limit", 50, None, 1))

    run.step(f"a consumer comes back, {leases} leases, PostgreSQL")
    with running_postgres(durable=True) as server:
        took_ms = asyncio.run(_on_postgres(server.create_database().dsn, leases, run.rounds))
    name = f"{leases} leases, PostgreSQL"
    lines.append(Line("reconnect", name, took_ms, "ms", "limit", 50, None, 1))
    return lines


async def _on_postgres(dsn: str, leases: int, rounds: int) -> float:
    return await _take_up(await PostgresStores.connect(dsn), leases, rounds)


async def _take_up(stores: Stores, leases: int, rounds: int) -> float:
    """Milliseconds, the best of some rounds: other work on the machine is not what is asked."""
    await stores.provision(TimelineId(1))
    store = await stores.open(TimelineId(1))
    now_ms = int(time.time() * 1000)
    for _ in range(leases // BATCH):
        batch = [NewMessage(now_ms, BODY)] * BATCH
        await store.insert(batch, buckets=[0] * BATCH, now_ms=now_ms)
    own = LeaseAsk("me", 0, 1, now_ms, _OWN, _LEASE_MS)
    await store.lease([own], now_ms=now_ms, attempts_max=10)
    left = leases - _OWN
    while left > 0:
        ask = LeaseAsk("others", 0, 1, now_ms, min(left, BATCH), _LEASE_MS)
        found = await store.lease([ask], now_ms=now_ms, attempts_max=10)
        left -= len(found.leased[0])

    took_ms = []
    for _ in range(rounds + 2):
        started = time.perf_counter()
        found_again = await store.take_up("me", known=(), now_ms=now_ms, limit=_OWN)
        took_ms.append((time.perf_counter() - started) * 1000)
        if len(found_again) != _OWN:
            raise RuntimeError(f"{len(found_again)} of {_OWN} leases were found")
    await stores.close()
    return min(took_ms)


def schedules(run: Run) -> Sequence[Line]:
    """Part of a core that recurring schedules cost a node while none of them is due."""
    count = run.sized(10_000, quick=1_000)
    seconds = run.sized(30, quick=10)
    with Node(run.folder / "schedules", {}) as made:
        ours(made.bootstrap, partial(_put_schedules, 0))
        run.step("no schedules")
        without = _cores(made, seconds)
        run.step(f"{count} recurring schedules")
        ours(made.bootstrap, partial(_put_schedules, count))
        cores = _cores(made, seconds)
    note = f"{100 * cores:.2f} % with, {100 * without:.2f} % without"
    extra = max(0.0, cores - without) * 100
    return [
        Line("schedules", f"{count} of them", extra, "% of a core", "limit", 1.0, None, 1, note)
    ]


def _cores(made: Node, seconds: float) -> float:
    time.sleep(3)
    before, started = made.cpu_s(), time.perf_counter()
    time.sleep(seconds)
    return (made.cpu_s() - before) / (time.perf_counter() - started)


async def _put_schedules(count: int, d: Dovetail) -> None:
    timeline = d.timeline("recurring")
    if not count:
        await timeline.create()
    numbers = iter(range(count))

    async def put() -> None:
        for number in numbers:
            await timeline.put_schedule(f"s{number}", BODY, every="20d")

    await asyncio.gather(*(put() for _ in range(_PIPELINE)))
