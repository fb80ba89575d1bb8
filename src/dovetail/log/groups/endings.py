"""The end of a transaction in a group's journal: pending positions are applied or dropped.

All positions of one transaction end in one record batch, so all of them or none. A repeated end
waits for the first.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping

from dovetail.log.groups.entries import GroupEntry, offset_record
from dovetail.log.groups.journal import PendingOffset
from dovetail.log.groups.pending import PendingPlace, pending_record
from dovetail.log.groups.types import (
    CommittedOffset,
    GroupError,
    GroupId,
    PartitionKey,
    TransactionOf,
)
from dovetail.log.groups.writer import JournalWriter
from dovetail.record_batch import Marker

#: Producers whose last end is remembered. A position that comes so much later than its end that
#: ten thousand others have ended meanwhile would wait until an operator ends it.
_ENDED_MAX = 10_000

_Waiting = dict[PendingPlace, PendingOffset]


class Endings:
    """The ends of transactions in one journal."""

    def __init__(self, writer: JournalWriter, settle: Callable[[GroupId], None]) -> None:
        """`settle` is called with a group for which nothing waits any more."""
        self._writer = writer
        self._settle = settle
        #: The number of the last transaction that ended, by producer.
        self._ended: OrderedDict[int, int] = OrderedDict()
        self._under_way: dict[Marker, asyncio.Future[GroupError]] = {}

    def over(self, of: TransactionOf) -> bool:
        """Whether the transaction has ended here."""
        return self._ended.get(of.producer_id, -1) >= of.number

    def store(
        self,
        of: TransactionOf,
        group_id: GroupId,
        entry: GroupEntry,
        accepted: Mapping[PartitionKey, CommittedOffset],
    ) -> "asyncio.Future[GroupError]":
        """Positions that wait: in memory at once, so that an end right behind them finds them."""
        taken = entry.pending.put(of, accepted)
        records = [pending_record(group_id, place, found) for place, found in taken.items()]
        return self._writer.append(records, lambda error: None)

    async def end(self, marker: Marker, entries: Mapping[GroupId, GroupEntry]) -> GroupError:
        """Ends what waits for this marker; returns when the journal has it."""
        self._ended[marker.producer_id] = max(
            marker.number, self._ended.get(marker.producer_id, -1)
        )
        self._ended.move_to_end(marker.producer_id)
        while len(self._ended) > _ENDED_MAX:
            self._ended.popitem(last=False)

        under_way = self._under_way.get(marker)
        if under_way is None:
            found = _waiting_for(marker, entries)
            while any(entries[group].pending.is_overtaken(found[group]) for group in found):
                if not self._writer.is_waited_for:
                    return GroupError.NOT_COORDINATOR  # It was closed: nobody knows what is stored.
                await self._writer.settled()
                found = _waiting_for(marker, entries)
            if not found:
                return GroupError.NONE
            under_way = self._under_way.get(marker) or self._begin(marker, found, entries)
        return await asyncio.shield(under_way)

    def _begin(
        self,
        marker: Marker,
        found: Mapping[GroupId, _Waiting],
        entries: Mapping[GroupId, GroupEntry],
    ) -> "asyncio.Future[GroupError]":
        records = []
        older: dict[GroupId, _Waiting] = {}
        for group_id, waiting in found.items():
            for place, pending in waiting.items():
                if marker.commit:
                    records.append(offset_record(group_id, place[1], pending.committed))
                records.append(pending_record(group_id, place, None))
            older[group_id] = entries[group_id].pending.older_than(waiting) if marker.commit else {}
            records += [pending_record(group_id, place, None) for place in older[group_id]]
        tables = {group_id: entries[group_id].pending for group_id in found}
        for group_id, table in tables.items():
            table.overtake(older[group_id])

        def then(error: GroupError) -> None:
            self._under_way.pop(marker, None)
            for group_id, table in tables.items():
                table.settle(older[group_id], stored=error is GroupError.NONE)
            if error is not GroupError.NONE:
                return
            for group_id, waiting in found.items():
                entry = entries.get(group_id)
                if entry is None:
                    continue
                if marker.commit:
                    for (_, key), pending in waiting.items():
                        entry.offsets.put(key, pending.committed)
                entry.pending.remove(waiting)
                self._settle(group_id)

        under_way = self._under_way[marker] = self._writer.append(records, then)
        return under_way


def _waiting_for(marker: Marker, entries: Mapping[GroupId, GroupEntry]) -> dict[GroupId, _Waiting]:
    """What waits for this end, by group."""
    return {
        group_id: waiting
        for group_id, entry in entries.items()
        if entry.pending and (waiting := entry.pending.of(marker.producer_id, marker.number))
    }
