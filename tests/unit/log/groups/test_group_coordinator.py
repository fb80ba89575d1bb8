"""The coordinator: effects, storage, positions, time and closing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import count

import pytest
from tests.unit.log.groups.memory_journal import MemoryGroupJournal

from dovetail.clock import ManualClock, SystemClock
from dovetail.errors import Damaged, DovetailError, Fenced, Unavailable
from dovetail.log.groups.coordinator import GroupCoordinator
from dovetail.log.groups.journal import JournalRecord
from dovetail.log.groups.member import random_member_id
from dovetail.log.groups.types import (
    NO_GENERATION,
    NO_MEMBER,
    Generation,
    GroupError,
    GroupId,
    GroupSettings,
    GroupState,
    InstanceId,
    JoinAnswer,
    JoinRequest,
    MemberId,
    MemberIdentity,
    MemberProtocol,
    OffsetCommit,
    PartitionKey,
    SyncRequest,
)

G = GroupId("g")
P0 = PartitionKey("t", 0)
P1 = PartitionKey("u", 1)
OUTSIDE = MemberIdentity(NO_MEMBER)
SETTINGS = GroupSettings(initial_rebalance_delay_ms=0)
OK = GroupError.NONE


class GatedJournal(MemoryGroupJournal):
    """A journal whose appends wait while the gate is shut, and fail when told."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: DovetailError | OSError | None = None

    async def append(self, records: Sequence[JournalRecord]) -> None:
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        await super().append(records)


def topics_of(_protocol_type: str, metadata: bytes) -> frozenset[str] | None:
    return frozenset({metadata.decode()}) if metadata else None


class Node:
    """A coordinator with its journal and clock."""

    def __init__(self, journal: GatedJournal, settings: GroupSettings = SETTINGS) -> None:
        numbers = count(1)
        self.journal = journal
        self.clock = ManualClock()
        self.coordinator = GroupCoordinator(
            journal,
            self.clock,
            settings,
            new_member_id=lambda prefix: MemberId(f"{prefix}-{next(numbers)}"),
            topics_of=topics_of,
        )

    async def advance(self, delta_ms: int) -> None:
        self.clock.advance(delta_ms)
        self.coordinator.tick()
        await settle()

    async def commit(self, offset: int, key: PartitionKey = P0, metadata: str = "") -> GroupError:
        wanted = {key: OffsetCommit(offset, metadata=metadata)}
        return (await self.coordinator.commit(G, OUTSIDE, NO_GENERATION, wanted))[key]

    async def position(self, key: PartitionKey = P0) -> int | None:
        found = (await self.coordinator.fetch(G, [key])).offsets.get(key)
        return None if found is None else found.offset

    async def stable(self, metadata: bytes = b"t") -> JoinAnswer:
        answer = await self.coordinator.join(G, request(metadata=metadata))
        given = ((answer.member_id, b"A"),)
        who = MemberIdentity(answer.member_id)
        synced = await self.coordinator.sync(G, SyncRequest(who, answer.generation, given))
        assert (synced.error, synced.assignment) == (OK, b"A")
        return answer

    async def again(self) -> "Node":
        """The coordinator dies, and another loads its journal."""
        await self.coordinator.close()
        return await started(self.journal)


def request(
    member_id: str = "", *, metadata: bytes = b"t", instance: str | None = None
) -> JoinRequest:
    return JoinRequest(
        MemberId(member_id),
        "consumer",
        (MemberProtocol("range", metadata),),
        10_000,
        30_000,
        None if instance is None else InstanceId(instance),
        "c",
        member_id_required=False,
    )


async def settle() -> None:
    """Lets everything run that can run now."""
    for _ in range(10):
        await asyncio.sleep(0)


async def started(journal: GatedJournal, settings: GroupSettings = SETTINGS) -> Node:
    node = Node(journal, settings)
    await node.coordinator.load(journal.replay())
    return node


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = await started(GatedJournal())
    yield node
    await node.coordinator.close()


