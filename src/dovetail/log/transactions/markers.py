"""Markers: from a coordinator to the owners of partitions, and into their logs.

In a partition a marker is a control batch; in a group's journal it applies or drops pending
positions. Both recognise a marker that they have, so sending one again is safe.
"""

import asyncio
from collections.abc import Collection

from dovetail.clock import Clock
from dovetail.errors import DovetailError, NotOwner, ProducerFenced, TopicUnknown, Unavailable
from dovetail.log.groups.partition_journal import GROUPS_TOPIC
from dovetail.log.groups.registry import GroupRegistry
from dovetail.log.groups.types import GroupError
from dovetail.log.open_ledger import Appended
from dovetail.log.service import Log
from dovetail.log.transactions.brokers import Brokers, Outcomes
from dovetail.log.transactions.types import Place
from dovetail.logging import get_logger
from dovetail.record_batch import Marker, build_marker, read_header

_log = get_logger("log.transactions")


class Markers:
    """Sends markers, and stores those that come here."""

    def __init__(
        self, node_id: int, log: Log, groups: GroupRegistry, brokers: Brokers, clock: Clock
    ) -> None:
        self._node_id = node_id
        self._log = log
        self._groups = groups
        self._brokers = brokers
        self._clock = clock

    async def send(self, marker: Marker, partitions: Collection[Place]) -> set[Place]:
        """Sends a marker to the current owner of each partition; returns those that have it.

        A partition that does not exist any more needs none. Raises `CoordinationDown`.
        """
        done: set[Place] = set()
        owners: dict[int, list[Place]] = {}
        if not all(map(self._exists, partitions)):
            # What is not known here may be new rather than gone: that is asked where it is sure.
            await self._log.catalog.catch_up()
        for place in partitions:
            if self._exists(place):
                topic = self._log.topic(place.topic)
                owner = self._log.ownership(topic, place.number).owner
                owners.setdefault(owner, []).append(place)
            else:
                done.add(place)

        found = await asyncio.gather(
            *(self._send_to(node, marker, places) for node, places in owners.items())
        )
        return done.union(*found)

    def _exists(self, place: Place) -> bool:
        try:
            return place.number < self._log.topic(place.topic).partitions
        except TopicUnknown:
            return False

    async def _send_to(self, node: int, marker: Marker, places: list[Place]) -> list[Place]:
        try:
            if node == self._node_id:
                outcomes = await self.end_here(marker, places)
            else:
                outcomes = await self._brokers.end_there(node, marker, places)
        except DovetailError as error:
            outcomes = [error for _ in places]

        stored = []
        for place, outcome in zip(places, outcomes, strict=True):
            if outcome is None or isinstance(outcome, ProducerFenced):
                # A later epoch of the producer is known there, so nothing of this one is open.
                stored.append(place)
            elif not outcome.retriable and not isinstance(outcome, TopicUnknown):
                _log.warning("marker refused", place=place, node=node, error=str(outcome))
        return stored

    async def end_here(self, marker: Marker, partitions: Collection[Place]) -> Outcomes:
        """Stores a marker in partitions that this broker owns: all at once."""
        return await asyncio.gather(*(self._end_one(marker, place) for place in partitions))

    async def _end_one(self, marker: Marker, place: Place) -> DovetailError | None:
        try:
            if place.topic == GROUPS_TOPIC:
                outcome = _of_group(await self._groups.at(place.number).end_transaction(marker))
                # That nothing waits is true only as long as nobody else can have taken over.
                self._log.partition(*place)
                return outcome
            partition = self._log.partition(*place)
            batch = memoryview(build_marker(marker, timestamp=self._clock.wall_ms()))
            stored = partition.append(batch, read_header(batch))
            stored.add_done_callback(_seen)
            # Not awaited itself: a caller that goes away must not take the append with it.
            await asyncio.wait([stored])
            stored.result()
        except DovetailError as error:
            return error
        return None


def _seen(stored: "asyncio.Future[Appended]") -> None:
    """Its error is known, also if who asked has gone."""
    if not stored.cancelled():
        stored.exception()


def _of_group(error: GroupError) -> DovetailError | None:
    if error is GroupError.NONE:
        return None
    if error is GroupError.NOT_COORDINATOR:
        return NotOwner("another node coordinates the group")
    return Unavailable(f"the group's coordinator: {error.name}")
