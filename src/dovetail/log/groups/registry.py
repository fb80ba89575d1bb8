"""The groups of a broker: which node coordinates a group, and the coordinators that live here.

A group belongs to one partition of the groups' topic, by a hash of its name. Whoever owns that
partition coordinates the group; its journal is the partition, so what a former owner still writes
is refused with everything else that it writes (K7, L13). When the partition comes here, its journal
is replayed and the groups go on; when it goes, their members are sent to ask elsewhere.
"""

import asyncio
import zlib
from collections.abc import Collection, Iterator
from functools import partial

from dovetail.background import Tasks
from dovetail.clock import Clock
from dovetail.errors import DovetailError, TopicExists, TopicUnknown
from dovetail.log.groups.coordinator import GroupCoordinator
from dovetail.log.groups.partition_journal import GROUPS_TOPIC, PartitionJournal
from dovetail.log.groups.types import (
    CommittedOffset,
    GroupError,
    GroupId,
    GroupListing,
    GroupSettings,
    GroupState,
    PartitionKey,
    SubscriptionReader,
)
from dovetail.log.partition import Partition
from dovetail.log.service import Log
from dovetail.log.topic import TopicRecord
from dovetail.logging import get_logger

_log = get_logger("log.groups")

#: Pause before a journal that could not be read, or a topic that could not be made, is tried again.
_AGAIN_MS = 500

#: Pauses grow to this while a journal is damaged: repair may bring it back from other nodes.
_AGAIN_MS_MAX = 30_000


class LogTopics:
    """The topics of the cluster, as groups of the new protocol need to know them."""

    def __init__(self, log: Log) -> None:
        self._log = log

    @property
    def version(self) -> int:
        return self._log.catalog.topics_version

    def facts(self, name: str) -> tuple[str, int] | None:
        try:
            record = self._log.topic(name)
        except TopicUnknown:
            return None
        return record.id, record.partitions

    def names(self) -> Iterator[str]:
        return (record.name for record in self._log.topics() if not record.internal)


class GroupRegistry:
    """Finds the coordinator of a group; make it before the log starts."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        settings: GroupSettings,
        *,
        partitions: int,
        topics_of: SubscriptionReader,
    ) -> None:
        """`partitions` is for the groups' topic, should it not exist yet."""
        self._log = log
        self._clock = clock
        self.settings = settings
        self._partitions = partitions
        self._topics_of = topics_of
        self._here: dict[int, tuple[GroupCoordinator, PartitionJournal]] = {}
        #: Journals that could not be read when they were last tried, and why.
        self._unreadable: dict[int, str] = {}
        #: Set after every attempt to read a journal.
        self._tried = asyncio.Event()
        self._elsewhere = GroupCoordinator.refusing(clock, GroupError.NOT_COORDINATOR)
        #: The coordinator of groups that the client may not touch.
        self.forbidden = GroupCoordinator.refusing(clock, GroupError.FORBIDDEN)
        self._tasks = Tasks()
        log.owned.on_opened.append(self._on_opened)
        log.owned.on_gone.append(self._on_gone)

    async def start(self) -> None:
        """Returns when the topic is there and what is coordinated here has been tried to read."""
        config = {"retention.ms": "-1", "retention.bytes": "-1"}
        while all(topic.name != GROUPS_TOPIC for topic in self._log.topics()):
            try:
                await self._log.create_topic(
                    GROUPS_TOPIC, partitions=self._partitions, config=config, internal=True
                )
            except TopicExists:  # Another broker is making it.
                await asyncio.sleep(_AGAIN_MS / 1000)
            except DovetailError as error:
                if not error.retriable:
                    raise
                _log.warning("cannot create the groups' topic yet", error=str(error))
                await asyncio.sleep(_AGAIN_MS / 1000)

        while any(
            not coordinator.loaded and number not in self._unreadable
            for number, (coordinator, _) in self._here.items()
        ):
            self._tried.clear()
            await self._tried.wait()

    async def close(self) -> None:
        """Answers whoever waits that the coordinator is elsewhere."""
        await self._tasks.stop()
        for coordinator, _ in self._here.values():
            await coordinator.close()
        self._here.clear()

    # Finding

    def of(self, group_id: GroupId) -> GroupCoordinator:
        """The group's coordinator; if that is on another node, one that says so."""
        try:
            found = self._here.get(self._number(group_id))
        except TopicUnknown:
            found = None
        return self._elsewhere if found is None else found[0]

    def owner_of(self, group_id: GroupId) -> int:
        """The node that coordinates the group. Raises `TopicUnknown` until there is one."""
        topic = self._log.topic(GROUPS_TOPIC)
        return self._log.ownership(topic, self._number(group_id)).owner

    def _number(self, group_id: GroupId) -> int:
        topic = self._log.topic(GROUPS_TOPIC)
        return zlib.crc32(group_id.encode()) % topic.partitions

    # All of them

    def groups(self, states: Collection[GroupState] = ()) -> list[GroupListing]:
        """The groups that are coordinated here, or those in one of `states`."""
        return [found for one, _ in self._here.values() for found in one.groups(states)]

    def positions(self) -> Iterator[tuple[GroupId, PartitionKey, CommittedOffset]]:
        """Every stored position of every group that is coordinated here."""
        for coordinator, _ in self._here.values():
            yield from coordinator.positions()

    def unreadable(self) -> dict[int, str]:
        """The journals that cannot be read, by partition, and why; their groups are not served."""
        return dict(self._unreadable)

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: all groups forget their positions in it."""
        for coordinator, _ in self._here.values():
            forget = partial(self._forget, coordinator, topic)
            self._tasks.keep(forget, name="log/groups/forget-topic", of=topic)

    async def shorten(self) -> None:
        """Keeps the journals short."""
        for coordinator, journal in tuple(self._here.values()):
            await journal.shorten(coordinator)

    async def _forget(self, coordinator: GroupCoordinator, topic: str) -> None:
        """However often it takes: a position that stays would be taken for the next topic's."""
        while any(here is coordinator for here, _ in self._here.values()):
            if await coordinator.forget_topic(topic) is GroupError.NONE:
                return
            await asyncio.sleep(_AGAIN_MS / 1000)

    # Partitions that come and go

    def _on_opened(self, record: TopicRecord, number: int, partition: Partition) -> None:
        if record.name != GROUPS_TOPIC:
            return
        journal = PartitionJournal(partition, self._clock)
        coordinator = GroupCoordinator(
            journal,
            self._clock,
            self.settings,
            topics_of=self._topics_of,
            topics=LogTopics(self._log),
        )
        self._here[number] = (coordinator, journal)
        self._tasks.start(
            self._load(number, coordinator, journal, partition), name="log/groups/load"
        )

    def _on_gone(self, name: str, number: int) -> None:
        if name == GROUPS_TOPIC and number in self._here:
            self._tasks.start(self._here.pop(number)[0].close(), name="log/groups/close")
            self._unreadable.pop(number, None)
            self._tried.set()

    async def _load(
        self,
        number: int,
        coordinator: GroupCoordinator,
        journal: PartitionJournal,
        partition: Partition,
    ) -> None:
        """Reads the journal, however often it takes; meanwhile nothing of it is touched."""
        again_ms = _AGAIN_MS
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
                _log.error("cannot read groups", journal=partition.name, error=repr(error))
                self._unreadable[number] = str(error)
            self._tried.set()
            if error is not None:
                await asyncio.sleep(again_ms / 1000)
                again_ms = min(2 * again_ms, _AGAIN_MS_MAX)
