"""Topics and partitions as the coordination service holds them.

    /topics/<name>                      TopicRecord
    /partitions/<topic id>/<number>     PartitionRecord (chain.py)
    /ids/<kind>                         the next id that nobody has

Each step of a creation or deletion is one compare-and-set, and each can be done again: whoever
finds a topic half-way goes on from there (L3, L8, B3, B4).
"""

import asyncio

import msgspec

from dovetail.coordination.protocol import (
    ABSENT,
    Change,
    Coordinator,
    Delete,
    Put,
    Revision,
    Unchanged,
)
from dovetail.errors import CoordinationDown, TopicExists, TopicUnknown
from dovetail.log import chain
from dovetail.log.chain import PartitionRecord
from dovetail.log.topic import TopicRecord, TopicState

TOPICS = "/topics/"
PARTITIONS = "/partitions/"

#: Changes in one transaction; etcd takes 128 by default.
CHANGES_MAX = 100

#: Attempts at a compare-and-set against other writers before giving up.
_ATTEMPTS_MAX = 100


def topic_key(name: str) -> str:
    """Where a topic is kept."""
    return f"{TOPICS}{name}"


def partition_key(topic_id: str, number: int) -> str:
    """Where a partition is kept; padded, so that a range is in order."""
    return f"{PARTITIONS}{topic_id}/{number:06d}"


class Catalog:
    """The topics, in memory as last seen, and their changes."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._topics: dict[str, tuple[TopicRecord, Revision]] = {}
        self._names: dict[str, str] = {}

    async def load(self) -> list[TopicRecord]:
        """Reads all topics, in every state."""
        snapshot = await self._coordinator.range(TOPICS)
        for item in snapshot.items:
            self._note(_decode(item.value), item.revision)
        return [record for record, _ in self._topics.values()]

    def ready(self) -> list[TopicRecord]:
        """The topics that clients see."""
        return [r for r, _ in self._topics.values() if r.state is TopicState.READY]

    def topic(self, name: str) -> TopicRecord:
        """Raises `TopicUnknown` unless clients can see it."""
        found = self._topics.get(name)
        if found is None or found[0].state is not TopicState.READY:
            raise TopicUnknown(f"topic {name!r} does not exist")
        return found[0]

    def topic_by_id(self, topic_id: str) -> TopicRecord:
        """Raises `TopicUnknown` unless clients can see it."""
        name = self._names.get(topic_id)
        if name is None:
            raise TopicUnknown(f"no topic has the id {topic_id}")
        return self.topic(name)

    def lives(self, record: TopicRecord) -> bool:
        """Whether this very topic is there and is not being deleted."""
        found = self._topics.get(record.name)
        return (
            found is not None
            and found[0].id == record.id
            and found[0].state is not TopicState.DELETING
        )

    def check_free(self, name: str) -> None:
        """Raises `TopicExists` if the name is known to be taken."""
        if name in self._topics:
            raise TopicExists(f"topic {name!r} exists, or its deletion is not complete yet")

    async def announce(self, record: TopicRecord) -> None:
        """First step of a creation. Raises `TopicExists`, also while an old one is deleted."""
        await self._replace(record, condition=ABSENT)

    async def register_partitions(self, record: TopicRecord, *, first: int = 0) -> None:
        """Gives each partition from `first` on its key, where it has none."""
        existing = await self._coordinator.range(f"{PARTITIONS}{record.id}/")
        known = {item.key for item in existing.items}
        missing = [
            number
            for number in range(first, record.partitions)
            if partition_key(record.id, number) not in known
        ]
        for at in range(0, len(missing), CHANGES_MAX):
            await self._coordinator.transact(
                [
                    Put(
                        partition_key(record.id, number),
                        chain.encode(PartitionRecord(record.id, number)),
                    )
                    for number in missing[at : at + CHANGES_MAX]
                ]
            )

    async def change(self, name: str, **fields: object) -> TopicRecord:
        """Replaces fields of a topic. Raises `TopicUnknown` if it is gone or changed meanwhile."""
        found = self._topics.get(name)
        if found is None:
            raise TopicUnknown(f"topic {name!r} does not exist")
        record = msgspec.structs.replace(found[0], **fields)
        await self._replace(record, condition=found[1])
        return record

    async def partitions(self, topic_id: str) -> list[PartitionRecord]:
        """The partitions of a topic, as they are now."""
        snapshot = await self._coordinator.range(f"{PARTITIONS}{topic_id}/")
        return [chain.decode(item.value) for item in snapshot.items]

    async def remove(self, record: TopicRecord) -> None:
        """Last step of a deletion: the keys go, the name is free.

        The topic's key goes only if it still is this topic's: who finishes late must not remove a
        new topic of the same name.
        """
        snapshot = await self._coordinator.range(f"{PARTITIONS}{record.id}/")
        changes: list[Change] = [Delete(item.key) for item in snapshot.items]
        for at in range(0, len(changes), CHANGES_MAX):
            await self._coordinator.transact(changes[at : at + CHANGES_MAX])
        key = topic_key(record.name)
        found = await self._coordinator.get(key)
        if found is not None and _decode(found.value).id == record.id:
            await self._coordinator.transact(
                [Delete(key)], conditions=[Unchanged(key, found.revision)]
            )
        known = self._topics.get(record.name)
        if known is not None and known[0].id == record.id:
            del self._topics[record.name]
        self._names.pop(record.id, None)

    async def _replace(self, record: TopicRecord, *, condition: Revision) -> None:
        key = topic_key(record.name)
        outcome = await self._coordinator.transact(
            [Put(key, msgspec.json.encode(record))], conditions=[Unchanged(key, condition)]
        )
        if not outcome.applied:
            if condition == ABSENT:
                raise TopicExists(f"topic {record.name!r} exists, or is still being deleted")
            raise TopicUnknown(f"topic {record.name!r} was changed by another node; try again")
        self._note(record, outcome.revision)

    def _note(self, record: TopicRecord, revision: Revision) -> None:
        self._topics[record.name] = (record, revision)
        self._names[record.id] = record.name


def _decode(value: bytes) -> TopicRecord:
    return msgspec.json.decode(value, type=TopicRecord)


class IdBlocks:
    """Ids that no node ever gives twice, taken from the coordination service by the block."""

    def __init__(self, coordinator: Coordinator, kind: str, *, block: int) -> None:
        self._coordinator = coordinator
        self._key = f"/ids/{kind}"
        self._block = block
        self._next = self._end = 0
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """The next id; the first is 1."""
        async with self._lock:
            if self._next == self._end:
                await self._take_block()
            self._next += 1
            return self._next - 1

    async def _take_block(self) -> None:
        for _ in range(_ATTEMPTS_MAX):
            found = await self._coordinator.get(self._key)
            start = 1 if found is None else int(found.value)
            revision = ABSENT if found is None else found.revision
            outcome = await self._coordinator.transact(
                [Put(self._key, str(start + self._block).encode())],
                conditions=[Unchanged(self._key, revision)],
            )
            if outcome.applied:
                self._next, self._end = start, start + self._block
                return
        raise CoordinationDown(f"no block of {self._key} after {_ATTEMPTS_MAX} attempts")
