"""Operating a timeline that is in use: altered, paused, resumed, purged."""

import pytest
from tests.unit.timeline.test_fake import seen_by

from dovetail.errors import InvalidInput, TopicUnknown
from dovetail.timeline.client.fake import fake_dovetail


async def test_a_timeline_is_paused_and_resumed() -> None:
    """B23: nothing is pushed meanwhile, what is scheduled is stored, and nothing is lost."""
    async with fake_dovetail(timelines=["t"]) as d:
        t = d.timeline("t")
        seen = await seen_by(d)
        await t.schedule(b"1")
        await d.advance("1s")
        await t.pause()
        await t.schedule(b"2")
        await d.advance("1m")
        assert [message.body for message in seen] == [b"1"]
        assert (await t.describe()).config.paused
        await t.resume()
        await d.advance("1s")
        assert [message.body for message in seen] == [b"1", b"2"]


async def test_settings_of_a_timeline_in_use_are_changed() -> None:
    """B23: at once, for its consumers and producers; a value that cannot be changes nothing."""
    async with fake_dovetail(timelines=["t"]) as d:
        t = d.timeline("t")

        @d.consumer("t")
        async def handle(message: object) -> None:
            raise ValueError("always")

        await t.alter(attempts_max=1, dealer="ranges", window_ms=200)
        await t.schedule(b"x")
        await d.advance("1s")
        assert len(await t.dead()) == 1
        await t.alter(body_bytes_max=2)
        with pytest.raises(InvalidInput, match="body_bytes_max"):
            await t.schedule(b"too long")

        before = (await t.describe()).config
        for settings in ({"attempts_max": 0}, {"buckets": 7}, {"nonsense": 1}):
            with pytest.raises(InvalidInput):
                await t.alter(**settings)
        assert (await t.describe()).config == before
        with pytest.raises(TopicUnknown):
            await d.timeline("none").alter(attempts_max=2)


async def test_a_timeline_is_purged() -> None:
    """B23: of everything that nobody holds; dead letters and schedules stay."""
    async with fake_dovetail(timelines=["t"]) as d:
        t = d.timeline("t")
        for number in range(5):
            await t.schedule(b"%d" % number, delay="1h" if number % 2 else 0, key=f"k{number}")
        assert await t.purge() == 5
        assert await t.purge() == 0
        assert (await t.describe()).counts.waiting == 0
        assert (await t.schedule(b"again", key="k1")).created, "the keys are free"
