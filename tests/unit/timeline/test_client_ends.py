"""What a client is given at the ends: nothing of something, half of it, and a second time."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from dovetail.errors import InvalidInput
from dovetail.timeline.client.fake import fake_dovetail
from dovetail.timeline.client.moments import moment_ms


@pytest.mark.parametrize("lease", ["0s", 0, 0.0001])
async def test_a_lease_of_nothing_is_refused(lease: str | float) -> None:
    """R8: the broker took the consumer for a producer, and it waited for ever for a message."""
    async with fake_dovetail(timelines=["t"]) as d:
        with pytest.raises(InvalidInput, match="at least 1 ms"):
            d.consumer("t", lease=lease)
        with pytest.raises(InvalidInput, match="at least 1 ms"):
            async with d.lead("t", lease=lease):
                pass


@pytest.mark.parametrize("name", ["concurrency", "batch", "prefetch"])
@pytest.mark.parametrize("count", [1.5, "4", True])
async def test_a_count_is_a_whole_number(name: str, count: object) -> None:
    """R6: a consumer of half a handler ended when it was to begin."""
    async with fake_dovetail(timelines=["t"]) as d:
        with pytest.raises(InvalidInput, match="not a whole number"):
            d.consumer("t", **{name: count})  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"attempts": 0}, {"ttl": "0s"}, {"backoff": 0.0001}])
async def test_none_of_something_is_not_the_timelines_own(given: dict[str, Any]) -> None:
    """R8: 0 is what travels for the setting of the timeline: the opposite of what was asked."""
    async with fake_dovetail(timelines=["t"]) as d:
        with pytest.raises(InvalidInput, match="must be above 0"):
            await d.timeline("t").schedule(b"x", **given)


async def test_a_client_is_entered_once() -> None:
    """R5: its consumers had ended, and its timelines asked a connection that was closed."""
    async with fake_dovetail(timelines=["t"]) as d:
        with pytest.raises(InvalidInput, match="entered before"):
            async with d:
                pass
        assert (await d.timeline("t").schedule(b"x")).created
    assert not d.health()[0]
    with pytest.raises(RuntimeError, match="not connected"):
        d.timeline("t")
    with pytest.raises(InvalidInput, match="entered before"):
        async with d:
            pass


def test_the_first_day_of_the_calendar_is_refused() -> None:
    """R6: as `InvalidInput`, and not as what the platform raises."""
    for odd in (datetime.min, datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))):
        with pytest.raises(InvalidInput, match="not a time since 1970"):
            moment_ms(odd)
