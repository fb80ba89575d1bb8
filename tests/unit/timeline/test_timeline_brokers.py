"""Several brokers on one PostgreSQL, each behind a listener of its own, in one process.

`BROKER_MESSAGES` sets how many messages the long one sends (default 600).
"""

import asyncio
import bisect
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.etcd_server import free_ports
from tests.tcp_proxy import Passage, Proxies
from tests.unit.storage.remote.storage_door import Door as Listener
from tests.unit.timeline.test_forwarding import MemoryTopics, reject

from dovetail.addresses import Address
from dovetail.clock import Clock, SystemClock
from dovetail.coordination import Coordinator
from dovetail.coordination.membership import BROKER_ROLE, Member, Membership
from dovetail.errors import InvalidInput, NotFound, TopicUnknown, Unavailable
from dovetail.settings.timeline import TimelineSettings
from dovetail.timeline import Draft, Message, connect, frames
from dovetail.timeline.client.link import NetworkLink
from dovetail.timeline.config import LEASE_DRIFTS_MIN, TimelineConfig, shortest_lease_ms
from dovetail.timeline.engine.health import Condition
from dovetail.timeline.engine.loader import ASK_MAX
from dovetail.timeline.engine.selection import MOST
from dovetail.timeline.forwarding import Topics
from dovetail.timeline.message import MessageId, NewMessage
from dovetail.timeline.service import TimelineService
from dovetail.timeline.stores.postgres import PostgresStore
from dovetail.timeline.stores.postgres_database import PostgresStores
from dovetail.timeline.stores.protocol import LeaseResult
from dovetail.wire import Connection, Reply, calls
from dovetail.wire.probe import Prober

MESSAGES = int(os.environ.get("BROKER_MESSAGES", "600"))
DEADLINE_S = 60.0 + MESSAGES / 100
#: A turn of the loop, as fairness counts them.
TURN_S = 0.01


class ShiftedClock(SystemClock):
    """A clock that is wrong."""

    def __init__(self, shift_ms: int) -> None:
        self.shift_ms = shift_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self.shift_ms


class Broker:
    """A broker that listens, and can be stopped without a goodbye."""

    def __init__(
        self,
        coordinator: Coordinator,
        dsn: str,
        *,
        clock: Clock | None = None,
        name: str = "door",
        leases: Membership | None = None,
        drift_ms_max: int = 100,
        topics: Topics | None = None,
    ) -> None:
        self._drift_ms_max = drift_ms_max
        self._topics = topics
        self._name = name
        self._leases = leases
        self._coordinator = coordinator
        self._dsn = dsn
        self._clock = clock or SystemClock()
        self.registry = CollectorRegistry()
        self._listener = Listener(self._dispatch)

    async def start(self) -> str:
        await self._listener.open()
        address = f"127.0.0.1:{self._listener.port}"
        self._prober = Prober(self._other_brokers, client_id=self._name, clock=self._clock)
        self.service = TimelineService(
            self._coordinator,
            await PostgresStores.connect(self._dsn),
            node=self._name,
            clock=self._clock,
            registry=self.registry,
            tags={"stage": "test"},
            drift_ms_max=self._drift_ms_max,
            rng=random.Random(1),
            address=address,
            version="1",
            leases=self._leases,
            prober=self._prober,
            topics=self._topics,
        )
        await self.service.__aenter__()
        self._prober.start()
        return address

    def _other_brokers(self) -> list[Address]:
        roster = self.service._roster
        return [] if roster is None else list(roster.addresses().values())

    def _dispatch(self, connection: Connection, frame: memoryview) -> Reply:
        if calls.api_key_of(frame) == calls.HELLO_KEY:
            now_ms = self._clock.wall_ms()
            return calls.answer_hello(frame, node=self._name, now_ms=now_ms, services=["timelines"])
        return self.service(connection, frame)

    async def stop(self) -> None:
        await self._prober.stop()
        await self._listener.stop()
        await self.service.__aexit__(None, None, None)
        assert not self._listener.failures

    @property
    def violations(self) -> list[str]:
        return self._listener.violations


@asynccontextmanager
async def joined(
    coordinator: Coordinator, number: int, *, ttl_ms: int
) -> AsyncIterator[Membership]:
    """A node of the cluster, with its lease."""
    membership = Membership(coordinator, node_id=number, clock=SystemClock(), ttl_ms=ttl_ms)
    await membership.start()
    await membership.register(lambda: Member(number, "127.0.0.1", 0, (BROKER_ROLE,), "1"))
    yield membership
    await membership.stop()


