"""Positions that wait for the end of a transaction (K8); pure.

They are in here as soon as they are on their way to the journal, so that an end that comes right
behind them finds them. A transaction that has ended leaves its number, and what comes after that
is refused: nobody would ever end it.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from dovetail.log.groups.journal import (
    JournalRecord,
    PendingKey,
    PendingOffset,
    encode_key,
    encode_offset,
)
from dovetail.log.groups.types import CommittedOffset, GroupId, PartitionKey, TransactionOf

#: A producer, and the partition in which its transaction has a position.
PendingPlace = tuple[int, PartitionKey]

NOTHING_WAITS: Final[Mapping[PendingPlace, PendingOffset]] = MappingProxyType({})


class PendingTable:
    """The positions of one group that wait."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: dict[PendingPlace, PendingOffset] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def put(
        self, of: TransactionOf, offsets: Mapping[PartitionKey, CommittedOffset]
    ) -> dict[PendingPlace, PendingOffset]:
        """Takes positions of a transaction; returns what was taken."""
        taken = {
            (of.producer_id, key): PendingOffset(of.epoch, of.number, committed)
            for key, committed in offsets.items()
        }
        self._pending.update(taken)
        return taken

    def replay(self, key: PendingKey, pending: PendingOffset | None) -> None:
        """Takes or forgets one as the journal says."""
        place = key.producer_id, PartitionKey(key.topic, key.number)
        if pending is None:
            self._pending.pop(place, None)
        else:
            self._pending[place] = pending

    def of(self, producer_id: int, number: int) -> dict[PendingPlace, PendingOffset]:
        """What waits for the end of a transaction, or with number -1 of any of the producer."""
        return {
            place: pending
            for place, pending in self._pending.items()
            if place[0] == producer_id and (number < 0 or pending.transaction <= number)
        }

    def of_topic(self, topic: str) -> dict[PendingPlace, PendingOffset]:
        """What waits for positions in a topic."""
        return {place: found for place, found in self._pending.items() if place[1].topic == topic}

    def remove(self, ended: Mapping[PendingPlace, PendingOffset]) -> None:
        """Forgets what has ended, unless something newer waits in its place."""
        for place, pending in ended.items():
            if self._pending.get(place) is pending:
                del self._pending[place]

    def partitions(self) -> frozenset[PartitionKey]:
        """Those with a position that is not decided."""
        return frozenset(key for _, key in self._pending)

    def all(self) -> dict[PendingPlace, PendingOffset]:
        """Everything that waits."""
        return dict(self._pending)

    def records(self, group_id: GroupId) -> Iterator[JournalRecord]:
        """Everything that waits, as records."""
        for place, pending in self._pending.items():
            yield pending_record(group_id, place, pending)


def pending_record(
    group_id: GroupId, place: PendingPlace, pending: PendingOffset | None
) -> JournalRecord:
    """Stores a position that waits, or removes it."""
    producer_id, partition = place
    key = encode_key(PendingKey(group_id, producer_id, *partition))
    return JournalRecord(key, None if pending is None else encode_offset(pending))
