"""The conformance suite on a real PostgreSQL, and what belongs to a server alone."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import pytest
from tests.database_servers import PostgresServer, running_postgres
from tests.unit.timeline.store_conformance import (
    BUCKETS,
    LEASE_MS,
    NOW_MS,
    StoreConformance,
    ask,
    message,
    put,
    take,
)

from dovetail.errors import DovetailError, InvalidSetting, NotFound, Unavailable
from dovetail.timeline.message import (
    Extension,
    Handle,
    KeyRule,
    Leased,
    MessageId,
    NewMessage,
    OnTaken,
    Release,
    Status,
    TimelineId,
)
from dovetail.timeline.stores import _postgres_order as rare
from dovetail.timeline.stores import _postgres_statements as statements
from dovetail.timeline.stores._postgres_leasing import LOOK_MS, SETTLE_MESSAGES, SETTLE_MS
from dovetail.timeline.stores.postgres import PostgresStore
from dovetail.timeline.stores.postgres_database import PostgresStores
from dovetail.timeline.stores.protocol import Stores, TimelineStore

WAIT_S = 60.0


@pytest.fixture(scope="module")
def dsn(postgres_server: PostgresServer) -> str:
    return postgres_server.create_database().dsn


class TestPostgres(StoreConformance):
    """One database for the suite."""

    @pytest.fixture
    async def stores(self, dsn: str) -> AsyncIterator[Stores]:
        stores = await PostgresStores.connect(dsn)
        for number in await stores.existing():
            await stores.drop(number)
        yield stores
        await stores.close()


async def test_brokers_that_start_together_do_not_trip(dsn: str) -> None:
    """B3: schema and tables are made by whoever comes, at once and again."""
    together = [PostgresStores.connect(dsn, schema="together") for _ in range(5)]
    brokers = await asyncio.gather(*together)
    await asyncio.gather(*(broker.provision(TimelineId(1)) for broker in brokers))
    stores = [await broker.open(TimelineId(1)) for broker in brokers]
    await put(stores[0], *[message() for _ in range(100)])
    leases = [take(store, ask(f"c{at}", limit=40)) for at, store in enumerate(stores)]
    taken = [leased.id for part in await asyncio.gather(*leases) for leased in part]
    assert len(taken) == len(set(taken)) == 100
    for broker in brokers:
        await broker.close()


async def test_a_schema_belongs_to_the_first_cluster_that_comes(dsn: str) -> None:
    """F5: nodes of one cluster that start at once agree; another cluster is refused with the way
    out, and finds nothing and deletes nothing. A schema of its own is another matter."""
    nodes = [
        PostgresStores.connect(dsn, schema="owned", cluster=name) for name in ("ours", "theirs") * 3
    ]
    found = await asyncio.gather(*nodes, return_exceptions=True)
    stores = [each for each in found if isinstance(each, PostgresStores)]
    refused = [str(each) for each in found if isinstance(each, InvalidSetting)]
    ((owner,),) = await rows_of(dsn, "SELECT cluster FROM owned.owner")
    assert (len(stores), len(refused)) == (3, 3)
    other = {"ours": "theirs", "theirs": "ours"}[owner]
    assert f"another cluster, {owner}, and this is cluster {other}" in refused[0]
    assert "timeline.schema_name" in refused[0]
    assert f"dovetail timeline adopt {owner} {other}" in refused[0]

    await stores[0].provision(TimelineId(1))
    apart = await PostgresStores.connect(dsn, schema="apart", cluster=other)
    assert await apart.existing() == set()
    for each in (*stores, apart):
        await each.close()


async def test_a_schema_is_handed_over_by_name(dsn: str) -> None:
    """F5: from the cluster that has it, once, and again without harm; the new owner finds every
    timeline with its label until it has entered them all, and the old one is refused."""
    before = await PostgresStores.connect(dsn, schema="handed", cluster="lost")
    await before.provision(TimelineId(3), b"label")
    assert await before.adopted() == {}
    with pytest.raises(NotFound, match="belongs to cluster lost, not to other"):
        await before.hand_over("other", "new")
    for _ in range(2):
        await before.hand_over("lost", "new")
    await before.close()

    after = await PostgresStores.connect(dsn, schema="handed", cluster="new")
    assert await after.adopted() == {TimelineId(3): b"label"}
    await after.adoption_done()
    assert await after.adopted() == {}
    await after.close()
    with pytest.raises(InvalidSetting, match="another cluster, new"):
        await PostgresStores.connect(dsn, schema="handed", cluster="lost")


async def test_a_bad_address_says_so() -> None:
    """B18: nobody listens, or the schema has no name."""
    with pytest.raises(Unavailable, match="no connection to PostgreSQL"):
        await PostgresStores.connect("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(InvalidSetting, match="cannot be a schema"):
        await PostgresStores.connect("postgresql://x@127.0.0.1:1/x", schema='a"; drop')


async def test_a_server_that_dies_is_an_error_and_works_again_later() -> None:
    """B16, B20: commands fail while it is gone, and what was committed is there afterwards."""
    with running_postgres() as server:
        stores = await PostgresStores.connect(server.create_database().dsn)
        await stores.provision(TimelineId(1))
        store = await stores.open(TimelineId(1))
        await put(store, message())
        server.kill()
        with pytest.raises(DovetailError) as caught:
            await put(store, message(NOW_MS + 1))
        assert caught.value.retriable
        server.start()
        async with asyncio.timeout(30):
            while True:
                try:
                    taken = await take(store)
                    break
                except DovetailError as error:
                    assert error.retriable
        assert len(taken) == 1
        await stores.close()


async def rows_of(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(dsn)
    try:
        return [tuple(row) for row in await connection.fetch(statement)]
    finally:
        await connection.close()


async def test_tables_of_another_format_are_refused(dsn: str) -> None:
    """B18, B20: neither read nor changed; the error says what to do, and a drop removes them."""
    stores = await PostgresStores.connect(dsn, schema="old")
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "CREATE TABLE old.t5_messages (id bigint PRIMARY KEY, holder text);"
        "CREATE TABLE old.t5_bodies (id bigint PRIMARY KEY)"
    )
    for command in (stores.open, stores.provision):
        with pytest.raises(Unavailable, match="delete the timeline and create it again"):
            await command(TimelineId(5))
    tables = (
        "SELECT tablename FROM pg_tables WHERE schemaname = 'old' AND tablename ~ '_' ORDER BY 1"
    )
    assert await rows_of(dsn, tables) == [("t5_bodies",), ("t5_messages",)]
    await stores.drop(TimelineId(5))
    assert await rows_of(dsn, tables) == []
    await stores.provision(TimelineId(5))
    await stores.open(TimelineId(5))
    await connection.close()
    await stores.close()


async def test_what_another_broker_queues_behind_a_full_lease_is_found(dsn: str) -> None:
    """B13: at once if there is nothing else, else a moment later; what this one queues at once."""
    brokers = [await PostgresStores.connect(dsn, schema="behind") for _ in range(2)]
    await brokers[0].provision(TimelineId(1))
    store, other = [await broker.open(TimelineId(1)) for broker in brokers]
    await put(store, *[message(NOW_MS - 50 + at) for at in range(6)])
    assert [leased.due_ms for leased in await take(store, ask(limit=2))] == [
        NOW_MS - 50,
        NOW_MS - 49,
    ]

    await put(store, message(NOW_MS - 100))
    (early,) = await take(store, ask(limit=1))
    assert early.due_ms == NOW_MS - 100, "this one's own"

    (first,) = await take(store, ask(limit=1))
    await put(other, message(NOW_MS - 200))
    (second,) = await take(store, ask(limit=1))
    assert [first.due_ms, second.due_ms] == [NOW_MS - 48, NOW_MS - 47], "not looked for yet"
    (third,) = await take(store, ask(limit=1), now_ms=NOW_MS + SETTLE_MS)
    assert third.due_ms == NOW_MS - 200, "looked for"

    (fourth,) = await take(store, ask(limit=1), now_ms=NOW_MS + SETTLE_MS)
    await put(other, message(NOW_MS - 300))
    left = await take(store, ask(limit=9), now_ms=NOW_MS + SETTLE_MS)
    found = [fourth.due_ms, *sorted(leased.due_ms for leased in left)]
    assert found == [NOW_MS - 46, NOW_MS - 300, NOW_MS - 45], "nothing else is there"
    for broker in brokers:
        await broker.close()


async def test_leases_that_are_gone_leave_nothing_behind(dsn: str) -> None:
    """B13: their ends are forgotten long before; a lease that is held is not."""
    stores = await PostgresStores.connect(dsn, schema="ends")
    await stores.provision(TimelineId(1))
    store = await stores.open(TimelineId(1))
    await put(store, *[message() for _ in range(10)])
    taken = await take(store)
    await store.delete([leased.handle for leased in taken[1:]])
    ends = "SELECT until, size, ids FROM ends.t1_ends"
    end_ms = NOW_MS + LEASE_MS
    assert [row[:2] for row in await rows_of(dsn, ends)] == [(end_ms, 10)]
    now_ms = NOW_MS
    for age_ms in (LOOK_MS, 2 * LOOK_MS, 4 * LOOK_MS):
        now_ms = NOW_MS + age_ms
        assert not await take(store, ask("b", horizon_ms=now_ms), now_ms=now_ms)
        assert await rows_of(dsn, ends) == [(end_ms, 1, [taken[0].id])]
    (again,) = await take(store, ask("b", horizon_ms=end_ms), now_ms=end_ms)
    assert again.id == taken[0].id
    await store.delete([again.handle])
    assert not await take(store, now_ms=end_ms + LOOK_MS)
    assert await rows_of(dsn, ends) == []
    await stores.close()


async def test_many_leases_that_end_at_once_come_back_bit_by_bit(dsn: str) -> None:
    """B12, B13: one who asks for little waits for little, and none is lost."""
    stores = await PostgresStores.connect(dsn, schema="many")
    await stores.provision(TimelineId(1))
    store = await stores.open(TimelineId(1))
    count = 3 * SETTLE_MESSAGES
    ids = await put(store, *[message(body=b"") for _ in range(count)])
    for _ in range(6):
        await take(store, ask(limit=count // 6))
    end_ms = NOW_MS + LEASE_MS
    (first,) = await take(store, ask("b", limit=1, horizon_ms=end_ms), now_ms=end_ms)
    queued = await rows_of(dsn, "SELECT count(*) FROM many.t1_queue")
    assert queued == [(SETTLE_MESSAGES - 1,)]
    counts = await store.counts(now_ms=end_ms)
    assert (counts.due, counts.leased) == (count - 1, 1)
    everything = ask("b", limit=count, horizon_ms=end_ms)
    rest = await take(store, everything, now_ms=end_ms)
    assert sorted([first.id, *(leased.id for leased in rest)]) == ids
    await stores.close()


class Together:
    """Brokers that do anything to the same messages at once, and what they hold."""

    def __init__(self, brokers: list[TimelineStore], rng: random.Random) -> None:
        self.brokers = brokers
        self.rng = rng
        self.now_ms = NOW_MS
        self.given: set[Handle] = set()
        self.done: set[int] = set()
        self.ids: list[MessageId] = []
        self.seen: list[Leased] = []

    async def lease(self, store: TimelineStore) -> None:
        now_ms = self.now_ms
        asks = [
            ask("a", high=BUCKETS // 2, limit=20, lease_ms=30, horizon_ms=now_ms + 10),
            ask("b", low=BUCKETS // 2, limit=20, lease_ms=30, horizon_ms=now_ms + 10),
        ]
        result = await store.lease(asks, now_ms=now_ms, attempts_max=10**6)
        found = [leased for part in result.leased for leased in part]
        for leased in found:
            assert leased.id not in self.done
            assert leased.handle not in self.given, "two have the same lease"
            self.given.add(leased.handle)
        self.seen += found

    async def change(self, store: TimelineStore) -> None:
        rng, now_ms = self.rng, self.now_ms
        items = rng.sample(self.seen, min(len(self.seen), 10))
        ids = rng.sample(self.ids, 10)
        match rng.randrange(5):
            case 0:
                extensions = [Extension(item.handle, now_ms + rng.randrange(50)) for item in items]
                await store.extend(extensions)
            case 1:
                releases = [Release(item.handle, now_ms, counted=False) for item in items]
                await store.release(releases, now_ms=now_ms, attempts_max=10**6)
            case 2:
                statuses = await store.delete([item.handle for item in items])
                self.done |= {
                    item.id
                    for item, status in zip(items, statuses, strict=True)
                    if status is Status.OK
                }
            case 3:
                await store.move([(identity, now_ms) for identity in ids], now_ms=now_ms)
            case _:
                cancelled = await store.cancel(ids[:2], now_ms=now_ms)
                self.done |= {
                    identity
                    for identity, status in zip(ids[:2], cancelled, strict=True)
                    if status is Status.OK
                }

    async def work(self, store: TimelineStore, steps: int) -> None:
        for _ in range(steps):
            await (self.lease(store) if self.rng.random() < 0.5 else self.change(store))
            self.now_ms += self.rng.randrange(3)


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_brokers_do_at_once_the_tables_are_of_one_mind(dsn: str, seed: int) -> None:
    """B13, B20: each message waits once or is leased once, and none is lost."""
    schema = f"mind{seed}"
    homes = [await PostgresStores.connect(dsn, schema=schema) for _ in range(3)]
    await homes[0].provision(TimelineId(1))
    brokers = [await home.open(TimelineId(1)) for home in homes for _ in range(2)]
    world = Together(brokers, random.Random(seed))
    world.ids = await put(brokers[0], *[message(NOW_MS + at // 4) for at in range(400)])
    await asyncio.gather(*(world.work(broker, 60) for broker in brokers))
    t = f"{schema}.t1_"
    there = await rows_of(dsn, f"SELECT id, visible, bucket FROM {t}messages WHERE queued")
    queue = await rows_of(dsn, f"SELECT id, visible, bucket FROM {t}queue")
    assert sorted(queue) == sorted(there)
    leased = await rows_of(dsn, f"SELECT id, visible FROM {t}messages WHERE NOT queued")
    ends = await rows_of(dsn, f"SELECT unnest(ids), until FROM {t}ends")
    assert set(leased) <= set(ends)
    assert {row[0] for row in there} | {row[0] for row in leased} == set(world.ids) - world.done
    for home in homes:
        await home.close()


async def test_a_consumer_finds_its_leases_among_those_of_others(dsn: str) -> None:
    """F64: what is read at a reconnection is its own, however many leases there are."""
    stores = await PostgresStores.connect(dsn, schema="held")
    await stores.provision(TimelineId(1))
    store = await stores.open(TimelineId(1))
    assert isinstance(store, PostgresStore)
    await put(store, *[message() for _ in range(1_003)])
    mine = await take(store, ask("me", limit=3))
    assert len(await take(store, ask("others", limit=1_000))) == 1_000

    statement = "EXPLAIN (ANALYZE, FORMAT JSON) " + store._sql(statements.TAKE_UP)
    ((plan,),) = await store._rows(statement, "me", NOW_MS, 100, [], [])
    most = max(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        for node in _nodes(json.loads(plan)[0]["Plan"])
    )
    assert most <= 2 * len(mine)
    again = await store.take_up("me", known=(), now_ms=NOW_MS, limit=100)
    assert {leased.id for leased in again} == {leased.id for leased in mine}
    await stores.close()


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A plan's nodes."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)


class Between:
    """A connection on which somebody comes in behind the first look at who has a key."""

    def __init__(self, connection: Any, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._connection = connection
        self._meanwhile: Callable[[], Awaitable[object]] | None = meanwhile

    async def fetchrow(self, *given: Any) -> Any:
        found = await self._connection.fetchrow(*given)
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.fixture
async def keyed(dsn: str) -> AsyncIterator[PostgresStore]:
    """A timeline of its own."""
    stores = await PostgresStores.connect(dsn, schema="keyed")
    for number in await stores.existing():
        await stores.drop(number)
    await stores.provision(TimelineId(1))
    store = await stores.open(TimelineId(1))
    assert isinstance(store, PostgresStore)
    yield store
    await store.close()
    await stores.close()


def ruled(rule: OnTaken, due_ms: int) -> NewMessage:
    return NewMessage(due_ms, b"%d" % due_ms, b"", "k", key_rule=KeyRule(rule))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("rule", [OnTaken.REPLACE, OnTaken.EARLIER])
async def test_two_producers_with_one_key_at_once(
    dsn: str, keyed: PostgresStore, rule: OnTaken, before: bool
) -> None:
    """B26: at two brokers; whichever came last has replaced the other, and the earliest time of all
    counts, though the other one stored or moved between our look and our change."""
    if before:
        await put(keyed, ruled(rule, NOW_MS + 90))
    first, second = (50, 70) if before else (90, 70)
    if rule is OnTaken.REPLACE:
        first, second = 70, 90

    async def meanwhile() -> None:
        await keyed.insert([ruled(rule, NOW_MS + first)], buckets=[0], now_ms=NOW_MS)

    connection = await asyncpg.connect(dsn)
    changing = rare.Changing(statements.CANCEL, statements.EARLIER, statements.GIVE_WAY)
    async with connection.transaction():
        found = await rare.insert_ruled(
            Between(connection, meanwhile),
            keyed._sql,
            ruled(rule, NOW_MS + second),
            0,
            NOW_MS,
            changing,
        )
    await connection.close()
    (shown,) = await keyed.look_up_keys(["k"], now_ms=NOW_MS)
    assert shown is not None
    wanted = NOW_MS + (second if rule is OnTaken.REPLACE else min(first, second))
    assert shown.due_ms == wanted
    assert (found.id, found.status) == (
        shown.id,
        Status.OK if rule is OnTaken.REPLACE else Status.EXISTS,
    )
    assert (await keyed.counts(now_ms=NOW_MS)).waiting == 1


async def test_a_key_that_becomes_held_while_a_message_waits_for_it(
    dsn: str, keyed: PostgresStore
) -> None:
    """B26: whoever waits for the end of a message under its key finds that the key stays taken."""
    await put(keyed, message(key="k", key_rule=KeyRule(hold_ms=60_000)))
    (leased,) = await take(keyed, ask("c"))
    connection = await asyncpg.connect(dsn)
    ending = connection.transaction()
    await ending.start()
    await connection.fetch(keyed._sql(rare.DELETE), [leased.id], [leased.version])
    times = ["k"], [leased.id], [NOW_MS + 60_000]
    await connection.execute(keyed._sql(rare.TAKE_KEYS), *times)

    waiting = asyncio.create_task(keyed.insert([message(key="k")], buckets=[0], now_ms=NOW_MS))
    blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    async with asyncio.timeout(WAIT_S):
        while await connection.fetchval(blocked) == 0:
            await asyncio.sleep(0.01)
    await ending.commit()
    await connection.close()
    (found,) = await waiting
    assert (found.status, found.id) == (Status.EXISTS, leased.id)
    assert (await keyed.counts(now_ms=NOW_MS)).due == 0


async def test_a_message_whose_lease_is_over_is_replaced(keyed: PostgresStore) -> None:
    """B26, B13: nobody handles it any more, also before it is queued again."""
    await put(keyed, message(key="k"))
    (leased,) = await take(keyed, ask("c"))
    live, over_ms = NOW_MS, leased.until_ms
    (kept,) = await keyed.insert([ruled(OnTaken.REPLACE, live)], buckets=[0], now_ms=live)
    assert (kept.status, kept.id) == (Status.EXISTS, leased.id)
    (found,) = await keyed.insert([ruled(OnTaken.REPLACE, over_ms)], buckets=[0], now_ms=over_ms)
    assert found.status is Status.OK
    assert await keyed.look_up([leased.id], now_ms=over_ms) == [None]