async def test_join_sync_heartbeat_leave(node: Node) -> None:
    """K7: the way of a member."""
    answer = await node.stable()
    who = MemberIdentity(answer.member_id)
    assert await node.coordinator.heartbeat(G, who, answer.generation) is OK
    assert [o.error for o in await node.coordinator.leave(G, [who])] == [OK]
    await settle()
    assert node.coordinator.describe(G).state is GroupState.EMPTY


async def test_requests_before_load() -> None:
    """K7: while it loads, clients are told to wait in the words that each request knows."""
    node = Node(GatedJournal())
    coordinator = node.coordinator
    loading = GroupError.COORDINATOR_LOADING
    who = MemberIdentity(MemberId("c-1"))
    assert (await coordinator.join(G, request())).error is loading
    sync = await coordinator.sync(G, SyncRequest(who, Generation(1)))
    assert sync.error is GroupError.REBALANCE_IN_PROGRESS
    assert await coordinator.heartbeat(G, who, Generation(1)) is OK
    assert await node.commit(1) is loading
    assert (await coordinator.fetch(G)).error is loading
    assert await coordinator.delete_group(G) is loading
    assert await coordinator.forget_topic("t") is loading


async def test_requests_to_a_group_that_does_not_exist(node: Node) -> None:
    """K7: only a first join and a commit from outside make a group."""
    coordinator = node.coordinator
    who = MemberIdentity(MemberId("c-1"))
    unknown = GroupError.UNKNOWN_MEMBER
    assert (await coordinator.join(G, request("c-1"))).error is unknown
    assert (await coordinator.sync(G, SyncRequest(who, Generation(1)))).error is unknown
    assert await coordinator.heartbeat(G, who, Generation(1)) is unknown
    assert [o.error for o in await coordinator.leave(G, [who])] == [unknown]
    stale = await coordinator.commit(G, who, Generation(1), {P0: OffsetCommit(1)})
    assert stale == {P0: GroupError.ILLEGAL_GENERATION}
    assert (await coordinator.fetch(G)).offsets == {}
    assert (await coordinator.delete_offsets(G, [P0])).error is GroupError.GROUP_ID_NOT_FOUND
    assert await coordinator.delete_group(G) is GroupError.GROUP_ID_NOT_FOUND
    assert coordinator.describe(G).state is GroupState.DEAD
    assert (await coordinator.join(GroupId(""), request())).error is GroupError.INVALID_GROUP_ID
    assert coordinator.groups() == []


async def test_refused_first_join_leaves_no_group(node: Node) -> None:
    """R3: requests that fail do not fill the memory."""
    refused = JoinRequest(NO_MEMBER, "consumer", (), 10_000, 30_000)
    answer = await node.coordinator.join(G, refused)
    assert answer.error is GroupError.INCONSISTENT_PROTOCOL
    assert node.coordinator.groups() == []


async def test_commit_is_seen_when_it_is_stored(node: Node) -> None:
    """K7: neither the committer nor a fetch knows of a position before the journal has it."""
    node.journal.gate.clear()
    first = asyncio.create_task(node.commit(5))
    second = asyncio.create_task(node.commit(6))
    await settle()
    assert not first.done()
    assert await node.position() is None
    node.journal.gate.set()
    assert [await first, await second] == [OK, OK]
    assert await node.position() == 6


async def test_commit_goes_on_when_its_caller_goes_away(node: Node) -> None:
    """K7: memory and journal agree also when a connection ends in the middle."""
    node.journal.gate.clear()
    caller = asyncio.create_task(node.commit(5))
    await settle()
    caller.cancel()
    await settle()
    node.journal.gate.set()
    await settle()
    assert await node.position() == 5


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (Unavailable("down"), GroupError.COORDINATOR_NOT_AVAILABLE),
        (OSError("disk"), GroupError.COORDINATOR_NOT_AVAILABLE),
        (Fenced("term 2 refused"), GroupError.NOT_COORDINATOR),
    ],
)
async def test_failed_journal_changes_nothing(
    node: Node, failure: DovetailError | OSError, told: GroupError
) -> None:
    """K7: a journal that fails is a retriable error, and the last position stands."""
    assert await node.commit(5) is OK
    node.journal.failure = failure
    assert await node.commit(6) is told
    assert await node.position() == 5
    assert (await node.coordinator.join(G, request())).error is told
    assert await node.coordinator.forget_topic("t") is told
    assert await node.position() == 5


