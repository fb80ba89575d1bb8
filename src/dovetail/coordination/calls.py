"""The private calls to a node that shares its coordination: messages, keys and limits.

GetKey, RangeKeys        read
Transact                 change
AwaitChanges             watch: answered when something changed, or after a while without changes
GrantLease, KeepLease,
RevokeLease              leases

`wire/calls.py` is the codec; `_limits.py` checks keys, values and transactions on both sides.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

from dovetail.coordination.protocol import (
    KEY_BYTES_MAX,
    LEASE_TTL_MS_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_CHANGES_MAX,
    VALUE_BYTES_MAX,
    Change,
    Delete,
    KeyValue,
    LeaseId,
    Put,
    Revision,
    Unchanged,
    WatchEvent,
)
from dovetail.wire.calls import COORDINATION_KEYS, Answer, CallTable, Request

#: Largest body of a request: a transaction, with room for numbers and lengths.
REQUEST_BODY_BYTES_MAX: Final = TRANSACTION_BYTES_MAX + 64 * 1024

#: Keys and values in one answer to `AwaitChanges`, unless one revision alone has more. A reader
#: that is behind asks again at once.
CHANGES_BYTES_MAX: Final = 1024 * 1024

#: Longest that a node keeps a question for changes: well below what a client waits for an answer.
WAIT_MS_MAX: Final = 1_000

_Key = Annotated[str, Meta(max_length=KEY_BYTES_MAX)]
_Value = Annotated[bytes, Meta(max_length=VALUE_BYTES_MAX)]
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Item(Struct, array_like=True, frozen=True, gc=False):
    """A key as it is."""

    key: str
    value: bytes
    revision: _Number
    created: _Number
    lease: _Number | None

    def unpacked(self) -> KeyValue:
        """As the protocol has it."""
        lease = None if self.lease is None else LeaseId(self.lease)
        return KeyValue(
            self.key, self.value, Revision(self.revision), Revision(self.created), lease
        )


class Wanted(Struct, array_like=True, frozen=True, gc=False):
    """A change; without a value it is a deletion."""

    key: _Key
    value: _Value | None
    lease: _Number | None

    def unpacked(self) -> Change:
        """As the protocol has it."""
        if self.value is None:
            return Delete(self.key)
        return Put(self.key, self.value, None if self.lease is None else LeaseId(self.lease))


class Guard(Struct, array_like=True, frozen=True, gc=False):
    """A condition."""

    key: _Key
    revision: _Number

    def unpacked(self) -> Unchanged:
        """As the protocol has it."""
        return Unchanged(self.key, Revision(self.revision))


class Event(Struct, array_like=True, frozen=True, gc=False):
    """A change that happened."""

    key: str
    value: bytes | None
    revision: _Number

    def unpacked(self) -> WatchEvent:
        """As the protocol has it."""
        return WatchEvent(self.key, self.value, Revision(self.revision))


class GetKey(Request, frozen=True):
    """The key as it is now."""

    key: _Key


class KeyFound(Answer, frozen=True):
    """It, or None."""

    item: Item | None


class RangeKeys(Request, frozen=True):
    """All keys that begin with this."""

    prefix: _Key


class KeysFound(Answer, frozen=True):
    """They, as of one revision."""

    revision: _Number
    items: list[Item]


class Transact(Request, frozen=True):
    """Apply all changes if all conditions hold."""

    changes: Annotated[list[Wanted], Meta(max_length=TRANSACTION_CHANGES_MAX)]
    conditions: Annotated[list[Guard], Meta(max_length=TRANSACTION_CHANGES_MAX)]


class Transacted(Answer, frozen=True):
    """What became of it."""

    applied: bool
    revision: _Number


class AwaitChanges(Request, frozen=True):
    """What changes below this prefix after this revision?"""

    prefix: _Key
    after: _Number
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)]


class Changed(Answer, frozen=True):
    """Whole revisions in order, maybe none; nothing else has changed up to `position`."""

    position: _Number
    revisions: list[list[Event]]


class GrantLease(Request, frozen=True):
    """A new lease."""

    ttl_ms: Annotated[int, Meta(ge=1, le=LEASE_TTL_MS_MAX)]


class LeaseGranted(Answer, frozen=True):
    """Its number."""

    lease: _Number


class KeepLease(Request, frozen=True):
    """Restart its time."""

    lease: _Number


class RevokeLease(Request, frozen=True):
    """End it now."""

    lease: _Number


class Done(Answer, frozen=True):
    """It is done."""


CALLS: Final = CallTable(
    "coordination",
    COORDINATION_KEYS,
    dict(
        zip(
            COORDINATION_KEYS,
            (GetKey, RangeKeys, Transact, AwaitChanges, GrantLease, KeepLease, RevokeLease),
            strict=False,
        )
    ),
    body_bytes_max=REQUEST_BODY_BYTES_MAX,
)


def packed_item(item: KeyValue) -> Item:
    """Ready to travel."""
    return Item(item.key, item.value, item.revision, item.created, item.lease)


def packed_change(change: Change) -> Wanted:
    """Ready to travel."""
    if isinstance(change, Delete):
        return Wanted(change.key, None, None)
    return Wanted(change.key, bytes(change.value), change.lease)
