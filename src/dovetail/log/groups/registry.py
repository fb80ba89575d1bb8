"""The groups of a broker: which broker coordinates a group, and the coordinators here.

A group belongs to one partition of the groups' topic; the owner of that partition coordinates the
group (K7, L13). `log/coordinators.py` starts and ends coordinators.
"""

import asyncio
from collections.abc import Collection, Iterator
from functools import partial

from dovetail.clock import Clock
from dovetail.errors import TopicUnknown
from dovetail.log.coordinators import AGAIN_MS, Coordinators
from dovetail.log.groups.consumer_types import MemberFormats
from dovetail.log.groups.coordinator import GroupCoordinator
from dovetail.log.groups.partition_journal import GROUPS_TOPIC
from dovetail.log.groups.types import (
    CommittedOffset,
    ConsumerLimitsOf,
    GroupError,
    GroupId,
    GroupListing,
    GroupSettings,
    GroupState,
    PartitionKey,
    SubscriptionReader,
)
from dovetail.log.service import Log
from dovetail.log.share.coordinator_side import ShareLimits


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
        formats: MemberFormats | None = None,
        share_limits: ShareLimits | None = None,
        consumer_limits: ConsumerLimitsOf | None = None,
    ) -> None:
        """`partitions` is for the groups' topic, should it not exist yet."""
        self.settings = settings
        self._coordinators = Coordinators(
            log,
            clock,
            topic=GROUPS_TOPIC,
            partitions=partitions,
            make=lambda journal: GroupCoordinator(
                journal,
                clock,
                settings,
                topics_of=topics_of,
                topics=LogTopics(log),
                formats=formats,
                share_limits=share_limits,
                consumer_limits=consumer_limits,
            ),
        )
        self._elsewhere = GroupCoordinator.refusing(clock, GroupError.NOT_COORDINATOR)
        #: The coordinator of groups that the client may not touch.
        self.forbidden = GroupCoordinator.refusing(clock, GroupError.FORBIDDEN)
        self.start = self._coordinators.start
        self.close = self._coordinators.close
        self.shorten = self._coordinators.shorten
        self.unreadable = self._coordinators.unreadable

    # Finding

    def of(self, group_id: GroupId) -> GroupCoordinator:
        """The group's coordinator; if that is on another node, one that says so."""
        return self._coordinators.of(group_id) or self._elsewhere

    def at(self, number: int) -> GroupCoordinator:
        """The coordinator whose journal is this partition, as `of`."""
        return self._coordinators.at(number) or self._elsewhere

    def owner_of(self, group_id: GroupId) -> int:
        """The node that coordinates the group. Raises `TopicUnknown` until there is one."""
        return self._coordinators.owner_of(group_id)

    def journal_of(self, group_id: GroupId) -> PartitionKey:
        """The partition that is the journal of a group. Raises `TopicUnknown`."""
        return PartitionKey(GROUPS_TOPIC, self._coordinators.number(group_id))

    # All of them

    def groups(self, states: Collection[GroupState] = ()) -> list[GroupListing]:
        """The groups that are coordinated here, or those in one of `states`."""
        return [found for one in self._coordinators for found in one.groups(states)]

    def positions(self) -> Iterator[tuple[GroupId, PartitionKey, CommittedOffset]]:
        """Every stored position of every group that is coordinated here."""
        for coordinator in self._coordinators:
            yield from coordinator.positions()

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: all groups forget their positions in it."""
        for coordinator in self._coordinators:
            forget = partial(self._forget, coordinator, topic)
            self._coordinators.tasks.keep(forget, name="log/groups/forget-topic", of=topic)

    async def _forget(self, coordinator: GroupCoordinator, topic: str) -> None:
        """However often it takes: a position that stays would be taken for the next topic's."""
        while any(here is coordinator for here in self._coordinators):
            if await coordinator.forget_topic(topic) is GroupError.NONE:
                return
            await asyncio.sleep(AGAIN_MS / 1000)
