"""Two brokers on one PostgreSQL, of which one dies: with a consumer's leases, or with its news."""

import asyncio

import pytest
from tests.unit.timeline.test_timeline_brokers import DEADLINE_S, Broker

from dovetail.clock import SystemClock
from dovetail.coordination import Coordinator
from dovetail.timeline import Message, TimelineConfig, connect
from dovetail.timeline.stores._postgres_news import PostgresNews


async def both_serve(brokers: list[Broker], timeline: str) -> None:
    while not all(timeline in broker.service.timelines for broker in brokers):
        await asyncio.sleep(0.01)


async def test_a_consumer_takes_its_leases_to_the_next_broker(
    coordinator: Coordinator, dsn: str
) -> None:
    """B5, B13: its broker answers nothing any more; what it was handling is finished at the other
    one, as the same attempt, and does not come again."""
    brokers = [Broker(coordinator, dsn) for _ in range(2)]
    addresses = [await broker.start() for broker in brokers]
    seen: list[Message] = []
    go_on = asyncio.Event()
    async with connect(",".join(addresses)) as d, asyncio.timeout(DEADLINE_S):
        timeline = d.timeline("t")
        await timeline.create(TimelineConfig(window_ms=50))
        await both_serve(brokers, "t")

        @d.consumer("t", lease="10m")
        async def handle(message: Message) -> None:
            seen.append(message)
            await go_on.wait()

        await timeline.schedule(b"x")
        while not seen:
            await asyncio.sleep(0.01)
        await brokers[0]._listener.kill()
        while not brokers[1].service.timelines["t"].consumers:
            await asyncio.sleep(0.01)
        go_on.set()
        while await timeline.look_up(seen[0].id) != [None]:
            await asyncio.sleep(0.01)
        assert [(message.attempt, message.lease_lost) for message in seen] == [(1, False)]
    for broker in brokers:
        await broker.stop()


async def expects_nothing(broker: Broker, timeline: str) -> None:
    """Returns when a broker hears the others, and has no reason of its own to ask the store."""
    watch, loader = broker.service._watch, broker.service.timelines[timeline].loader
    assert watch is not None
    now_ms = SystemClock().wall_ms()
    while not watch.listening or loader.wake_ms(now_ms=now_ms) < now_ms + 60_000:
        await asyncio.sleep(0.01)
        now_ms = SystemClock().wall_ms()


async def test_a_message_of_which_no_news_comes_is_found_by_looking(
    coordinator: Coordinator, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F63, B5: its broker died between its commit and its NOTIFY; the others look now and then."""

    async def lost(_: PostgresNews, news: object) -> None:
        """Nobody hears of it."""

    brokers = [Broker(coordinator, dsn) for _ in range(2)]
    addresses = [await broker.start() for broker in brokers]
    came: asyncio.Queue[bytes] = asyncio.Queue()
    async with (
        connect(addresses[0]) as d,
        connect(addresses[1]) as e,
        asyncio.timeout(DEADLINE_S),
    ):
        await d.timeline("t").create(TimelineConfig(window_ms=50))
        await both_serve(brokers, "t")
        e.consumer("t")(lambda message: came.put_nowait(message.body))
        await d.timeline("t").schedule(b"told")
        assert await came.get() == b"told"

        monkeypatch.setattr(PostgresNews, "tell", lost)
        for delay in (0, 0.3):
            await expects_nothing(brokers[1], "t")
            await d.timeline("t").schedule(b"not told", delay=delay)
            assert await came.get() == b"not told"
    for broker in brokers:
        await broker.stop()
