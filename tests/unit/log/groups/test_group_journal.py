"""The durable form of groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.log.groups.memory_journal import MemoryGroupJournal

from dovetail.errors import Damaged
from dovetail.log.groups import journal
from dovetail.log.groups.types import (
    CommittedOffset,
    Generation,
    GroupId,
    GroupSnapshot,
    InstanceId,
    MemberId,
    MemberProtocol,
    MemberSnapshot,
)

MEMBER = MemberSnapshot(
    MemberId("c-1"),
    InstanceId("i"),
    "c",
    "/127.0.0.1",
    10_000,
    30_000,
    (MemberProtocol("range", b"\x00\x01"), MemberProtocol("sticky", b"")),
    b"\xff",
)
SNAPSHOT = GroupSnapshot(
    Generation(3), "consumer", "range", MemberId("c-1"), assigned=True, members=(MEMBER,)
)


@pytest.mark.parametrize(
    "snapshot",
    [SNAPSHOT, GroupSnapshot(Generation(4), None, None, None, members=(), assigned=False)],
)
def test_groups_come_back_as_they_were(snapshot: GroupSnapshot) -> None:
    """K7: nothing of a group changes on its way through the journal."""
    stored = journal.StoredGroup(snapshot, 1_700_000_000_000)
    assert journal.decode_group(journal.encode_group(stored)) == stored


@given(st.text(), st.text(), st.integers(0, 2**31 - 1))
def test_keys_come_back_as_they_were(group: str, topic: str, partition: int) -> None:
    """K7: every name of a group or topic is a key of its own."""
    group_key = journal.GroupKey(GroupId(group))
    offset_key = journal.OffsetKey(GroupId(group), topic, partition)
    assert journal.decode_key(journal.encode_key(group_key)) == group_key
    assert journal.decode_key(journal.encode_key(offset_key)) == offset_key
    assert journal.encode_key(group_key) != journal.encode_key(offset_key)


@given(st.integers(-1, 2**63 - 1), st.integers(-1, 2**31 - 1), st.text())
def test_positions_come_back_as_they_were(offset: int, epoch: int, metadata: str) -> None:
    """K7: nothing of a position changes on its way through the journal."""
    committed = CommittedOffset(offset, epoch, metadata, 1_700_000_000_000)
    assert journal.decode_offset(journal.encode_offset(committed)) == committed


@given(st.binary(max_size=40))
def test_other_bytes_are_damage(data: bytes) -> None:
    """R3: bytes that are none of ours raise `Damaged`, nothing else."""
    for decode in (journal.decode_key, journal.decode_group, journal.decode_offset):
        for start in (b"", b"\x01"):
            try:
                decode(start + data)
            except Damaged:
                continue


def test_unknown_format_is_refused() -> None:
    """K7: a value that a later version wrote is not read as something else."""
    value = journal.encode_offset(CommittedOffset(1, 2, "", 3))
    with pytest.raises(Damaged, match="format 02"):
        journal.decode_offset(b"\x02" + value[1:])


async def test_memory_journal_replays_in_order() -> None:
    """K7: the journal that these tests use keeps order and tombstones."""
    kept = MemoryGroupJournal()
    records = [journal.JournalRecord(b"a", b"1"), journal.JournalRecord(b"a", None)]
    await kept.append(records)
    assert [record async for record in kept.replay()] == records
