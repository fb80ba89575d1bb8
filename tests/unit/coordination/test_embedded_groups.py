"""The embedded coordinator at work: group commit, watches that fall behind, leases."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.coordination.driving import open_file

from dovetail.clock import ManualClock
from dovetail.coordination import (
    ABSENT,
    EmbeddedCoordinator,
    EmbeddedLimits,
    Outcome,
    Put,
    Revision,
    Unchanged,
    WatchEvent,
)
from dovetail.errors import (
    CoordinationDown,
    LeaseLost,
    Throttled,
    Uncertain,
    WatchGap,
)


@contextmanager
def busy_disk(coordinator: EmbeddedCoordinator) -> Iterator[None]:
    """Holds up every commit while the block runs, as a slow sync would."""
    release = threading.Event()
    coordinator._executor.submit(release.wait)
    try:
        yield
    finally:
        release.set()


async def first_of(events: AsyncIterator[tuple[WatchEvent, ...]]) -> tuple[WatchEvent, ...]:
    return await anext(events)


# ---- group commit


async def test_waiting_transactions_share_commits(path: Path) -> None:
    """L6: a thousand concurrent transactions take few syncs."""
    async with await open_file(path) as coordinator:
        start = (await coordinator.range("")).revision
        outcomes = await asyncio.gather(
            *(coordinator.transact([Put(f"k/{number}", b"v")]) for number in range(1000))
        )
        assert coordinator.commits <= 3
        revisions = [outcome.revision for outcome in outcomes]
        assert revisions == [start + 1 + number for number in range(1000)]
    async with await open_file(path) as coordinator:
        assert len((await coordinator.range("k/")).items) == 1000


async def test_a_group_is_decided_one_after_the_other(path: Path) -> None:
    """L9: a transaction sees what those before it in its group did, also to leases."""
    async with await open_file(path) as coordinator:
        lease = await coordinator.grant(ttl_ms=60_000)
        claim = [Unchanged("owner", ABSENT)]
        results = await asyncio.gather(
            coordinator.transact([Put("owner", b"1", lease)], conditions=claim),
            coordinator.transact([Put("owner", b"2", lease)], conditions=claim),
            coordinator.revoke(lease),
            coordinator.transact([Put("owner", b"3")], conditions=claim),
            coordinator.transact([Put("other", b"4", lease)]),
            return_exceptions=True,
        )
        assert coordinator.commits == 1
        first, second, _, third, last = results
        assert not isinstance(first, BaseException) and first is not None and first.applied
        assert not isinstance(second, BaseException) and second is not None and not second.applied
        assert not isinstance(third, BaseException) and third is not None and third.applied
        assert isinstance(last, LeaseLost)
        assert [item.value for item in (await coordinator.range("")).items] == [b"3"]


async def test_readers_see_only_what_is_committed(path: Path) -> None:
    """L6: nothing is shown or told before the commit that holds it has returned."""
    async with await open_file(path) as coordinator:
        before = await coordinator.range("")
        async with coordinator.watch("", after=before.revision) as events:
            with busy_disk(coordinator):
                writing = asyncio.create_task(coordinator.transact([Put("k", b"")]))
                telling = asyncio.create_task(first_of(events))
                done, _ = await asyncio.wait({writing, telling}, timeout=0.05)
                assert not done
                assert await coordinator.range("") == before
                assert await coordinator.get("k") is None
            outcome = await writing
            assert [event.revision for event in await telling] == [outcome.revision]
        assert await coordinator.get("k") is not None


async def test_who_is_cancelled_before_the_decision_changes_nothing(path: Path) -> None:
    """R: a request whose caller has gone is dropped, and the others go on."""
    async with await open_file(path) as coordinator:
        with busy_disk(coordinator):
            first = asyncio.create_task(coordinator.transact([Put("first", b"")]))
            await asyncio.wait({first}, timeout=0.01)
            gone = asyncio.create_task(coordinator.transact([Put("gone", b"")]))
            stays = asyncio.create_task(coordinator.transact([Put("stays", b"")]))
            await asyncio.wait({gone, stays}, timeout=0.01)
            gone.cancel()
            await asyncio.wait({gone})
        await asyncio.gather(first, stays)
        assert [item.key for item in (await coordinator.range("")).items] == ["first", "stays"]


async def test_waiting_requests_are_limited(path: Path) -> None:
    """R: more requests than may wait are refused at once, and leases likewise."""
    limits = EmbeddedLimits(waiting_max=5, leases_max=2)
    async with await open_file(path, limits=limits) as coordinator:
        results = await asyncio.gather(
            *(coordinator.transact([Put(f"{number}", b"")]) for number in range(8)),
            return_exceptions=True,
        )
        assert [isinstance(result, Throttled) for result in results] == [False] * 5 + [True] * 3
        await coordinator.grant(ttl_ms=60_000)
        await coordinator.grant(ttl_ms=60_000)
        with pytest.raises(Throttled):
            await coordinator.grant(ttl_ms=60_000)


async def begin_put(coordinator: EmbeddedCoordinator, key: str) -> "asyncio.Task[Outcome]":
    """A transaction that has reached the coordinator."""
    task = asyncio.create_task(coordinator.transact([Put(key, b"")]))
    await asyncio.wait({task}, timeout=0.01)
    return task


async def test_closing_answers_who_waits(path: Path) -> None:
    """R: at closing, what is being committed is acknowledged, and what waits is refused."""
    coordinator = await open_file(path)
    with busy_disk(coordinator):
        under_way = await begin_put(coordinator, "under-way")
        waiting = await begin_put(coordinator, "waiting")
        closing_it = asyncio.create_task(coordinator.close())
        with pytest.raises(CoordinationDown):
            await waiting
        assert not under_way.done()
    await closing_it
    assert (await under_way).applied
    async with await open_file(path) as reopened:
        assert [item.key for item in (await reopened.range("")).items] == ["under-way"]


async def test_nobody_waits_for_a_coordinator_that_stopped(path: Path) -> None:
    """R: if its task is cancelled, as at the end of a loop, who waits is told at once."""
    coordinator = await open_file(path)
    with busy_disk(coordinator):
        under_way = await begin_put(coordinator, "under-way")
        waiting = await begin_put(coordinator, "waiting")
        coordinator._committer.cancel()
        with pytest.raises(Uncertain):
            await under_way
        with pytest.raises(CoordinationDown):
            await waiting
    with pytest.raises(CoordinationDown):
        await coordinator.transact([Put("later", b"")])
    await coordinator.close()
    async with await open_file(path) as reopened:
        assert await reopened.get("waiting") is None


# ---- watches


async def test_a_watch_before_the_history_is_told_so(path: Path) -> None:
    """L9: a watch after a revision that is no longer kept raises WatchGap, never skips."""
    limits = EmbeddedLimits(history_events_max=10)
    async with await open_file(path, limits=limits) as coordinator:
        start = (await coordinator.range("")).revision
        for number in range(25):
            last = await coordinator.transact([Put(f"k/{number}", b"")])
        for after, gap in ((start, True), (last.revision - 11, True), (last.revision - 10, False)):
            async with coordinator.watch("k/", after=Revision(after)) as events:
                if gap:
                    with pytest.raises(WatchGap, match="read the range again"):
                        await anext(events)
                else:
                    assert (await anext(events))[0].revision == after + 1
        async with coordinator.watch("k/", after=Revision(last.revision + 1)) as events:
            with pytest.raises(WatchGap):
                await anext(events)


@pytest.mark.parametrize("limits", [{"history_events_max": 10}, {"history_bytes_max": 1000}])
async def test_a_slow_watch_is_dropped_and_an_idle_one_is_not(
    path: Path, limits: dict[str, int]
) -> None:
    """L9: who does not read gets WatchGap; who merely has nothing to read does not."""
    async with await open_file(path, limits=EmbeddedLimits(**limits)) as coordinator:
        start = (await coordinator.range("")).revision
        async with (
            coordinator.watch("busy/", after=start) as slow,
            coordinator.watch("idle/", after=start) as idle,
        ):
            for number in range(30):
                await coordinator.transact([Put(f"busy/{number}", bytes(100))])
            with pytest.raises(WatchGap):
                await anext(slow)
            outcome = await coordinator.transact([Put("idle/1", b"")])
            assert [event.revision for event in await anext(idle)] == [outcome.revision]


# ---- leases on a clock that moves when told


async def test_a_late_expiry_never_lengthens_a_lease(path: Path) -> None:
    """L1: at its deadline a lease can be neither kept nor written with, expired or not."""
    clock = ManualClock()
    async with await open_file(path, clock=clock) as coordinator:
        lease = await coordinator.grant(ttl_ms=1000)
        await coordinator.transact([Put("n", b"", lease)])
        clock.advance(999)
        await coordinator.keep_alive(lease)
        clock.advance(999)
        await coordinator.transact([Put("n", b"2", lease)])
        clock.advance(1)
        with pytest.raises(LeaseLost):
            await coordinator.keep_alive(lease)
        before = await coordinator.range("")
        with pytest.raises(LeaseLost):
            await coordinator.transact([Put("x", b""), Put("n", b"3", lease)])
        assert (await coordinator.range("")).revision in (before.revision, before.revision + 1)
        await coordinator.end_expired()
        after = await coordinator.range("")
        assert after.items == ()
        assert after.revision == before.revision + 1


async def test_the_wall_clock_does_not_matter_to_leases(path: Path) -> None:
    """L1: a jump of the wall clock ends no lease."""
    clock = ManualClock()
    async with await open_file(path, clock=clock) as coordinator:
        lease = await coordinator.grant(ttl_ms=1000)
        await coordinator.transact([Put("n", b"", lease)])
        clock.jump_wall(10_000_000)
        await coordinator.end_expired()
        await coordinator.keep_alive(lease)
        assert await coordinator.get("n") is not None


async def test_the_expiry_task_ends_each_lease_in_its_own_revision(path: Path) -> None:
    """L1: leases that expire together end one by one, durably, without anybody asking."""
    clock = ManualClock()
    async with await open_file(path, clock=clock) as coordinator:
        for name in ("a", "b"):
            lease = await coordinator.grant(ttl_ms=1000)
            last = await coordinator.transact([Put(f"{name}/{n}", b"", lease) for n in range(3)])
        async with coordinator.watch("", after=last.revision) as events:
            clock.advance(1000)
            async with asyncio.timeout(60):
                ended = [await anext(events), await anext(events)]
        assert [[event.key for event in each] for each in ended] == [
            ["a/0", "a/1", "a/2"],
            ["b/0", "b/1", "b/2"],
        ]
        expected = await coordinator.range("")
    async with await open_file(path) as coordinator:
        assert await coordinator.range("") == expected
