"""The durable form of groups: a journal of keys and values.

A journal is a sequence of records. The last value of a key counts; a record without a value
removes its key. Two kinds of keys exist: a group (its generation, members and assignment) and a
position (group, topic, partition). Each key and each value begins with one byte that says how the
rest is written; the rest is MessagePack.

Promises that an implementation of `GroupJournal` gives:
- Records are durable when `append` returns. If it raises, a replay may show them or not, or only
  the first of them.
- Appends are stored in the order of the calls and return in that order. Several may be under way.
- Replay gives, in order, everything that was acknowledged.
It raises `DovetailError` or `OSError`, and nothing else; `Refused` and `NotOwner` mean that another
coordinator has taken over.

Not here: how to keep the journal short. `GroupCoordinator.snapshot` gives the live state as
records; the owner appends them and drops what is older.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from dovetail.errors import Damaged
from dovetail.log.groups.types import (
    CommittedOffset,
    Generation,
    GroupId,
    GroupSnapshot,
    InstanceId,
    MemberId,
    MemberProtocol,
    MemberSnapshot,
    PartitionKey,
)

#: How keys and values are written; a reader refuses what it does not know.
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One change; without a value it removes the key."""

    key: bytes
    value: bytes | None


class GroupJournal(Protocol):
    """Where the groups of one coordinator are stored."""

    async def append(self, records: Sequence[JournalRecord]) -> None:
        """Stores the records, in order; they are durable when this returns.

        Raises `DovetailError` or `OSError` if they may not be stored.
        """
        ...


class MemoryGroupJournal:
    """A journal that lives as long as its process; for tests and for nodes that keep nothing."""

    def __init__(self) -> None:
        self.records: list[JournalRecord] = []

    async def append(self, records: Sequence[JournalRecord]) -> None:
        self.records.extend(records)

    async def replay(self) -> AsyncIterator[JournalRecord]:
        """Everything that was appended, in order."""
        for record in tuple(self.records):
            yield record


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The key of a group."""

    group_id: GroupId


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """The key of a position."""

    group_id: GroupId
    partition: PartitionKey


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as it is stored; `stored_wall_ms` tells how long an empty one has been empty."""

    snapshot: GroupSnapshot
    stored_wall_ms: int


class _GroupKeyForm(msgspec.Struct, frozen=True, array_like=True, tag="g"):
    group_id: str


class _OffsetKeyForm(msgspec.Struct, frozen=True, array_like=True, tag="o"):
    group_id: str
    topic: str
    partition: int


class _MemberForm(msgspec.Struct, frozen=True, array_like=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[tuple[str, bytes]]
    assignment: bytes


class _GroupForm(msgspec.Struct, frozen=True, array_like=True):
    stored_wall_ms: int
    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    assigned: bool
    members: list[_MemberForm]


class _OffsetForm(msgspec.Struct, frozen=True, array_like=True):
    offset: int
    leader_epoch: int
    metadata: str
    committed_wall_ms: int


_encoder = msgspec.msgpack.Encoder()
_key_decoder = msgspec.msgpack.Decoder(_GroupKeyForm | _OffsetKeyForm)
_group_decoder = msgspec.msgpack.Decoder(_GroupForm)
_offset_decoder = msgspec.msgpack.Decoder(_OffsetForm)
_VERSION_PREFIX = bytes([FORMAT_VERSION])


def _encode(form: msgspec.Struct) -> bytes:
    return _VERSION_PREFIX + _encoder.encode(form)


def _body(data: bytes) -> memoryview:
    if data[:1] != _VERSION_PREFIX:
        raise Damaged(f"group journal: format {data[:1].hex() or 'missing'}, known is 01")
    return memoryview(data)[1:]


def encode_key(key: GroupKey | OffsetKey) -> bytes:
    """The bytes of a key; equal keys have equal bytes."""
    if isinstance(key, GroupKey):
        return _encode(_GroupKeyForm(key.group_id))
    return _encode(_OffsetKeyForm(key.group_id, key.partition.topic, key.partition.partition))


def decode_key(data: bytes) -> GroupKey | OffsetKey:
    """Raises `Damaged` if the bytes are no key of a known format."""
    try:
        form = _key_decoder.decode(_body(data))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"group journal: unreadable key {data[:64].hex()}: {error}") from error
    if isinstance(form, _GroupKeyForm):
        return GroupKey(GroupId(form.group_id))
    return OffsetKey(GroupId(form.group_id), PartitionKey(form.topic, form.partition))


def encode_group(stored: StoredGroup) -> bytes:
    """The value of a group."""
    kept = stored.snapshot
    members = [
        _MemberForm(
            m.member_id,
            m.instance_id,
            m.client_id,
            m.client_host,
            m.session_timeout_ms,
            m.rebalance_timeout_ms,
            [(p.name, p.metadata) for p in m.protocols],
            m.assignment,
        )
        for m in kept.members
    ]

    return _encode(
        _GroupForm(
            stored.stored_wall_ms,
            kept.generation,
            kept.protocol_type,
            kept.protocol,
            kept.leader,
            kept.assigned,
            members,
        )
    )


def decode_group(data: bytes) -> StoredGroup:
    """Raises `Damaged` if the bytes are no group of a known format."""
    try:
        form = _group_decoder.decode(_body(data))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"group journal: unreadable group: {error}") from error

    members = tuple(
        MemberSnapshot(
            MemberId(m.member_id),
            None if m.instance_id is None else InstanceId(m.instance_id),
            m.client_id,
            m.client_host,
            m.session_timeout_ms,
            m.rebalance_timeout_ms,
            tuple(MemberProtocol(name, metadata) for name, metadata in m.protocols),
            m.assignment,
        )
        for m in form.members
    )
    snapshot = GroupSnapshot(
        Generation(form.generation),
        form.protocol_type,
        form.protocol,
        None if form.leader is None else MemberId(form.leader),
        members,
        form.assigned,
    )
    return StoredGroup(snapshot, form.stored_wall_ms)


def encode_offset(committed: CommittedOffset) -> bytes:
    """The value of a position."""
    return _encode(
        _OffsetForm(
            committed.offset,
            committed.leader_epoch,
            committed.metadata,
            committed.committed_wall_ms,
        )
    )


def decode_offset(data: bytes) -> CommittedOffset:
    """Raises `Damaged` if the bytes are no position of a known format."""
    try:
        form = _offset_decoder.decode(_body(data))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"group journal: unreadable position: {error}") from error
    return CommittedOffset(form.offset, form.leader_epoch, form.metadata, form.committed_wall_ms)
