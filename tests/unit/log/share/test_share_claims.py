"""What a coordinator keeps for share groups: claims, writes, moves; and settings of groups."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.log.groups.memory_journal import MemoryGroupJournal

from dovetail.clock import SystemClock
from dovetail.coordination import EmbeddedCoordinator
from dovetail.errors import Fenced, InvalidInput, NotFound
from dovetail.log.groups.assignors import SHARE_ASSIGNORS, Subscriber
from dovetail.log.groups.consumer_types import ConsumerBeat
from dovetail.log.groups.coordinator import GroupCoordinator
from dovetail.log.groups.types import (
    ConsumerAnswer,
    ConsumerLimits,
    Generation,
    GroupError,
    GroupId,
    GroupSettings,
    GroupState,
    JoinRequest,
    MemberId,
    MemberIdentity,
    MemberProtocol,
    OffsetCommit,
    PartitionKey,
)
from dovetail.log.share.group_settings import SETTINGS, GroupSettingsTable
from dovetail.log.share.types import ShareSettings, ShareState

GROUP = GroupId("g")
PLACE = PartitionKey("a", 0)


class Topics:
    """One topic of two partitions."""

    version = 1

    def facts(self, name: str) -> tuple[str, int] | None:
        return {"a": ("id-a", 2)}.get(name)

    def names(self) -> list[str]:
        return ["a"]


def made(journal: MemoryGroupJournal, **settings: Any) -> GroupCoordinator:
    return GroupCoordinator(journal, SystemClock(), GroupSettings(**settings), topics=Topics())


async def loaded(journal: MemoryGroupJournal, **settings: Any) -> GroupCoordinator:
    coordinator = made(journal, **settings)
    await coordinator.load(journal.replay())
    return coordinator


async def beat(serving: GroupCoordinator, member: str, epoch: int = 0) -> ConsumerAnswer:
    names = ("a",) if epoch == 0 else None
    return await serving.beat_share(
        GROUP, ConsumerBeat(member_id=MemberId(member), epoch=epoch, names=names)
    )


async def test_members_share_partitions_and_are_remembered() -> None:
    """K10: nobody waits for another; a new coordinator knows them, and the group stays one of its
    kind."""
    journal = MemoryGroupJournal()
    serving = await loaded(journal)
    first = await beat(serving, "m1")
    assert first.assignment == {("id-a", 0), ("id-a", 1)}
    second, third = await beat(serving, "m2"), await beat(serving, "m3")
    again = await beat(serving, "m1", first.epoch)
    for answer in (second, third, again):
        assert answer.assignment
    assert again.epoch > first.epoch
    assert (await beat(serving, "m1", first.epoch)).error is GroupError.NONE
    assert (await beat(serving, "m1", 77)).error is GroupError.FENCED_MEMBER_EPOCH
    assert (await beat(serving, "m9", 1)).error is GroupError.UNKNOWN_MEMBER

    later = await loaded(journal)
    found = later.share_described(GROUP)
    assert found is not None
    assert (found.state, len(found.members)) == (GroupState.STABLE, 3)
    assert [(one.kind, one.protocol_type) for one in later.groups()] == [("share", "share")]
    assert (await beat(later, "m1", again.epoch)).error is GroupError.NONE
    for member in ("m1", "m2", "m3"):
        assert (await beat(later, member, -1)).error is GroupError.NONE
    found = later.share_described(GROUP)
    assert found is not None
    assert found.state is GroupState.EMPTY
    await _others_are_refused(later)


async def _others_are_refused(serving: GroupCoordinator) -> None:
    join = JoinRequest(MemberId(""), "consumer", (MemberProtocol("range", b""),), 10_000, 10_000)
    assert (await serving.join(GROUP, join)).error is GroupError.INCONSISTENT_PROTOCOL
    consumer = ConsumerBeat(member_id=MemberId("c"), epoch=0, names=("a",), rebalance_timeout_ms=1)
    assert (await serving.beat(GROUP, consumer)).error is GroupError.GROUP_ID_NOT_FOUND
    nobody = MemberIdentity(MemberId(""))
    told = await serving.commit(GROUP, nobody, Generation(-1), {PLACE: OffsetCommit(1)})
    assert told[PLACE] is GroupError.GROUP_ID_NOT_FOUND


async def test_a_group_with_positions_is_no_share_group() -> None:
    """K10: nor is one that has other members."""
    serving = await loaded(MemoryGroupJournal())
    nobody = MemberIdentity(MemberId(""))
    await serving.commit(GROUP, nobody, Generation(-1), {PLACE: OffsetCommit(1)})
    assert (await beat(serving, "m")).error is GroupError.GROUP_ID_NOT_FOUND


async def test_a_group_has_so_many_members() -> None:
    """K10: `groups.share_size_max`."""
    serving = await loaded(MemoryGroupJournal(), share_size_max=1)
    assert (await beat(serving, "m1")).error is GroupError.NONE
    assert (await beat(serving, "m2")).error is GroupError.GROUP_MAX_SIZE


async def test_only_the_last_claim_may_write() -> None:
    """K10: not an older owner, not a call that comes late, not one of a state that was moved."""
    journal = MemoryGroupJournal()
    serving = await loaded(journal)
    with pytest.raises(NotFound):
        await serving.claim_share(GROUP, PLACE, "id-a", 1)
    await beat(serving, "m")
    old = await serving.claim_share(GROUP, PLACE, "id-a", 1)
    assert old.start == -1
    new = await serving.claim_share(GROUP, PLACE, "id-a", 2)
    with pytest.raises(Fenced):
        await serving.write_share(GROUP, PLACE, msgspec.structs.replace(old, version=9, start=1))
    with pytest.raises(Fenced):
        await serving.claim_share(GROUP, PLACE, "id-a", 1)
    for version in (1, 2, 2):
        await serving.write_share(
            GROUP, PLACE, msgspec.structs.replace(new, version=version, start=version)
        )
    with pytest.raises(Fenced):
        await serving.write_share(GROUP, PLACE, msgspec.structs.replace(new, version=1, start=1))

    later = await loaded(journal)
    states = later.share_states(GROUP)
    assert isinstance(states, dict)
    assert states[PLACE].start == 2
    await later.write_share(GROUP, PLACE, msgspec.structs.replace(new, version=3, start=3))
    # A topic of the same name that was made anew begins anew.
    other = await later.claim_share(GROUP, PLACE, "id-b", 1)
    assert other.start == -1


async def test_a_group_is_moved_and_forgotten_without_members() -> None:
    """K10: and what its partitions' owners still write is refused."""
    serving = await loaded(MemoryGroupJournal())
    await beat(serving, "m")
    state = await serving.claim_share(GROUP, PLACE, "id-a", 1)
    assert await serving.move_share(GROUP, {PLACE: ("id-a", 5)}) is GroupError.NON_EMPTY_GROUP
    assert await serving.forget_share(GROUP, ["a"]) is GroupError.NON_EMPTY_GROUP
    await beat(serving, "m", -1)
    assert await serving.move_share(GROUP, {PLACE: ("id-a", 5)}) is GroupError.NONE
    with pytest.raises(Fenced):
        await serving.write_share(GROUP, PLACE, msgspec.structs.replace(state, version=1))
    moved = await serving.claim_share(GROUP, PLACE, "id-a", 1)
    assert (moved.start, moved.spans) == (5, ())
    assert await serving.forget_share(GROUP, ["a"]) is GroupError.NONE
    with pytest.raises(Fenced):
        await serving.write_share(GROUP, PLACE, msgspec.structs.replace(moved, version=1))
    await serving.claim_share(GROUP, PLACE, "id-a", 1)
    assert await serving.forget_topic("a") is GroupError.NONE
    assert serving.share_states(GROUP) == {}
    assert await serving.delete_group(GROUP) is GroupError.NONE
    assert serving.share_states(GROUP) is GroupError.GROUP_ID_NOT_FOUND


