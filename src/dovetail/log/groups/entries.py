"""What a coordinator holds for each group, and its conversion to journal records and back."""

from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass, field

from dovetail.log.groups.consumer_group import ConsumerGroup
from dovetail.log.groups.consumer_types import ConsumerMember
from dovetail.log.groups.group import Group
from dovetail.log.groups.journal import (
    GroupKey,
    JournalRecord,
    MemberKey,
    OffsetKey,
    PendingKey,
    ShareKey,
    StoredGroup,
    decode_group,
    decode_key,
    decode_member,
    decode_offset,
    decode_pending,
    decode_share,
    encode_group,
    encode_key,
    encode_member,
    encode_offset,
    encode_share,
)
from dovetail.log.groups.mixed_group import MixedGroup
from dovetail.log.groups.offsets import OffsetTable
from dovetail.log.groups.pending import PendingTable
from dovetail.log.groups.types import CommittedOffset, GroupId, MemberId, PartitionKey
from dovetail.log.share.share_group import ShareGroup
from dovetail.log.share.types import ShareState


@dataclass(slots=True)
class GroupEntry:
    """A group and its positions."""

    group: Group | MixedGroup | ShareGroup
    offsets: OffsetTable = field(default_factory=OffsetTable)
    pending: PendingTable = field(default_factory=PendingTable)
    #: What a share group has of each partition, and the last claim and
    #: version of it that were let through.
    shares: dict[PartitionKey, ShareState] = field(default_factory=dict)
    claims: dict[PartitionKey, tuple[int, int]] = field(default_factory=dict)
    #: What the journal has of the group itself.
    stored: StoredGroup | None = None
    #: The alarm of this group that counts; older ones are ignored.
    wake_ms: float | None = None

    @property
    def is_idle(self) -> bool:
        """Nothing is left of it, neither here nor in the journal."""
        kept = self.offsets or self.pending or self.shares
        return self.group.is_empty and self.stored is None and not kept


@dataclass(slots=True)
class Replayed:
    """What a journal says."""

    groups: dict[GroupId, StoredGroup] = field(default_factory=dict)
    offsets: dict[GroupId, OffsetTable] = field(default_factory=dict)
    members: dict[GroupId, dict[MemberId, ConsumerMember]] = field(default_factory=dict)
    pending: dict[GroupId, PendingTable] = field(default_factory=dict)
    shares: dict[GroupId, dict[PartitionKey, ShareState]] = field(default_factory=dict)


async def replay(records: AsyncIterable[JournalRecord]) -> Replayed:
    """Reads a journal; the last value of a key counts. Raises `Damaged` if it is unreadable."""
    replayed = Replayed()
    async for record in records:
        key = decode_key(record.key)
        if isinstance(key, OffsetKey):
            table = replayed.offsets.setdefault(key.group_id, OffsetTable())
            if record.value is None:
                table.remove([key.partition])
            else:
                table.put(key.partition, decode_offset(record.value))
        elif isinstance(key, MemberKey):
            members = replayed.members.setdefault(key.group_id, {})
            members.pop(key.member_id, None)
            if record.value is not None:
                members[key.member_id] = decode_member(record.value)
        elif isinstance(key, PendingKey):
            waiting = replayed.pending.setdefault(key.group_id, PendingTable())
            waiting.replay(key, None if record.value is None else decode_pending(record.value))

        elif isinstance(key, ShareKey):
            shares = replayed.shares.setdefault(key.group_id, {})
            shares.pop(key.partition, None)
            if record.value is not None:
                shares[key.partition] = decode_share(record.value)
        elif record.value is None:
            replayed.groups.pop(key.group_id, None)
        else:
            replayed.groups[key.group_id] = decode_group(record.value)
    return replayed


def live_records(entries: Mapping[GroupId, GroupEntry]) -> Iterable[JournalRecord]:
    """Everything that is stored, one record a key."""
    for group_id, entry in entries.items():
        if entry.stored is not None:
            yield group_record(group_id, entry.stored)
        if isinstance(entry.group, ConsumerGroup):
            yield from member_records(group_id, entry.group.stored_members())
        for partition, committed in entry.offsets.fetch().items():
            yield offset_record(group_id, partition, committed)
        yield from entry.pending.records(group_id)
        for partition, state in entry.shares.items():
            yield share_record(group_id, partition, state)


def group_record(group_id: GroupId, stored: StoredGroup | None) -> JournalRecord:
    """Stores a group, or removes it."""
    value = None if stored is None else encode_group(stored)
    return JournalRecord(encode_key(GroupKey(group_id)), value)


def member_records(
    group_id: GroupId, members: Mapping[MemberId, ConsumerMember | None]
) -> Iterable[JournalRecord]:
    """Stores members of a group of the new protocol, or removes them."""
    for member_id, kept in members.items():
        value = None if kept is None else encode_member(kept)
        yield JournalRecord(encode_key(MemberKey(group_id, member_id)), value)


def offset_record(
    group_id: GroupId, partition: PartitionKey, committed: CommittedOffset | None
) -> JournalRecord:
    """Stores a position, or removes it."""
    value = None if committed is None else encode_offset(committed)
    return JournalRecord(encode_key(OffsetKey(group_id, *partition)), value)


def share_record(
    group_id: GroupId, partition: PartitionKey, state: ShareState | None
) -> JournalRecord:
    """Stores what a share group has of a partition, or removes it."""
    value = None if state is None else encode_share(state)
    return JournalRecord(encode_key(ShareKey(group_id, *partition)), value)
