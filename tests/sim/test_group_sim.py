"""Consumer groups under faults, in virtual time, from a seed.

Members are clients as they should be: they join, sync, beat, commit, and obey errors. They start,
stop, crash, hang and come back, some as static members; requests and answers are late or lost;
the journal fails or is late; the coordinator crashes at any point and another loads its journal.

Checked always: a member has at most one assignment in a generation, and it is the leader's; a
partition has at most one owner in a generation; generations never go back; an acknowledged
commit is never lost, and never overwritten by one of an older generation. Once faults stop the
group is stable, with every partition owned, within `SETTLE_S`.

`seeds.py` says how many seeds are run, and how one is run again.
"""

import asyncio
import logging
import random
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from itertools import count
from typing import Any, TypeVar

import pytest
from tests.sim.seeds import run_seeds

from dovetail.errors import NotOwner, Unavailable
from dovetail.log.groups import coordinator as group_coordinator
from dovetail.log.groups import types as groups
from dovetail.log.groups.coordinator import GroupCoordinator
from dovetail.log.groups.group import Group
from dovetail.log.groups.journal import JournalRecord
from dovetail.log.groups.phases import GenerationWrite, Write

GROUP = groups.GroupId("g")
SESSION_MS = 1_000
REBALANCE_MS = 800
FAULTS_S = 10.0
#: How long a client hangs at most; the last may begin to just before faults stop.
HANG_S = 4.0
#: The last hang, a session for the dead to be noticed, two rebalances of two phases that somebody
#: misses, and the clients' own waits.
SETTLE_S = HANG_S + (SESSION_MS + 4 * REBALANCE_MS) / 1000 + 3.0
SETTINGS = groups.GroupSettings(session_timeout_ms_min=1_000, initial_rebalance_delay_ms=50)
Answered = TypeVar("Answered")
Position = tuple[int, int, int]


class VirtualSelector(selectors.SelectSelector):
    """Moves time instead of waiting."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "the simulation waits for nothing"
        self.now_s += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when everybody waits."""

    def __init__(self) -> None:
        self._virtual = VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


class LoopClock:
    """The clock of a virtual loop."""

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self.monotonic_ms())

    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000.0


class SimJournal:
    """A journal that commits in groups, fails sometimes, and keeps a prefix when it crashes."""

    def __init__(self, records: list[JournalRecord], chance: random.Random) -> None:
        self.records = records
        self.fail_rate = 0.0
        self._chance = chance
        self._queue: list[tuple[Sequence[JournalRecord], asyncio.Future[None]]] = []
        self._flusher: asyncio.Task[None] | None = None
        self._dead = False

    async def append(self, records: Sequence[JournalRecord]) -> None:
        if self._dead:
            raise NotOwner("another coordinator has the journal")
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((records, stored))
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush())
        await stored

    async def _flush(self) -> None:
        await asyncio.sleep(self._chance.choice((0.001, 0.004, 0.05)))
        self._flusher = None
        batch, self._queue = self._queue, []
        for records, stored in batch:
            failed = self._chance.random() < self.fail_rate
            if not failed or self._chance.random() < 0.5:
                self.records.extend(records)
            if stored.done():
                continue
            if failed:
                stored.set_exception(Unavailable("the journal hiccups"))
            else:
                stored.set_result(None)

    def crash(self) -> None:
        self._dead = True
        if self._flusher is not None:
            self._flusher.cancel()
        for records, _ in self._queue[: self._chance.randint(0, len(self._queue))]:
            self.records.extend(records)

    async def replay(self) -> AsyncIterator[JournalRecord]:
        for record in tuple(self.records):
            yield record


