"""The client against a node in memory: what users' own tests are written with."""

import asyncio
from itertools import pairwise

import pytest

from dovetail.errors import InvalidInput, NotFound, TopicExists, TopicUnknown
from dovetail.timeline import Draft, Message, Retry
from dovetail.timeline.client.fake import FakeDovetail, fake_dovetail
from dovetail.timeline.config import TimelineConfig, config_of
from dovetail.timeline.message import State, Status


async def seen_by(d: FakeDovetail, timeline: str = "t", **options: object) -> list[Message]:
    """A consumer that keeps what it gets."""
    seen: list[Message] = []

    @d.consumer(timeline, **options)  # type: ignore[arg-type]
    async def keep(message: Message) -> None:
        seen.append(message)

    await d.advance(0)
    return seen


async def test_a_message_is_handled_at_its_time() -> None:
    """B7: not before, and once."""
    async with fake_dovetail(timelines=["t"]) as d:
        seen = await seen_by(d)
        scheduled = await d.timeline("t").schedule(b"x", delay="2h", headers={"a": b"1"})
        await d.advance(2 * 3_600 - 1)
        assert not seen
        await d.advance("1s")
        (message,) = seen
        assert (message.id, message.body, message.headers) == (scheduled.id, b"x", (("a", b"1"),))
        assert message.start_ms == message.due_ms == d.now_ms
        await d.advance("1d")
        assert len(seen) == 1
        assert await d.timeline("t").look_up(scheduled.id) == [None]


async def test_a_failure_comes_again_later_and_dies_at_last() -> None:
    """B19: with a pause that grows, its reason, and a replay."""
    async with fake_dovetail() as d:
        await d.timeline("t").create(config_of({"attempts_max": 3}))
        attempts: list[tuple[int, int]] = []
        broken = True

        @d.consumer("t")
        async def handle(message: Message) -> None:
            attempts.append((message.attempt, d.now_ms))
            if broken:
                raise ValueError("no such customer")

        await d.timeline("t").schedule(b"x")
        await d.advance("1m")
        assert [attempt for attempt, _ in attempts] == [1, 2, 3]
        pauses = [after - before for (_, before), (_, after) in pairwise(attempts)]
        assert 500 <= pauses[0] <= 2_300
        assert 1_000 <= pauses[1] <= 3_300
        (dead,) = await d.timeline("t").dead()
        assert dead.reason.startswith("ValueError: no such customer")
        assert (dead.attempts, dead.state) == (3, State.DEAD)
        broken = False
        assert await d.timeline("t").replay(dead.id) == [Status.OK]
        await d.advance("1s")
        assert attempts[-1][0] == 1
        assert not await d.timeline("t").dead()


async def test_a_handler_can_say_when_to_come_again() -> None:
    """B19: `Retry`."""
    async with fake_dovetail(timelines=["t"]) as d:
        times: list[int] = []

        @d.consumer("t")
        async def handle(message: Message) -> None:
            times.append(d.now_ms)
            if len(times) == 1:
                raise Retry("10m")

        await d.timeline("t").schedule(b"x")
        await d.advance("9m")
        assert len(times) == 1
        await d.advance("2m")
        assert len(times) == 2


async def test_plain_functions_and_batches() -> None:
    """B6: a plain function runs in a thread; a batch handler gets lists."""
    async with fake_dovetail(timelines=["plain", "batch"]) as d:
        bodies: list[bytes] = []
        sizes: list[int] = []
        d.consumer("plain")(lambda message: bodies.append(message.body))

        @d.consumer("batch", batch=10, concurrency=2)
        async def handle(messages: list[Message]) -> None:
            sizes.append(len(messages))

        await d.timeline("plain").schedule_many([Draft(b"%d" % n) for n in range(5)])
        await d.timeline("batch").schedule_many([Draft(b"") for _ in range(35)])
        await d.advance("5s")
        assert sorted(bodies) == [b"0", b"1", b"2", b"3", b"4"]
        assert sum(sizes) == 35
        assert max(sizes) == 10


