"""The private calls of share groups between brokers. `wire/calls.py` is the codec.

ClaimShare   the owner of a partition → the coordinator of a group
WriteShare   the owner of a partition → the coordinator of a group
LookShare    any broker → the owner of partitions
BuryShare    the owner of a partition → the owner of a partition for dead letters
"""

from typing import Annotated, Final

from msgspec import Meta, field

from dovetail.log.share.types import ShareState, ShareView
from dovetail.wire.calls import SHARE_KEYS, Answer, CallTable, Request

#: Largest body of a request: a batch of dead letters, which is at most what a topic takes.
REQUEST_BODY_BYTES_MAX: Final = 128 * 1024 * 1024

_Name = Annotated[str, Meta(max_length=32_767)]
_Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class ClaimShare(Request, frozen=True):
    """What is stored of a share-partition? From now on only I write it."""

    group_id: _Name
    topic: _Name
    number: _Number
    topic_id: _Name
    term: int


class Claimed(Answer, frozen=True):
    """What is stored, under a new claim."""

    state: ShareState


class WriteShare(Request, frozen=True):
    """Store this."""

    group_id: _Name
    topic: _Name
    number: _Number
    state: ShareState


class LookShare(Request, frozen=True):
    """How far is a group in these partitions of yours?"""

    group_id: _Name
    partitions: list[tuple[_Name, _Number]]


class Looked(Answer, frozen=True):
    """For each partition, in order: where its log ends (-1 if it is elsewhere), and what the group
    has of it if that is in use here; and what became of its records here, in the order of
    `types.COUNTED` (an older broker does not say)."""

    ends: list[int]
    views: list[ShareView | None]
    counts: list[tuple[int, ...]] = field(default_factory=list)


class BuryShare(Request, frozen=True):
    """Append these dead letters."""

    topic: _Name
    number: _Number
    batch: bytes


class Stored(Answer, frozen=True):
    """It is stored."""


CALLS: Final = CallTable(
    "share groups",
    SHARE_KEYS,
    {
        SHARE_KEYS[0]: ClaimShare,
        SHARE_KEYS[1]: WriteShare,
        SHARE_KEYS[2]: LookShare,
        SHARE_KEYS[3]: BuryShare,
    },
    body_bytes_max=REQUEST_BODY_BYTES_MAX,
)