class Checker:
    """Everything that was ever told to anybody, and what must be true of it."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.generation = 0
        self.assigned: dict[tuple[int, str], frozenset[int]] = {}
        self.owners: dict[tuple[int, int], str] = {}
        self.proposals: dict[int, list[dict[str, frozenset[int]]]] = {}
        self.acknowledged: dict[int, Position] = {}
        self.seen: dict[int, Position] = {}
        self.commits = 0

    def require(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)

    def on_joined(self, answer: groups.JoinAnswer) -> None:
        problem = f"generation {answer.generation} told after {self.generation}"
        self.require(answer.generation >= self.generation, problem)
        self.generation = answer.generation

    def on_proposed(self, generation: int, parts: dict[str, frozenset[int]]) -> None:
        self.proposals.setdefault(generation, []).append(parts)

    def on_assigned(self, generation: int, name: str, parts: frozenset[int]) -> None:
        before = self.assigned.setdefault((generation, name), parts)
        self.require(before == parts, f"{name} has two assignments in generation {generation}")
        proposals = self.proposals.get(generation, [])
        fitting = [p for p in proposals if p.get(name, frozenset()) == parts]
        self.require(bool(fitting), f"{name} in {generation}: no leader assigned {set(parts)}")
        self.proposals[generation] = fitting
        for part in parts:
            owner = self.owners.setdefault((generation, part), name)
            self.require(owner == name, f"{owner} and {name} own {part} in {generation}")

    def on_acknowledged(self, part: int, position: Position) -> None:
        self.commits += 1
        before = self.acknowledged.get(part, (0, 0, 0))
        self.require(position >= before, f"commit {position} of {part} after {before}")
        self.acknowledged[part] = max(position, before)

    def on_fetched(self, part: int, committed: groups.CommittedOffset | None) -> None:
        position = (0, 0, 0)
        if committed is not None:
            first, second, third = map(int, committed.metadata.split(":"))
            position = (first, second, third)
        kept = self.acknowledged.get(part, (0, 0, 0))
        self.require(position >= kept, f"position of {part} is {position}, acknowledged {kept}")
        before = self.seen.get(part, (0, 0, 0))
        self.require(position >= before, f"position of {part} went from {before} to {position}")
        self.seen[part] = position


class Member:
    """A client that obeys: one process with one consumer in it."""

    def __init__(self, world: "World", name: str, instance: groups.InstanceId | None) -> None:
        self.world = world
        self.name = name
        self.instance = instance
        self.incarnation = next(world.incarnations)
        self.member_id = groups.NO_MEMBER
        self.generation = groups.NO_GENERATION
        self.parts: frozenset[int] = frozenset()
        self.sequence = 0
        self.is_member = False
        self.skips = world.chance.random() < 0.5
        self.task = asyncio.create_task(self._run())
        self.task.add_done_callback(world.on_ended)

    @property
    def identity(self) -> groups.MemberIdentity:
        return groups.MemberIdentity(self.member_id, self.instance)

    async def _run(self) -> None:
        chance = self.world.chance
        while True:
            try:
                if not self.is_member:
                    await self._join()
                else:
                    await asyncio.sleep(chance.uniform(0.15, 0.35))
                    hangs = self.world.faulty and chance.random() < 0.04
                    if hangs:
                        # What it believes may be long over when it goes on, with a commit.
                        await asyncio.sleep(chance.uniform(0.5, HANG_S))
                    if hangs or chance.random() < 0.6:
                        await self._commit()
                    if self.is_member:
                        await self._beat()
            except TimeoutError:
                await asyncio.sleep(0.05)

    async def _join(self) -> None:
        world = self.world
        request = groups.JoinRequest(
            self.member_id,
            "consumer",
            (groups.MemberProtocol("sticky", b"topic"),),
            SESSION_MS,
            REBALANCE_MS,
            self.instance,
            self.name,
            skip_assignment_supported=self.skips,
        )
        answer = await world.call(lambda c: c.join(GROUP, request), on_answer=_tell_joined(world))
        if answer.error is groups.GroupError.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif answer.error is not groups.GroupError.NONE:
            await self._obey(answer.error)
        else:
            self.member_id = answer.member_id
            self.generation = answer.generation
            await self._sync(answer)

    async def _sync(self, joined: groups.JoinAnswer) -> None:
        world = self.world
        given: tuple[tuple[groups.MemberId, bytes], ...] = ()
        if joined.leader == self.member_id and not joined.skip_assignment:
            given = self._assign(joined)
        request = groups.SyncRequest(self.identity, joined.generation, given)
        answer = await world.call(lambda c: c.sync(GROUP, request))
        if answer.error is not groups.GroupError.NONE:
            await self._obey(answer.error)
            return
        self.parts = frozenset(answer.assignment)
        self.is_member = True
        world.checker.on_assigned(joined.generation, _key(self.identity), self.parts)

    def _assign(self, joined: groups.JoinAnswer) -> tuple[tuple[groups.MemberId, bytes], ...]:
        shuffled = self.world.chance.sample(range(self.world.partitions), self.world.partitions)
        parts = {
            member.member_id: bytes(shuffled[number :: len(joined.members)])
            for number, member in enumerate(joined.members)
        }
        names = {
            _key(groups.MemberIdentity(m.member_id, m.instance_id)): frozenset(parts[m.member_id])
            for m in joined.members
        }
        self.world.checker.on_proposed(joined.generation, names)
        return tuple(parts.items())

    async def _beat(self) -> None:
        who, generation = self.identity, self.generation
        error = await self.world.call(lambda c: c.heartbeat(GROUP, who, generation))
        await self._obey(error)

    async def _commit(self) -> None:
        if not self.parts:
            return
        self.sequence += 1
        position = (int(self.generation), self.incarnation, self.sequence)
        who, generation = self.identity, self.generation
        metadata = ":".join(map(str, position))
        wanted = {
            groups.PartitionKey("topic", part): groups.OffsetCommit(
                self.sequence, metadata=metadata
            )
            for part in self.parts
        }

        def acknowledge(outcomes: dict[groups.PartitionKey, groups.GroupError]) -> None:
            for key, error in outcomes.items():
                if error is groups.GroupError.NONE:
                    self.world.checker.on_acknowledged(key.partition, position)

        outcomes = await self.world.call(
            lambda c: c.commit(GROUP, who, generation, wanted), on_answer=acknowledge
        )
        for error in dict.fromkeys(outcomes.values()):
            await self._obey(error)

    async def _obey(self, error: groups.GroupError) -> None:
        if error is groups.GroupError.NONE:
            return
        if error in {groups.GroupError.UNKNOWN_MEMBER, groups.GroupError.ILLEGAL_GENERATION}:
            if error is groups.GroupError.UNKNOWN_MEMBER:
                self.member_id = groups.NO_MEMBER
            self._lose()
        elif error is groups.GroupError.REBALANCE_IN_PROGRESS:
            self._lose()
        elif error is groups.GroupError.FENCED_INSTANCE:
            self._lose()
            raise asyncio.CancelledError
        await asyncio.sleep(0.1)

    def _lose(self) -> None:
        self.is_member = False
        self.parts = frozenset()

    async def leave(self) -> None:
        self.task.cancel()
        who = self.identity
        try:
            await self.world.call(lambda c: c.leave(GROUP, [who]))
        except TimeoutError:
            return


def _key(who: groups.MemberIdentity) -> str:
    return who.instance_id or who.member_id


def _tell_joined(world: "World") -> Callable[[groups.JoinAnswer], None]:
    def tell(answer: groups.JoinAnswer) -> None:
        if answer.error is groups.GroupError.NONE:
            world.checker.on_joined(answer)

    return tell


class World:
    """The network, the coordinator of the day, and those who break things."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.checker = Checker()
        self.partitions = self.chance.randint(1, 16)
        self.incarnations = count(1)
        self.faulty = True
        self.coordinator: GroupCoordinator | None = None
        self._records: list[JournalRecord] = []
        self._ids = count(1)
        self._calls: set[asyncio.Task[Any]] = set()
        self.members: dict[str, Member | None] = {
            f"m{n}": None for n in range(self.chance.randint(2, 12))
        }
        self._static = {n for n in self.members if self.chance.random() < 0.4}

    async def call(
        self,
        request: Callable[[GroupCoordinator], Coroutine[Any, Any, Answered]],
        on_answer: Callable[[Answered], None] | None = None,
    ) -> Answered:
        """Sends a request and waits for the answer; `on_answer` sees it where it is given."""
        chance = self.chance
        await asyncio.sleep(chance.uniform(0.001, 0.02))
        lossy = 0.02 if self.faulty else 0.0
        coordinator = self.coordinator
        if coordinator is None or chance.random() < lossy:
            raise TimeoutError

        async def serve() -> Answered:
            answer = await request(coordinator)
            if on_answer is not None:
                on_answer(answer)
            return answer

        call = asyncio.create_task(serve())
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        async with asyncio.timeout((REBALANCE_MS + 1_500) / 1000):
            answer = await asyncio.shield(call)
        await asyncio.sleep(chance.uniform(0.001, 0.02))
        if chance.random() < lossy:
            raise TimeoutError
        return answer

    def on_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.checker.problems.append(f"a member died of {task.exception()!r}")

    async def start_coordinator(self) -> None:
        self.journal = SimJournal(self._records, self.chance)
        self.journal.fail_rate = 0.02 if self.faulty else 0.0
        coordinator = GroupCoordinator(
            self.journal,
            LoopClock(),
            SETTINGS,
            new_member_id=lambda prefix: groups.MemberId(f"{prefix}-{next(self._ids)}"),
            topics_of=lambda _type, metadata: frozenset({metadata.decode()}),
        )
        await coordinator.load(self.journal.replay())
        coordinator.start()
        self.coordinator = coordinator

    async def crash_coordinator(self) -> None:
        dead, self.coordinator = self.coordinator, None
        if dead is not None:
            self.journal.crash()
            await dead.close()

    def start_member(self, name: str) -> None:
        instance = groups.InstanceId(f"i-{name}") if name in self._static else None
        self.members[name] = Member(self, name, instance)

    async def check_positions(self) -> None:
        if self.coordinator is not None:
            fetched = await self.coordinator.fetch(GROUP)
            for part in range(self.partitions):
                self.checker.on_fetched(
                    part, fetched.offsets.get(groups.PartitionKey("topic", part))
                )

    async def fault(self) -> None:
        chance = self.chance
        name = chance.choice([*self.members])
        member = self.members[name]
        kind = chance.random()
        if kind < 0.15:
            await self.crash_coordinator()
            await asyncio.sleep(chance.uniform(0.01, 0.8))
            await self.start_coordinator()
        elif member is None or member.task.done():
            self.start_member(name)
        elif kind < 0.3:
            self.members[name] = None
            await member.leave()
        elif kind < 0.45:
            member.task.cancel()
            self.members[name] = None
        elif kind < 0.5:
            # The old process is not dead, only slow: two of one name run for a while.
            self.start_member(name)
            asyncio.get_running_loop().call_later(3.0, member.task.cancel)

    def settled(self) -> bool:
        assert self.coordinator is not None
        living = [m for m in self.members.values() if m is not None and not m.task.done()]
        described = self.coordinator.describe(GROUP)
        same = all(m.is_member and m.generation == described.generation for m in living)
        if not same or described.state is not groups.GroupState.STABLE:
            return False
        owned = [part for m in living for part in m.parts]
        return sorted(owned) == [*range(self.partitions)]

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        await self.start_coordinator()
        for name in self.members:
            self.start_member(name)
        while loop.time() < FAULTS_S:
            await asyncio.sleep(self.chance.expovariate(3.0))
            await self.fault()
            await self.check_positions()
        self.faulty = False
        self.journal.fail_rate = 0.0
        calm_s = loop.time()
        while not self.settled():
            for name, member in self.members.items():
                if member is None or member.task.done():
                    self.start_member(name)
            await asyncio.sleep(0.05)
            late = loop.time() - calm_s
            if late > SETTLE_S:
                self.checker.problems.append(f"not stable {late:.1f} s after the last fault")
                break
        await self.crash_coordinator()
        await self.start_coordinator()
        await self.check_positions()
        assert self.coordinator is not None
        stable = self.coordinator.describe(GROUP).state is groups.GroupState.STABLE
        self.checker.require(stable, "not stable after the journal was loaded again")
        await self._stop()

    async def _stop(self) -> None:
        await self.crash_coordinator()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def run_seed(seed: int) -> Checker:
    """One simulated history; what goes wrong is in its `problems`, with the seed."""
    loop = VirtualLoop()
    world = World(seed)
    problems = world.checker.problems
    loop.set_exception_handler(lambda _loop, context: problems.append(str(context)))
    try:
        loop.run_until_complete(world.run())
    finally:
        loop.close()
    world.checker.problems = [f"seed={seed}: {problem}" for problem in problems]
    return world.checker


