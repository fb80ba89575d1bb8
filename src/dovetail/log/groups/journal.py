"""The stored form of groups: a journal of keys and values.

A journal is a sequence of records. The last value of a key counts; a record without a value
removes its key. There are five kinds of keys: a group (a classic one with its generation, members
and assignment; one of the new protocol with its epochs), a member of a group of the new protocol, a
position (group, topic, partition), a position that waits for the end of a transaction, and a share
group's state of a partition. The first byte of each key and value gives the format of the rest,
which is MessagePack.

Promises that an implementation of `GroupJournal` gives:
- Records are durable when `append` returns. If it raises, a replay may show all of them, none, or
  only the first ones.
- Appends are stored in the order of the calls and return in that order. Several may be in flight.
- Replay gives, in order, everything that was acknowledged.
It raises `DovetailError` or `OSError`, and nothing else; `Refused` and `NotOwner` mean that another
coordinator has taken over.

Not here: how to keep the journal short. `GroupCoordinator.snapshot` gives the live state as
records; the owner appends them and drops what is older.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from dovetail.errors import Damaged
from dovetail.log.groups.assignors import SHARE_ASSIGNORS
from dovetail.log.groups.consumer_types import ConsumerHeader, ConsumerMember
from dovetail.log.groups.types import (
    CommittedOffset,
    Generation,
    GroupId,
    GroupSnapshot,
    MemberId,
    MemberSnapshot,
    PartitionKey,
)
from dovetail.log.share.types import ShareState

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


class NoJournal:
    """The journal of a coordinator that coordinates nothing."""

    async def append(self, records: Sequence[JournalRecord]) -> None:
        raise AssertionError("nothing is written elsewhere")


class GroupKey(msgspec.Struct, frozen=True, array_like=True, tag="g"):
    """The key of a group."""

    group_id: GroupId


class _PlaceKey(msgspec.Struct, frozen=True, array_like=True):
    """The key of what a group has of a partition."""

    group_id: GroupId
    topic: str
    number: int

    @property
    def partition(self) -> PartitionKey:
        return PartitionKey(self.topic, self.number)


class OffsetKey(_PlaceKey, frozen=True, array_like=True, tag="o"):
    """The key of a position."""


class PendingKey(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """The key of a position that waits for the end of a transaction."""

    group_id: GroupId
    producer_id: int
    topic: str
    number: int


class PendingOffset(msgspec.Struct, frozen=True, array_like=True):
    """A position that waits, and the epoch and number of its transaction."""

    epoch: int
    transaction: int
    committed: CommittedOffset


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as it is stored; `stored_wall_ms` says how long an empty one has been empty."""

    snapshot: GroupSnapshot | ConsumerHeader
    stored_wall_ms: int


class MemberKey(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    """The key of a member of a group of the new protocol."""

    group_id: GroupId
    member_id: MemberId


class ShareKey(_PlaceKey, frozen=True, array_like=True, tag="s"):
    """The key of what a share group decided about a partition."""


class _GroupForm(msgspec.Struct, frozen=True, array_like=True):
    """A `GroupSnapshot` behind the time at which it was stored."""

    stored_wall_ms: int
    generation: Generation
    protocol_type: str | None
    protocol: str | None
    leader: MemberId | None
    assigned: bool
    members: tuple[MemberSnapshot, ...]


class _ConsumerForm(msgspec.Struct, frozen=True, array_like=True):
    """A `ConsumerHeader` behind the time at which it was stored."""

    stored_wall_ms: int
    epoch: int
    target_epoch: int
    assignor: str
    topics: int


_encoder = msgspec.msgpack.Encoder()
Key = GroupKey | OffsetKey | MemberKey | PendingKey | ShareKey
_key_decoder: msgspec.msgpack.Decoder[Key] = msgspec.msgpack.Decoder(Key)
_group_decoder = msgspec.msgpack.Decoder(_GroupForm)
_offset_decoder = msgspec.msgpack.Decoder(CommittedOffset)
_pending_decoder = msgspec.msgpack.Decoder(PendingOffset)
_consumer_decoder = msgspec.msgpack.Decoder(_ConsumerForm)
_member_decoder = msgspec.msgpack.Decoder(ConsumerMember)
_share_decoder = msgspec.msgpack.Decoder(ShareState)
_VERSION_PREFIX = bytes([FORMAT_VERSION])
#: In front of a group of the new protocol, and of a share group; a node that does not know them
#: refuses it.
_CONSUMER_PREFIX = b"\x02"
_SHARE_PREFIX = b"\x03"

T = TypeVar("T")


def _encode(form: object) -> bytes:
    return _VERSION_PREFIX + _encoder.encode(form)


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes, what: str) -> T:
    if data[:1] != _VERSION_PREFIX:
        raise Damaged(
            f"group journal: format {data[:1].hex() or 'missing'} is unknown, expected 01"
        )
    try:
        return decoder.decode(memoryview(data)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"group journal: unreadable {what}: {error}") from error


def encode_key(key: Key) -> bytes:
    """The bytes of a key; equal keys have equal bytes."""
    return _encode(key)


def decode_key(data: bytes) -> Key:
    """Raises `Damaged` if the bytes are not a key of a known format."""
    key: Key = _decode(_key_decoder, data, f"key {data[:64].hex()}")
    return key


def encode_group(stored: StoredGroup) -> bytes:
    """The value of a group."""
    if isinstance(stored.snapshot, ConsumerHeader):
        form = _ConsumerForm(stored.stored_wall_ms, *msgspec.structs.astuple(stored.snapshot))
        shares = stored.snapshot.assignor in SHARE_ASSIGNORS
        return (_SHARE_PREFIX if shares else _CONSUMER_PREFIX) + _encoder.encode(form)
    return _encode(_GroupForm(stored.stored_wall_ms, *msgspec.structs.astuple(stored.snapshot)))


def decode_group(data: bytes) -> StoredGroup:
    """Raises `Damaged` if the bytes are not a group of a known format."""
    if data[:1] in (_CONSUMER_PREFIX, _SHARE_PREFIX):
        found = _decode(_consumer_decoder, _VERSION_PREFIX + data[1:], "group")
        stored_wall_ms, *header = msgspec.structs.astuple(found)
        return StoredGroup(ConsumerHeader(*header), stored_wall_ms)
    stored_wall_ms, *kept = msgspec.structs.astuple(_decode(_group_decoder, data, "group"))
    return StoredGroup(GroupSnapshot(*kept), stored_wall_ms)


def encode_member(member: ConsumerMember) -> bytes:
    """The value of a member."""
    return _encode(member)


def decode_member(data: bytes) -> ConsumerMember:
    """Raises `Damaged` if the bytes are not a member of a known format."""
    return _decode(_member_decoder, data, "member")


def encode_offset(committed: CommittedOffset | PendingOffset) -> bytes:
    """The value of a position, or of one that waits."""
    return _encode(committed)


def decode_offset(data: bytes) -> CommittedOffset:
    """Raises `Damaged` if the bytes are not a position of a known format."""
    return _decode(_offset_decoder, data, "position")


def decode_pending(data: bytes) -> PendingOffset:
    """Raises `Damaged` if the bytes are not a position that waits, of a known format."""
    return _decode(_pending_decoder, data, "pending position")


def encode_share(state: ShareState) -> bytes:
    """The value of what a share group has of a partition."""
    return _encode(state)


def decode_share(data: bytes) -> ShareState:
    """Raises `Damaged` if the bytes are not such a state of a known format."""
    return _decode(_share_decoder, data, "share state")
