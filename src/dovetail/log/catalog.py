"""Topics and partitions in the coordination service.

    /topics/<name>                      TopicRecord
    /partitions/<topic id>/<number>     PartitionRecord (storage/chain.py)
    /ids/<kind>                         the next id that was not issued yet

Every broker watches everything below the first two, and so knows every topic and the owner of every
partition. A view can be outdated, so each change is a compare-and-set. Each step of a creation or
deletion can be repeated: any broker that finds a topic half-way continues from there (L3, L8, B3,
B4).
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeGuard

import msgspec

from dovetail.coordination.mirror import Mirror
from dovetail.coordination.protocol import (
    ABSENT,
    Change,
    Coordinator,
    Delete,
    Put,
    Revision,
    Unchanged,
)
from dovetail.errors import (
    CoordinationDown,
    TopicExists,
    TopicIdUnknown,
    TopicUnknown,
    Uncertain,
)
from dovetail.log.owners import DELETED, NOBODY, Owners, Ownership, Place
from dovetail.log.topic import TopicRecord, TopicState
from dovetail.storage import chain
from dovetail.storage.chain import PAGES, PARTITIONS, LedgerInfo, PartitionRecord

TOPICS = "/topics/"

#: Changes in one transaction, with a condition each and one for the topic; etcd takes 128.
CHANGES_MAX = 100

#: Attempts at a compare-and-set against other writers before giving up.
_ATTEMPTS_MAX = 100


def topic_key(name: str) -> str:
    """Where a topic is kept."""
    return f"{TOPICS}{name}"


def partition_key(topic_id: str, number: int) -> str:
    """Where a partition is kept; padded, so that a range is in order."""
    return f"{PARTITIONS}{topic_id}/{number:06d}"


class _Newest(msgspec.Struct, frozen=True):
    """What stands for the ledgers of a chain that has pages."""

    newest: tuple[msgspec.Raw, ...]


class _Owned(msgspec.Struct, frozen=True):
    """The few fields of a `PartitionRecord` that everybody follows, and its last ledger."""

    topic_id: str
    partition: int
    term: int = 0
    owner: int = NOBODY
    ledgers: tuple[msgspec.Raw, ...] | _Newest = ()

    def holders(self) -> tuple[int, ...]:
        """The storage nodes that the newest ledger lies on."""
        known = self.ledgers.newest if isinstance(self.ledgers, _Newest) else self.ledgers
        if not known:
            return ()
        newest = msgspec.json.decode(known[-1], type=LedgerInfo)
        return newest.placement.fragments[-1].nodes


class Catalog:
    """The topics and the owners of their partitions, as last seen, and their changes."""

    def __init__(self, coordinator: Coordinator, *, on_change: Callable[[], None]) -> None:
        self._coordinator = coordinator
        self._topics: dict[str, tuple[TopicRecord, Revision]] = {}
        self._names: dict[str, str] = {}
        #: Grows with every change of a topic.
        self.topics_version = 0
        #: By topic id: grows with every change of the topic, its owners and who holds it.
        self._versions: dict[str, int] = {}
        self._changes = 0
        #: All that has a key, by topic and number, also what is being deleted.
        self._registered: dict[str, dict[int, Ownership]] = {}
        #: The partitions of all topics that live, registered ones only.
        self.owners = Owners()
        self._holders: dict[Place, tuple[int, ...]] = {}
        #: Topics that are being made or deleted, or have partitions without a key.
        self._unfinished: dict[str, None] = {}
        self._changed: dict[Place, None] = {}
        self._gone: list[str] = []
        self._topic_mirror = Mirror(coordinator, TOPICS, apply=self._apply_topic, settled=on_change)
        self._partition_mirror = Mirror(
            coordinator, PARTITIONS, apply=self._apply_partition, settled=on_change
        )

    async def start(self) -> None:
        """Reads everything, then follows. Raises `CoordinationDown`."""
        await self._topic_mirror.start()
        await self._partition_mirror.start()

    async def stop(self) -> None:
        """Follows no more."""
        await self._topic_mirror.stop()
        await self._partition_mirror.stop()

    async def catch_up(self) -> None:
        """Knows what is true now, also if the watches are behind. Raises `CoordinationDown`."""
        await self._topic_mirror.catch_up()
        await self._partition_mirror.catch_up()

    # What is known

    def all(self) -> list[TopicRecord]:
        """The topics in every state."""
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
        """Raises `TopicIdUnknown` unless clients can see it."""
        try:
            return self.topic(self._names.get(topic_id, ""))
        except TopicUnknown:
            raise TopicIdUnknown(f"no topic has the id {topic_id}") from None

    def living(self, topic_id: str) -> TopicRecord | None:
        """This very topic, unless it is gone or being deleted."""
        found = self._topics.get(self._names.get(topic_id, ""))
        if found is None or found[0].state is TopicState.DELETING:
            return None
        return found[0]

    def unfinished(self) -> list[TopicRecord]:
        """The topics with unfinished work: not ready, or with partitions without a key."""
        return [self._topics[self._names[topic_id]][0] for topic_id in self._unfinished]

    def take_changed(self) -> dict[Place, None]:
        """The partitions whose record or topic changed since the last call."""
        changed, self._changed = self._changed, {}
        return changed

    def take_gone(self) -> list[str]:
        """The topics that clients see no more, since the last call."""
        gone, self._gone = self._gone, []
        return gone

    def ownership(self, place: Place) -> Ownership:
        """Who owns a partition, as last seen."""
        of_topic = self._registered.get(place.topic_id, {})
        return of_topic.get(place.number, Ownership(0, NOBODY))

    def holders(self, place: Place) -> tuple[int, ...]:
        """The storage nodes of a partition's newest ledger; none before its first."""
        return self._holders.get(place, ())

    def version(self, topic_id: str) -> int:
        """What is known of a topic, its owners and holders is unchanged while this is."""
        return self._versions.get(topic_id, 0)

    async def check_free(self, name: str) -> None:
        """Raises `TopicExists` if the name is taken; a view that may be old does not decide it."""
        if name in self._topics and await self._fresh(name) is not None:
            raise TopicExists(f"topic {name!r} exists, or is still being deleted")

    # Changes

    async def register(self, record: TopicRecord) -> None:
        """First step of a creation. Raises `TopicExists`, also while an old one is deleted."""
        key, value = topic_key(record.name), msgspec.json.encode(record)
        try:
            outcome = await self._coordinator.transact(
                [Put(key, value)], conditions=[Unchanged(key, ABSENT)]
            )
            if outcome.applied:
                self._topic_mirror.note(key, value, outcome.revision)
                return
        except Uncertain:
            if await self._fresh(record.name) is None:
                raise
        found = await self._fresh(record.name)
        if found is None or found.id != record.id:
            raise TopicExists(f"topic {record.name!r} exists, or is still being deleted")

    async def change(
        self, record: TopicRecord, decide: Callable[[TopicRecord], TopicRecord]
    ) -> TopicRecord:
        """Replaces the topic by what `decide` makes of it. Raises `TopicUnknown` if it is gone."""
        for _ in range(_ATTEMPTS_MAX):
            known = self._topics.get(record.name)
            if known is None or known[0].id != record.id:
                break
            decided = decide(known[0])
            if decided == known[0]:
                return decided

            key, value = topic_key(record.name), msgspec.json.encode(decided)
            try:
                outcome = await self._coordinator.transact(
                    [Put(key, value)], conditions=[Unchanged(key, known[1])]
                )
                if outcome.applied:
                    self._topic_mirror.note(key, value, outcome.revision)
                    return decided
            except Uncertain:
                pass
            await self._fresh(record.name)
        raise TopicUnknown(f"topic {record.name!r} does not exist")

    async def register_partitions(
        self, record: TopicRecord, owners: Callable[[list[Place]], Mapping[Place, int]]
    ) -> None:
        """Gives each partition its key, where it has none, with the owner that is to claim it.

        Only keys that do not exist are written, and only while the topic does: who comes late
        changes nothing. Raises `TopicUnknown` if the topic is gone.
        """
        for _ in range(_ATTEMPTS_MAX):
            existing = await self._coordinator.range(f"{PARTITIONS}{record.id}/")
            known = {item.key for item in existing.items}
            missing = [
                Place(record.id, number)
                for number in range(record.partitions)
                if partition_key(record.id, number) not in known
            ]
            if not missing:
                return
            topic = self._topics.get(record.name)
            if topic is None or topic[0].id != record.id or topic[0].state is TopicState.DELETING:
                raise TopicUnknown(f"topic {record.name!r} was deleted meanwhile")
            await self._register(missing, owners(missing), topic)
            await self._fresh(record.name)
        raise CoordinationDown(
            f"cannot register the partitions of topic {record.name!r}: other brokers keep "
            "changing it"
        )

    async def _register(
        self,
        missing: list[Place],
        owners: Mapping[Place, int],
        topic: tuple[TopicRecord, Revision],
    ) -> None:
        """Writes the keys; checks those again that were refused because another was faster."""
        for at in range(0, len(missing), CHANGES_MAX):
            puts = [
                Put(
                    partition_key(*place),
                    chain.encode(PartitionRecord(*place, owner=owners.get(place, NOBODY))),
                )
                for place in missing[at : at + CHANGES_MAX]
            ]
            conditions = [Unchanged(put.key, ABSENT) for put in puts]
            conditions.append(Unchanged(topic_key(topic[0].name), topic[1]))
            try:
                outcome = await self._coordinator.transact(puts, conditions=conditions)
            except Uncertain:
                return
            if not outcome.applied:
                return
            for put in puts:
                self._partition_mirror.note(put.key, put.value, outcome.revision)

    async def partitions(self, topic_id: str) -> list[PartitionRecord]:
        """The partitions of a topic, as they are now; their pages are left where they are."""
        snapshot = await self._coordinator.range(f"{PARTITIONS}{topic_id}/")
        return [chain.decode(item.value) for item in snapshot.items]

    async def remove(self, record: TopicRecord) -> None:
        """Last step of a deletion: the keys go, the name is free.

        The topic's key goes only if it still is this topic's: who finishes late must not remove a
        new topic of the same name.
        """
        for prefix in (PAGES, PARTITIONS):
            snapshot = await self._coordinator.range(f"{prefix}{record.id}/")
            changes: list[Change] = [Delete(item.key) for item in snapshot.items]
            for at in range(0, len(changes), CHANGES_MAX):
                outcome = await self._coordinator.transact(changes[at : at + CHANGES_MAX])
                for change in changes[at : at + CHANGES_MAX]:
                    self._partition_mirror.note(change.key, None, outcome.revision)
        key = topic_key(record.name)
        found = await self._coordinator.get(key)
        if found is not None and _decode(found.value).id == record.id:
            outcome = await self._coordinator.transact(
                [Delete(key)], conditions=[Unchanged(key, found.revision)]
            )
            if outcome.applied:
                self._topic_mirror.note(key, None, outcome.revision)

    async def _fresh(self, name: str) -> TopicRecord | None:
        """The topic as it is now; what is known of it is brought up to date."""
        key = topic_key(name)
        # A range, because it has a revision also for what is not there: an answer that was late on
        # its way must not hide a topic that was made since.
        snapshot = await self._coordinator.range(key)
        found = next((item for item in snapshot.items if item.key == key), None)
        if found is None:
            self._topic_mirror.note(key, None, snapshot.revision)
            return None
        self._topic_mirror.note(key, found.value, found.revision)
        return _decode(found.value)

    # What the mirrors show

    def _apply_topic(self, key: str, value: bytes | None, revision: Revision) -> None:
        name = key.removeprefix(TOPICS)
        self.topics_version += 1
        was, _ = self._topics.pop(name, (None, 0))
        record = None if value is None else _decode(value)
        if was is not None:
            self._names.pop(was.id, None)
        if record is not None:
            self._topics[name] = (record, revision)
            self._names[record.id] = name

        if _shows(was) and not (_shows(record) and was.id == record.id):
            self._gone.append(name)
        for topic_id in dict.fromkeys(r.id for r in (was, record) if r is not None):
            self._grow(topic_id)
            for number in self._registered.get(topic_id, ()):
                self._note(Place(topic_id, number))
            self._note_work(topic_id)

    def _apply_partition(self, key: str, value: bytes | None, revision: Revision) -> None:
        if value is None:
            topic_id, _, number = key.removeprefix(PARTITIONS).rpartition("/")
            place = Place(topic_id, int(number))
            of_topic = self._registered.get(topic_id, {})
            of_topic.pop(place.number, None)
            if not of_topic:
                self._registered.pop(topic_id, None)
            self._holders.pop(place, None)
        else:
            owned = msgspec.json.decode(value, type=_Owned)
            place = Place(owned.topic_id, owned.partition)
            of_topic = self._registered.setdefault(place.topic_id, {})
            of_topic[place.number] = Ownership(owned.term, owned.owner)
            self._holders[place] = owned.holders()
        self._note(place)
        self._note_work(place.topic_id)
        self._grow(place.topic_id)

    def _grow(self, topic_id: str) -> None:
        """Something of a topic changed; a version is never used twice."""
        self._changes += 1
        if topic_id in self._names or topic_id in self._registered:
            self._versions[topic_id] = self._changes
        else:
            self._versions.pop(topic_id, None)

    def _note(self, place: Place) -> None:
        """A partition or its topic changed."""
        self._changed[place] = None
        ownership = self._registered.get(place.topic_id, {}).get(place.number)
        if ownership is None or ownership.owner == DELETED or self.living(place.topic_id) is None:
            self.owners.drop(place)
        else:
            self.owners.put(place, ownership)

    def _note_work(self, topic_id: str) -> None:
        """Whether there is work on a topic; partitions only become more, so counting is enough."""
        found = self._topics.get(self._names.get(topic_id, ""))
        if found is not None and (
            found[0].state is not TopicState.READY
            or len(self._registered.get(topic_id, ())) < found[0].partitions
        ):
            self._unfinished[topic_id] = None
        else:
            self._unfinished.pop(topic_id, None)


def _shows(record: TopicRecord | None) -> TypeGuard[TopicRecord]:
    """Whether clients see the topic."""
    return record is not None and record.state is TopicState.READY


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
        raise CoordinationDown(f"cannot reserve ids in {self._key} after {_ATTEMPTS_MAX} attempts")