async def test_failed_delete_changes_nothing(node: Node) -> None:
    """K3: a group is there until its end is stored."""
    await node.commit(5)
    node.journal.failure = Unavailable("down")
    failed = GroupError.COORDINATOR_NOT_AVAILABLE
    assert await node.coordinator.delete_group(G) is failed
    assert (await node.coordinator.delete_offsets(G, [P0])).outcomes == {P0: failed}
    assert await node.position() == 5


async def test_too_much_metadata_refuses_one_partition(node: Node) -> None:
    """K7: the text of a position is limited; the other partitions are stored."""
    wanted = {P0: OffsetCommit(1, metadata="é" * 2_049), P1: OffsetCommit(2, 3, "é" * 2_048)}
    outcomes = await node.coordinator.commit(G, OUTSIDE, NO_GENERATION, wanted)
    assert outcomes == {P0: GroupError.OFFSET_METADATA_TOO_LARGE, P1: OK}
    found = (await node.coordinator.fetch(G)).offsets
    assert [(key, c.offset, c.leader_epoch) for key, c in found.items()] == [(P1, 2, 3)]


async def test_stable_members_go_on_after_a_restart(node: Node) -> None:
    """K7: another coordinator that loads the journal knows generation, assignment, positions."""
    answer = await node.stable()
    who = MemberIdentity(answer.member_id)
    wanted = {P0: OffsetCommit(7, 2, "note")}
    assert await node.coordinator.commit(G, who, answer.generation, wanted) == {P0: OK}
    other = await node.again()
    assert await other.coordinator.heartbeat(G, who, answer.generation) is OK
    assert await other.coordinator.commit(G, who, answer.generation, wanted) == {P0: OK}
    synced = await other.coordinator.sync(G, SyncRequest(who, answer.generation))
    assert synced.assignment == b"A"
    found = (await other.coordinator.fetch(G)).offsets[P0]
    assert (found.offset, found.leader_epoch, found.metadata) == (7, 2, "note")
    await other.coordinator.close()


async def test_snapshot_is_the_whole_state(node: Node) -> None:
    """K7: a journal of the snapshot alone gives the same coordinator."""
    answer = await node.stable()
    who = MemberIdentity(answer.member_id)
    for offset in range(3):
        await node.coordinator.commit(G, who, answer.generation, {P0: OffsetCommit(offset)})
    shorter = GatedJournal()
    await shorter.append(node.coordinator.snapshot())
    assert len(shorter.records) == 2
    other = await started(shorter)
    assert other.coordinator.describe(G) == node.coordinator.describe(G)
    assert await other.position() == 2
    await other.coordinator.close()


async def test_snapshot_has_what_is_under_way(node: Node) -> None:
    """K7: dropping what is older than the snapshot loses no commit that is being stored."""
    node.journal.gate.clear()
    under_way = asyncio.create_task(node.commit(5))
    await settle()
    shorter = GatedJournal()
    await shorter.append(node.coordinator.snapshot())
    node.journal.gate.set()
    assert await under_way is OK
    other = await started(shorter)
    assert await other.position() == 5
    await other.coordinator.close()


async def test_unreadable_journal_stops_the_load() -> None:
    """K7: a coordinator does not start on what it cannot read."""
    journal = GatedJournal()
    await journal.append([JournalRecord(b"\x02rest", b"")])
    with pytest.raises(Damaged, match="format 02"):
        await started(journal)


async def test_delete_offsets_refused_while_subscribed(node: Node) -> None:
    """K3: positions of a topic that a member reads stay; others go, also from the journal."""
    assert await node.commit(1, P0) is OK
    assert await node.commit(1, P1) is OK
    await node.stable(b"t")
    answer = await node.coordinator.delete_offsets(G, [P0, P1])
    assert answer.error is OK
    assert answer.outcomes == {P0: GroupError.GROUP_SUBSCRIBED_TO_TOPIC, P1: OK}
    other = await node.again()
    assert [await other.position(P0), await other.position(P1)] == [1, None]
    await other.coordinator.close()


