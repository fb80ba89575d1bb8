"""The group coordinator's part for share groups; part of `groups/coordinator.py`.

The owner of a partition decides which member has which record (`share_partition.py`), and keeps
these decisions in the journal of the group's coordinator:

    claim    the owner begins: it gets the stored state, and only it may write from now on
    write    it stores its decisions, under its claim

A claim is refused if the owner of a later term has claimed before. A write is refused after a later
claim, or a later write under the same one: a replaced owner, or one that lost the answer to a
write, cannot store anything old. A claim is stored before it is answered, behind all writes that
were admitted before.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import msgspec

from dovetail.clock import Clock
from dovetail.errors import DovetailError, Fenced, NotFound, NotOwner, Unavailable
from dovetail.log.groups.consumer_types import (
    JOINING,
    ConsumerBeat,
    ConsumerDescription,
    TopicView,
)
from dovetail.log.groups.entries import GroupEntry, share_record
from dovetail.log.groups.forgetting import Remembering
from dovetail.log.groups.pending import NOTHING_WAITS
from dovetail.log.groups.types import (
    ConsumerAnswer,
    GroupError,
    GroupId,
    PartitionKey,
)
from dovetail.log.share.share_group import ShareGroup
from dovetail.log.share.types import ShareSettings, ShareState

#: The limits of a group: its own, or the node's.
ShareLimits = Callable[[str], ShareSettings]

_OK = GroupError.NONE


class Sharing(Remembering, Protocol):
    """The part of a coordinator that this needs."""

    _clock: Clock
    _topics: TopicView
    _share_limits: ShareLimits

    def _entry(self, group_id: GroupId) -> GroupEntry: ...

    def _new_share(self, group_id: GroupId) -> ShareGroup: ...

    def _share_entry(self, group_id: GroupId) -> GroupEntry: ...

    def _idle_share(self, group_id: GroupId) -> GroupEntry | GroupError: ...

    def _store_share(
        self, group_id: GroupId, states: Mapping[PartitionKey, ShareState]
    ) -> asyncio.Future[GroupError]: ...


class ShareSide:
    """Heartbeats of share groups, and what their partitions' owners store."""

    async def beat_share(self: Sharing, group_id: GroupId, request: ConsumerBeat) -> ConsumerAnswer:
        """A member's heartbeat; returns when its answer is stored."""
        error = self.refusal(group_id)
        if error is not _OK:
            return ConsumerAnswer(error)
        entry = self._entries.get(group_id)
        group = None if entry is None else entry.group
        if group is None and request.epoch != JOINING:
            return ConsumerAnswer(GroupError.UNKNOWN_MEMBER, "there is no such group")

        # A group that nobody ever joined has positions at most: those of another kind of group.
        new = entry is None or (entry.stored is None and entry.group.is_empty)
        if not isinstance(group, ShareGroup) and (not new or (entry and entry.offsets)):
            return ConsumerAnswer(
                GroupError.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group."
            )
        if not isinstance(group, ShareGroup):
            self._entry(group_id).group = group = self._new_share(group_id)

        group.limit(self._share_limits(group_id))
        waiting: asyncio.Future[ConsumerAnswer] = asyncio.get_running_loop().create_future()
        now_ms = self._clock.monotonic_ms()
        self._perform(group_id, group.beat(request, waiting, now_ms=now_ms))
        return await waiting

    def share_described(self: Sharing, group_id: GroupId) -> ConsumerDescription | None:
        """A share group as it is."""
        entry = self._entries.get(group_id)
        if entry is None or not isinstance(entry.group, ShareGroup):
            return None
        return entry.group.described()

    def share_states(
        self: Sharing, group_id: GroupId
    ) -> Mapping[PartitionKey, ShareState] | GroupError:
        """What is stored of each partition of a share group."""
        error = self.refusal(group_id)
        entry = self._entries.get(group_id)
        if error is not _OK:
            return error
        if entry is None or not isinstance(entry.group, ShareGroup):
            return GroupError.GROUP_ID_NOT_FOUND
        return entry.shares

    # --- for the owners of partitions -----------------------------------------------------------

    async def claim_share(
        self: Sharing, group_id: GroupId, place: PartitionKey, topic_id: str, term: int
    ) -> ShareState:
        """What is stored, under a new claim. Raises `NotFound`, `Fenced`, `Unavailable`."""
        entry = self._share_entry(group_id)
        known = entry.shares.get(place)
        if known is not None and known.topic_id == topic_id and known.term > term:
            raise Fenced(
                f"claim of {place} under term {term} refused: an owner of term {known.term} has it"
            )
        # The first number is one that no claim of before a deletion had.
        least = self._clock.wall_ms() if known is None else known.claim
        claim = max(entry.claims.get(place, (0, 0))[0], least) + 1
        entry.claims[place] = (claim, 0)

        # What was let through before is part of what is stored.
        await self._writer.settled()
        entry = self._share_entry(group_id)
        if entry.claims.get(place) != (claim, 0):
            raise Unavailable(f"the owner claimed {place} again meanwhile")
        state = entry.shares.get(place)
        if state is None or state.topic_id != topic_id:
            state = ShareState(topic_id, term, claim)
        state = msgspec.structs.replace(state, term=term, claim=claim, version=0)
        error = await self._store_share(group_id, {place: state})
        if error is not _OK:
            raise _raised(error, group_id)
        return state

    async def write_share(
        self: Sharing, group_id: GroupId, place: PartitionKey, state: ShareState
    ) -> None:
        """Stores what an owner decided. Raises `Fenced` if it has no valid claim, `NotFound`."""
        entry = self._share_entry(group_id)
        known = entry.shares.get(place)
        if known is None:
            raise Fenced(f"claim {state.claim} of {place} refused: its state was deleted")
        claim, version = entry.claims.get(place, (known.claim, known.version))
        late = state.version < version
        if (state.claim, state.term) != (claim, known.term) or late:
            raise Fenced(
                f"write {state.version} of claim {state.claim} of {place} refused: the last one is "
                f"{version} of {claim}"
            )
        entry.claims[place] = (claim, state.version)
        error = await self._store_share(group_id, {place: state})
        if error is not _OK:
            raise _raised(error, group_id)

    # --- for an operator ------------------------------------------------------------------------

    async def move_share(
        self: Sharing, group_id: GroupId, starts: Mapping[PartitionKey, tuple[str, int]]
    ) -> GroupError:
        """Sets where a group without members begins: a topic's id and an offset, each."""
        await self._writer.settled()
        entry = self._idle_share(group_id)
        if isinstance(entry, GroupError):
            return entry

        states = {}
        for place, (topic_id, start) in starts.items():
            known = entry.shares.get(place)
            least = self._clock.wall_ms() if known is None else known.claim
            claim = max(entry.claims.get(place, (0, 0))[0], least) + 1
            entry.claims[place] = (claim, 0)
            term = 0 if known is None or known.topic_id != topic_id else known.term
            states[place] = ShareState(topic_id, term, claim, start=start)
        return await self._store_share(group_id, states)

    async def forget_share(self: Sharing, group_id: GroupId, topics: Collection[str]) -> GroupError:
        """A group without members forgets where it was in these topics."""
        await self._writer.settled()
        entry = self._idle_share(group_id)
        if isinstance(entry, GroupError):
            return entry
        shares = [key for key in entry.shares if key.topic in topics]
        return await self._forget(group_id, (), NOTHING_WAITS, shares)

    # --- inside ---------------------------------------------------------------------------------

    def _idle_share(self: Sharing, group_id: GroupId) -> GroupEntry | GroupError:
        """A share group without members, or why it cannot be changed."""
        error = self.refusal(group_id)
        entry = self._entries.get(group_id)
        if error is not _OK:
            return error
        if entry is None or not isinstance(entry.group, ShareGroup):
            return GroupError.GROUP_ID_NOT_FOUND
        return entry if entry.group.is_empty else GroupError.NON_EMPTY_GROUP

    def _new_share(self: Sharing, group_id: GroupId) -> ShareGroup:
        return ShareGroup(
            group_id, self._settings, self._topics, limits=self._share_limits(group_id)
        )

    def _share_entry(self: Sharing, group_id: GroupId) -> GroupEntry:
        """Raises `NotFound` if there is no such share group, or why there is no answer now."""
        error = self.refusal(group_id)
        if error is not _OK:
            raise _raised(error, group_id)
        entry = self._entries.get(group_id)
        if entry is None or not isinstance(entry.group, ShareGroup):
            raise NotFound(f"there is no share group {group_id!r}")
        return entry

    def _store_share(
        self: Sharing, group_id: GroupId, states: Mapping[PartitionKey, ShareState]
    ) -> asyncio.Future[GroupError]:
        def then(error: GroupError) -> None:
            entry = self._entries.get(group_id)
            if error is _OK and entry is not None:
                entry.shares.update(states)

        records = [share_record(group_id, place, state) for place, state in states.items()]
        return self._writer.append(records, then)


def _raised(error: GroupError, group_id: str) -> DovetailError:
    if error is GroupError.NOT_COORDINATOR:
        return NotOwner(f"group {group_id!r} is coordinated elsewhere")
    return Unavailable(f"group {group_id!r}: {error.value}")