def test_groups_under_faults(caplog: pytest.LogCaptureFixture) -> None:
    """K7, L13: one owner per partition and generation, no lost commit, stable after faults."""
    caplog.set_level(logging.CRITICAL)
    histories = run_seeds(run_seed, least=100)
    assert [problem for history in histories for problem in history.problems] == []
    commits = sum(history.commits for history in histories)
    assert commits > 20 * len(histories), f"too few commits to mean anything: {commits}"
    generations = sum(history.generation for history in histories)
    assert generations > 3 * len(histories), f"too few rebalances: {generations}"


# --- the simulation notices -----------------------------------------------------------------------


class AnyGeneration(Group):
    """Planted: commits of older generations are accepted."""

    def commit_check(
        self, who: groups.MemberIdentity, _generation: groups.Generation, *, now_ms: float
    ) -> groups.GroupError:
        return super().commit_check(who, self.generation, now_ms=now_ms)


class NoFencing(Group):
    """Planted: a member id that was replaced may go on."""

    def commit_check(
        self, who: groups.MemberIdentity, generation: groups.Generation, *, now_ms: float
    ) -> groups.GroupError:
        error = super().commit_check(who, generation, now_ms=now_ms)
        return groups.GroupError.NONE if error is groups.GroupError.FENCED_INSTANCE else error