async def test_delete_offsets_refused_if_the_subscription_is_unknown(node: Node) -> None:
    """K3: members whose metadata cannot be read may read anything."""
    await node.stable(b"")
    answer = await node.coordinator.delete_offsets(G, [P0])
    assert answer.error is GroupError.NON_EMPTY_GROUP


async def test_deleted_topic_takes_its_positions(node: Node) -> None:
    """L8: positions go with their topic."""
    await node.commit(1, P0)
    await node.commit(1, P1)
    assert await node.coordinator.forget_topic("t") is OK
    assert [await node.position(P0), await node.position(P1)] == [None, 1]


async def test_delete_group_only_when_empty(node: Node) -> None:
    """K3: a group with members stays; an empty one goes with its positions, for good."""
    await node.commit(1)
    answer = await node.stable()
    assert await node.coordinator.delete_group(G) is GroupError.NON_EMPTY_GROUP
    await node.coordinator.leave(G, [MemberIdentity(answer.member_id)])
    await settle()
    assert await node.coordinator.delete_group(G) is OK
    assert node.coordinator.groups() == []
    other = await node.again()
    assert other.coordinator.groups() == []
    await other.coordinator.close()


async def test_delete_group_waits_for_the_last_leave_to_be_stored(node: Node) -> None:
    """K3: a client that leaves and deletes at once is not told that the group has members."""
    member = MemberIdentity((await node.stable()).member_id)
    node.journal.gate.clear()
    await node.coordinator.leave(G, [member])
    deletion = asyncio.create_task(node.coordinator.delete_group(G))
    await settle()
    node.journal.gate.set()
    assert await deletion is OK


async def test_member_that_joins_while_its_group_is_deleted(node: Node) -> None:
    """K3: the group lives on with its member, without the positions."""
    await node.commit(1)
    node.journal.gate.clear()
    deleting = asyncio.create_task(node.coordinator.delete_group(G))
    await settle()
    joining = asyncio.create_task(node.coordinator.join(G, request()))
    await settle()
    node.journal.gate.set()
    assert await deleting is OK
    assert (await joining).error is OK
    assert await node.position() is None
    assert len(node.coordinator.describe(G).members) == 1


async def test_list_by_state(node: Node) -> None:
    """K3: groups are listed with their state, all or some."""
    await node.stable()
    await node.coordinator.commit(GroupId("h"), OUTSIDE, NO_GENERATION, {P0: OffsetCommit(1)})
    listed = {g.group_id: (g.state, g.protocol_type) for g in node.coordinator.groups()}
    assert listed == {"g": (GroupState.STABLE, "consumer"), "h": (GroupState.EMPTY, "")}
    assert [g.group_id for g in node.coordinator.groups([GroupState.EMPTY])] == ["h"]


async def test_positions_of_an_empty_group_expire(node: Node) -> None:
    """K7: seven days after the last member went and the last commit came, a group is forgotten."""
    answer = await node.stable()
    who = MemberIdentity(answer.member_id)
    await node.coordinator.commit(G, who, answer.generation, {P0: OffsetCommit(1)})
    node.clock.advance(6 * 24 * 3_600_000)
    await node.coordinator.leave(G, [who])
    await settle()
    node.clock.advance(6 * 24 * 3_600_000)
    await node.advance(600_000)
    assert await node.position() == 1
    node.clock.advance(24 * 3_600_000)
    await node.advance(600_000)
    assert node.coordinator.groups() == []
    other = await node.again()
    assert other.coordinator.groups() == []
    await other.coordinator.close()


async def test_positions_of_a_group_with_members_stay(node: Node) -> None:
    """K7: retention is for groups without members."""
    await node.commit(1)
    await node.stable()
    node.clock.jump_wall(30 * 24 * 3_600_000)
    node.coordinator.tick()
    await settle()
    assert await node.position() == 1


