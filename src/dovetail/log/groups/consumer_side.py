"""The coordinator's part for groups of the new protocol (KIP-848); part of `coordinator`.

An empty group changes its kind when a member of the other kind joins, and its epoch or generation
continues. A classic group with members is converted, with its members in it, when it is stable;
until then a member of the new protocol is told to retry.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from dovetail.clock import Clock
from dovetail.log.groups.assignors import SHARE_ASSIGNORS
from dovetail.log.groups.consumer_group import ConsumerGroup
from dovetail.log.groups.consumer_types import (
    JOINING,
    ConsumerBeat,
    ConsumerDescription,
    ConsumerEffect,
    ConsumerPersist,
    MemberFormats,
    TopicView,
)
from dovetail.log.groups.entries import GroupEntry, Replayed, group_record, member_records
from dovetail.log.groups.group import Group
from dovetail.log.groups.journal import StoredGroup
from dovetail.log.groups.mixed_group import MixedGroup
from dovetail.log.groups.types import (
    ConsumerAnswer,
    ConsumerLimitsOf,
    Effect,
    Generation,
    GroupError,
    GroupId,
    GroupSettings,
    GroupSnapshot,
    MemberIdentity,
    MemberIdSource,
)
from dovetail.log.groups.writer import JournalWriter
from dovetail.log.share.share_group import ShareGroup


class Coordinating(Protocol):
    """The part of a coordinator that this needs."""

    _writer: JournalWriter
    _clock: Clock
    _settings: GroupSettings
    _topics: TopicView
    _formats: MemberFormats
    _new_member_id: MemberIdSource
    _consumer_limits: ConsumerLimitsOf
    _entries: dict[GroupId, GroupEntry]
    _closed: bool

    def refusal(self, group_id: GroupId) -> GroupError: ...

    def _entry(self, group_id: GroupId) -> GroupEntry: ...

    def _new_mixed(self, group_id: GroupId, *, epoch: int) -> MixedGroup: ...

    def _new_share(self, group_id: GroupId) -> ShareGroup: ...

    def _perform(self, group_id: GroupId, effects: Sequence[Effect | ConsumerEffect]) -> None: ...


class ConsumerSide:
    """Heartbeats and descriptions of the new protocol."""

    async def beat(self: Coordinating, group_id: GroupId, request: ConsumerBeat) -> ConsumerAnswer:
        """A member's heartbeat; returns when its answer is stored."""
        error = self.refusal(group_id)
        if error is not GroupError.NONE:
            return ConsumerAnswer(error)
        entry = self._entries.get(group_id)
        group = None if entry is None else entry.group
        if group is None and request.epoch != JOINING:
            return ConsumerAnswer(GroupError.UNKNOWN_MEMBER, "there is no such group")
        if isinstance(group, Group) and not group.is_empty and request.epoch != JOINING:
            return ConsumerAnswer(GroupError.UNKNOWN_MEMBER, "the group has no such member")

        if isinstance(group, ShareGroup):
            return ConsumerAnswer(
                GroupError.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group."
            )
        if not isinstance(group, MixedGroup):
            made = self._new_mixed(group_id, epoch=0 if group is None else group.generation)
            if group is not None and not group.is_empty:
                kept = group.settled()
                if kept is None:
                    return ConsumerAnswer(
                        GroupError.COORDINATOR_NOT_AVAILABLE, "the group is being rebalanced"
                    )
                if not made.adopt(kept, now_ms=self._clock.monotonic_ms()):
                    return ConsumerAnswer(
                        GroupError.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group."
                    )
            self._entry(group_id).group = group = made
        group.limit(self._consumer_limits(group_id))
        waiting: asyncio.Future[ConsumerAnswer] = asyncio.get_running_loop().create_future()
        now_ms = self._clock.monotonic_ms()
        self._perform(group_id, group.beat(request, waiting, now_ms=now_ms))
        return await waiting

    def fetch_check(
        self: Coordinating, group_id: GroupId, who: MemberIdentity | None, epoch: int
    ) -> GroupError:
        """Whether a member may see positions: one of the new protocol must be at its epoch."""
        entry = self._entries.get(group_id)
        if who is None or not who.member_id or epoch < 0:
            return GroupError.NONE
        if entry is None or not isinstance(entry.group, MixedGroup):
            return GroupError.NONE
        now_ms = self._clock.monotonic_ms()
        return entry.group.commit_check(who, Generation(epoch), now_ms=now_ms)

    def described(self: Coordinating, group_id: GroupId) -> ConsumerDescription | None:
        """A group of the new protocol as it is."""
        entry = self._entries.get(group_id)
        if entry is None or not isinstance(entry.group, MixedGroup):
            return None
        return entry.group.described()

    def _new_mixed(self: Coordinating, group_id: GroupId, *, epoch: int) -> MixedGroup:
        made = MixedGroup(
            group_id,
            self._settings,
            self._topics,
            formats=self._formats,
            new_member_id=self._new_member_id,
            epoch=epoch,
        )
        made.limit(self._consumer_limits(group_id))
        return made

    def _classic(
        self: Coordinating, group_id: GroupId, made: Group
    ) -> Group | MixedGroup | ShareGroup:
        """The group for a member of the classic protocol: an empty one becomes classic."""
        entry = self._entry(group_id)
        if not entry.group.is_empty or not isinstance(entry.group, MixedGroup):
            return entry.group
        kept = GroupSnapshot(
            Generation(entry.group.epoch), None, None, None, assigned=False, members=()
        )
        made.restore(kept, now_ms=self._clock.monotonic_ms())
        entry.group = made
        return made

    def _restore(self: Coordinating, group_id: GroupId, replayed: Replayed) -> None:
        """Becomes what the journal says of a group, of whichever kind."""
        stored, entry = replayed.groups[group_id], self._entry(group_id)
        entry.stored = stored
        now_ms = self._clock.monotonic_ms()
        if isinstance(stored.snapshot, GroupSnapshot):
            if isinstance(entry.group, Group):
                entry.group.restore(stored.snapshot, now_ms=now_ms)
            return
        group: MixedGroup | ShareGroup = self._new_mixed(group_id, epoch=0)
        if stored.snapshot.assignor in SHARE_ASSIGNORS:
            group = self._new_share(group_id)
        group.restore(stored.snapshot, replayed.members.get(group_id, {}), now_ms=now_ms)
        entry.group = group

    def _store_consumer(self: Coordinating, group_id: GroupId, effect: ConsumerPersist) -> None:
        entry = self._entries[group_id]
        group = entry.group
        stored = StoredGroup(effect.header, self._clock.wall_ms())

        def then(error: GroupError) -> None:
            if self._closed or not isinstance(group, ConsumerGroup):
                return
            if error is GroupError.NONE:
                entry.stored = stored
            now_ms = self._clock.monotonic_ms()
            self._perform(group_id, group.written(error, now_ms=now_ms))

        records = [group_record(group_id, stored), *member_records(group_id, effect.members)]
        self._writer.append(records, then)
