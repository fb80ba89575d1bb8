"""Recurring schedules: when they fire, and what happens to times that passed."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidInput
from dovetail.timeline.client.fake import fake_dovetail
from dovetail.timeline.engine.schedule import firing_at, new_schedule, next_after

VIENNA = ZoneInfo("Europe/Vienna")


def ms(*parts: int, zone: ZoneInfo = VIENNA) -> int:
    return round(datetime(*parts, tzinfo=zone).timestamp() * 1000)  # type: ignore[misc,arg-type]


def test_cron_follows_the_wall_clock_of_its_zone() -> None:
    """B19: 03:30 stays 03:30 when summer time begins."""
    schedule = new_schedule(
        "n", b"", now_ms=ms(2026, 3, 27, 12), cron="30 3 * * *", zone="Europe/Vienna"
    )
    assert schedule.next_ms == ms(2026, 3, 28, 3, 30)
    after = next_after(schedule, ms(2026, 3, 28, 3, 30))
    assert after == ms(2026, 3, 29, 3, 30)
    assert after - schedule.next_ms == 23 * 3_600_000


@given(
    every_ms=st.integers(100, 10**6),
    start_ms=st.integers(0, 10**12),
    away_ms=st.integers(0, 10**8),
)
def test_every_n_keeps_its_rhythm(every_ms: int, start_ms: int, away_ms: int) -> None:
    """B19: times lie on one grid from the start on, and the next is the first after now."""
    schedule = new_schedule("n", b"", now_ms=start_ms, every_ms=every_ms)
    assert schedule.next_ms == start_ms + every_ms
    following = next_after(schedule, start_ms + away_ms)
    assert (following - start_ms) % every_ms == 0
    assert 0 < following - (start_ms + away_ms) <= every_ms


@given(away_ms=st.integers(0, 40 * 24 * 3_600_000))
def test_of_missed_times_the_latest_fires_once(away_ms: int) -> None:
    """B19: a node that was away for weeks does not fire a flood."""
    for kind in ({"every_ms": 60_000}, {"cron": "*/7 * * * *"}, {"cron": "0 9 1 * *"}):
        schedule = new_schedule("n", b"x", now_ms=ms(2026, 1, 1), **kind)  # type: ignore[arg-type]
        now_ms = schedule.next_ms + away_ms
        firing = firing_at(schedule, now_ms=now_ms, bucket=0)
        assert firing.expected_ms == schedule.next_ms
        assert schedule.next_ms <= firing.message.due_ms <= now_ms
        assert firing.following_ms > now_ms
        assert next_after(schedule, firing.message.due_ms) == firing.following_ms


@pytest.mark.parametrize(
    ("given_by", "told"),
    [
        ({"cron": "* * *"}, "not a cron line"),
        ({"cron": "61 * * * *"}, "not a cron line"),
        ({"cron": "0 0 30 2 *"}, "not a cron line"),
        ({"cron": "0 3 * * *", "zone": "Mars/Olympus"}, "no time zone"),
        ({"every_ms": 99}, "too often"),
        ({}, "either cron or every"),
        ({"cron": "0 3 * * *", "every_ms": 1_000}, "either cron or every"),
    ],
)
def test_a_schedule_that_can_not_be_is_refused(given_by: dict[str, object], told: str) -> None:
    """B19: when it is made, with what to write instead."""
    with pytest.raises(InvalidInput, match=told):
        new_schedule("n", b"", now_ms=0, **given_by)  # type: ignore[arg-type]


async def test_an_interval_of_a_month_is_taken_and_one_of_a_century_refused() -> None:
    """B19, R6: 25 days were refused, with the place of a field in a frame for a reason."""
    async with fake_dovetail(timelines=["t"]) as d:
        await d.timeline("t").put_schedule("monthly", b"", every="30d")
        (made,) = await d.timeline("t").schedules()
        assert made.every_ms == 30 * 86_400_000
        with pytest.raises(InvalidInput, match="too seldom"):
            await d.timeline("t").put_schedule("never", b"", every="36500d")
