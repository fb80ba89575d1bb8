"""Receiving without a session, against a node in memory: seats, leases, what goes back."""

import asyncio
from typing import Any

import pytest

from dovetail.errors import InvalidInput, Throttled, TopicUnknown, Unavailable
from dovetail.timeline import Draft
from dovetail.timeline import receiver as receiving
from dovetail.timeline.client.fake import FakeDovetail, fake_dovetail
from dovetail.timeline.config import config_of
from dovetail.timeline.message import Handle, Leased, MessageId, State, Status, Version
from dovetail.timeline.receiver import Receiver
from dovetail.timeline.session import ConsumerSession
from dovetail.timeline.stores.memory import MemoryStore

LEASE_MS = 30_000


def receiver_of(d: FakeDovetail) -> Receiver:
    return d._service.receiver


async def received(d: FakeDovetail, timeline: str = "t", **more: Any) -> list[Leased]:
    """What a call is answered with; time goes on while it waits."""
    wanted = {"consumer": "c", "limit": 10, "wait_ms": 100, "lease_ms": LEASE_MS} | more
    asking = asyncio.ensure_future(receiver_of(d).receive(timeline, **wanted))
    while not asking.done():
        await d.advance("50ms")
    return asking.result()


async def test_a_message_is_received_and_finished() -> None:
    """B27: by id and version, each item with its own outcome; an old version does nothing."""
    async with fake_dovetail(timelines=["t"]) as d:
        for body in (b"1", b"2", b"3"):
            await d.timeline("t").schedule(body)
        one, two, three = await received(d)
        assert [each.attempt for each in (one, two, three)] == [1, 1, 1]
        wrong = Handle(two.id, Version(two.version + 1))
        gone = Handle(MessageId(999), Version(1))
        outcomes = await receiver_of(d).done("t", [one.handle, wrong, gone])
        assert outcomes == [Status.OK, Status.STALE, Status.GONE]
        assert await received(d) == []

        given = [(two.handle, 5_000, "later"), (three.handle, None, "")]
        assert await receiver_of(d).retry("t", given) == [Status.OK, Status.OK]
        assert await receiver_of(d).done("t", [two.handle]) == [Status.STALE]
        await d.advance("1s")
        (again,) = await received(d)
        assert (again.body, again.attempt) == (b"3", 2)
        assert await receiver_of(d).dead("t", [(again.handle, "why")]) == [Status.DEAD]
        assert [(each.body, each.reason) for each in await d.timeline("t").dead()] == [
            (b"3", "why")
        ]


async def test_a_lease_that_ended_is_another_ones() -> None:
    """B27, B13: whoever is late is refused by the store; one that extends in time is not."""
    async with fake_dovetail(timelines=["t"]) as d:
        await d.timeline("t").schedule(b"x")
        (first,) = await received(d, lease_ms=2_000)
        assert await receiver_of(d).extend("t", [first.handle], lease_ms=60_000) == [Status.OK]
        await d.advance("30s")
        assert await received(d, consumer="other") == []
        await d.advance("31s")
        (second,) = await received(d, consumer="other")
        assert (second.id, second.attempt) == (first.id, 2)
        assert await receiver_of(d).done("t", [first.handle]) == [Status.STALE]
        assert await receiver_of(d).extend("t", [first.handle], lease_ms=1_000) == [Status.STALE]
        assert await receiver_of(d).done("t", [second.handle]) == [Status.OK]


async def test_a_caller_that_goes_away_takes_nothing_along() -> None:
    """B27: what was leased for it goes to the next one at once, uncounted."""
    async with fake_dovetail(timelines=["t"]) as d:
        calling = receiver_of(d).receive(
            "t", consumer="c", limit=5, wait_ms=20_000, lease_ms=LEASE_MS
        )
        gone = asyncio.ensure_future(calling)
        await d.advance("1s")
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await d.timeline("t").schedule(b"x")
        (message,) = await received(d)
        assert message.attempt == 1


async def test_a_seat_holds_nothing_between_two_calls() -> None:
    """B27: a lease that came after its caller was answered goes back at once, uncounted."""
    async with fake_dovetail(timelines=["t"]) as d:
        await d.timeline("t").schedule(b"now")
        await d.timeline("t").schedule(b"soon", delay="8ms")
        found = await received(d, limit=10)
        assert [each.body for each in found] == [b"now"]
        await d.settle()
        counts = (await d.timeline("t").describe()).counts
        assert counts.leased == 1
        (left,) = [each for each in await d.timeline("t").peek() if each.body == b"soon"]
        assert (left.attempts, left.holder) == (0, None)


async def test_seats_are_taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """B27: calls under one name share seats, calls at once have one each, and both are bounded."""
    monkeypatch.setattr(receiving, "SEATS_MAX", 2)
    async with fake_dovetail(timelines=["t"]) as d:
        for number in range(4):
            await d.timeline("t").schedule(b"%d" % number)
            (message,) = await received(d)
            assert message.body == b"%d" % number
            await receiver_of(d).done("t", [message.handle])
        assert len((await d.timeline("t").describe()).consumers) == 1

        calls = [asyncio.ensure_future(received(d, wait_ms=1_000)) for _ in range(2)]
        await d.advance("10ms")
        names = {each.id for each in (await d.timeline("t").describe()).consumers}
        assert names == {"c@fake", "c@fake/1"}
        with pytest.raises(Throttled, match="2 consumers"):
            await received(d, consumer="third")
        await asyncio.gather(*calls)
        await d.advance("20s")
        assert await received(d, consumer="third") == []