async def test_emptied_group_is_stored_with_the_next_commit(node: Node) -> None:
    """K7: a member of a generation that is over cannot come back through a restart."""
    answer = await node.stable()
    who = MemberIdentity(answer.member_id)
    node.journal.failure = Unavailable("down")
    await node.coordinator.leave(G, [who])
    await settle()
    node.journal.failure = None
    assert await node.commit(9) is OK
    other = await node.again()
    stale = await other.coordinator.commit(G, who, answer.generation, {P0: OffsetCommit(1)})
    assert stale == {P0: GroupError.UNKNOWN_MEMBER}
    assert await other.position() == 9
    await other.coordinator.close()


async def test_sessions_end_by_tick(node: Node) -> None:
    """L13: members that are silent for a session are removed."""
    answer = await node.stable()
    await node.advance(9_999)
    who = MemberIdentity(answer.member_id)
    assert await node.coordinator.heartbeat(G, who, answer.generation) is OK
    await node.advance(9_999)
    assert node.coordinator.describe(G).state is GroupState.STABLE
    await node.advance(1)
    assert node.coordinator.describe(G).state is GroupState.EMPTY


async def test_timer_wakes_at_the_deadline() -> None:
    """K7: the timer task ends the initial delay with nobody asking."""
    settings = GroupSettings(initial_rebalance_delay_ms=20)
    journal = MemoryGroupJournal()
    coordinator = GroupCoordinator(journal, SystemClock(), settings)
    await coordinator.load(journal.replay())
    coordinator.start()
    async with asyncio.timeout(60):
        both = await asyncio.gather(*(coordinator.join(G, request()) for _ in range(2)))
    assert [answer.generation for answer in both] == [1, 1]
    assert both[0].member_id != both[1].member_id
    await coordinator.close()


async def test_close_answers_everybody_who_waits(node: Node) -> None:
    """K7: joins, syncs and commits that wait are told to look for the coordinator."""
    first = await node.stable()
    joining = asyncio.create_task(node.coordinator.join(G, request()))
    node.journal.gate.clear()
    who = MemberIdentity(first.member_id)
    wanted = {P0: OffsetCommit(1)}
    committing = asyncio.create_task(node.coordinator.commit(G, who, first.generation, wanted))
    await settle()
    await node.coordinator.close()
    moved = GroupError.NOT_COORDINATOR
    assert (await joining).error is moved
    assert await committing == {P0: moved}
    assert await node.coordinator.heartbeat(G, who, first.generation) is moved


async def test_restarted_instance_through_the_coordinator(node: Node) -> None:
    """K7: a static member keeps its assignment over its restart and the coordinator's."""
    coordinator = node.coordinator
    first = await coordinator.join(G, request(instance="i"))
    who = MemberIdentity(first.member_id, InstanceId("i"))
    await coordinator.sync(G, SyncRequest(who, first.generation, ((first.member_id, b"A"),)))
    again = await coordinator.join(G, request(instance="i"))
    assert (again.error, again.generation) == (OK, first.generation)
    other = await node.again()
    fenced = await other.coordinator.heartbeat(G, who, first.generation)
    assert fenced is GroupError.FENCED_INSTANCE
    new = MemberIdentity(again.member_id, InstanceId("i"))
    synced = await other.coordinator.sync(G, SyncRequest(new, again.generation))
    assert synced.assignment == b"A"
    await other.coordinator.close()


def test_member_ids_are_never_the_same() -> None:
    """K7: an id names one member for all time."""
    assert random_member_id("c") != random_member_id("c")
    assert random_member_id("c").startswith("c-")


async def test_a_clock_that_is_set_ahead_takes_no_positions(node: Node) -> None:
    """F16: the positions of a group that rests stay until their time has really passed."""
    assert await node.commit(7) is OK
    node.clock.jump_wall(2 * SETTINGS.offsets_retention_ms)
    await node.advance(SETTINGS.retention_check_interval_ms)
    assert await node.position() == 7
    await node.advance(2 * SETTINGS.offsets_retention_ms)
    assert await node.position() is None
