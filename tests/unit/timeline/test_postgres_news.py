"""Several brokers on one PostgreSQL: what they tell each other, and what an open snapshot costs."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest
from tests.database_servers import PostgresServer
from tests.unit.timeline.store_conformance import LEASE_MS, NOW_MS, ask, message, put
from tests.unit.timeline.test_timeline_brokers import Broker

from dovetail.clock import SystemClock
from dovetail.coordination import EmbeddedCoordinator
from dovetail.errors import Unavailable
from dovetail.timeline import Message, connect
from dovetail.timeline.message import TimelineId
from dovetail.timeline.stores import _postgres_statements as statements
from dovetail.timeline.stores._postgres_floors import BEHIND_MS, BOTTOM_MS, Floors
from dovetail.timeline.stores._postgres_leasing import SETTLE_MS
from dovetail.timeline.stores._postgres_news import NOTIFY
from dovetail.timeline.stores.postgres import PostgresStore
from dovetail.timeline.stores.postgres_database import PostgresStores

#: Statements of one broker that are counted, over so many seconds.
QUIET_S = 6.0


@pytest.fixture(scope="module")
def dsn(postgres_server: PostgresServer) -> str:
    return postgres_server.create_database().dsn


async def test_idle_timelines_cost_one_statement_a_second(
    dsn: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F63: three timelines whose consumers wait cost a broker at most one statement a second, all
    together, and hear of the next message all the same."""
    counted: list[str] = []
    for name in ("fetch", "fetchrow", "fetchval", "execute"):
        _count_calls(monkeypatch, name, counted)
    # Requests of consumers begin again all the time, and ask for nothing.
    monkeypatch.setattr("dovetail.timeline.client.consumer.WAIT_MS", 500)

    coordinator = await EmbeddedCoordinator.open(tmp_path / "c.sqlite", clock=SystemClock())
    broker = Broker(coordinator, dsn)
    address = await broker.start()
    came: asyncio.Queue[bytes] = asyncio.Queue()
    async with connect(address) as d:
        for name in ("a", "b", "c"):
            await d.timeline(name).create()

            @d.consumer(name, lease="1s")
            async def handle(one: Message) -> None:
                await came.put(one.body)

        running = asyncio.create_task(d.run())
        await d.timeline("b").schedule(b"first")
        async with asyncio.timeout(60):
            assert await came.get() == b"first"
            await _quiet(counted)
        counted.clear()
        began = time.monotonic()
        await asyncio.sleep(QUIET_S)
        # One more fits in: seven strokes of a clock in six seconds.
        assert len(counted) <= time.monotonic() - began + 1, counted

        await d.timeline("c").schedule(b"second")
        async with asyncio.timeout(60):
            assert await came.get() == b"second"
        await d.stop()
        await running
    await broker.stop()
    await coordinator.close()


def _count_calls(patch: pytest.MonkeyPatch, name: str, counted: list[str]) -> None:
    plain: Callable[..., Any] = getattr(asyncpg.Connection, name)

    async def counting(self: Any, query: str, *args: Any, **named: Any) -> Any:
        counted.append(query)
        return await plain(self, query, *args, **named)

    patch.setattr(asyncpg.Connection, name, counting)


async def _quiet(counted: list[str]) -> None:
    """Until leases that are gone are forgotten, and everything is counted."""
    while True:
        counted.clear()
        await asyncio.sleep(2)
        if len(counted) <= 2:
            return


async def test_what_another_broker_stores_is_told_and_what_is_not_told_is_seen(dsn: str) -> None:
    """F63: told at once; a connection that is lost ends the following, with an error; words that
    are not ours are ignored."""
    ours = await PostgresStores.connect(dsn, schema="told")
    theirs = await PostgresStores.connect(dsn, schema="told")
    await ours.provision(TimelineId(7))
    store = await ours.open(TimelineId(7))
    heard: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
    async with asyncio.timeout(60):
        with pytest.raises(Unavailable):
            async with ours.news.following(lambda *told: heard.put_nowait(told)) as look:
                await ours.news.tell({TimelineId(7): 1})
                for text in ("", "x", "x y z", "x 1 2 3", "\N{SNOWMAN} 7 \N{SNOWMAN}"):
                    await _notify(ours, text)
                await theirs.news.tell({TimelineId(7): 5})
                assert await heard.get() == (7, 5)
                assert heard.empty()

                looked = await look([TimelineId(7)], NOW_MS)
                assert looked.timelines[TimelineId(7)] == (None, None)
                await put(store, message(NOW_MS + 50))
                looked = await look([TimelineId(7)], NOW_MS)
                assert looked.timelines[TimelineId(7)].first_ms == NOW_MS + 50
                assert abs(looked.time_ms - time.time() * 1000) < 60_000

                async with theirs._pool.connection() as connection:
                    await connection.fetch(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE pid <> pg_backend_pid() AND query LIKE '%t7_schedules%'"
                    )
                while True:
                    await look([TimelineId(7)], NOW_MS)
    assert not ours._pool.listening
    await ours.close()
    await theirs.close()


async def test_a_line_that_broke_is_given_back_without_its_listener(dsn: str) -> None:
    """F63: the library forgets a listener of a broken connection only when that is terminated."""
    stores = await PostgresStores.connect(dsn, schema="broken")
    async with stores.news.following(lambda *_: None):
        holders = stores._pool.pool._holders
        (listening,) = [h._con for h in holders if h._con is not None and h._con._listeners]
        listening._abort()
    assert not listening._listeners
    await stores.news.tell({TimelineId(7): 1})
    await stores.close()


