"""What a coordinator deletes: positions, groups, and share groups' state; part of `coordinator`.

A group is deleted with everything it has, in one record batch. If members join meanwhile, the group
stays, without its past.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from dovetail.clock import UnhurriedTime
from dovetail.log.groups.consumer_types import ConsumerEffect
from dovetail.log.groups.entries import GroupEntry, group_record, offset_record, share_record
from dovetail.log.groups.journal import PendingOffset
from dovetail.log.groups.pending import NOTHING_WAITS, PendingPlace, pending_record
from dovetail.log.groups.types import (
    Effect,
    GroupError,
    GroupId,
    GroupSettings,
    OffsetDeleteAnswer,
    PartitionKey,
)
from dovetail.log.groups.writer import JournalWriter

_OK = GroupError.NONE


class Remembering(Protocol):
    """The part of a coordinator that this needs."""

    _writer: JournalWriter
    _time: UnhurriedTime
    _settings: GroupSettings
    _entries: dict[GroupId, GroupEntry]
    _loaded: bool

    def refusal(self, group_id: GroupId) -> GroupError: ...

    def _perform(self, group_id: GroupId, effects: Sequence[Effect | ConsumerEffect]) -> None: ...

    def _forget(
        self,
        group_id: GroupId,
        keys: Collection[PartitionKey],
        waiting: Mapping[PendingPlace, PendingOffset] = NOTHING_WAITS,
        shares: Collection[PartitionKey] = (),
        *,
        with_group: bool = False,
    ) -> asyncio.Future[GroupError]: ...


class Forgetting:
    """Deleting, and expiry."""

    async def delete_offsets(
        self: Remembering, group_id: GroupId, partitions: Collection[PartitionKey]
    ) -> OffsetDeleteAnswer:
        """Forgets positions, but not of topics that a member is subscribed to."""
        error = self.refusal(group_id)
        entry = self._entries.get(group_id)
        if error is not _OK or entry is None:
            answer = GroupError.GROUP_ID_NOT_FOUND if error is _OK else error
            return OffsetDeleteAnswer(answer, {})
        subscribed = entry.group.subscribed_topics()
        if subscribed is None:
            return OffsetDeleteAnswer(GroupError.NON_EMPTY_GROUP, {})
        free = [key for key in partitions if key.topic not in subscribed]
        outcomes = dict.fromkeys(partitions, GroupError.GROUP_SUBSCRIBED_TO_TOPIC)
        error = await self._forget(group_id, free)
        outcomes.update(dict.fromkeys(free, error))
        return OffsetDeleteAnswer(_OK, outcomes)

    async def forget_topic(self: Remembering, topic: str) -> GroupError:
        """All groups forget their positions in a deleted topic. Repeat it if it fails."""
        error = _OK if self._loaded else GroupError.COORDINATOR_LOADING
        for group_id, entry in [*self._entries.items()]:
            keys, waiting = entry.offsets.of_topic(topic), entry.pending.of_topic(topic)
            shares = [key for key in entry.shares if key.topic == topic]
            if (keys or waiting or shares) and error is _OK:
                error = await self._forget(group_id, keys, waiting, shares)
        return error

    async def delete_group(self: Remembering, group_id: GroupId) -> GroupError:
        """Deletes a group without members, with its positions.

        The last member's leaving may still be on its way to the journal; that is waited for.
        """
        await self._writer.settled()
        error = self.refusal(group_id)
        entry = self._entries.get(group_id)
        if error is not _OK or entry is None:
            return GroupError.GROUP_ID_NOT_FOUND if error is _OK else error
        if not entry.group.is_empty:
            return GroupError.NON_EMPTY_GROUP
        return await self._forget(group_id, [*entry.offsets], with_group=True)

    def _sweep(self: Remembering) -> None:
        """Forgets expired positions, and groups that have nothing left."""
        now_ms = self._time.now_ms()
        for group_id, entry in self._entries.items():
            if not entry.group.is_empty:
                continue
            expired = entry.offsets.expired(
                now_wall_ms=now_ms,
                empty_since_wall_ms=0 if entry.stored is None else entry.stored.stored_wall_ms,
                retention_ms=self._settings.offsets_retention_ms,
            )
            kept = len(entry.offsets) - len(expired) or entry.pending or entry.shares
            nothing_left = not kept
            if expired or nothing_left:
                self._forget(group_id, expired, with_group=nothing_left)

    def _forget(
        self: Remembering,
        group_id: GroupId,
        keys: Collection[PartitionKey],
        waiting: Mapping[PendingPlace, PendingOffset] = NOTHING_WAITS,
        shares: Collection[PartitionKey] = (),
        *,
        with_group: bool = False,
    ) -> asyncio.Future[GroupError]:
        """Removes positions, and the group itself unless members come meanwhile."""
        entry = self._entries[group_id]
        waiting = entry.pending.all() if with_group else waiting
        shares = [*entry.shares] if with_group else shares
        for key in shares:  # What is still written for them is refused from now on.
            claim = entry.claims.get(key, (0, 0))[0]
            entry.claims[key] = (max(claim, entry.shares[key].claim) + 1, 0)
        present = [key for key in keys if key in entry.offsets]
        removed = [offset_record(group_id, key, None) for key in present]
        removed += [pending_record(group_id, place, None) for place in waiting]
        removed += [share_record(group_id, key, None) for key in shares]
        if with_group:
            removed.append(group_record(group_id, None))

        pending = entry.pending
        pending.overtake(waiting)

        def then(error: GroupError) -> None:
            pending.settle(waiting, stored=error is _OK)
            entry = self._entries.get(group_id)
            if error is not _OK or entry is None:
                return
            entry.offsets.remove(present)
            for key in shares:
                entry.shares.pop(key, None)
            if with_group:
                entry.stored = None
            self._perform(group_id, ())

        return self._writer.append(removed, then)
