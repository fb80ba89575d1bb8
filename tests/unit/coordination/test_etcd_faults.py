"""etcd under kill, pause and absence: what was acknowledged holds, and all goes on by itself."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from tests.etcd_server import EtcdCluster, EtcdMember
from tests.unit.coordination.driving import DEADLINE_S, Events, next_of, put, take

from dovetail.clock import SystemClock
from dovetail.coordination import ABSENT, LeaseKeeper, Put, Revision, Unchanged
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.errors import CoordinationDown, LeaseLost, Uncertain

INCREMENTERS = 4
#: Acknowledged increments between two faults.
ROUND = 40
#: A lease that one paused member does not end: above two attempts with their timeouts.
LEASE_TTL_MS = 4000


@dataclass(slots=True)
class Workload:
    """Tasks that count up one key by compare-and-set, each increment with a mark of its own."""

    coordinator: EtcdCoordinator
    acknowledged: list[str] = field(default_factory=list)
    uncertain: int = 0
    down: int = 0
    stopping: bool = False

    async def run(self, task: int) -> None:
        for number in itertools.count():
            if self.stopping:
                return
            mark = f"mark/{task}/{number}"
            while not await self._try_increment(mark):
                # Nothing to wait for: the next attempt is what finds etcd again.
                await asyncio.sleep(0.01)
            self.acknowledged.append(mark)

    async def _try_increment(self, mark: str) -> bool:
        """Whether the increment is known to be applied: now, or when its answer was lost."""
        try:
            if await self.coordinator.get(mark) is not None:
                return True
            item = await self.coordinator.get("counter")
            number = 0 if item is None else int(item.value)
            outcome = await self.coordinator.transact(
                [Put("counter", b"%d" % (number + 1)), Put(mark, b"")],
                conditions=[
                    Unchanged("counter", ABSENT if item is None else item.revision),
                    Unchanged(mark, ABSENT),
                ],
            )
        except Uncertain:
            self.uncertain += 1
            return False
        except CoordinationDown:
            self.down += 1
            return False
        return outcome.applied

    async def more(self, count: int = ROUND) -> None:
        """Returns when `count` further increments are acknowledged."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(DEADLINE_S):
            while len(self.acknowledged) < wanted:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def working(coordinator: EtcdCoordinator) -> AsyncIterator[Workload]:
    """Runs the workload, and a watch beside it; at the end all accounts must agree."""
    workload = Workload(coordinator)
    start = (await coordinator.range("")).revision
    async with coordinator.watch("counter", after=start) as events:
        tasks = [asyncio.create_task(workload.run(task)) for task in range(INCREMENTERS)]
        try:
            yield workload
            workload.stopping = True
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        seen = await take_until_counted(coordinator, events)
    marks = {item.key for item in (await coordinator.range("mark/")).items}
    assert set(workload.acknowledged) == marks
    assert len(workload.acknowledged) == len(marks)
    assert seen == list(range(1, len(marks) + 1))


async def take_until_counted(
    coordinator: EtcdCoordinator, events: AsyncIterator[Events]
) -> list[int]:
    """What the watch told of the counter, up to its present value."""
    item = await coordinator.get("counter")
    assert item is not None
    return [int(event.value or b"") for (event,) in await take(events, until=item.revision)]


