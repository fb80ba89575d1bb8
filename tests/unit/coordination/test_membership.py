"""A node's place among the others: registered, lost, replaced and left, embedded and on etcd."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.etcd_server import EtcdCluster, Gate, running_cluster

from dovetail.clock import SystemClock
from dovetail.coordination import Coordinator, Delete, EmbeddedCoordinator, Put
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.coordination.membership import (
    BROKER_ROLE,
    GONE_MS,
    NODES,
    STORAGE_ROLE,
    Member,
    Membership,
)
from dovetail.errors import LeaseLost

TTL_MS = 1000
DEADLINE_S = 60.0
CLOCK = SystemClock()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with running_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture(params=["embedded", "etcd"])
async def coordinator(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Coordinator]:
    if request.param == "embedded":
        async with await EmbeddedCoordinator.open(tmp_path / "c.db", clock=CLOCK) as embedded:
            yield embedded
        return
    cluster: EtcdCluster = request.getfixturevalue("etcd")
    namespace = f"/{tmp_path.name}/"
    settings = EtcdSettings(cluster.endpoints, namespace=namespace)
    async with await EtcdCoordinator.open(settings) as opened:
        yield opened


class Joined:
    """A node in the cluster, and what it hears."""

    def __init__(self, coordinator: Coordinator, number: int, *roles: str) -> None:
        self.number = number
        self.roles = roles or (BROKER_ROLE,)
        self.stored_bytes = 0
        self.membership = Membership(coordinator, node_id=number, clock=CLOCK, ttl_ms=TTL_MS)
        self.changes = 0
        self._changed = asyncio.Event()
        self.membership.on_change.append(self._on_change)

    def _on_change(self) -> None:
        self.changes += 1
        self._changed.set()

    def describe(self) -> Member:
        return Member(self.number, "host", 9092, self.roles, "1", stored_bytes=self.stored_bytes)

    async def until(self, done: Callable[[], bool]) -> None:
        """Waits for something that comes with a change of who is there."""
        async with asyncio.timeout(DEADLINE_S):
            while not done():
                self._changed.clear()
                await self._changed.wait()

    async def until_leased(self, leased: bool = True) -> None:
        """Waits for the lease, which nobody tells of."""
        async with asyncio.timeout(DEADLINE_S):
            while self.membership.holds_lease() is not leased:
                await asyncio.sleep(0.01)

    @property
    def alive(self) -> set[int]:
        return set(self.membership.brokers().alive)

    @property
    def willing(self) -> set[int]:
        return set(self.membership.brokers().willing)


@contextlib.asynccontextmanager
async def joined(coordinator: Coordinator, number: int, *roles: str) -> AsyncIterator[Joined]:
    node = Joined(coordinator, number, *roles)
    await node.membership.start()
    try:
        await node.membership.register(node.describe)
        yield node
    finally:
        await node.membership.stop()


async def lose_lease(coordinator: Coordinator, number: int) -> None:
    """Ends a node's lease behind its back, as the service does when it was not kept alive."""
    found = await coordinator.get(f"{NODES}{number:06d}")
    assert found is not None
    assert found.lease is not None
    await coordinator.revoke(found.lease)


async def test_who_stops_leaves_nothing_running(coordinator: Coordinator) -> None:
    """L1: its lease is revoked, and no task of it is left behind."""
    before = asyncio.all_tasks()
    async with joined(coordinator, 1):
        assert await coordinator.get(f"{NODES}{1:06d}") is not None
    await asyncio.sleep(0)
    assert await coordinator.get(f"{NODES}{1:06d}") is None
    assert asyncio.all_tasks() <= before


async def test_nodes_see_each_other_come_and_go(coordinator: Coordinator) -> None:
    """L1, B2: brokers and storage nodes by their roles; who stops is gone at once."""
    async with joined(coordinator, 1) as one:
        assert one.membership.holds_lease()
        assert one.alive == one.willing == {1}
        async with joined(coordinator, 2), joined(coordinator, 3, STORAGE_ROLE):
            await one.until(lambda: len(one.membership.members()) == 3)
            assert one.alive == one.willing == {1, 2}
            assert one.membership.members()[3].roles == (STORAGE_ROLE,)
        await one.until(lambda: len(one.membership.members()) == 1)
        assert one.alive == {1}


