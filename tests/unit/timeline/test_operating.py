"""Operating a timeline that is in use: altered, paused, resumed, purged."""

from typing import Any

import pytest
from tests.unit.timeline.test_fake import seen_by
from tests.unit.timeline.test_forwarding import reject

from dovetail.access import Kind, Operation
from dovetail.errors import Forbidden, InvalidInput, TopicUnknown
from dovetail.timeline import Draft, TimelineConfig, Where, frames, operating
from dovetail.timeline.client.fake import fake_dovetail
from dovetail.timeline.operating import SELECT_MAX
from dovetail.timeline.stores.memory import MemoryStore


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


async def test_large_messages_are_shown_as_far_as_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """B20, R8: by bytes, never by a number alone: a client could not take the answer, nor a node
    hold it; and what is read at once is bounded by the largest that there can be."""
    monkeypatch.setattr(operating, "FOUND_BYTES", 10_000)
    read = list[int]()

    def noted(name: str) -> None:
        inner = getattr(MemoryStore, name)

        async def look(self: MemoryStore, *given: Any, **more: Any) -> Any:
            found = await inner(self, *given, **more)
            read.append(sum(len(shown.body) for shown in found))
            return found

        monkeypatch.setattr(MemoryStore, name, look)

    for name in ("peek", "dead", "look_up", "look_up_keys"):
        noted(name)
    async with fake_dovetail() as d:
        t = d.timeline("t")
        await t.create(TimelineConfig(body_bytes_max=3_000))
        ids = [(await t.schedule(b"%d" % n, delay="1d", key=f"s{n}")).id for n in range(8)]
        ids += [(await t.schedule(bytes(2_500), delay="2d", key=f"k{n}")).id for n in range(20)]
        assert len(await t.peek(8)) == 8
        assert 12 <= len(await t.peek(1_000)) <= 15
        with pytest.raises(InvalidInput, match="look up fewer"):
            await t.look_up(*ids)
        assert len(await t.look_up(*ids[:12])) == 12

        reject(d)
        await d.advance("3d")
        assert 12 <= len(await t.dead(limit=1_000)) <= 15
        assert len([shown async for shown in t.all_dead()]) == 28
        assert max(read) <= 2 * 10_000

        with pytest.raises(InvalidInput, match="body and headers"):
            await t.put_schedule("s", b"", every="1h", headers={"h": bytes(3_000)})


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


async def test_messages_are_cancelled_and_moved_by_filter() -> None:
    """B23: by key, header and age; counted before, page by page, and gone on with from any page."""
    async with fake_dovetail(timelines=["t"]) as d:
        t = d.timeline("t")
        many = [Draft(b"x", delay="1h", key=f"ada/{n}") for n in range(SELECT_MAX + 5)]
        await t.schedule_many([*many, Draft(b"y", delay="1h", key="bob/1", headers={"h": b"1"})])
        await t.schedule(b"old", headers={"h": b"2"})
        await d.advance("10m")

        ada = Where(key_prefix="ada/")
        found = await t.preview(ada)
        assert (found.matched, found.done, len(found.ids)) == (SELECT_MAX + 5, 0, 100)
        pages = t.select("cancel", ada)
        first = await anext(pages)
        assert (first.matched, first.done, first.more) == (SELECT_MAX, SELECT_MAX, True)
        await pages.aclose()  # type: ignore[attr-defined]
        rest = [page async for page in t.select("cancel", ada, after=first.after)]
        assert [(page.matched, page.done, page.more) for page in rest] == [(5, 5, False)]
        assert {shown.body for shown in await t.peek()} == {b"old", b"y"}

        for where, matched in (
            (Where(header="h"), 2),
            (Where(header="h", header_value=b"1"), 1),
            (Where(header="h", header_value=b"3"), 0),
            (Where(older_ms=60_000), 1),
            (Where(older_ms=60_000, header="h", header_value=b"1"), 0),
            (Where(), 2),
        ):
            assert (await t.preview(where)).matched == matched, where
        moved = await t.move_where(Where(header="h", header_value=b"1"), delay="1s")
        assert (moved.matched, moved.done) == (1, 1)
        seen = await seen_by(d)
        await d.advance("2s")
        assert {message.body for message in seen} == {b"old", b"y"}


async def test_dead_letters_are_replayed_and_dropped_by_filter() -> None:
    """B23: by reason, key, header and age; messages that wait are not meant."""
    async with fake_dovetail(timelines=["t"]) as d:
        t = d.timeline("t")
        reject(d)
        await t.schedule(b"a", key="k1", headers={"h": b"1"})
        await t.schedule(b"b", key="k2")
        await d.advance("1m")
        await t.schedule(b"c", key="k3")
        await t.schedule(b"later", delay="1d", key="k4")
        await d.advance("1s")
        assert (await t.preview(Where(key_prefix="k"), dead=True)).matched == 3
        assert (await t.preview(Where(older_ms=30_000), dead=True)).matched == 2
        dropped = await t.drop_where(Where(reason="no b"))
        assert (dropped.matched, dropped.done) == (1, 1)
        await t.pause()
        replayed = await t.replay_where(Where(header="h"))
        assert (replayed.matched, replayed.done) == (1, 1)
        assert {shown.body for shown in await t.peek()} == {b"a", b"later"}
        assert (await t.replay_where(Where())).done == 1
        assert await t.dead() == []


async def test_one_that_is_handled_stays_and_a_filter_that_cannot_be_is_refused() -> None:
    """B23, R6: what somebody holds is counted and not changed; an empty filter removes nothing."""
    async with fake_dovetail(timelines=["t"]) as d:
        t = d.timeline("t")
        await t.schedule(b"x", key="k")
        store = d._service.timelines["t"]._store
        for row in store._rows.values():  # type: ignore[attr-defined]
            row.holder, row.visible_ms = "somebody", d.now_ms + 60_000
        found = await t.cancel_where(Where(key_prefix="k"))
        assert (found.matched, found.done) == (1, 0)
        for work in (t.cancel_where, t.drop_where, t.move_where):
            with pytest.raises(InvalidInput, match="which ones"):
                await work(Where())
        with pytest.raises(InvalidInput, match="only dead letters"):
            await t.cancel_where(Where(reason="x"))
        with pytest.raises(InvalidInput, match="needs its name"):
            await t.preview(Where(header_value=b"x"))
        with pytest.raises(InvalidInput):
            await t.preview(Where(older_ms=-1))
        with pytest.raises(InvalidInput):
            await t.preview(Where(key_prefix="\ud800"))
        with pytest.raises(TopicUnknown):
            await d.timeline("none").preview(Where())


async def test_a_filter_wants_the_right_to_read_and_to_write() -> None:
    """B23, R4: which messages fit says what is in them."""

    class Some:
        principal = "frank"

        def __init__(self, *allowed: Operation) -> None:
            self._allowed = allowed

        def allows(self, operation: Operation, kind: Kind, name: str) -> bool:
            return operation in self._allowed

        def allows_some(self, operation: Operation, kind: Kind) -> bool:
            return True

        def demand(self, operation: Operation, kind: Kind, name: str) -> None:
            if operation not in self._allowed:
                raise Forbidden(f"may not {operation.name}")

    async with fake_dovetail(timelines=["t"]) as d:
        answer, request = d._service._dispatcher.answer, frames.Select("t", "preview", Where())
        for one in (Operation.READ, Operation.WRITE):
            with pytest.raises(Forbidden):
                await answer(request, Some(one))
        assert await answer(request, Some(Operation.READ, Operation.WRITE))