async def eventually(attempt: Callable[[], Awaitable[object]]) -> None:
    """Tries until etcd is found again, within the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await attempt()
            except (CoordinationDown, Uncertain):
                await asyncio.sleep(0.02)
            else:
                return


def settings_of(
    etcd: EtcdCluster, *, first: EtcdMember | None = None, **times: int
) -> EtcdSettings:
    """The default times unless told, with one member tried before the others."""
    endpoints = list(etcd.endpoints)
    if first is not None:
        endpoints.remove(first.endpoint)
        endpoints.insert(0, first.endpoint)
    return EtcdSettings(tuple(endpoints), **times)


async def test_killed_members_lose_and_repeat_nothing(etcd_three: EtcdCluster) -> None:
    """L9: with each member killed in turn, increments that were acknowledged count, once."""
    async with (
        await EtcdCoordinator.open(settings_of(etcd_three)) as coordinator,
        working(coordinator) as workload,
    ):
        for member in etcd_three.members:
            await workload.more()
            member.kill()
            await workload.more()
            member.start()
            await asyncio.to_thread(member.wait_ready)
        leader = await asyncio.to_thread(etcd_three.leader)
        leader.kill()
        await workload.more()


async def test_a_paused_leader_is_left_and_may_come_back(etcd_three: EtcdCluster) -> None:
    """L9: a leader that is stopped past the election is replaced; when it wakes, nothing changes.

    The client begins at the leader, so its requests and its watch hang there at first.
    """
    leader = await asyncio.to_thread(etcd_three.leader)
    others = [member for member in etcd_three.members if member is not leader]
    async with (
        await EtcdCoordinator.open(settings_of(etcd_three, first=leader)) as coordinator,
        working(coordinator) as workload,
    ):
        await workload.more()
        leader.pause()
        await workload.more()
        successors = await asyncio.gather(
            *(asyncio.to_thread(member.is_leader) for member in others)
        )
        assert any(successors)
        leader.resume()
        await workload.more()
        # All that is left to go to is the one that was stopped and one that was not.
        others[0].kill()
        await workload.more()


async def test_all_members_away_is_said_at_once_and_heals_by_itself(
    etcd_three: EtcdCluster,
) -> None:
    """L9: without etcd calls fail at once; when it is back calls and watches go on, gapless."""
    # No call waits for its time to be over: the test would be.
    settings = settings_of(etcd_three, attempt_timeout_ms=600_000, request_timeout_ms=600_000)
    async with await EtcdCoordinator.open(settings) as coordinator:
        revisions = [await put(coordinator, "a", b"0")]
        async with coordinator.watch("a", after=Revision(revisions[0] - 1)) as events:
            taken = [await next_of(events)]
            revisions.append(await put(coordinator, "a", b"1"))
            etcd_three.kill()
            # The connections break under way for the first call; from then on it is known.
            with pytest.raises((CoordinationDown, Uncertain)):
                await put(coordinator, "a", b"lost")
            for call in (
                lambda: coordinator.get("a"),
                lambda: coordinator.range("a"),
                lambda: coordinator.transact([Put("a", b"lost")]),
                lambda: coordinator.grant(ttl_ms=1000),
                lambda: EtcdCoordinator.open(settings),
            ):
                with pytest.raises(CoordinationDown):
                    await call()
            await asyncio.to_thread(etcd_three.start)
            await eventually(lambda: coordinator.get("a"))
            item = await coordinator.get("a")
            assert item is not None
            assert (item.value, item.revision) == (b"1", revisions[-1])
            revisions.append(await put(coordinator, "a", b"2"))
            taken += await take(events, until=revisions[-1])
        assert [revision[0].revision for revision in taken] == revisions


async def test_a_lost_answer_is_uncertain_and_a_lost_read_is_down(etcd_alone: EtcdCluster) -> None:
    """L9: a transaction sent to a member that stops answering may or may not have happened."""
    settings = EtcdSettings(etcd_alone.endpoints, attempt_timeout_ms=300, request_timeout_ms=500)
    async with await EtcdCoordinator.open(settings) as coordinator:
        await put(coordinator, "a", b"before")
        etcd_alone.members[0].pause()
        with pytest.raises(Uncertain):
            await put(coordinator, "a", b"after")
        with pytest.raises(CoordinationDown):
            await coordinator.get("a")
        etcd_alone.members[0].resume()
        await eventually(lambda: coordinator.get("a"))
        item = await coordinator.get("a")
        assert item is not None
        assert item.value in (b"before", b"after")


async def test_a_minority_changes_nothing_and_says_so(etcd_three: EtcdCluster) -> None:
    """L9: a member without its majority refuses at once and for sure, and heals with it."""
    alone, *others = etcd_three.members
    settings = EtcdSettings((alone.endpoint,), attempt_timeout_ms=300, request_timeout_ms=600)
    async with await EtcdCoordinator.open(settings) as coordinator:
        await put(coordinator, "a", b"before")
        for member in others:
            member.kill()
        # Until it knows that it lost its leader, or its lead, an answer can be lost.
        refused = False
        async with asyncio.timeout(DEADLINE_S):
            while not refused:
                try:
                    await put(coordinator, "uncertain")
                except Uncertain:
                    continue
                except CoordinationDown as error:
                    refused = "no leader" in str(error)
        with pytest.raises(CoordinationDown):
            await put(coordinator, "a", b"lost")
        await asyncio.to_thread(etcd_three.start)
        await eventually(lambda: coordinator.get("a"))
        item = await coordinator.get("a")
        assert item is not None
        assert item.value == b"before"


async def test_closing_waits_for_the_answer_under_way(etcd_alone: EtcdCluster) -> None:
    """L9: a transaction under way when the coordinator closes is answered, or uncertain."""
    settings = EtcdSettings(etcd_alone.endpoints, attempt_timeout_ms=300, request_timeout_ms=500)
    async with await EtcdCoordinator.open(settings) as coordinator:
        await put(coordinator, "a")
        etcd_alone.members[0].pause()
        under_way = asyncio.create_task(put(coordinator, "a", b"late"))
        await asyncio.sleep(0)
        await coordinator.close()
        with pytest.raises(Uncertain):
            await under_way


async def test_a_lease_is_lost_while_etcd_is_away(etcd_alone: EtcdCluster) -> None:
    """L1: its holder gives up in time; etcd ends the lease after its return, and says so."""
    settings = EtcdSettings(etcd_alone.endpoints)
    async with await EtcdCoordinator.open(settings) as coordinator:
        async with LeaseKeeper(coordinator, ttl_ms=1000, clock=SystemClock()) as keeper:
            lease = keeper.id
            written = await coordinator.transact([Put("n/1", b"", lease)])
            async with coordinator.watch("n/", after=written.revision) as events:
                etcd_alone.kill()
                async with asyncio.timeout(DEADLINE_S):
                    await keeper.lost.wait()
                assert not keeper.valid(SystemClock().monotonic_ms())
                await asyncio.to_thread(etcd_alone.start)
                assert [(gone.key, gone.value) for gone in await next_of(events)] == [("n/1", None)]
        with pytest.raises(LeaseLost):
            await coordinator.keep_alive(lease)
        with pytest.raises(LeaseLost):
            await coordinator.transact([Put("n/1", b"", lease)])


async def test_a_kept_lease_outlives_the_death_of_a_member(etcd_three: EtcdCluster) -> None:
    """L1: a holder whose member is killed or paused keeps its lease through another one."""
    async with (
        await EtcdCoordinator.open(settings_of(etcd_three)) as coordinator,
        LeaseKeeper(coordinator, ttl_ms=LEASE_TTL_MS, clock=SystemClock()) as keeper,
    ):
        written = await coordinator.transact([Put("n/1", b"", keeper.id)])
        first, second, _ = etcd_three.members
        first.kill()
        await outlive(keeper)
        first.start()
        await asyncio.to_thread(first.wait_ready)
        second.pause()
        await outlive(keeper)
        second.resume()
        item = await coordinator.get("n/1")
        assert item is not None
        assert item.revision == written.revision


async def outlive(keeper: LeaseKeeper) -> None:
    """Returns when the lease has been kept alive by requests that were sent from now on."""
    answered = SystemClock().monotonic_ms() + LEASE_TTL_MS
    async with asyncio.timeout(DEADLINE_S):
        while keeper.valid_until_ms <= answered:
            assert not keeper.lost.is_set()
            await asyncio.sleep(0.01)