class UnstoredGeneration(Group):
    """Planted: as Kafka, a generation is told before it is stored."""

    def _persist(self, write: Write, snapshot: groups.GroupSnapshot) -> None:
        if isinstance(write, GenerationWrite):
            self._report_generation(self._join_now_ms)
        else:
            super()._persist(write, snapshot)

    def _complete_join(self, now_ms: float) -> None:
        self._join_now_ms = now_ms
        super()._complete_join(now_ms)


class EarlyAcknowledge(GroupCoordinator):
    """Planted: commits are acknowledged before the journal has them."""

    def _store_offsets(
        self, group_id: groups.GroupId, accepted: dict[groups.PartitionKey, groups.CommittedOffset]
    ) -> asyncio.Future[groups.GroupError]:
        super()._store_offsets(group_id, accepted)
        done: asyncio.Future[groups.GroupError] = asyncio.get_running_loop().create_future()
        done.set_result(groups.GroupError.NONE)
        return done


@pytest.mark.parametrize("planted", [AnyGeneration, NoFencing, UnstoredGeneration])
def test_planted_bug_in_the_group_is_found(
    planted: type[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: the simulation goes red when the protocol is broken."""
    monkeypatch.setattr(group_coordinator, "Group", planted)
    assert any(run_seed(seed).problems for seed in range(100))


def test_planted_bug_in_the_coordinator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: the simulation goes red when a commit is acknowledged too early."""
    monkeypatch.setitem(globals(), "GroupCoordinator", EarlyAcknowledge)
    assert any(run_seed(seed).problems for seed in range(100))
