"""Order keys, limits for all consumers together, lives and key rules, against a node in memory."""

import asyncio
import random

import pytest

from dovetail.errors import Exists, InvalidInput
from dovetail.timeline import Draft, Message, Retry
from dovetail.timeline.client.fake import fake_dovetail
from dovetail.timeline.config import config_of
from dovetail.timeline.engine.lives import Allowance, Pace, Tokens
from dovetail.timeline.engine.signals import suggested
from dovetail.timeline.message import BUCKETS_MAX, BatchId, NewMessage, Status


async def test_one_at_a_time_and_in_order_within_a_key() -> None:
    """B24: also when an attempt fails; other keys and messages without one go on meanwhile."""
    async with fake_dovetail(timelines=["t"]) as d:
        rng = random.Random(1)
        seen: list[tuple[str, int]] = []
        running: set[str] = set()

        for _ in range(2):

            @d.consumer("t", concurrency=8)
            async def handle(message: Message) -> None:
                key = message.order_key or ""
                assert key not in running or not key
                running.add(key)
                await asyncio.sleep(0)
                running.discard(key)
                if rng.random() < 0.3:
                    raise Retry("2s")
                seen.append((key, int(message.body)))

        await d.advance("2s")
        drafts = [
            Draft(b"%d" % n, delay=f"{n * 10}ms", order_key="abc"[n % 3] if n % 4 else None)
            for n in range(40)
        ]
        await d.timeline("t").schedule_many(rng.sample(drafts, len(drafts)))
        await d.advance("5m")
        assert sorted(number for _, number in seen) == list(range(40))
        for key in "abc":
            numbers = [number for found, number in seen if found == key]
            assert numbers == sorted(numbers)


async def test_an_earlier_message_goes_first_and_a_dead_one_makes_way() -> None:
    """B24: the order is that of due times, whatever came first; nothing waits for what is dead,
    cancelled or moved behind."""
    async with fake_dovetail() as d:
        t = d.timeline("t")
        await t.create(config_of({"attempts_max": 1}))
        seen: list[bytes] = []

        @d.consumer("t")
        async def handle(message: Message) -> None:
            seen.append(message.body)
            if message.body == b"dies":
                raise ValueError

        later = await t.schedule(b"moved", delay="10s", order_key="k")
        gone = await t.schedule(b"cancelled", delay="9s", order_key="k")
        await t.schedule(b"last", delay="1h", order_key="k")
        await t.schedule(b"dies", delay="1s", order_key="k")
        await d.advance("2s")
        assert seen == [b"dies"]
        await t.cancel(gone.id)
        await t.move(later.id, delay="2h")
        await d.advance("1h")
        assert seen == [b"dies", b"last"]
        await d.advance("2h")
        assert seen == [b"dies", b"last", b"moved"]


async def test_all_consumers_together_have_a_pace() -> None:
    """B25: so many a second, and so many in hand at once."""
    async with fake_dovetail() as d:
        await d.timeline("t").create(config_of({"pace_max": 10}))
        times: list[int] = []
        for _ in range(3):

            @d.consumer("t")
            async def handle(message: Message) -> None:
                times.append(d.now_ms)

        await d.timeline("t").schedule_many([Draft(b"")] * 50)
        await d.advance("2s")
        assert 15 <= len(times) <= 21
        await d.advance("6s")
        assert len(times) == 50

        await d.timeline("u").create(config_of({"in_hand_max": 2}))
        free, most, now = asyncio.Event(), 0, 0
        for _ in range(2):

            @d.consumer("u", concurrency=4)
            async def hold(message: Message) -> None:
                nonlocal most, now
                now += 1
                most = max(most, now)
                await free.wait()
                now -= 1

        await d.timeline("u").schedule_many([Draft(b"")] * 6)
        for _ in range(200):
            await asyncio.sleep(0.005)
            for running in d._service.timelines.values():
                running.wake()
        assert (now, most) == (2, 2)
        free.set()
        await d.advance("5s")
        assert most == 2
        assert (await d.timeline("u").describe()).counts.leased == 0


def test_tokens_come_with_time() -> None:
    """B25: never more than the rate and a tenth of a second ahead; a clock that goes back gives
    none."""
    tokens, went = Tokens(), 0
    for now_ms in range(0, 10_000, 7):
        allowance = Allowance(Pace(100, 0), tokens, held=0, now_ms=now_ms)
        count = allowance.limit(1_000)
        allowance.took(count, wanted=1_000)
        went += count
        look_ms = allowance.look_ms()
        assert look_ms is not None
        assert now_ms < look_ms <= now_ms + 11
    assert 990 <= went <= 1_011
    assert Allowance(Pace(100, 0), tokens, held=0, now_ms=0).limit(5) <= 1
    assert Allowance(Pace(0, 3), Tokens(), held=5, now_ms=0).limit(5) == 0
    assert Allowance(Pace(), Tokens(), held=5, now_ms=0).limit(5) == 5


