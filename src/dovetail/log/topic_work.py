"""Creates and deletes topics, in steps that survive a crash of the broker at work (L3, L8, B3, B4).

Each piece of work has one *master*, named in the topic's record. It takes the steps below; any
broker can repeat each of them without harm. When the master is no longer alive, the other brokers
take its place in an order that all compute alike, by compare-and-set on the record.

    create      register (CREATING) → register partitions → owners claim them → READY
    delete      DELETING → per partition: claim, so that no owner adds to it; remove its ledgers on
                every node → remove its keys → remove the topic's key: the name is free
    more        the record gives the number of partitions; those without a key get one

Clients see a topic only while it is READY. A storage node that does not answer leaves the topic
DELETING; the master retries until it answers.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial

import msgspec

from dovetail.background import Alarm, keep_task
from dovetail.clock import Clock
from dovetail.coordination.protocol import Coordinator
from dovetail.errors import DovetailError, NotOwner, TopicUnknown
from dovetail.log.catalog import Catalog, partition_key
from dovetail.log.claims import TURN_MS, assign
from dovetail.log.owned import OwnedPartitions
from dovetail.log.owners import DELETED, Place
from dovetail.log.ownership import claim
from dovetail.log.peers import Peers
from dovetail.log.topic import TopicRecord, TopicState
from dovetail.logging import get_logger
from dovetail.storage import Ensembles
from dovetail.storage.chain import PartitionRecord
from dovetail.storage.pages import read_whole
from dovetail.storage.selection import Selection

_log = get_logger("log")

#: How long a creation waits for the owners before the topic is READY all the same.
_OWNERS_WAIT_MS = 10_000

#: Pause before a step that failed is tried again.
_AGAIN_MS = 1000
_AGAIN_MS_MAX = 15_000

#: A partition without a key is left to whoever is adding it for so long.
_REGISTER_MS = 2000

#: Partitions of a topic whose ledgers are removed at the same time.
_AT_ONCE = 32

#: Stands for a topic itself where a partition is assigned.
_WHOLE_TOPIC = -1


class TopicWork:
    """The topics that this broker is creating, deleting or mending."""

    def __init__(
        self,
        node_id: int,
        coordinator: Coordinator,
        catalog: Catalog,
        owned: OwnedPartitions,
        ensembles: Ensembles,
        peers: Peers,
        *,
        select: Selection,
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._coordinator = coordinator
        self._catalog = catalog
        self._owned = owned
        self._ensembles = ensembles
        self._peers = peers
        self._select = select
        self._clock = clock
        self._working: dict[str, asyncio.Task[None]] = {}
        #: When a topic was first seen without somebody who works on it.
        self._orphans: dict[str, float] = {}
        self._alarm = Alarm(self.reconsider, name="log/adopt")
        self._deletions: set[asyncio.Task[None]] = set()
        self._closed = False

    async def close(self) -> None:
        """Leaves the rest to others, or to the next start."""
        self._closed = True
        self._alarm.cancel()
        for task in self._working.values():
            task.cancel()
        await asyncio.gather(*self._working.values(), return_exceptions=True)

    # What clients ask for

    async def create(self, record: TopicRecord) -> TopicRecord:
        """Returns when the topic is ready. Raises `TopicExists`."""
        record = msgspec.structs.replace(record, master=self._node_id)
        self._working[record.id] = task = _current_task()
        try:
            await self._catalog.register(record)
            return await self._create(record)
        finally:
            # Another broker may have finished it, and this one be deleting it by now.
            if self._working.get(record.id) is task:
                del self._working[record.id]
            self.reconsider()

    async def delete(self, record: TopicRecord) -> None:
        """Clients see it no more when this returns; its bytes go in the background."""
        self._working[record.id] = _current_task()
        try:
            record = await self._catalog.change(
                record,
                lambda known: msgspec.structs.replace(
                    known, state=TopicState.DELETING, master=self._node_id
                ),
            )
        except BaseException:
            self._working.pop(record.id, None)
            raise
        self._start_deletion(record)

    async def deletions_done(self) -> None:
        """Waits until no deletion is under way here."""
        if self._deletions:
            await asyncio.wait(self._deletions)

    async def register(self, record: TopicRecord) -> None:
        """Gives partitions that have none their keys, and waits for their owners."""
        await self._catalog.register_partitions(record, self._owners)
        self._owned.reconsider()
        places = [Place(record.id, number) for number in range(record.partitions)]
        await self._owned.settled(
            lambda: all(self._is_owned(place) for place in places), timeout_ms=_OWNERS_WAIT_MS
        )

    def _owners(self, places: list[Place]) -> Mapping[Place, int]:
        takers = self._peers.brokers().willing
        assigned = assign(places, self._catalog.owners, takers, self._select)
        return {place: order[0] for place, order in assigned.items()}

    def _is_owned(self, place: Place) -> bool:
        return self._catalog.ownership(place).term > 0 and not self._owned.busy(place)

    # The steps

    async def _create(self, record: TopicRecord) -> TopicRecord:
        await self.register(record)
        return await self._catalog.change(
            record,
            lambda known: (
                known
                if known.state is TopicState.DELETING
                else msgspec.structs.replace(known, state=TopicState.READY)
            ),
        )

    async def _delete(self, record: TopicRecord) -> None:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def empty(partition: PartitionRecord) -> None:
            async with limit:
                if partition.owner != DELETED:  # Else it was claimed for this before.
                    try:
                        keeper = await claim(
                            self._coordinator,
                            partition_key(record.id, partition.partition),
                            owner=DELETED,
                            may_claim=lambda _: True,
                        )
                    except TopicUnknown:
                        return  # A former master was here before.
                    partition = keeper.record
                whole = await read_whole(self._coordinator, partition)
                for info in whole.ledgers:
                    await self._ensembles.delete(info.placement)

        stored = await self._catalog.partitions(record.id)
        emptied = await asyncio.gather(*map(empty, stored), return_exceptions=True)
        for outcome in emptied:
            if outcome is not None:
                raise outcome
        await self._catalog.remove(record)

    def _start_deletion(self, record: TopicRecord) -> None:
        self._owned.reconsider()
        self._note_deletion(self._start(record, lambda: self._delete(record)))

    def _note_deletion(self, task: "asyncio.Task[None]") -> None:
        self._deletions.add(task)
        task.add_done_callback(self._deletions.discard)

    def _start(
        self, record: TopicRecord, step: Callable[[], Coroutine[None, None, object]]
    ) -> "asyncio.Task[None]":
        until_done = partial(self._until_done, record, step)
        task = keep_task(until_done, name="log/topic-work", of=record.name)
        self._working[record.id] = task

        def ended(task: "asyncio.Task[None]") -> None:
            if self._working.get(record.id) is task:
                del self._working[record.id]
            if not task.cancelled():
                self.reconsider()
                self._owned.reconsider()

        task.add_done_callback(ended)
        return task

    @property
    def creating(self) -> bool:
        """Whether this broker is finishing a creation that another has left."""
        return any(
            record.state is TopicState.CREATING and record.id in self._working
            for record in self._catalog.unfinished()
        )

    async def _until_done(
        self, record: TopicRecord, step: Callable[[], Coroutine[None, None, object]]
    ) -> None:
        pause_ms = _AGAIN_MS
        while True:
            try:
                await step()
                return
            except TopicUnknown:
                return  # Somebody else finished it.
            except NotOwner:
                await asyncio.sleep(0)  # Its owner was faster by one change; again.
            except DovetailError as error:
                _log.warning(
                    "cannot finish work on a topic now",
                    topic=record.name,
                    state=record.state.value,
                    error=str(error),
                )
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, _AGAIN_MS_MAX)

    # What others left

    def reconsider(self) -> None:
        """Something changed: takes over what has no master any more, when it is our turn."""
        if self._closed:
            return
        now_ms = self._clock.monotonic_ms()
        orphans: dict[str, float] = {}
        due: list[float] = []
        for record in self._catalog.unfinished():
            if record.id in self._working or not self._is_orphan(record):
                continue
            since_ms = orphans[record.id] = self._orphans.get(record.id, now_ms)
            due_ms = since_ms + self._wait_ms(record)
            if due_ms <= now_ms:
                self._adopt(record)
            else:
                due.append(due_ms)

        self._orphans = orphans
        self._alarm.cancel()
        if due:
            self._alarm.set(max(min(due) - now_ms, 1.0) / 1000)

    def _is_orphan(self, record: TopicRecord) -> bool:
        if record.state is TopicState.READY:
            return True  # It has partitions without a key.
        # Our own name on it and nothing under way: we died and came back.
        return record.master == self._node_id or (record.master not in self._peers.brokers().alive)

    def _wait_ms(self, record: TopicRecord) -> float:
        """How long the brokers before us in the order have to take it."""
        takers = self._peers.brokers().willing
        if self._node_id not in takers:
            return float(TURN_MS)
        wait_ms = float(_REGISTER_MS) if record.state is TopicState.READY else 0.0
        if record.master == self._node_id:
            return wait_ms
        place = Place(record.id, _WHOLE_TOPIC)
        try:
            order = assign([place], self._catalog.owners, takers, self._select)[place]
        except DovetailError:  # The user's own strategy failed; any order will do here.
            order = sorted(takers)
        return wait_ms + order.index(self._node_id) * TURN_MS

    def _adopt(self, record: TopicRecord) -> None:
        _log.info("taking over work on a topic", topic=record.name, state=record.state.value)
        if record.state is TopicState.READY:
            self._start(record, lambda: self.register(record))
            return

        def take(known: TopicRecord) -> TopicRecord:
            if known.master in self._peers.brokers().alive:
                return known
            return msgspec.structs.replace(known, master=self._node_id)

        async def adopt() -> None:
            mine = await self._catalog.change(record, take)
            if mine.master != self._node_id:
                return
            if mine.state is TopicState.DELETING:
                await self._delete(mine)
            elif mine.state is TopicState.CREATING:
                await self._create(mine)

        task = self._start(record, adopt)
        if record.state is TopicState.DELETING:
            self._note_deletion(task)


def _current_task() -> "asyncio.Task[None]":
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("topics are created inside a task")
    return task
