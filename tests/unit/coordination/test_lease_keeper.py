"""Holding a lease: the pure part on given times, the task on a real coordinator."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dovetail.clock import ManualClock, SystemClock
from dovetail.coordination import EmbeddedCoordinator, LeaseKeeper, LeaseLife, Put
from dovetail.errors import LeaseLost


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[EmbeddedCoordinator]:
    path = tmp_path / "coordination.db"
    async with await EmbeddedCoordinator.open(path, clock=SystemClock()) as opened:
        yield opened


def test_a_lease_counts_from_when_the_keep_alive_was_sent() -> None:
    """L1: an answer that took long lengthens the lease by less, never by more."""
    life = LeaseLife(ttl_ms=3000, sent_ms=100.0)
    assert life.keep_alive_due_ms == 1100.0
    assert life.valid(3099.9)
    assert not life.valid(3100.0)
    life.on_answer(sent_ms=1100.0, now_ms=2900.0)
    assert life.valid_until_ms == 4100.0
    assert not life.lost


def test_an_answer_out_of_order_does_not_shorten_a_lease() -> None:
    """L1: the latest keep-alive that was answered counts."""
    life = LeaseLife(ttl_ms=3000, sent_ms=0.0)
    life.on_answer(sent_ms=2000.0, now_ms=2010.0)
    life.on_answer(sent_ms=1000.0, now_ms=2020.0)
    assert life.valid_until_ms == 5000.0


def test_a_lease_that_was_lost_stays_lost() -> None:
    """L1: an answer after the time is up, or after the service said no, changes nothing."""
    late = LeaseLife(ttl_ms=3000, sent_ms=0.0)
    late.on_answer(sent_ms=2900.0, now_ms=3000.0)
    assert late.lost
    assert not late.valid(2950.0)
    refused = LeaseLife(ttl_ms=3000, sent_ms=0.0)
    refused.on_lost()
    refused.on_answer(sent_ms=10.0, now_ms=20.0)
    assert not refused.valid(30.0)
    paused = LeaseLife(ttl_ms=3000, sent_ms=0.0)
    paused.on_tick(now_ms=2999.0)
    assert not paused.lost
    paused.on_tick(now_ms=3000.0)
    assert paused.lost


async def test_a_keeper_holds_its_lease_and_revokes_it(coordinator: EmbeddedCoordinator) -> None:
    """L1: while the keeper runs the key stays, past several ttls; at its end the key goes."""
    clock = SystemClock()
    async with LeaseKeeper(coordinator, ttl_ms=600, clock=clock) as keeper:
        written = await coordinator.transact([Put("n", b"", keeper.id)])
        first_end_ms = keeper.valid_until_ms
        async with coordinator.watch("n", after=written.revision) as events:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.3):
                    await anext(events)
        assert keeper.valid(clock.monotonic_ms())
        assert keeper.valid_until_ms > first_end_ms
        assert not keeper.lost.is_set()
    assert keeper.lost.is_set()
    assert not keeper.valid(clock.monotonic_ms())
    assert await coordinator.get("n") is None


async def test_a_keeper_tells_when_the_service_ended_the_lease(
    coordinator: EmbeddedCoordinator,
) -> None:
    """L1: a lease that somebody revoked is reported lost at the next keep-alive."""
    clock = SystemClock()
    async with LeaseKeeper(coordinator, ttl_ms=300, clock=clock) as keeper:
        await coordinator.revoke(keeper.id)
        async with asyncio.timeout(60):
            await keeper.lost.wait()
        assert not keeper.valid(clock.monotonic_ms())


async def test_a_keeper_gives_up_when_the_service_is_gone(
    coordinator: EmbeddedCoordinator,
) -> None:
    """L1: without answers the lease is lost when its time is up, and not before."""
    clock = SystemClock()
    async with LeaseKeeper(coordinator, ttl_ms=300, clock=clock) as keeper:
        await coordinator.close()
        until_ms = keeper.valid_until_ms
        assert keeper.valid(until_ms - 1)
        async with asyncio.timeout(60):
            await keeper.lost.wait()
        assert clock.monotonic_ms() >= until_ms
        assert keeper.valid_until_ms == until_ms


async def test_a_paused_holder_knows_that_its_lease_is_gone(tmp_path: Path) -> None:
    """L1: after a pause of a whole ttl the holder is told, before it asks the service."""
    clock = ManualClock()
    path = tmp_path / "manual.db"
    async with (
        await EmbeddedCoordinator.open(path, clock=clock) as coordinator,
        LeaseKeeper(coordinator, ttl_ms=300, clock=clock) as keeper,
    ):
        assert keeper.valid(clock.monotonic_ms())
        clock.advance(300)
        assert not keeper.valid(clock.monotonic_ms())
        async with asyncio.timeout(60):
            await keeper.lost.wait()
        with pytest.raises(LeaseLost):
            await coordinator.transact([Put("n", b"", keeper.id)])


async def test_a_keeper_is_used_once(coordinator: EmbeddedCoordinator) -> None:
    """R: misuse is refused in words."""
    keeper = LeaseKeeper(coordinator, ttl_ms=300, clock=SystemClock())
    with pytest.raises(RuntimeError, match="no lease yet"):
        _ = keeper.id
    async with keeper:
        pass
    with pytest.raises(RuntimeError, match="once"):
        await keeper.__aenter__()
