"""All partitions of the cluster, as last reported by their owners.

A report counts while its sender owns the partition according to the shared catalog. Of a broker
that did not answer last time nothing is known; it is asked again only after a while, so that one
silent broker does not delay every poll.
"""

import asyncio
from collections.abc import Collection, Iterable
from typing import NamedTuple

from dovetail.clock import Clock
from dovetail.errors import DovetailError
from dovetail.log.catalog import Catalog
from dovetail.log.ends.calls import EndsBrokers, LookEnds
from dovetail.log.ends.held import Ends, HeldEnds
from dovetail.log.owners import Place
from dovetail.log.topic import TopicRecord

#: Longest wait for another broker; it answers from memory.
ANSWER_MS_MAX = 2_000
#: A broker that did not answer is asked again after this.
SILENT_MS = 5_000
#: Partitions of deleted topics that are kept, at least.
_SPARE = 10_000


class TopicEnds(NamedTuple):
    """Sums over those partitions of a topic that are known."""

    known: int
    records: int
    end: int
    bytes: int


class _Told:
    """What one broker told."""

    def __init__(self) -> None:
        self.life, self.number = "", 0
        self.ends: dict[Place, Ends] = {}
        #: With more partitions than this it is looked for some that are gone.
        self.enough = _SPARE


class SeenEnds:
    """The view of one broker."""

    def __init__(
        self, node_id: int, held: HeldEnds, others: EndsBrokers, catalog: Catalog, clock: Clock
    ) -> None:
        self._node_id = node_id
        self._held = held
        self._others = others
        self._catalog = catalog
        self._clock = clock
        self._told: dict[int, _Told] = {node_id: _Told()}
        self._silent_until_ms: dict[int, float] = {}
        self._looking = asyncio.Lock()
        #: By topic: the version of its owners, and the sums.
        self._sums: dict[str, tuple[int, TopicEnds]] = {}
        #: Partitions whose figures were taken over, ever.
        self.taken = 0

    async def look(self, brokers: Collection[int]) -> None:
        """Takes over what has changed since the last look, here and at these other brokers."""
        async with self._looking:
            for node in self._told.keys() - {self._node_id, *brokers}:
                self._forget(node)
            now_ms = self._clock.monotonic_ms()
            asked = [node for node in brokers if self._silent_until_ms.get(node, 0.0) <= now_ms]
            await asyncio.gather(*(self._ask(node) for node in asked if node != self._node_id))

        # Last, and at once: whoever waited for the others sees this broker as it is now.
        told = self._told[self._node_id]
        told.number, found = self._held.since(self._held.life, told.number)
        self._take(told, found)

    def partition(self, place: Place) -> Ends | None:
        """None if its owner did not tell."""
        told = self._told.get(self._catalog.ownership(place).owner)
        return None if told is None else told.ends.get(place)

    def topic(self, record: TopicRecord) -> TopicEnds:
        """Summed up anew where something has changed."""
        version = self._catalog.version(record.id)
        kept = self._sums.get(record.id)
        if kept is not None and kept[0] == version:
            return kept[1]
        places = (Place(record.id, number) for number in range(record.partitions))
        known = [ends for place in places if (ends := self.partition(place)) is not None]
        sums = TopicEnds(
            known=len(known),
            records=sum(ends.end - ends.first for ends in known),
            end=sum(ends.end for ends in known),
            bytes=sum(ends.bytes for ends in known),
        )
        if len(self._sums) > _SPARE + 2 * len(self._catalog.all()):
            self._sums.clear()
        self._sums[record.id] = (version, sums)
        return sums

    async def _ask(self, node: int) -> None:
        told = self._told.setdefault(node, _Told())
        try:
            async with asyncio.timeout(ANSWER_MS_MAX / 1000):
                answer = await self._others.look(node, LookEnds(told.life, told.number))
        except (DovetailError, TimeoutError):
            self._forget(node)
            self._silent_until_ms[node] = self._clock.monotonic_ms() + SILENT_MS
            return

        self._silent_until_ms.pop(node, None)
        if answer.life != told.life:
            self._forget(node)
            told = self._told[node] = _Told()
            told.life = answer.life
        told.number = answer.number
        self._take(told, ((Place(*row[:2]), Ends(*row[2:])) for row in answer.partitions))

    def _take(self, told: _Told, found: Iterable[tuple[Place, Ends]]) -> None:
        for place, ends in found:
            told.ends[place] = ends
            self._sums.pop(place.topic_id, None)
            self.taken += 1

        if len(told.ends) > told.enough:
            living = {record.id for record in self._catalog.all()}
            told.ends = {p: ends for p, ends in told.ends.items() if p.topic_id in living}
            told.enough = _SPARE + 2 * len(told.ends)

    def _forget(self, node: int) -> None:
        """Nothing is known of its partitions any more."""
        if self._told.pop(node, None) is not None:
            self._sums.clear()
