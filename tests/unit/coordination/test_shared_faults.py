"""A coordinator that another process shares: lost connections, lost answers, cancelled readers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.unit.coordination.driving import next_of, open_file, put
from tests.unit.coordination.sharing import SharingNode, sharing

from dovetail.coordination import EmbeddedCoordinator, EmbeddedLimits, Put, Revision, WatchEvent
from dovetail.coordination import calls as coordination_calls
from dovetail.coordination.shared import SharedCoordinator
from dovetail.errors import CoordinationDown, Uncertain, WatchGap


@asynccontextmanager
async def shared(
    path: Path, limits: EmbeddedLimits | None = None
) -> AsyncIterator[tuple[EmbeddedCoordinator, SharingNode, SharedCoordinator]]:
    async with (
        await open_file(path, limits=limits) as embedded,
        sharing(embedded) as node,
        await SharedCoordinator.open(node.address, client_id="test") as coordinator,
    ):
        yield embedded, node, coordinator


async def test_a_transaction_without_an_answer_is_uncertain(path: Path) -> None:
    """L9: what was sent may have happened; what was not sent has not, and says so."""
    async with shared(path) as (embedded, node, coordinator):
        answer_all = node.dispatch
        asked = asyncio.Event()

        def swallow(connection, frame):  # type: ignore[no-untyped-def]
            if node.keys[-1] != coordination_calls.CALLS.key(coordination_calls.Transact):
                return answer_all(connection, frame)
            asked.set()
            return None

        node.dispatch = swallow
        waiting = asyncio.create_task(coordinator.transact([Put("a", b"")]))
        async with asyncio.timeout(10):
            await asked.wait()
        await node.kill()
        with pytest.raises(Uncertain):
            await waiting

        await coordinator.close()
        with pytest.raises(CoordinationDown):
            await coordinator.transact([Put("b", b"")])
        assert (await embedded.range("")).items == ()


async def test_a_watch_outlives_its_connection(path: Path) -> None:
    """L9: a question that was lost is asked again; each revision comes once and in order."""
    async with shared(path) as (embedded, node, coordinator):
        start = await put(embedded, "w/0")
        async with coordinator.watch("w/", after=start) as events:
            waiting = asyncio.create_task(next_of(events))
            await asyncio.sleep(0)
            await node.kill()
            first = await put(embedded, "w/1")
            second = await put(embedded, "w/2")
            await node.open()
            assert await waiting == (WatchEvent("w/1", b"", first),)
            assert await next_of(events) == (WatchEvent("w/2", b"", second),)


async def test_a_cancelled_reader_has_lost_nothing(path: Path) -> None:
    """L9: a reader that gives up waiting, and reads on later, gets every revision."""
    async with shared(path) as (embedded, _, coordinator):
        start = await put(embedded, "w/0")
        async with coordinator.watch("w/", after=start) as events:
            for _ in range(3):
                waiting = asyncio.create_task(next_of(events))
                await asyncio.sleep(0.01)
                waiting.cancel()
                await asyncio.wait({waiting})
            revisions = [await put(embedded, f"w/{number}") for number in range(3)]
            assert [(await next_of(events))[0].revision for _ in range(3)] == revisions


async def test_a_quiet_watch_keeps_up_with_the_history(path: Path) -> None:
    """L9: what is of no concern to a watch never makes it fall behind; a slow reader does."""
    limits = EmbeddedLimits(history_events_max=10)
    async with shared(path, limits) as (embedded, _, coordinator):
        start = await put(embedded, "w/0")
        async with (
            coordinator.watch("w/", after=start) as events,
            coordinator.watch("", after=start) as slow,
        ):
            waiting = asyncio.create_task(next_of(events))
            for number in range(50):
                await put(embedded, f"other/{number}")
            last = await put(embedded, "w/1")
            assert await waiting == (WatchEvent("w/1", b"", last),)
            with pytest.raises(WatchGap):
                await next_of(slow)


async def test_a_long_answer_is_cut_between_revisions(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L9: a reader that is far behind gets everything, some at a time."""
    monkeypatch.setattr(coordination_calls, "CHANGES_BYTES_MAX", 100)
    async with shared(path) as (embedded, _, coordinator):
        start = await put(embedded, "w/start")
        written = [await put(embedded, f"w/{number}", bytes(40)) for number in range(20)]
        position = Revision(start)
        seen: list[Revision] = []
        while len(seen) < 20:
            position, found = await embedded.changes(
                "w/", after=position, wait_ms=1000, bytes_max=100
            )
            assert len(found) <= 3
            seen += [events[0].revision for events in found]
        assert seen == written
        async with coordinator.watch("w/", after=start) as events:
            assert [(await next_of(events))[0].revision for _ in range(20)] == written
