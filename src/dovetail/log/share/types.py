"""Share groups: places, states, limits, the stored state."""

from dataclasses import dataclass, fields
from enum import Enum, IntEnum
from typing import NamedTuple

import msgspec


class Place(NamedTuple):
    """A share-partition: a group, and a partition that its members share."""

    group_id: str
    topic: str
    number: int


class Mark(IntEnum):
    """Where a record stands, by Kafka's numbers; `ARCHIVING` waits for its dead letter."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


#: Nothing happens any more to a record that is so.
DONE = frozenset({Mark.ACKNOWLEDGED, Mark.ARCHIVED})


class Acknowledge(IntEnum):
    """What a member says of a record, by Kafka's numbers."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class ShareError(Enum):
    """Why acknowledgements are refused."""

    NONE = "none"
    INVALID_RECORD_STATE = "the record is not acquired by this member, or not any more"
    INVALID_REQUEST = "the batches do not fit together"
    RENEW_OFF = "renewing is switched off for the group"


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """Limits of one share group. Defaults are Kafka's."""

    lock_ms: int = 30_000
    #: A record that was delivered so often is given up.
    deliveries_max: int = 5
    #: Records between the first that is not done with and the last that was acquired. It bounds
    #: what is stored with every acknowledgement.
    in_flight_max: int = 2_000
    heartbeat_interval_ms: int = 5_000
    session_timeout_ms: int = 45_000
    #: Where a group begins in a partition: "earliest", "latest", or "by_duration:" and a time.
    begins: str = "latest"
    committed_only: bool = False
    renews: bool = True
    #: The topic for records that were given up; empty for none.
    dead_letters: str = ""
    #: Whether a dead letter has the record's key, value and headers, and not only its place.
    dead_letters_whole: bool = False


class Batch(NamedTuple):
    """Offsets that can be read; `skip` if nobody is to see them, such as those of a marker."""

    first: int
    last: int
    skip: bool = False


class Acquired(NamedTuple):
    """Records that a member has now, and how often they have been delivered."""

    first: int
    last: int
    deliveries: int


class Acknowledgement(NamedTuple):
    """What became of records: one kind for all, or one for each."""

    first: int
    last: int
    kinds: tuple[int, ...]


class ShareState(msgspec.Struct, frozen=True, array_like=True):
    """What is stored of a share-partition, in this order.

    `term` is that of the partition's owner. `claim` says who took the state over, only the last one
    may write it; and `version` counts its writes, so that one that was lost and comes late changes
    nothing. `spans` follow each other from `start`: length, mark, delivery count.
    """

    topic_id: str
    term: int
    claim: int
    version: int = 0
    #: The first offset that is not done with; -1 before the owner has found where to begin.
    start: int = -1
    spans: tuple[tuple[int, int, int], ...] = ()

    @property
    def done(self) -> int:
        """Records from `start` on that are done with."""
        return sum(length for length, mark, _ in self.spans if mark in DONE)


@dataclass(slots=True)
class ShareCounts:
    """Records that a share-partition has handed out here, and what became of them, counted on.

    What members said counts when it is decided; if it cannot be stored then, the record is
    delivered again and counts again.
    """

    acquired: int = 0
    accepted: int = 0
    released: int = 0
    rejected: int = 0
    #: Records whose lock ended before their member said anything.
    expired: int = 0
    #: Records that were given up because they had been delivered too often.
    exhausted: int = 0
    #: Dead letters that are stored.
    dead_letters: int = 0


#: What is counted, in this order.
COUNTED = tuple(field.name for field in fields(ShareCounts))


class ShareView(msgspec.Struct, frozen=True, array_like=True):
    """A share-partition as its owner sees it now."""

    start: int
    log_end: int
    #: Not delivered, or not done with: what is left to do.
    lag: int
    acquired: int
    #: Records that were delivered before and wait to be delivered again.
    again: int
    #: The highest delivery count of a record that is not done with.
    deliveries: int
    #: Records that wait for their dead letters to be stored.
    dying: int