async def test_whatever_hangs_on_the_lease_hears_of_a_new_one(coordinator: Coordinator) -> None:
    """L1, B2: a key under the node's one lease goes with it; the next lease is another."""
    async with joined(coordinator, 1) as one:
        seen: list[bool] = []
        one.membership.on_lease.append(lambda: seen.append(one.membership.holds_lease()))
        first = one.membership.lease_id
        await coordinator.transact([Put("/mine", b"x", first)])
        await coordinator.revoke(first)
        async with asyncio.timeout(DEADLINE_S):
            while seen != [False, True]:
                await asyncio.sleep(0.01)
        assert one.membership.lease_id != first
        assert await coordinator.get("/mine") is None
    assert seen == [False, True, False]
    with pytest.raises(LeaseLost):
        _ = one.membership.lease_id


async def test_who_went_is_remembered_for_a_while(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K7: clients on their way from a node that went still find it listed, for seconds."""
    async with joined(coordinator, 1) as one:
        async with joined(coordinator, 2) as two:
            await one.until(lambda: one.alive == {1, 2})
            assert one.membership.gone() == []
        await one.until(lambda: one.alive == {1})
        assert [member.node_id for member in one.membership.gone()] == [two.number]
        later_ms = CLOCK.monotonic_ms() + GONE_MS
        monkeypatch.setattr(CLOCK, "monotonic_ms", lambda: later_ms, raising=False)
        assert one.membership.gone() == []


async def test_loads_are_renewed_and_disturb_nobody(coordinator: Coordinator) -> None:
    """L1: the load is told periodically or when asked; only comings and goings are a change."""
    async with joined(coordinator, 1) as one, joined(coordinator, 2) as two:
        await one.until(lambda: one.alive == {1, 2})
        before = one.changes
        two.stored_bytes = 12345
        two.membership.renew()
        async with joined(coordinator, 3):
            # What node 3 writes comes behind what node 2 wrote.
            await one.until(lambda: one.alive == {1, 2, 3})
            async with asyncio.timeout(DEADLINE_S):
                while one.membership.members()[2].stored_bytes != 12345:
                    await asyncio.sleep(0.01)
            assert one.changes == before + 1


async def test_a_lost_lease_is_announced_anew(coordinator: Coordinator) -> None:
    """L1: the same process, so the same incarnation; in between it does not answer for anything."""
    async with joined(coordinator, 1) as one, joined(coordinator, 2) as two:
        await two.until(lambda: two.alive == {1, 2})
        life = two.membership.members()[1].incarnation
        await lose_lease(coordinator, 1)
        await two.until(lambda: two.alive == {2})
        await two.until(lambda: two.alive == {1, 2})
        assert two.membership.members()[1].incarnation == life
        await one.until_leased()
        assert not one.membership.replaced.is_set()


class Look:
    """What a node does before it holds a new lease: it is seen in the middle of it."""

    def __init__(self, node: Joined) -> None:
        self._node = node
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.count = 0
        node.membership.before_lease.append(self)

    async def __call__(self) -> None:
        self.count += 1
        self.begun.set()
        await self.go_on.wait()


async def test_a_new_lease_holds_after_a_look(coordinator: Coordinator) -> None:
    """L9: the others see the node again, and it does not answer before it has looked around."""
    async with joined(coordinator, 1) as one, joined(coordinator, 2) as two:
        look = Look(one)
        await two.until(lambda: two.alive == {1, 2})
        await lose_lease(coordinator, 1)
        async with asyncio.timeout(DEADLINE_S):
            await look.begun.wait()
        assert await coordinator.get(f"{NODES}{1:06d}") is not None
        assert not one.membership.holds_lease()
        look.go_on.set()
        await one.until_leased()
        one.membership.renew()
        one.stored_bytes = 7
        async with asyncio.timeout(DEADLINE_S):
            while two.membership.members()[1].stored_bytes != 7:
                await asyncio.sleep(0.01)
        assert look.count == 1, "a lease that is kept needs no look"


async def test_a_key_that_was_removed_is_as_a_lease_that_ended(coordinator: Coordinator) -> None:
    """L9: the lease is alive, but others saw the node go and may have claimed what it had."""
    async with joined(coordinator, 1) as one:
        look = Look(one)
        await coordinator.transact([Delete(f"{NODES}{1:06d}")])
        one.membership.renew()
        async with asyncio.timeout(DEADLINE_S):
            await look.begun.wait()
        assert not one.membership.holds_lease()
        look.go_on.set()
        await one.until_leased()


async def test_who_is_announced_is_not_absent(coordinator: Coordinator) -> None:
    """L9: the condition of a claim, as the service decides it."""
    async with joined(coordinator, 1) as one:
        for number, absent in ((1, False), (2, True)):
            conditions = one.membership.absence_of(number)
            outcome = await coordinator.transact([Put("/claimed", b"")], conditions=conditions)
            assert outcome.applied is absent


async def test_who_is_no_broker_any_more_owns_nothing(coordinator: Coordinator) -> None:
    """L9, U2: what a node had as a broker is free when it is back without that role, until it is
    back with it."""

    async def claimed(by: Joined) -> bool:
        conditions = by.membership.absence_of(1)
        outcome = await coordinator.transact([Put("/claimed", b"")], conditions=conditions)
        return outcome.applied

    async with joined(coordinator, 2) as other:
        async with joined(coordinator, 1, STORAGE_ROLE):
            await other.until(lambda: 1 in other.membership.members())
            async with asyncio.timeout(DEADLINE_S):
                # It renews its load, so what is seen of it can be old for a moment.
                while not await claimed(other):
                    await asyncio.sleep(0.01)
            as_seen = other.membership.absence_of(1)
        async with joined(coordinator, 1):
            outcome = await coordinator.transact([Put("/claimed", b"")], conditions=as_seen)
            assert not outcome.applied
            await other.until(lambda: other.alive == {1, 2})
            assert not await claimed(other)


async def test_another_process_under_the_same_number_replaces(coordinator: Coordinator) -> None:
    """L1, L9: who starts last has the number; the first finds out and ends."""
    async with joined(coordinator, 1) as first:
        life = first.membership.members()[1].incarnation
        async with joined(coordinator, 1) as second:
            first.membership.renew()
            async with asyncio.timeout(DEADLINE_S):
                await first.membership.replaced.wait()
            assert not second.membership.replaced.is_set()
            assert second.membership.holds_lease()
            await first.until_leased(False)
            assert second.membership.members()[1].incarnation != life
            await first.membership.stop()
            found = await coordinator.get(f"{NODES}{1:06d}")
            assert found is not None, "the first one took the second one's place with it"
            member = msgspec.json.decode(found.value, type=Member)
            assert member.incarnation == second.membership.members()[1].incarnation


async def test_who_leaves_is_alive_and_gets_nothing_new(coordinator: Coordinator) -> None:
    """L9: until it is gone, what it has is its own."""
    async with joined(coordinator, 1) as one:
        async with joined(coordinator, 2) as two:
            await one.until(lambda: one.willing == {1, 2})
            await two.membership.leave()
            assert two.willing == {1}
            await one.until(lambda: one.willing == {1})
            assert one.alive == {1, 2}
        await one.until(lambda: one.alive == {1})


async def test_who_declines_gets_nothing_while_others_can(coordinator: Coordinator) -> None:
    """L9: a broker that could not serve is given nothing, unless all are like that."""
    async with joined(coordinator, 1) as one, joined(coordinator, 2) as two:
        await one.until(lambda: one.willing == {1, 2})
        two.membership.decline()
        await one.until(lambda: one.willing == {1})
        assert one.alive == {1, 2}
        one.membership.decline()
        await one.until(lambda: one.willing == {1, 2})


async def test_the_view_outlives_the_service(etcd: EtcdCluster, tmp_path: Path) -> None:
    """L1, L9: cut off from etcd, a node keeps its view, knows that its lease ended, and returns."""
    namespace = f"/{tmp_path.name}/"
    async with (
        Gate(etcd.members[0].endpoint) as gate,
        await EtcdCoordinator.open(EtcdSettings(etcd.endpoints, namespace=namespace)) as direct,
        await EtcdCoordinator.open(EtcdSettings((gate.endpoint,), namespace=namespace)) as gated,
        joined(direct, 1) as one,
        joined(gated, 2) as two,
    ):
        await one.until(lambda: one.alive == {1, 2})
        await two.until(lambda: two.alive == {1, 2})
        life = two.membership.members()[2].incarnation
        gate.shut()
        await one.until(lambda: one.alive == {1})
        assert not two.membership.holds_lease(), "the holder gives up before the service does"
        assert two.alive == {1, 2}
        gate.reopen()
        await one.until(lambda: one.alive == {1, 2})
        assert one.membership.members()[2].incarnation == life
        await two.until_leased()
