"""Starts and ends coordinators: the owner of an internal topic's partition coordinates its keys.

A key, such as a group's name or a transactional id, belongs to one partition of the topic, by a
hash. The partition is the coordinator's journal, so the storage nodes refuse a former coordinator's
writes as they refuse any former owner's (L13). When a broker takes the partition over, it replays
the journal and the coordinator continues; when it loses the partition, its coordinator ends.
"""

import asyncio
import zlib
from collections.abc import AsyncIterable, Callable, Iterator
from typing import Generic, Protocol, TypeVar

from dovetail.background import Tasks
from dovetail.clock import Clock
from dovetail.errors import DovetailError, TopicExists, TopicUnknown
from dovetail.log.groups.journal import JournalRecord
from dovetail.log.groups.partition_journal import Journaled, PartitionJournal
from dovetail.log.partition import Partition
from dovetail.log.service import Log
from dovetail.log.topic import TopicRecord
from dovetail.logging import get_logger

_log = get_logger("log.coordinators")

#: Pause before a journal that could not be read, or a topic that could not be made, is tried again.
AGAIN_MS = 500

#: Pauses grow to this while a journal is damaged: repair may bring it back from other nodes.
_AGAIN_MS_MAX = 30_000


class Coordinator(Journaled, Protocol):
    """One that has a journal."""

    async def load(self, records: AsyncIterable[JournalRecord]) -> None:
        """Takes over what the journal has; until then requests are asked to come later."""
        ...

    def start(self) -> None:
        """Begins to do what is due, from now on."""
        ...

    async def close(self) -> None:
        """Ends, and answers waiting requests that the coordinator is elsewhere."""
        ...


Made = TypeVar("Made", bound=Coordinator)


class Coordinators(Generic[Made]):
    """The coordinators of one internal topic that are here; make it before the log starts."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        *,
        topic: str,
        partitions: int,
        make: Callable[[PartitionJournal], Made],
    ) -> None:
        """`partitions` is for the topic, should it not exist yet."""
        self._log = log
        self._clock = clock
        self._topic = topic
        self._partitions = partitions
        self._make = make
        self._here: dict[int, tuple[Made, PartitionJournal]] = {}
        #: Journals that could not be read when they were last tried, and why.
        self._unreadable: dict[int, str] = {}
        #: Set after every attempt to read a journal.
        self._tried = asyncio.Event()
        self.tasks = Tasks()
        log.owned.on_opened.append(self._on_opened)
        log.owned.on_gone.append(self._on_gone)

    async def start(self) -> None:
        """Returns when the topic is there and what is coordinated here has been tried to read."""
        config = {"retention.ms": "-1", "retention.bytes": "-1"}
        while all(topic.name != self._topic for topic in self._log.topics()):
            try:
                await self._log.create_topic(
                    self._topic, partitions=self._partitions, config=config, internal=True
                )
            except TopicExists:  # Another broker is making it.
                await asyncio.sleep(AGAIN_MS / 1000)
            except DovetailError as error:
                if not error.retriable:
                    raise
                _log.warning("cannot create a topic yet", topic=self._topic, error=str(error))
                await asyncio.sleep(AGAIN_MS / 1000)

        while any(
            not coordinator.loaded and number not in self._unreadable
            for number, (coordinator, _) in self._here.items()
        ):
            self._tried.clear()
            await self._tried.wait()

    async def close(self) -> None:
        """Answers waiting requests that the coordinator is elsewhere."""
        await self.tasks.stop()
        for coordinator, _ in self._here.values():
            await coordinator.close()
        self._here.clear()

    # Finding

    def of(self, key: str) -> Made | None:
        """The coordinator of a key, if it is here."""
        try:
            found = self._here.get(self.number(key))
        except TopicUnknown:
            return None
        return None if found is None else found[0]

    def at(self, number: int) -> Made | None:
        """The coordinator whose journal is this partition, if it is here."""
        found = self._here.get(number)
        return None if found is None else found[0]

    def owner_of(self, key: str) -> int:
        """The node that coordinates the key. Raises `TopicUnknown` until there is one."""
        return self._log.ownership(self._log.topic(self._topic), self.number(key)).owner

    def number(self, key: str) -> int:
        """The partition of the topic that the key belongs to. Raises `TopicUnknown`."""
        return zlib.crc32(key.encode()) % self._log.topic(self._topic).partitions

    def __iter__(self) -> Iterator[Made]:
        """Those that are here."""
        return iter([coordinator for coordinator, _ in self._here.values()])

    def unreadable(self) -> dict[int, str]:
        """The journals that cannot be read, by partition, and why; their keys are not served."""
        return dict(self._unreadable)

    async def shorten(self) -> None:
        """Keeps the journals short."""
        for coordinator, journal in tuple(self._here.values()):
            await journal.shorten(coordinator)

    # Partitions that come and go

    def _on_opened(self, record: TopicRecord, number: int, partition: Partition) -> None:
        if record.name != self._topic:
            return
        journal = PartitionJournal(partition, self._clock)
        coordinator = self._make(journal)
        self._here[number] = (coordinator, journal)
        self.tasks.start(
            self._load(number, coordinator, journal, partition), name="log/coordinators/load"
        )

    def _on_gone(self, name: str, number: int) -> None:
        if name == self._topic and number in self._here:
            self.tasks.start(self._here.pop(number)[0].close(), name="log/coordinators/close")
            self._unreadable.pop(number, None)
            self._tried.set()

    async def _load(
        self, number: int, coordinator: Made, journal: PartitionJournal, partition: Partition
    ) -> None:
        """Reads the journal, however often it takes; meanwhile nothing of it is touched."""
        again_ms = AGAIN_MS
        while partition.serving and not coordinator.loaded:
            error: Exception | None = None
            try:
                await coordinator.load(journal.replay())
            except Exception as met:  # noqa: BLE001 - one journal must not stop the node
                error = met
            if self._here.get(number) != (coordinator, journal):
                return  # It has gone meanwhile, and may be here again with another coordinator.

            if error is None:
                coordinator.start()
                self._unreadable.pop(number, None)
            else:
                _log.error("cannot read a journal", journal=partition.name, error=repr(error))
                self._unreadable[number] = str(error)
            self._tried.set()
            if error is not None:
                await asyncio.sleep(again_ms / 1000)
                again_ms = min(2 * again_ms, _AGAIN_MS_MAX)
