"""Which broker a client should be at; rates, signals and limits of sessions."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import Throttled
from dovetail.timeline.engine.assignment import Member
from dovetail.timeline.engine.loader import Push
from dovetail.timeline.engine.selection import BEST, LOAD_MAX, MOST, Crowd, Load, preference
from dovetail.timeline.engine.signals import Busyness, Lateness, Rate, suggested
from dovetail.timeline.message import Leased, MessageId, Version
from dovetail.timeline.session import ConsumerSession, RateLimit, Waiter


def loads(**consumers: dict[str, int]) -> list[Load]:
    return [Load(name, True, found) for name, found in consumers.items()]


def test_consumers_gather_up_to_the_best_number() -> None:
    """B5: brokers that serve the timeline and have fewer than the best, the fuller first."""
    found = preference(loads(a={"t": 3}, b={"t": 1}, c={}, d={"t": 4}, e={"t": 7}), "t")
    assert found == ["a", "b", "d", "c", "e"]


def test_how_many_gather_is_a_setting() -> None:
    """B5: the best and the most, both."""
    found = preference(loads(a={"t": 1}, b={"t": 2}, c={}), "t", crowd=Crowd(1, 2))
    assert found == ["a", "c", "b"]


def test_then_the_broker_with_the_fewest_timelines() -> None:
    """B5: for a timeline that nobody serves yet."""
    found = preference(loads(a={"x": 1, "y": 1}, b={"x": 9}, c={"x": 2}), "t")
    assert found == ["c", "b", "a"]


def test_a_degraded_broker_comes_last() -> None:
    """B5: live health weighs in."""
    brokers = [Load("a", False, {"t": 3}), Load("b", True, {"x": 50})]
    assert preference(brokers, "t") == ["b", "a"]


def test_live_load_weighs_in() -> None:
    """B5, B2: one that has more to do than it can carry is nobody's first choice, and among equals
    the one with less to do is; a load that trembles changes nothing."""
    brokers = [Load("a", True, {"t": 3}, LOAD_MAX), Load("b", True, {"x": 5}, 0.1)]
    assert preference(brokers, "t") == ["b", "a"]
    assert preference([Load("a", True, {}, 0.5), Load("b", True, {}, 0.1)], "t") == ["b", "a"]
    assert preference([Load("a", True, {}, 0.13), Load("b", True, {}, 0.1)], "t") == ["a", "b"]


def test_the_load_is_the_part_of_a_processor_that_is_used() -> None:
    """B2: of late; one busy second in a quiet minute is soon forgotten."""
    meter = Busyness()
    used_ms = 0.0
    for second in range(61):
        used_ms += 500
        meter.on_times(used_ms=used_ms, now_ms=1_000.0 * second)
    assert meter.load == pytest.approx(0.5, abs=0.01)
    for second in range(61, 121):
        meter.on_times(used_ms=used_ms, now_ms=1_000.0 * second)
    assert meter.load < 0.01


@given(st.integers(1, 60), st.integers(1, 8))
def test_who_follows_the_preference_fills_brokers_evenly(consumers: int, brokers: int) -> None:
    """B5: no broker goes above the most while another one is below the best."""
    counts = dict.fromkeys("abcdefgh"[:brokers], 0)
    for _ in range(consumers):
        first = preference([Load(n, True, {"t": c} if c else {}) for n, c in counts.items()], "t")[
            0
        ]
        counts[first] += 1
    if max(counts.values()) > MOST:
        assert min(counts.values()) >= BEST
    assert sum(counts.values()) == consumers


def test_a_producer_keeps_to_its_rate() -> None:
    """B19: a burst of a second's worth, then what the rate gives, told how long to wait."""
    rate = RateLimit(100)
    rate.take(100, now_ms=0)
    with pytest.raises(Throttled, match=r"100 messages a second.*try again in 101 ms"):
        rate.take(10, now_ms=0)
    rate.take(10, now_ms=101)
    RateLimit(0).take(10**9, now_ms=0)


def test_a_batch_above_the_burst_is_let_in_on_credit() -> None:
    """B19: or it could never be sent."""
    rate = RateLimit(10)
    rate.take(1_000, now_ms=0)
    with pytest.raises(Throttled):
        rate.take(1, now_ms=50_000)
    rate.take(1, now_ms=101_000)


def test_rates_fade() -> None:
    """B14: events a second, of late."""
    rate = Rate()
    for at in range(0, 60_000, 10):
        rate.add(1, now_ms=at)
    assert rate.per_second(now_ms=60_000) == pytest.approx(100, rel=0.05)
    assert rate.per_second(now_ms=120_000) < 1


def test_how_many_consumers_would_do() -> None:
    """B14: to keep up with what comes, and to work off a backlog within a minute."""
    assert suggested(backlog=0, arrivals=0, done=0, consumers=0) == 0
    assert suggested(backlog=5, arrivals=0, done=0, consumers=0) == 1
    assert suggested(backlog=0, arrivals=100, done=100, consumers=4) == 4
    assert suggested(backlog=6_000, arrivals=100, done=100, consumers=4) == 8
    assert suggested(backlog=0, arrivals=10, done=100, consumers=4) == 1


def test_messages_for_later_need_no_more_consumers() -> None:
    """B14: a million reminders for next month do not have a thousand workers started now."""
    assert suggested(backlog=0, arrivals=1_000, done=1, consumers=2) == 2
    assert suggested(backlog=0, arrivals=0.4, done=0.01, consumers=1) == 1


def test_lateness_by_percent() -> None:
    """B7, F87: of the last thousand deliveries; without any it is unknown, which is not zero."""
    late = Lateness()
    assert late.percentile(99) == -1
    late.add(range(1_000))
    assert (late.percentile(50), late.percentile(99)) == (500, 990)


async def test_waiting_requests_are_answered_in_order_and_in_time() -> None:
    """B7, B14: what is due leaves with the first request that waits; credit counts what is held."""
    loop = asyncio.get_running_loop()
    session = ConsumerSession(1, Member("a"), lease_ms=1_000, seen_ms=0)
    first, second = (Waiter(2, 100, loop.create_future()) for _ in range(2))
    session.waiters.extend([first, second])
    for number, at_ms in [(3, 50), (0, 10), (2, 10), (1, 10)]:
        leased = Leased(MessageId(number), Version(1), at_ms, at_ms + 1_000, 1, 0, 0, b"", b"")
        session.put([Push(at_ms, 0, number, leased, "a")])
    assert session.credit == 0
    assert not session.push_due(9)
    assert session.wake_ms() == 10
    assert [leased.id for leased in session.push_due(10)] == [0, 1, 2]
    assert [leased.id for leased in first.answer.result()] == [0, 1]
    assert [leased.id for leased in second.answer.result()] == [2]
    third = Waiter(5, 40, loop.create_future())
    session.waiters.append(third)
    assert session.credit == 4
    session.end_waiting(40)
    assert third.answer.result() == []
    fourth = Waiter(5, 90, loop.create_future())
    session.waiters.append(fourth)
    fourth.answer.cancel()
    assert not session.push_due(60)
    assert len(session.outbox) == 1