async def test_a_seat_is_free_though_another_one_is_leased_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B27: what the store is asked for others holds no seat, so the next call needs no new one."""
    lease = MemoryStore.lease
    held = {"c@fake": asyncio.Event(), "other@fake": asyncio.Event()}

    async def slow(store: MemoryStore, asks: Any, **more: Any) -> Any:
        await held[asks[0].consumer].wait()
        return await lease(store, asks, **more)

    async with fake_dovetail(timelines=["t"]) as d:
        receiver, running = receiver_of(d), d._service.timelines["t"]
        await asyncio.gather(received(d), received(d, consumer="other"))
        await d.advance("2s")
        await d.timeline("t").schedule_many([Draft(b"x")] * 50)
        monkeypatch.setattr(MemoryStore, "lease", slow)
        wanted = {"limit": 1, "wait_ms": 100, "lease_ms": LEASE_MS}
        try:
            first = asyncio.ensure_future(receiver.receive("t", consumer="c", **wanted))
            await d.settle()
            other = asyncio.ensure_future(receiver.receive("t", consumer="other", **wanted))
            await d.settle()
            held["c@fake"].set()
            assert len(await first) == 1
            assert len(running._under_way) == 1
            assert [seat.taken for seat in receiver._seats] == [False, True]
        finally:
            for each in held.values():
                each.set()
            assert len(await other) == 1


async def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """B27, R3: with a clear error, and nothing is leased; a large answer is cut, uncounted."""
    async with fake_dovetail(timelines=["t"]) as d:
        await d.timeline("t").alter(lease_ms_max=60_000)
        await d.timeline("t").schedule(b"x" * 600)
        await d.timeline("t").schedule(b"y" * 600)
        for lease_ms in (1, 60_001):
            with pytest.raises(InvalidInput, match="lease"):
                await received(d, lease_ms=lease_ms)
        with pytest.raises(TopicUnknown):
            await received(d, "none")
        assert not receiver_of(d)._seats

        monkeypatch.setattr(receiving, "ANSWER_BYTES_MAX", 1_000)
        (first,) = await received(d)
        with pytest.raises(InvalidInput, match="longer"):
            await receiver_of(d).extend("t", [first.handle], lease_ms=60_001)
        (second,) = await received(d)
        assert {first.body[:1], second.body[:1]} == {b"x", b"y"}
        assert second.attempt == 1


async def test_a_timeline_that_is_deleted_ends_the_wait() -> None:
    """B27, B4: whoever waits is told at once."""
    async with fake_dovetail() as d:
        await d.timeline("t").create(config_of({}))
        calling = asyncio.ensure_future(received(d, wait_ms=30_000))
        await d.advance("100ms")
        await d.timeline("t").delete()
        with pytest.raises(TopicUnknown):
            await calling


async def test_nul_in_a_reason_is_made_readable() -> None:
    """B27, R6: PostgreSQL does not store it, and the release must not fail for it."""
    async with fake_dovetail(timelines=["t"]) as d:
        await d.timeline("t").schedule(b"x")
        (message,) = await received(d)
        await receiver_of(d).dead("t", [(message.handle, "a\0b")])
        (letter,) = await d.timeline("t").dead()
        assert (letter.reason, letter.state) == ("a\N{REPLACEMENT CHARACTER}b", State.DEAD)


async def test_a_seat_is_left_whatever_becomes_of_what_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B27, R5: a store that fails then must not cost a seat for ever, nor the answer."""
    monkeypatch.setattr(receiving, "ANSWER_BYTES_MAX", 1_000)
    monkeypatch.setattr(receiving, "SEATS_MAX", 1)
    async with fake_dovetail(timelines=["t"]) as d:
        for _ in range(2):
            await d.timeline("t").schedule(b"x" * 600)

        async def fail(*_: Any) -> Any:
            raise Unavailable("the store is away")

        with monkeypatch.context() as away:
            away.setattr(receiver_of(d)._requests, "release_leases", fail)
            assert len(await received(d)) == 1
            await d.settle()
        await d.advance("20s")
        assert not receiver_of(d)._seats
        assert await received(d, consumer="other", lease_ms=2_000) == []


async def test_an_answer_that_meets_a_caller_on_its_way_out_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B27, B13: in the same turn of the loop; at once and uncounted, not when the lease ends."""
    async with fake_dovetail(timelines=["t"]) as d:
        wanted = {"consumer": "c", "limit": 5, "wait_ms": 20_000, "lease_ms": LEASE_MS}
        calling = asyncio.ensure_future(receiver_of(d).receive("t", **wanted))  # type: ignore[arg-type]
        await d.advance("1s")
        push = ConsumerSession.push_due

        def push_and_go(self: ConsumerSession, now_ms: float) -> list[Leased]:
            left = push(self, now_ms)
            if left:
                calling.cancel()
            return left

        with monkeypatch.context() as leaving:
            leaving.setattr(ConsumerSession, "push_due", push_and_go)
            await d.timeline("t").schedule(b"x")
            await d.settle()
        assert calling.cancelled()
        (message,) = await received(d)
        assert (message.body, message.attempt) == (b"x", 1)