async def _notify(stores: PostgresStores, text: str) -> None:
    async with stores._pool.connection() as connection:
        await connection.execute(NOTIFY, stores.news._channel, [text])


async def test_an_open_snapshot_does_not_slow_leasing(dsn: str) -> None:
    """F66: with a snapshot open since before, a lease reads as much of the queue after thousands of
    messages as after hundreds; everything comes once, and what is queued below the floor is found.
    """
    stores = await PostgresStores.connect(dsn, schema="snapshot")
    await stores.provision(TimelineId(1))
    store = await stores.open(TimelineId(1))
    assert isinstance(store, PostgresStore)
    reader = await asyncpg.connect(dsn)
    async with reader.transaction(isolation="repeatable_read"), stores.news.following(_ignore):
        await reader.fetch("SELECT count(*) FROM snapshot.t1_queue")
        now_ms, seen = NOW_MS, set()
        early, late = 0, 0
        for turn in range(40):
            now_ms += SETTLE_MS
            await put(store, *[message(now_ms) for _ in range(250)])
            store.heard(now_ms)
            # Less than a whole lease: so the next one cannot begin where this one ended.
            result = await store.lease(
                [ask(limit=300, horizon_ms=now_ms)], now_ms=now_ms, attempts_max=9
            )
            (leased,) = result.leased
            assert not seen & {each.id for each in leased}
            seen |= {each.id for each in leased}
            await store.delete([each.handle for each in leased])
            if turn in (4, 39):
                store.floors._walk_ms = now_ms + 10**9
                await store.lease(
                    [ask(horizon_ms=now_ms)], now_ms=now_ms + SETTLE_MS, attempts_max=9
                )
                early, late = late, await _read_by_lease(store, now_ms + SETTLE_MS)
        assert len(seen) == 40 * 250
        assert late <= early + 20, f"{early} pages after 1,250 messages, {late} after 10,000"

        # Told of, though it is below the floor.
        past_ms = now_ms - 8_000
        await put(store, message(past_ms))
        store.heard(past_ms)
        found = await store.lease([ask(horizon_ms=now_ms)], now_ms=now_ms, attempts_max=9)
        assert len(found.leased[0]) == 1
    await reader.close()
    await stores.close()


def _ignore(timeline: TimelineId, due_ms: int) -> None:
    """Nobody else is there."""


async def _read_by_lease(store: PostgresStore, now_ms: int) -> int:
    """Pages that a lease reads of the queue."""
    bottom_ms = store.floors.queue_ms - 1
    asked = (["me"], [0], [1 << 16], [now_ms], [10], [LEASE_MS], [None], now_ms, 5_000)
    values = (*asked, [bottom_ms], [2**63 - 1])
    statement = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + store._sql(statements.LEASE)
    ((plan,),) = await store._rows(statement, *values)
    return max(
        node["Shared Hit Blocks"] + node["Shared Read Blocks"]
        for node in _nodes(json.loads(plan)[0]["Plan"])
        if node.get("Relation Name", "").endswith("_queue")
    )


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)


def test_a_floor_never_hides_what_was_heard_of() -> None:
    """F66: what is queued while a settling is under way keeps the floor down; who does not hear, or
    has not walked for long, begins at the beginning."""
    floors = Floors()
    assert floors.begin(now_ms=10_000, listening=True)
    assert not floors.begin(now_ms=10_000, listening=True)
    floors.raise_to(None, now_ms=10_000, settled=True)
    assert (floors.queue_ms, floors.ends_ms) == (10_000 - BEHIND_MS, 10_000 - BEHIND_MS)
    floors.end(now_ms=10_000, took_ms=10, walked=True)

    assert floors.begin(now_ms=10_100, listening=True)
    floors.lower(3_000)
    floors.raise_to(9_900, now_ms=10_100, settled=False)
    assert floors.queue_ms == 3_000
    floors.end(now_ms=10_100, took_ms=1, walked=False)

    assert floors.begin(now_ms=10_499, listening=True)
    assert floors.queue_ms == 3_000
    floors.raise_to(9_900, now_ms=10_499, settled=False)
    floors.end(now_ms=10_499, took_ms=1, walked=False)
    assert floors.queue_ms == 9_900
    assert floors.begin(now_ms=10_500, listening=True)
    assert floors.queue_ms == BOTTOM_MS
    floors.raise_to(9_900, now_ms=10_500, settled=False)
    floors.end(now_ms=10_500, took_ms=1, walked=True)
    assert floors.begin(now_ms=10_501, listening=False)
    assert floors.queue_ms == BOTTOM_MS


def test_a_floor_of_a_clock_that_was_ahead_is_not_kept() -> None:
    """F66: an hour ahead at one walk, and set right: nothing may be hidden for an hour."""
    floors, hour_ms = Floors(), 3_600_000
    assert floors.begin(now_ms=hour_ms, listening=True)
    floors.raise_to(None, now_ms=hour_ms, settled=True)
    floors.end(now_ms=hour_ms, took_ms=40, walked=True)
    assert floors.begin(now_ms=hour_ms + 1, listening=True)
    floors.end(now_ms=hour_ms + 1, took_ms=1, walked=False)
    assert floors.queue_ms == hour_ms - BEHIND_MS
    assert floors.begin(now_ms=10_000, listening=True)
    assert (floors.queue_ms, floors.ends_ms) == (BOTTOM_MS, BOTTOM_MS)