async def test_keys_cancel_move_and_look() -> None:
    """B19: unique keys, and messages that are changed before they are due."""
    async with fake_dovetail(timelines=["t"]) as d:
        t = d.timeline("t")
        first = await t.schedule(b"1", delay="1h", key="k")
        second = await t.schedule(b"2", delay="2h", key="k")
        assert (first.created, second.created) == (True, False)
        assert second.id == first.id
        shown = await t.look_up_key("k")
        assert shown is not None
        assert (shown.body, shown.state) == (b"1", State.WAITING)
        seen = await seen_by(d)
        assert await t.move(first.id, delay="5s") is Status.OK
        await d.advance("5s")
        assert [message.body for message in seen] == [b"1"]
        assert not await t.cancel_key("k")
        third = await t.schedule(b"3", delay="1h", key="k")
        assert [item.id for item in await t.peek()] == [third.id]
        assert await t.cancel_key("k")
        await d.advance("2h")
        assert len(seen) == 1


async def test_recurring_schedules() -> None:
    """B19: every n, each time once."""
    async with fake_dovetail(timelines=["t"]) as d:
        seen = await seen_by(d)
        await d.timeline("t").put_schedule("tick", b"tick", every="10s")
        await d.advance("1m")
        assert len(seen) == 6
        assert len({message.due_ms for message in seen}) == 6
        (schedule,) = await d.timeline("t").schedules()
        assert (schedule.name, schedule.every_ms) == ("tick", 10_000)
        await d.timeline("t").drop_schedule("tick")
        with pytest.raises(NotFound, match="no schedule 'tick'"):
            await d.timeline("t").drop_schedule("tick")


async def test_limits_of_a_timeline() -> None:
    """B19: body bytes, furthest due time, longest lease, rate; each told as what it is."""
    async with fake_dovetail() as d:
        config = TimelineConfig(
            body_bytes_max=10, ahead_ms_max=3_600_000, lease_ms_max=60_000, rate_max=10
        )
        t = d.timeline("t")
        await t.create(config)
        with pytest.raises(InvalidInput, match="larger than the timeline takes"):
            await t.schedule(b"x" * 11)
        with pytest.raises(InvalidInput, match="due later than the timeline takes"):
            await t.schedule(b"x", delay="2h")
        d.consumer("t", lease="2m")(lambda message: None)
        with pytest.raises(InvalidInput, match="a lease of 120000 ms"):
            await d.run()
        with pytest.raises(InvalidInput, match="not both"):
            await t.schedule(b"x", at=0, delay=1)


async def test_a_deleted_timeline_tells_its_clients_and_its_name_is_free() -> None:
    """B4: commands fail at once, consumers are told, the name works again."""
    async with fake_dovetail(timelines=["t"]) as d:
        await d.timeline("t").schedule(b"old", delay="1h")
        await seen_by(d)
        running = asyncio.create_task(d.run())
        with pytest.raises(TopicExists):
            await d.timeline("t").create()
        await d.timeline("t").delete()
        with pytest.raises(TopicUnknown, match="deleted"):
            await running
        with pytest.raises(TopicUnknown):
            await d.timeline("t").delete()
        async with asyncio.timeout(60):
            while True:
                try:
                    await d.timeline("t").create()
                    break
                except TopicExists:
                    await asyncio.sleep(0.01)
        assert not await d.timeline("t").peek()


async def test_a_graceful_stop_finishes_what_runs_and_gives_back_the_rest() -> None:
    """B19: what was not begun is no attempt."""
    async with fake_dovetail(timelines=["t"]) as d:
        begun = asyncio.Event()
        go_on = asyncio.Event()
        done: list[bytes] = []

        @d.consumer("t", concurrency=1)
        async def handle(message: Message) -> None:
            begun.set()
            await go_on.wait()
            done.append(message.body)

        await d.timeline("t").schedule_many([Draft(b"%d" % n) for n in range(2)])
        async with asyncio.timeout(60):
            while not begun.is_set():
                await d._service.look_after()
                await asyncio.sleep(0)
        stopping = asyncio.create_task(d.stop())
        await asyncio.sleep(0)
        go_on.set()
        await stopping
        assert len(done) == 1
        (left,) = await d.timeline("t").peek()
        assert (left.attempts, left.state) == (0, State.DUE)


async def test_what_clients_are_told_about_the_load() -> None:
    """B14: backlog, rates, the next windows, how many consumers would do."""
    async with fake_dovetail(timelines=["t"]) as d:
        t = d.timeline("t")
        await t.schedule_many([Draft(b"") for _ in range(50)])
        await t.schedule_many([Draft(b"", delay=1.5) for _ in range(7)])
        described = await t.describe()
        assert (described.counts.due, described.counts.waiting) == (50, 7)
        signals = described.signals
        assert signals.backlog == 50
        assert signals.arrivals > 5
        assert sum(signals.windows) == 57
        assert signals.consumers_suggested == 1
        assert signals.condition == "healthy"