async def test_a_claim_waits_for_what_was_let_through() -> None:
    """K10: what the old owner was told to be stored is what the new one begins with."""
    journal = SlowJournal()
    serving = await loaded(journal)
    await beat(serving, "m")
    old = await serving.claim_share(GROUP, PLACE, "id-a", 1)
    journal.slow = True
    write = asyncio.ensure_future(
        serving.write_share(GROUP, PLACE, msgspec.structs.replace(old, version=1, start=7))
    )
    await asyncio.sleep(0)
    new = await serving.claim_share(GROUP, PLACE, "id-a", 2)
    await write
    assert new.start == 7


class SlowJournal(MemoryGroupJournal):
    """Takes its time when it is told to."""

    slow = False

    async def append(self, records: Any) -> None:
        if self.slow:
            await asyncio.sleep(0.02)
        await super().append(records)


def test_every_partition_has_a_member_and_every_member_a_partition() -> None:
    """K10: whatever there is more of."""
    for members in range(1, 6):
        for partitions in range(1, 6):
            named = {
                f"m{at}": Subscriber(f"m{at}", frozenset({"t"}), frozenset())
                for at in range(members)
            }
            given = SHARE_ASSIGNORS["simple"](named, {"t": partitions})
            assert all(given.values())
            assert {part for parts in given.values() for part in parts} == {
                ("t", number) for number in range(partitions)
            }
            assert sum(map(len, given.values())) == max(members, partitions)


def test_the_journal_of_the_worst_case_fits() -> None:
    """K10: the largest room in flight, every record another story: a few bytes each."""
    spans = tuple((1, at % 2, at % 5) for at in range(10_000))
    state = ShareState("0" * 32, 2**31 - 1, 2**62, 2**31, 2**62, spans)
    assert len(msgspec.msgpack.encode(state)) < 50_000


