"""Positions that wait for the end of a transaction (K8); pure.

They are here as soon as they are on their way to the journal, so that an end that follows at once
finds them. A transaction that has ended leaves its number, and positions that arrive for it later
are refused: nothing would ever end them.

Of two positions in a partition the one sent last counts, as in Kafka, pending or not: an ordinary
commit replaces what is pending by then, and the end of a transaction replaces what others sent
before.

While a record that replaces pending positions is on its way to the journal, these are *overtaken*:
an end that arrives for them must wait for that record's outcome.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
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

    __slots__ = ("_overtaken", "_pending")

    def __init__(self) -> None:
        #: In the order in which they were sent.
        self._pending: dict[PendingPlace, PendingOffset] = {}
        self._overtaken: Counter[PendingPlace] = Counter()

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
        for place, pending in taken.items():
            self._put(place, pending)
        return taken

    def _put(self, place: PendingPlace, pending: PendingOffset) -> None:
        self._pending.pop(place, None)  # What is sent again is the last one.
        self._pending[place] = pending

    def replay(self, key: PendingKey, pending: PendingOffset | None) -> None:
        """Takes or forgets one as the journal says."""
        place = key.producer_id, PartitionKey(key.topic, key.number)
        if pending is None:
            self._pending.pop(place, None)
        else:
            self._put(place, pending)

    def of(self, producer_id: int, number: int) -> dict[PendingPlace, PendingOffset]:
        """What waits for the end of a transaction, or with number -1 of any of the producer."""
        return {
            place: pending
            for place, pending in self._pending.items()
            if place[0] == producer_id and (number < 0 or pending.transaction <= number)
        }

    def at(self, keys: Collection[PartitionKey]) -> dict[PendingPlace, PendingOffset]:
        """What waits in these partitions."""
        return {place: found for place, found in self._pending.items() if place[1] in keys}

    def of_topic(self, topic: str) -> dict[PendingPlace, PendingOffset]:
        """What waits for positions in a topic."""
        return {place: found for place, found in self._pending.items() if place[1].topic == topic}

    def older_than(
        self, waiting: Mapping[PendingPlace, PendingOffset]
    ) -> dict[PendingPlace, PendingOffset]:
        """What others sent before, to the partitions of what waits."""
        if len(self._pending) == len(waiting):
            return {}
        older: dict[PendingPlace, PendingOffset] = {}
        left = {key for _, key in waiting}
        for place, found in self._pending.items():
            if place in waiting:
                left.discard(place[1])
            elif place[1] in left:
                older[place] = found
        return older

    def overtake(self, older: Mapping[PendingPlace, PendingOffset]) -> None:
        """What takes their place is on its way to the journal; call `settle` when it is known."""
        self._overtaken.update(older.keys())

    def is_overtaken(self, waiting: Mapping[PendingPlace, PendingOffset]) -> bool:
        """Whether something may have taken the place of one of these."""
        return bool(self._overtaken) and any(place in self._overtaken for place in waiting)

    def settle(self, older: Mapping[PendingPlace, PendingOffset], *, stored: bool) -> None:
        """What was overtaken goes, or stays because the journal refused what is newer."""
        for place in older:
            self._overtaken[place] -= 1
            if self._overtaken[place] <= 0:
                del self._overtaken[place]
        if stored:
            self.remove(older)

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