async def test_a_clock_that_is_put_back_does_not_stop_a_pace() -> None:
    """B25, R8: a time that lies an hour ahead in the store is not waited for."""
    async with fake_dovetail(timelines=["t"]) as d:
        await d.timeline("t").alter(pace_max=20)
        handled: list[bytes] = []

        async def handle(message: Message) -> None:
            handled.append(message.body)

        d.consumer("t")(handle)
        for _ in range(5):
            await d.timeline("t").schedule(b"before")
        await d.advance("1s")
        assert len(handled) == 5
        d._manual.jump_wall(-3_600_000)
        await d.advance("20s")
        for _ in range(5):
            await d.timeline("t").schedule(b"behind")
        await d.advance("2s")
        assert handled[5:] == [b"behind"] * 5


async def test_lives_by_timeline_and_by_message() -> None:
    """B25: attempts, rests between them, and a time to live; a message's own come first."""
    async with fake_dovetail() as d:
        t = d.timeline("t")
        await t.create(config_of({"attempts_max": 2, "backoff_ms": 10_000, "ttl_ms": 60_000}))
        tries: dict[bytes, list[int]] = {}

        async def handle(message: Message) -> None:
            tries.setdefault(message.body, []).append(d.now_ms)
            raise ValueError("always")

        await t.schedule(b"late")
        await t.schedule(b"lives", ttl="1h")
        await d.advance("2m")
        d.consumer("t")(handle)
        await t.schedule(b"twice")
        await t.schedule(b"once", attempts=1)
        await t.schedule(b"often", attempts=5, backoff="1s")
        await d.advance("40s")
        await d.advance("10m")
        assert {body: len(times) for body, times in tries.items()} == {
            b"lives": 2,
            b"twice": 2,
            b"once": 1,
            b"often": 5,
        }
        assert 5_000 <= tries[b"twice"][1] - tries[b"twice"][0] <= 11_000
        assert 500 <= tries[b"often"][1] - tries[b"often"][0] <= 2_000
        reasons = {letter.body: letter.reason for letter in await t.dead()}
        assert reasons[b"late"] == "its time to live ended"
        (late,) = [letter for letter in await t.dead() if letter.body == b"late"]
        assert late.attempts == 0


async def test_a_key_that_is_taken() -> None:
    """B26: keep, replace, earlier, fail; and it stays taken for a while."""
    async with fake_dovetail(timelines=["t"]) as d:
        t = d.timeline("t")
        first = await t.schedule(b"1", delay="1h", key="k")
        assert await t.schedule(b"2", key="k") == type(first)(first.id, False)
        with pytest.raises(Exists, match="'k'"):
            await t.schedule(b"3", key="k", on_taken="fail")
        second = await t.schedule(b"4", delay="1h", key="k", on_taken="replace")
        assert second.created
        assert await t.look_up(first.id) == [None]
        moved = await t.schedule(b"5", delay="1m", key="k", on_taken="earlier")
        assert (moved.id, moved.created) == (second.id, False)
        (shown,) = await t.look_up(second.id)
        assert shown is not None
        assert (shown.body, shown.due_ms) == (b"4", d.now_ms + 60_000)
        assert not (await t.schedule(b"6", delay="2h", key="k", on_taken="earlier")).created
        await t.cancel(second.id)

        await t.schedule(b"held", key="h", hold="10m")
        d.consumer("t")(lambda message: None)
        await d.advance("1m")
        again = await t.schedule(b"again", key="h", hold="10m")
        assert not again.created
        await d.advance("10m")
        assert (await t.schedule(b"again", key="h", hold="10m")).created


async def test_terms_that_cannot_be_are_refused() -> None:
    """B24, B25, B26, R6: at the entry, with what is wrong, and nothing is stored."""
    async with fake_dovetail(timelines=["t"]) as d:
        t = d.timeline("t")
        for terms in (
            {"order_key": ""},
            {"order_key": "a\0b"},
            {"order_key": "\ud800"},
            {"order_key": "x" * 256},
            {"attempts": -1},
            {"attempts": 10_001},
            {"ttl": "-1s"},
            {"backoff": "40d"},
            {"on_taken": "nonsense", "key": "k"},
            {"on_taken": "replace"},
            {"hold": "1s"},
        ):
            with pytest.raises(InvalidInput):
                await t.schedule(b"x", **terms)  # type: ignore[arg-type]
        assert (await t.describe()).counts.waiting == (await t.describe()).counts.due == 0
        for settings in ({"pace_max": -1}, {"in_hand_max": -1}, {"ttl_ms": -1}, {"backoff_ms": 0}):
            with pytest.raises(InvalidInput):
                await t.alter(**settings)


def test_a_suggestion_is_never_more_than_can_be() -> None:
    """B14: after a long rest the rate of what was done is nearly nothing, and the report was too
    large to be sent."""
    assert suggested(backlog=1, arrivals=1.0, done=1e-300, consumers=3) == BUCKETS_MAX


async def test_a_batch_sent_again_has_its_outcomes_whatever_the_time() -> None:
    """B6, O12: what was too far ahead then may not be now; the batch is known all the same."""
    async with fake_dovetail(timelines=["t"]) as d:
        t = d.timeline("t")
        await t.alter(ahead_ms_max=3_600_000)
        sent = [NewMessage(d.now_ms + 3_602_000, b"far"), NewMessage(d.now_ms, b"near")]
        first = await t.insert(sent, batch=BatchId(7, 1))
        await d.advance("5s")
        assert await t.insert(sent, batch=BatchId(7, 1)) == first
        assert [each.status for each in first] == [Status.TOO_FAR, Status.OK]