@pytest.fixture
async def table(tmp_path: Path) -> AsyncIterator[GroupSettingsTable]:
    coordinator = await EmbeddedCoordinator.open(
        tmp_path / "coordination.sqlite", clock=SystemClock()
    )
    made = GroupSettingsTable(coordinator, ShareSettings())
    await made.start()
    yield made
    await made.stop()
    await coordinator.close()


async def test_a_group_that_does_not_fit_a_node_does_not_stop_it(tmp_path: Path) -> None:
    """K10, R5: a group's session is shorter than the interval of a node with other settings, which
    starts all the same, and follows what comes later."""
    coordinator = await EmbeddedCoordinator.open(
        tmp_path / "coordination.sqlite", clock=SystemClock()
    )
    first = GroupSettingsTable(coordinator, ShareSettings(heartbeat_interval_ms=1_000))
    slower = GroupSettingsTable(coordinator, ShareSettings(heartbeat_interval_ms=9_000))
    short = {"share.session.timeout.ms": "6000", "share.delivery.count.limit": "7"}
    try:
        await first.start()
        await first.change("g", short)
        await slower.start()
        limits = slower.of("g")
        assert (limits.session_timeout_ms, limits.deliveries_max) == (6_000, 7)
        assert limits.heartbeat_interval_ms == 2_000
        assert first.of("g").heartbeat_interval_ms == 1_000

        # A change there is still refused if it does not fit there.
        with pytest.raises(InvalidInput, match="is not less than"):
            await slower.change("other", short)
        await slower.change("g", {"share.heartbeat.interval.ms": "500"})
        assert slower.of("g").heartbeat_interval_ms == 500
    finally:
        await first.stop()
        await slower.stop()
        await coordinator.close()


async def test_a_group_has_settings_of_its_own(table: GroupSettingsTable) -> None:
    """K10, K12: set, shown, kept and removed under Kafka's names."""
    await table.change(
        "g",
        {
            "share.auto.offset.reset": "by_duration:P1DT1H",
            "share.isolation.level": "READ_COMMITTED",
            "share.delivery.count.limit": "7",
        },
    )
    limits = table.of("g")
    assert (limits.begins, limits.committed_only) == ("by_duration:90000000", True)
    assert limits.deliveries_max == 7
    assert SETTINGS["share.auto.offset.reset"].show(limits) == "by_duration:PT90000S"
    assert table.of("other") == ShareSettings()
    assert table.groups() == ["g"]
    await table.change("g", {"share.isolation.level": None})
    assert not table.of("g").committed_only
    await table.change("g", {}, from_nothing=True)
    assert table.of("g") == ShareSettings()
    assert table.groups() == []


async def test_a_group_of_the_new_protocol_has_settings_of_its_own(
    table: GroupSettingsTable,
) -> None:
    """K9, K12: its session and interval; what has no effect is kept and shown."""
    own = {"consumer.session.timeout.ms": "60000", "consumer.assignment.interval.ms": "700"}
    await table.change("g", own)
    assert table.consumer("g") == ConsumerLimits(session_timeout_ms=60_000)
    assert table.consumer("other") == ConsumerLimits()
    assert table.of("g") == ShareSettings()
    shown = table.shown("g")
    assert {**shown, **own} == shown
    assert shown["consumer.heartbeat.interval.ms"] == "5000"
    assert table.shown("other")["consumer.assignment.interval.ms"] == "0"

    with pytest.raises(InvalidInput, match="is not less than"):
        await table.change("g", {"consumer.heartbeat.interval.ms": "60000"})
    await table.change("g", dict.fromkeys(own))
    assert table.consumer("g") == ConsumerLimits()
    assert table.groups() == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share.auto.offset.reset", "somewhere"),
        ("share.auto.offset.reset", "by_duration:"),
        ("share.auto.offset.reset", "by_duration:-PT1H"),
        ("share.record.lock.duration.ms", "0"),
        ("share.record.lock.duration.ms", "-1"),
        ("share.record.lock.duration.ms", "30s"),
        ("share.record.lock.duration.ms", "٣٠٠٠"),
        ("share.delivery.count.limit", "1e3"),
        ("share.partition.max.record.locks", str(2**63)),
        ("share.isolation.level", ""),
        ("share.renew.acknowledge.enable", "yes"),
        ("errors.deadletterqueue.topic.name", "orders"),
        ("errors.deadletterqueue.topic.name", "dlq.\0"),
        ("consumer.session.timeout.ms", "1000"),
        ("share.heartbeat.interval.ms", "60000"),
        ("consumer.assignment.interval.ms", "-1"),
        ("streams.session.timeout.ms", "60000"),
    ],
)
async def test_what_a_group_cannot_have(table: GroupSettingsTable, name: str, value: str) -> None:
    """K10, R8: refused at once, and nothing is changed."""
    with pytest.raises(InvalidInput):
        await table.change("g", {name: value, "share.session.timeout.ms": "46000"})
    assert table.of("g") == ShareSettings()