async def test_three_brokers_and_consumers_that_come_and_go(
    coordinator: Coordinator, dsn: str
) -> None:
    """B5, B8, B11, B13: whichever broker a client is at; each message by one, on its attempt."""
    rng = random.Random(5)
    doors = [Broker(coordinator, dsn) for _ in range(3)]
    addresses = [await door.start() for door in doors]
    spans: dict[MessageId, list[tuple[int, int]]] = {}
    done: set[MessageId] = set()
    sent: set[MessageId] = set()

    async def handle(message: Message) -> None:
        spans.setdefault(message.id, []).append((message.attempt, message.until_ms))
        await asyncio.sleep(rng.choice([0, 0, 0.02]))
        if rng.random() < 0.05:
            raise ValueError("a bad day")
        done.add(message.id)

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(where)) for where in addresses]
        timeline = clients[0].timeline("shared")
        await timeline.create(TimelineConfig(window_ms=100, overtake_ms=50, attempts_max=100))
        async with asyncio.timeout(DEADLINE_S):
            while not all("shared" in door.service.timelines for door in doors):
                await asyncio.sleep(0.01)
        for at, client in enumerate(clients):
            client.consumer("shared", lease="2s", concurrency=8, id=f"steady-{at}")(handle)

        async def come_and_go() -> None:
            for _ in range(4):
                async with connect(rng.choice(addresses)) as guest:
                    guest.consumer("shared", lease="2s", concurrency=4)(handle)
                    await asyncio.sleep(0.2)

        async def produce(client_at: int) -> None:
            name = clients[client_at].timeline("shared")
            for _ in range(MESSAGES // 60):
                drafts = [Draft(b"", delay=rng.choice([0, 0.1, 0.4])) for _ in range(20)]
                sent.update(item.id for item in await name.schedule_many(drafts))
                await asyncio.sleep(0.02)

        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
            group.create_task(come_and_go())
            for at in range(3):
                group.create_task(produce(at))
        async with asyncio.timeout(DEADLINE_S):
            while not done >= sent:
                await asyncio.sleep(0.02)
    for door in doors:
        await door.stop()
    assert len(sent) == MESSAGES // 60 * 60
    for attempts in spans.values():
        numbers = [attempt for attempt, _ in attempts]
        assert all(before < after for before, after in pairwise(numbers)), numbers


async def test_what_was_leased_first_leaves_first(
    coordinator: Coordinator, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B12: of two leases under way at once, also when the second is answered before the first."""
    door = Broker(coordinator, dsn)
    address = await door.start()
    answers: list[list[MessageId]] = []
    second = asyncio.Event()
    lease = PostgresStore.lease

    async def slow_once(store: PostgresStore, *given: Any, **named: Any) -> LeaseResult:
        ids: list[MessageId] = []
        answers.append(ids)
        result = await lease(store, *given, **named)
        ids += [leased.id for part in result.leased for leased in part]
        if len(ids) == ASK_MAX:
            number = sum(len(each) == ASK_MAX for each in answers)
            if number == 2:
                await second.wait()
            elif number == 3:
                second.set()
        return result

    monkeypatch.setattr(PostgresStore, "lease", slow_once)
    seen: list[list[MessageId]] = []
    async with connect(address) as d:
        timeline = d.timeline("t")
        await timeline.create()
        for _ in range(4):
            await timeline.schedule_many([Draft(b"")] * ASK_MAX)

        @d.consumer("t", lease="30s", concurrency=2, batch=ASK_MAX)
        async def handle(batch: list[Message]) -> None:
            seen.append([message.id for message in batch])

        async with asyncio.timeout(DEADLINE_S):
            while sum(map(len, seen)) < 4 * ASK_MAX:
                await asyncio.sleep(0.01)
    await door.stop()
    assert second.is_set(), "two were under way at once"
    assert seen[:3] == [ids for ids in answers if len(ids) == ASK_MAX][:3]


async def test_a_broker_with_a_wrong_clock_stops_and_says_so(
    coordinator: Coordinator, dsn: str
) -> None:
    """B15: 5 s off against the store: nothing is pushed, dated writes are refused, metrics and
    the report say why; when the clock is right again it goes on by itself."""
    clock = ShiftedClock(5_000)
    door = Broker(coordinator, dsn, clock=clock)
    address = await door.start()
    async with connect(address) as d:
        await d.timeline("t").create(TimelineConfig(window_ms=50))
        seen: list[int] = []
        async with asyncio.timeout(DEADLINE_S):
            while not door.service.health.drift_reason:
                await asyncio.sleep(0.02)
        report = door.service.report()
        assert report.condition is Condition.DEGRADED
        assert "ahead of storage" in report.reasons[0][1]
        d.consumer("t")(lambda message: seen.append(message.id))
        with pytest.raises(Unavailable, match="writes no times"):
            await d.timeline("t").move(1, delay=1)
        text = generate_latest(door.registry).decode()
        async with asyncio.timeout(DEADLINE_S):
            while 'dovetail_timeline_degradations{stage="test",type="drift"} 1.0' not in text:
                await asyncio.sleep(0.05)
                text = generate_latest(door.registry).decode()
        assert 'dovetail_timeline_clock_drifts{stage="test",target="storage"} 1.0' in text
        store = door.service.timelines["t"]._store
        await store.insert([NewMessage(0, b"")], buckets=[0], now_ms=0)
        for _ in range(20):
            await door.service.look_after()
            await asyncio.sleep(0)
        assert not seen
        clock.shift_ms = 0
        async with asyncio.timeout(DEADLINE_S):
            while not seen:
                await asyncio.sleep(0.02)
        assert door.service.report().condition is Condition.HEALTHY
    await door.stop()


async def test_a_clock_that_is_off_by_a_part_of_the_shortest_lease_is_wrong(
    coordinator: Coordinator, dsn: str
) -> None:
    """F11: a third of a second is a third of the shortest lease: nothing is pushed until the clock
    is right, and a longer tolerance means longer leases."""
    tolerance_ms = TimelineSettings().drift_ms_max
    assert shortest_lease_ms(tolerance_ms) >= LEASE_DRIFTS_MIN * tolerance_ms
    assert shortest_lease_ms(5_000) == LEASE_DRIFTS_MIN * 5_000
    door = Broker(coordinator, dsn, clock=ShiftedClock(-300), drift_ms_max=tolerance_ms)
    address = await door.start()
    async with connect(address) as d:
        await d.timeline("t").create(TimelineConfig(window_ms=50))
        async with asyncio.timeout(DEADLINE_S):
            while "behind storage" not in door.service.health.drift_reason:
                await asyncio.sleep(0.02)
        link = NetworkLink(address, client_id="raw")
        with pytest.raises(InvalidInput, match="gives 1000 to 3600000 ms"):
            await link.ask(frames.Open("t", "raw", lease_ms=999), frames.Opened)
        await link.close()
    await door.stop()


async def test_no_two_handlers_run_at_once_though_clocks_differ_and_a_line_is_dead(
    coordinator: Coordinator, dsn: str
) -> None:
    """F11, F18: one broker is behind and one ahead, each by nearly as much as is allowed; the
    consumer that has the message hears nothing any more. It gives up before the other begins."""
    shift_ms = TimelineSettings().drift_ms_max * 9 // 10
    doors = [
        Broker(coordinator, dsn, clock=ShiftedClock(-shift_ms)),
        Broker(coordinator, dsn, clock=ShiftedClock(shift_ms)),
    ]
    slow, other = [await door.start() for door in doors]
    proxies = Proxies()
    port = proxies.listen(lambda _: Passage(slow, client="c", server="s"))
    spans: list[list[float]] = []

    async def handle(message: Message) -> None:
        # On a busy machine an attempt may pass without a handler: too little of its lease is left.
        span = [time.monotonic()]
        spans.append(span)
        try:
            await asyncio.sleep(0 if len(spans) > 1 else 30)
        finally:
            span.append(time.monotonic())

    async with connect(f"127.0.0.1:{port}") as d, connect(other) as e:
        await d.timeline("t").create(TimelineConfig(window_ms=50))
        d.consumer("t", lease="1s", id="first", stop="0s")(handle)
        await d.timeline("t").schedule(b"x")
        async with asyncio.timeout(DEADLINE_S):
            while not spans:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(proxies.hold, {("s", "c"), ("c", "s")})
            e.consumer("t", lease="1s", id="second")(handle)
            while len(spans) < 2 or len(spans[1]) < 2:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(proxies.hold, ())
    proxies.close()
    for door in doors:
        await door.stop()
    (_, ended_s), (began_s, _) = spans[:2]
    assert ended_s <= began_s, f"the first ran {ended_s - began_s:.3f} s beside the second"


async def test_a_client_goes_on_at_another_broker_when_its_own_is_gone(
    coordinator: Coordinator, dsn: str
) -> None:
    """B5, B13: producers and consumers that know several addresses; nothing is lost.

    What was in work when the broker went may come again after its lease, and nothing else.
    """
    doors = [Broker(coordinator, dsn) for _ in range(2)]
    addresses = [await door.start() for door in doors]
    done: dict[bytes, int] = {}
    async with connect(",".join(addresses)) as d:
        await d.timeline("t").create(TimelineConfig(window_ms=50))

        @d.consumer("t", lease="2s", concurrency=4)
        async def handle(message: Message) -> None:
            done[message.body] = done.get(message.body, 0) + 1

        async def produce(first: int) -> None:
            for number in range(first, first + 50):
                assert (await d.timeline("t").schedule(b"%d" % number)).created

        async with asyncio.timeout(DEADLINE_S):
            await produce(0)
            stopping = asyncio.create_task(doors[0].stop())
            await produce(50)
            await stopping
            await produce(100)
            while len(done) < 150:
                await asyncio.sleep(0.02)
            while not all(consumer.idle for consumer in d.consumers):
                await asyncio.sleep(0.02)
        counts = (await d.timeline("t").describe()).counts
        assert (counts.due, counts.leased, counts.dead) == (0, 0, 0)
        again = sum(times - 1 for times in done.values())
    await doors[1].stop()
    assert again <= 4, "more than was in work at the time"


async def test_garbage_at_the_door_closes_its_connection_and_nothing_else(
    coordinator: Coordinator, dsn: str
) -> None:
    """B18: frames that are none of ours, in the middle of good ones."""
    door = Broker(coordinator, dsn)
    address = await door.start()
    host, _, port = address.rpartition(":")
    rng = random.Random(3)
    for _ in range(40):
        body = rng.randbytes(rng.randrange(60))
        key = rng.choice([11_000, 11_007, 11_008, 11_024, 11_999])
        frame = key.to_bytes(2, "big") + b"\0\1" + b"\0\0\0\7" + b"\0\0" + body
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(len(frame).to_bytes(4, "big") + frame)
        async with asyncio.timeout(DEADLINE_S):
            await reader.read(100)
        writer.close()
    assert door.violations
    async with connect(address) as d:
        assert await d.timelines() == []
    await door.stop()


async def test_brokers_assign_alike_and_know_each_other(coordinator: Coordinator, dsn: str) -> None:
    """B2, B9, B11: from the same roster the same assignment; the list shows health and consumers,
    the best broker for a timeline first; one that stops is last, and that is no partition."""
    async with (
        joined(coordinator, 1, ttl_ms=5_000) as one,
        joined(coordinator, 2, ttl_ms=5_000) as two,
    ):
        doors = [
            Broker(coordinator, dsn, name="a", leases=one),
            Broker(coordinator, dsn, name="b", leases=two),
        ]
        addresses = [await door.start() for door in doors]
        async with connect(addresses[0]) as first, connect(addresses[1]) as second:
            await first.timeline("t").create(TimelineConfig(window_ms=50, dealer="ranges"))

            def assignments() -> list[list[str]]:
                return [
                    [m.id for m in door.service.timelines["t"].loader.windows.assignment.members]
                    for door in doors
                    if "t" in door.service.timelines
                ]

            async with asyncio.timeout(DEADLINE_S):
                while not all("t" in door.service.timelines for door in doors):
                    await asyncio.sleep(0.01)
                for client, names in ((first, "uv"), (second, "w")):
                    for name in names:
                        client.consumer("t", id=name)(lambda message: None)
                while assignments() != [["u", "v", "w"], ["u", "v", "w"]]:
                    await asyncio.sleep(0.01)
                listed = doors[1].service.brokers("t")
                while [broker.consumers for broker in listed] != [2, 1]:
                    await asyncio.sleep(0.01)
                    listed = doors[1].service.brokers("t")
            assert [(b.name, b.address, b.condition) for b in listed] == [
                ("a", addresses[0], "healthy"),
                ("b", addresses[1], "healthy"),
            ]
            windows = [door.service.timelines["t"].loader.windows for door in doors]
            shares = [each.assignment.share("w") for each in windows]
            assert shares[0] == shares[1]
            await first.stop()
        await doors[0].stop()
        async with asyncio.timeout(DEADLINE_S):
            while [(broker.name, broker.condition) for broker in doors[1].service.brokers("t")] != [
                ("b", "healthy"),
                ("a", "inactive"),
            ]:
                await asyncio.sleep(0.01)
        assert not doors[1].service.health.peers.parted(SystemClock().wall_ms())
        await doors[1].stop()


async def test_every_address_is_tried_before_a_command_fails(
    coordinator: Coordinator, dsn: str
) -> None:
    """F72, B5: the first ones of the list are dead; nobody but the last one listens."""
    door = Broker(coordinator, dsn)
    address = await door.start()
    dead = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    async with connect(f"{dead},{address}") as d, asyncio.timeout(DEADLINE_S):
        await d.timeline("t").create()
        assert await d.timelines() == [("t", "ready")]
    async with connect(dead) as d:
        with pytest.raises(Unavailable):
            await d.timelines()
    await door.stop()


async def test_a_timeline_that_was_just_made_is_known_to_every_broker(
    coordinator: Coordinator, dsn: str
) -> None:
    """B2: also to one that has not heard of it yet."""
    doors = [Broker(coordinator, dsn) for _ in range(2)]
    first, deaf = [await door.start() for door in doors]
    await doors[1].service._tasks.stop()
    seen: list[bytes] = []
    async with connect(first) as d:
        await d.timeline("t").create(TimelineConfig(window_ms=50))
        await d.timeline("t").schedule(b"1")
    async with connect(deaf) as d, asyncio.timeout(DEADLINE_S):
        d.consumer("t")(lambda message: seen.append(message.body))
        while not seen:
            await asyncio.sleep(0.01)
        with pytest.raises(TopicUnknown, match="no timeline 'u'"):
            await d.timeline("u").schedule(b"")
    for door in doors:
        await door.stop()


async def test_a_producer_goes_to_a_broker_that_is_well_and_the_stopped_one_is_shown(
    coordinator: Coordinator, dsn: str
) -> None:
    """F72, B5, B2, B16: it knows the address of a broker whose clock is wrong, and of no other; it
    is told of a better one, and its message is stored there. One that stops is shown inactive."""
    async with (
        joined(coordinator, 1, ttl_ms=5_000) as one,
        joined(coordinator, 2, ttl_ms=5_000) as two,
        asyncio.timeout(DEADLINE_S),
    ):
        wrong = Broker(coordinator, dsn, name="a", leases=one, clock=ShiftedClock(30_000))
        good = Broker(coordinator, dsn, name="b", leases=two)
        at_wrong, at_good = await wrong.start(), await good.start()
        async with connect(at_good) as d, connect(at_wrong) as e:
            await d.timeline("t").create()
            while not wrong.service.health.drift_reason:
                await asyncio.sleep(0.01)
            assert (await e.timeline("t").schedule(b"x", delay="1h")).created
            assert len(good.service.timelines["t"].producers) == 1

            await wrong.stop()
            while (shown := (await d.brokers())[-1]).condition != "inactive":
                await asyncio.sleep(0.01)
            assert (shown.name, shown.reasons) == ("a", ["it was stopped"])
        await good.stop()


async def test_consumers_move_to_a_broker_with_room_and_lose_nothing(
    coordinator: Coordinator, dsn: str
) -> None:
    """B5: more than the most at one broker: some are told, and go on at the other with their
    leases; every message is handled on its first attempt."""
    async with (
        joined(coordinator, 1, ttl_ms=5_000) as one,
        joined(coordinator, 2, ttl_ms=5_000) as two,
        AsyncExitStack() as stack,
    ):
        crowded = Broker(coordinator, dsn, name="a", leases=one)
        roomy = Broker(coordinator, dsn, name="b", leases=two)
        address = await crowded.start()
        await roomy.start()
        attempts: list[int] = []

        async def handle(message: Message) -> None:
            await asyncio.sleep(0.05)
            attempts.append(message.attempt)

        producer = await stack.enter_async_context(connect(address))
        timeline = producer.timeline("t")
        await timeline.create(TimelineConfig(window_ms=100))
        for at in range(MOST + 2):
            client = await stack.enter_async_context(connect(address))
            client.consumer("t", lease="30s", concurrency=2, id=f"c{at}")(handle)
        sent = 0
        async with asyncio.timeout(DEADLINE_S):
            while not (
                "t" in roomy.service.timelines
                and len(roomy.service.timelines["t"].consumers) >= 2
                and len(crowded.service.timelines["t"].consumers) <= MOST
            ):
                await timeline.schedule_many([Draft(b"") for _ in range(5)])
                sent += 5
                await asyncio.sleep(0.05)
            while len(attempts) < sent:
                await asyncio.sleep(0.02)
        assert set(attempts) == {1}
        await stack.aclose()
        await crowded.stop()
        await roomy.stop()


async def test_an_idle_consumer_takes_what_waits_for_a_busy_one_at_another_broker(
    coordinator: Coordinator, dsn: str
) -> None:
    """B21, F30: one has a long job, and 100 messages come; about half of them are in its buckets,
    and it fetches one ahead. The other one has all of them, each within a second.

    The second is counted in turns of this loop, in which both brokers and both clients run: a
    machine that gives it no turn makes nobody wait for a busy consumer. What PostgreSQL takes for
    leases, which that does not count, has a second more; `test_fairness_sim.py` has the bound
    alone."""
    async with (
        joined(coordinator, 1, ttl_ms=5_000) as one,
        joined(coordinator, 2, ttl_ms=5_000) as two,
        asyncio.timeout(DEADLINE_S),
    ):
        doors = [
            Broker(coordinator, dsn, name="a", leases=one),
            Broker(coordinator, dsn, name="b", leases=two),
        ]
        addresses = [await door.start() for door in doors]
        stuck, done, late = asyncio.Event(), set[int](), list[int]()
        turns: list[float] = []

        async def count_turns() -> None:
            while True:
                await asyncio.sleep(TURN_S)
                turns.append(time.time() * 1000)

        counting = asyncio.create_task(count_turns())

        async def hang(message: Message) -> None:
            stuck.set()
            await asyncio.Event().wait()

        async def handle(message: Message) -> None:
            late.append(len(turns) - bisect.bisect(turns, message.due_ms))
            done.add(message.id)

        async with connect(addresses[0]) as d, connect(addresses[1]) as e:
            await d.timeline("t").create(TimelineConfig(dealer="ranges"))
            d.consumer("t", lease="60s", concurrency=1, id="long", stop="0s")(hang)
            await d.timeline("t").schedule(b"")
            await stuck.wait()
            while "t" not in doors[1].service.timelines:
                await asyncio.sleep(0.01)
            e.consumer("t", lease="60s", concurrency=16, id="idle")(handle)
            while len(doors[0].service.timelines["t"].loader.windows.assignment.members) < 2:
                await asyncio.sleep(0.01)
            sent = await d.timeline("t").schedule_many([Draft(b"") for _ in range(100)])
            while not done >= {each.id for each in sent}:
                await asyncio.sleep(0.02)

            # Both brokers know that one of them can take nothing.
            windows = [door.service.timelines["t"].loader.windows for door in doors]
            while any([m.id for m in each.assignment.members] != ["idle"] for each in windows):
                await asyncio.sleep(0.02)
        counting.cancel()
        for door in doors:
            await door.stop()
    assert max(late) * TURN_S < 2, f"the last one waited for {max(late)} turns"


async def test_both_ways_of_a_consumer_lead_to_one_broker(
    coordinator: Coordinator, dsn: str
) -> None:
    """B5, B13: commands went on to another broker, so pushes come from there too; each message on
    its first attempt."""
    doors = [Broker(coordinator, dsn) for _ in range(2)]
    addresses = [await door.start() for door in doors]
    attempts: list[int] = []
    async with connect(",".join(addresses)) as d:
        timeline = d.timeline("t")
        await timeline.create(TimelineConfig(window_ms=50))
        d.consumer("t", lease="30s")(lambda message: attempts.append(message.attempt))
        (consumer,) = d.consumers
        async with asyncio.timeout(DEADLINE_S):
            while "t" not in doors[1].service.timelines:
                await asyncio.sleep(0.01)
            for sent in range(1, 4):
                await timeline.schedule(b"")
                while len(attempts) < sent or not consumer.idle:
                    await asyncio.sleep(0.01)
                consumer._commands.turn_away()
        assert attempts == [1, 1, 1]
    for door in doors:
        await door.stop()


async def test_a_consumer_that_is_refused_asks_the_next_broker(
    coordinator: Coordinator, dsn: str
) -> None:
    """B16, B5: one that may be cut off takes no new consumers, and says why to whoever asks."""
    doors = [Broker(coordinator, dsn) for _ in range(2)]
    addresses = [await door.start() for door in doors]
    seen: list[int] = []
    async with connect(",".join(addresses)) as d:
        await d.timeline("t").create(TimelineConfig(window_ms=50))
        doors[0].service.health.peers.cut_off = True
        (broker,) = await d.brokers("t")
        assert broker.reasons == ["the coordination service is out of reach"]
        d.consumer("t")(lambda message: seen.append(message.id))
        await d.timeline("t").schedule(b"")
        async with asyncio.timeout(DEADLINE_S):
            while not seen:
                await asyncio.sleep(0.01)
        assert not doors[0].service.timelines["t"].consumers
    for door in doors:
        await door.stop()


async def test_a_broker_whose_lease_was_lost_is_back_on_the_list(
    coordinator: Coordinator, dsn: str
) -> None:
    """B2, B16: without a restart, under a new lease; the list has the latency of the others."""
    async with (
        joined(coordinator, 1, ttl_ms=2_000) as one,
        joined(coordinator, 2, ttl_ms=2_000) as two,
    ):
        doors = [
            Broker(coordinator, dsn, name="a", leases=one),
            Broker(coordinator, dsn, name="b", leases=two),
        ]
        addresses = [await door.start() for door in doors]
        async with connect(addresses[1]) as d, asyncio.timeout(DEADLINE_S):

            async def names() -> list[str]:
                found = await d.brokers()
                return sorted(broker.name for broker in found if broker.condition == "healthy")

            while await names() != ["a", "b"]:
                await asyncio.sleep(0.01)
            lost = one.lease_id
            await coordinator.revoke(lost)
            while await names() != ["b"]:
                await asyncio.sleep(0.01)
            shown = (await d.brokers())[-1]
            assert (shown.name, shown.condition) == ("a", "inactive")
            assert shown.reasons == ["it has vanished without a word"]
            while await names() != ["a", "b"]:
                await asyncio.sleep(0.01)
            assert one.lease_id != lost
            assert not doors[0].service.health.peers.cut_off
            while True:
                found = {broker.name: broker for broker in await d.brokers()}
                if found["a"].latency_ms is not None:
                    break
                await asyncio.sleep(0.01)
            assert found["b"].latency_ms is None
            assert found["a"].roles == ["broker"]
        for door in doors:
            await door.stop()


async def test_a_lease_that_was_given_up_is_not_taken_up_again(
    coordinator: Coordinator, dsn: str
) -> None:
    """B13, B6: though the store still has it under this consumer's id: the handler that was told to
    end may still be at it. It comes again when the lease is over, as the next attempt."""
    door = Broker(coordinator, dsn)
    address = await door.start()
    attempts: list[int] = []

    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            await asyncio.Event().wait()

    async with connect(address) as d, asyncio.timeout(DEADLINE_S):
        await d.timeline("t").create(TimelineConfig(window_ms=50))
        d.consumer("t", lease="2s", id="same")(handle)
        (consumer,) = d.consumers
        await d.timeline("t").schedule(b"")
        while attempts != [1]:
            await asyncio.sleep(0.01)
        (message,) = consumer._leases._here.values()
        consumer._leases._lose(message)
        while not consumer.idle:
            await asyncio.sleep(0)
        await consumer._open()
        while len(attempts) < 2:
            await asyncio.sleep(0.01)
        assert attempts == [1, 2]
    await door.stop()


async def test_a_schedule_fires_once_in_the_whole_cluster_also_when_a_broker_goes(
    coordinator: Coordinator, dsn: str
) -> None:
    """B19, B18: three brokers see the same schedules; one message for each time, whoever fires it.
    A timeline whose tables are gone is no reason not to serve the others."""
    doors = [Broker(coordinator, dsn) for _ in range(3)]
    addresses = [await door.start() for door in doors]
    due: list[int] = []
    async with connect(",".join(addresses[1:])) as d, asyncio.timeout(DEADLINE_S):
        await d.timeline("broken").create()
        await d.timeline("t").create(TimelineConfig(window_ms=50))
        await d.timeline("t").put_schedule("tick", b"tick", every="1s")
        d.consumer("t", lease="30s")(lambda message: due.append(message.due_ms))
        (number,) = [
            record.id
            for name, record in (await doors[0].service.catalog.records()).items()
            if name == "broken"
        ]
        await doors[1].service._stores.drop(number)
        with pytest.raises(NotFound, match="tables are gone"):
            await d.timeline("broken").peek()
        while len(due) < 2:
            await asyncio.sleep(0.01)
        await doors[0].stop()
        while len(due) < 4:
            await asyncio.sleep(0.01)
    for door in doors[1:]:
        await door.stop()
    assert len(set(due)) == len(due), "fired twice"
    assert {after - before for before, after in pairwise(sorted(due))} == {1_000}


async def test_busy_consumers_stop_a_timeline_that_is_set_so(
    coordinator: Coordinator, dsn: str
) -> None:
    """B16: an idle one gets nothing either, until most of them have room again."""
    door = Broker(coordinator, dsn)
    address = await door.start()
    go_on = asyncio.Event()
    begun: list[bytes] = []

    async def handle(message: Message) -> None:
        begun.append(message.body)
        await go_on.wait()

    async with connect(address) as d, connect(address) as idle, asyncio.timeout(DEADLINE_S):
        timeline = d.timeline("t")
        await timeline.create(TimelineConfig(window_ms=50, when_busy="stop"))
        for _ in range(2):
            d.consumer("t", lease="30s", concurrency=1)(handle)
        await timeline.schedule_many([Draft(b"first") for _ in range(8)])
        while not door.service.report().reasons:
            await asyncio.sleep(0.01)
        before = len(begun)
        idle.consumer("t", lease="30s", concurrency=1)(handle)
        text = "most consumers of 't' are busy; nothing is pushed"
        while len((await timeline.describe()).consumers) < 3:
            await asyncio.sleep(0.01)
        # Ten windows: an idle consumer is assigned buckets in the next one.
        await asyncio.sleep(0.5)
        assert (await timeline.describe()).signals.reasons == [text]
        assert len(begun) == before
        go_on.set()
        while len(begun) < 8:
            await asyncio.sleep(0.01)
    await door.stop()


async def test_consumers_that_can_take_nothing_say_so(coordinator: Coordinator, dsn: str) -> None:
    """B14, B16: busy is told to the broker, in its report and to clients; the broker is ready for
    everybody else, and it ends when there is room again."""
    door = Broker(coordinator, dsn)
    address = await door.start()
    go_on = asyncio.Event()

    async def handle(message: Message) -> None:
        await go_on.wait()

    async with connect(address) as d, asyncio.timeout(DEADLINE_S):
        timeline = d.timeline("t")
        await timeline.create(TimelineConfig(window_ms=50))
        d.consumer("t", lease="30s", concurrency=1)(handle)
        await timeline.schedule_many([Draft(b"") for _ in range(10)])
        while not door.service.report().reasons:
            await asyncio.sleep(0.01)
        report = door.service.report()
        assert report.reasons[0][1] == "most consumers of 't' are busy"
        assert report.of_all == []
        assert (await timeline.describe()).signals.reasons == ["most consumers of 't' are busy"]
        go_on.set()
        while door.service.report().reasons:
            await asyncio.sleep(0.01)
        while (await timeline.describe()).counts.due:
            await asyncio.sleep(0.01)
    await door.stop()


async def test_one_of_three_brokers_forwards_dead_letters_and_another_goes_on(
    coordinator: Coordinator, dsn: str
) -> None:
    """B25: each letter once while nobody dies, and none is lost with the broker that did it."""
    topics = MemoryTopics()
    async with AsyncExitStack() as stack, asyncio.timeout(DEADLINE_S):
        doors = {}
        for number, name in enumerate("abc", 1):
            lease = await stack.enter_async_context(joined(coordinator, number, ttl_ms=5_000))
            doors[name] = Broker(coordinator, dsn, name=name, leases=lease, topics=topics)
        addresses = {name: await door.start() for name, door in doors.items()}
        client = await stack.enter_async_context(connect(",".join(addresses.values())))
        await client.timeline("t").create(TimelineConfig(dead_to="orders.dead"))
        reject(client)

        async def forwarded(bodies: Sequence[bytes]) -> None:
            for body in bodies:
                await client.timeline("t").schedule(body)
            while not {letter.shown.body for letter in topics.letters} >= set(bodies):
                await asyncio.sleep(0.01)

        def chosen() -> list[str]:
            return [name for name, door in doors.items() if door.service._is_mine("t")]

        while any("t" not in door.service.timelines for door in doors.values()) or (
            len(chosen()) != 1
        ):
            await asyncio.sleep(0.01)
        await forwarded([b"%d" % number for number in range(5)])
        (first,) = chosen()
        await doors.pop(first).stop()
        await forwarded([b"%d" % number for number in range(5, 10)])

        assert sorted(letter.shown.body for letter in topics.letters) == [
            b"%d" % number for number in range(10)
        ]
        assert len({letter.id for letter in topics.letters}) == 10
        await client.stop()
        for door in doors.values():
            await door.stop()


async def test_an_idle_consumer_leaves_a_broker_that_is_gone(
    coordinator: Coordinator, dsn: str
) -> None:
    """B5, B21: within a few reports, though it has nothing to finish, extend or give back."""
    doors = [Broker(coordinator, dsn) for _ in range(2)]
    addresses = [await door.start() for door in doors]
    async with connect(",".join(addresses)) as d:
        await d.timeline("t").create(TimelineConfig(window_ms=50))
        d.consumer("t")(lambda message: None)
        async with asyncio.timeout(DEADLINE_S):
            while not all("t" in door.service.timelines for door in doors) or (
                not doors[0].service.timelines["t"].consumers
            ):
                await asyncio.sleep(0.01)
            await doors[0].stop()
            while not doors[1].service.timelines["t"].consumers:
                await asyncio.sleep(0.01)
    await doors[1].stop()
