"""Where the figures come from: counts and states that the node keeps for other reasons.

Nothing here asks a disk, a store or another node, but for the ends of partitions that other brokers
own and groups of this one read: those brokers say every fifteen seconds what has changed.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from typing import NamedTuple

from dovetail.errors import DovetailError, TopicUnknown
from dovetail.log.groups.types import GroupId, PartitionKey
from dovetail.log.owners import Place
from dovetail.node.broker import Broker
from dovetail.node.history.lags import Lag
from dovetail.node.metrics import Metrics
from dovetail.timeline.service import TimelineService

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

#: Positions that are looked at before other work gets its turn: about a millisecond.
_POSITIONS_AT_ONCE = 500


class Counts(NamedTuple):
    """What only grows; a rate is the growth between two samples."""

    records_in: int
    records_out: int
    bytes_in: int
    bytes_out: int
    errors: int
    processor_s: float
    delivered: int
    late_ms: float


def counts_of(metrics: Metrics, timelines: TimelineService | None) -> Counts:
    """As of now."""
    delivered, late_ms = (0, 0.0) if timelines is None else timelines.metrics.lateness()
    return Counts(
        *metrics.totals(),
        processor_s=time.process_time(),
        delivered=delivered,
        late_ms=late_ms,
    )


def rates_of(before: Counts, now: Counts, *, took_ms: float) -> dict[str, float | None]:
    """The growth a second. One that went back, as with a deleted topic, is not known."""

    def rate(name: str) -> float | None:
        grown = getattr(now, name) - getattr(before, name)
        return None if grown < 0 or took_ms <= 0 else grown * 1000.0 / took_ms

    delivered = now.delivered - before.delivered
    late_ms = now.late_ms - before.late_ms
    return {
        "records_in_per_s": rate("records_in"),
        "records_out_per_s": rate("records_out"),
        "bytes_in_per_s": rate("bytes_in"),
        "bytes_out_per_s": rate("bytes_out"),
        "errors_per_s": rate("errors"),
        "processor": rate("processor_s"),
        "late_ms": late_ms / delivered if delivered > 0 and late_ms >= 0 else None,
    }


def levels_of(
    metrics: Metrics, timelines: TimelineService | None, *, now_ms: int
) -> dict[str, float | None]:
    """What stands as it is."""
    levels: dict[str, float | None] = {
        "memory_bytes": memory_bytes(),
        "connections": metrics.connections_now(),
    }
    if timelines is not None:
        counts = [running.upkeep.counts for running in timelines.timelines.values()]
        levels["due"] = sum(one.due for one in counts)
        oldest = [one.oldest_due_ms for one in counts if one.due and one.oldest_due_ms]
        levels["overdue_ms"] = max(0, now_ms - min(oldest)) if oldest else 0
    return levels


def memory_bytes() -> int | None:
    """What the process has in memory; None where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


class LagReading:
    """The lag of the groups that are coordinated here, by the rule of `admin/groups.py`."""

    def __init__(self, broker: Broker, alive: Callable[[], Collection[int]]) -> None:
        """`alive`: the brokers that hold their lease."""
        self._broker = broker
        self._alive = alive
        #: Whether a group reads partitions of other brokers, and whether those were just asked.
        self._elsewhere = self._looked = False

    async def groups(self) -> AsyncIterator[tuple[GroupId, list[Lag]]]:
        """Each group with the lag of its partitions. Other work gets its turn in between."""
        self._looked = self._elsewhere and await self._look()
        self._elsewhere = False
        registry, looked_at = self._broker.groups, 0
        for listing in registry.groups():
            places = registry.of(listing.group_id).read_up_to(listing.group_id)
            yield listing.group_id, list(self._lags(places))
            looked_at += len(places) + 1
            if looked_at >= _POSITIONS_AT_ONCE:
                looked_at = 0
                await asyncio.sleep(0)

    def _lags(self, places: list[tuple[PartitionKey, int]]) -> Iterator[Lag]:
        log = self._broker.log
        for key, read_up_to in places:
            place = (key.topic, key.partition)
            here = log.owned.open.get(place)
            if here is not None:
                yield place, max(0, here.high_watermark - read_up_to)
                continue
            try:
                record = log.catalog.topic(key.topic)
            except TopicUnknown:
                continue  # Positions outlive their topic; those count no more.
            end = self._end_elsewhere(Place(record.id, key.partition))
            yield place, None if end is None else max(0, end - read_up_to)

    def _end_elsewhere(self, place: Place) -> int | None:
        """Of a partition of another broker; what it said at an earlier sample is too old."""
        self._elsewhere = True
        ends = self._broker.seen.partition(place) if self._looked else None
        return None if ends is None else ends.end

    async def _look(self) -> bool:
        try:
            await self._broker.seen.look(self._alive())
        except DovetailError:
            return False  # Asked again for the next sample.
        return True
