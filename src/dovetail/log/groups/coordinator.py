"""The coordinator of consumer groups: the doing part around `group` and `offsets`. Promise:
- A commit is acknowledged only when the journal has it. A fetch sees a position only then, so
  nobody reads one that a crash could undo; a fetch never waits, because a member learns of its
  assignment only after everything accepted before it is stored, in journal order.
- What a group promises to its members is in the journal before they learn of it. A coordinator
  that loads the journal continues: stable members notice nothing but a fresh session.
- A failed append changes no position and no assignment; the callers get a retriable error. A commit
  then may or may not be stored, and its client repeats it.

Survives: a crash at any point, a caller that disconnects, a journal that fails or hangs.
Not here: which broker coordinates which group, and fencing a replaced coordinator: its journal
refuses to append.
"""

import asyncio
from collections.abc import AsyncIterable, Collection, Iterable, Iterator, Mapping, Sequence

from dovetail.background import keep_task
from dovetail.clock import Clock, UnhurriedTime
from dovetail.log.groups.alarms import Alarms
from dovetail.log.groups.consumer_side import ConsumerSide
from dovetail.log.groups.consumer_types import (
    ConsumerEffect,
    ConsumerPersist,
    MemberFormats,
    NoFormats,
    NoTopics,
    TopicView,
)
from dovetail.log.groups.endings import Endings
from dovetail.log.groups.entries import (
    GroupEntry,
    group_record,
    live_records,
    offset_record,
    replay,
)
from dovetail.log.groups.forgetting import Forgetting
from dovetail.log.groups.group import Group
from dovetail.log.groups.journal import (
    GroupJournal,
    JournalRecord,
    NoJournal,
    StoredGroup,
)
from dovetail.log.groups.member import no_subscription, random_member_id
from dovetail.log.groups.pending import NOTHING_WAITS, pending_record
from dovetail.log.groups.types import (
    NO_MEMBER,
    Answer,
    CommittedOffset,
    ConsumerLimitsOf,
    Effect,
    Generation,
    GroupDescription,
    GroupError,
    GroupId,
    GroupListing,
    GroupSettings,
    GroupState,
    JoinAnswer,
    JoinRequest,
    LeaveOutcome,
    MemberIdentity,
    MemberIdSource,
    OffsetCommit,
    OffsetFetchAnswer,
    PartitionKey,
    Persist,
    SubscriptionReader,
    SyncAnswer,
    SyncRequest,
    TransactionOf,
)
from dovetail.log.groups.writer import JournalWriter
from dovetail.log.share.coordinator_side import ShareLimits, ShareSide
from dovetail.record_batch import Marker

_OK = GroupError.NONE


class GroupCoordinator(ConsumerSide, ShareSide, Forgetting):
    """Coordinates the groups whose journal it is given."""

    def __init__(
        self,
        journal: GroupJournal,
        clock: Clock,
        settings: GroupSettings | None = None,
        *,
        new_member_id: MemberIdSource = random_member_id,
        topics_of: SubscriptionReader = no_subscription,
        topics: TopicView | None = None,
        formats: MemberFormats | None = None,
        share_limits: ShareLimits | None = None,
        consumer_limits: ConsumerLimitsOf | None = None,
    ) -> None:
        self._writer = JournalWriter(journal)
        self._clock = clock
        self._time = UnhurriedTime(clock)
        self._settings = settings or GroupSettings()
        self._new_member_id = new_member_id
        self._topics_of = topics_of
        self._topics = topics or NoTopics()
        self._formats = formats or NoFormats()
        self._share_limits = share_limits or (lambda group_id: self._settings.share)
        self._consumer_limits = consumer_limits or (lambda group_id: self._settings.consumer)
        self._entries: dict[GroupId, GroupEntry] = {}
        self._ends = Endings(self._writer, lambda group_id: self._perform(group_id, ()))
        self._loaded = False
        self._closed = False
        self._closed_because = GroupError.NOT_COORDINATOR
        self._alarms = Alarms()
        self._sweep_due_ms = clock.monotonic_ms() + self._settings.retention_check_interval_ms
        self._timer: asyncio.Task[None] | None = None

    @classmethod
    def refusing(cls, clock: Clock, error: GroupError) -> "GroupCoordinator":
        """One that answers everything with the same error."""
        made = cls(NoJournal(), clock)
        made._closed = True
        made._closed_because = error
        return made

    # --- life -----------------------------------------------------------------------------------

    async def load(self, records: AsyncIterable[JournalRecord]) -> None:
        """Takes over what the journal has; before this, requests are asked to come later.

        Raises `Damaged` if a record cannot be read.
        """
        replayed = await replay(records)
        for group_id, offsets in replayed.offsets.items():
            self._entry(group_id).offsets = offsets
        for group_id, pending in replayed.pending.items():
            self._entry(group_id).pending = pending
        for group_id, shares in replayed.shares.items():
            self._entry(group_id).shares = shares
        for group_id in replayed.groups:
            self._restore(group_id, replayed)
        for group_id in [*self._entries]:
            self._perform(group_id, ())
        self._loaded = True

    def start(self) -> None:
        """Starts the one timer task; it sleeps until the earliest deadline."""
        self._timer = keep_task(self._run_timer, name="log/groups/timer")

    async def close(self) -> None:
        """Ends, and answers waiting requests that the coordinator is elsewhere."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)
        for entry in self._entries.values():
            for effect in entry.group.end(GroupError.NOT_COORDINATOR):
                _resolve(effect)
        await self._writer.close()

    @property
    def loaded(self) -> bool:
        """Whether it knows what the journal holds."""
        return self._loaded

    def snapshot(self) -> list[JournalRecord]:
        """The live state as records, with what is on its way to the journal.

        The owner appends them in the same step, with no wait in between; everything that was
        appended before them can then be dropped.
        """
        if not self._loaded:
            raise AssertionError("a coordinator that has not loaded its journal knows no state")

        live = {record.key: record for record in live_records(self._entries)}
        live.update((record.key, record) for record in self._writer.records_in_flight())
        return [*live.values()]

    def tick(self) -> None:
        """Does what is due now. The timer calls this, and so may a simulation."""
        now_ms = self._clock.monotonic_ms()
        for group_id, entry in self._alarms.due(self._entries, now_ms):
            self._perform(group_id, entry.group.tick(now_ms=now_ms))
        if self._sweep_due_ms <= now_ms:
            self._sweep_due_ms = now_ms + self._settings.retention_check_interval_ms
            self._sweep()

    # --- membership -----------------------------------------------------------------------------

    async def join(self, group_id: GroupId, request: JoinRequest) -> JoinAnswer:
        """Joins a group; returns when the next generation begins, or at once with an error."""
        error = self.refusal(group_id)
        if error is _OK and request.member_id != NO_MEMBER and group_id not in self._entries:
            error = GroupError.UNKNOWN_MEMBER
        if error is not _OK:
            return JoinAnswer(error, request.member_id)
        group = self._classic(group_id, self._new_group(group_id))
        waiting: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        self._perform(group_id, group.join(request, waiting, now_ms=self._now_ms()))
        return await waiting

    async def sync(self, group_id: GroupId, request: SyncRequest) -> SyncAnswer:
        """Asks for the assignment; returns when the leader brought it and it is stored."""
        error = self.refusal(group_id)
        if error is GroupError.COORDINATOR_LOADING:
            # Clients do not expect "loading" here; this makes them join again.
            error = GroupError.REBALANCE_IN_PROGRESS
        entry = self._entries.get(group_id)
        if error is not _OK or entry is None:
            return SyncAnswer(GroupError.UNKNOWN_MEMBER if error is _OK else error)
        waiting: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        self._perform(group_id, entry.group.sync(request, waiting, now_ms=self._now_ms()))
        return await waiting

    async def heartbeat(
        self, group_id: GroupId, who: MemberIdentity, generation: Generation
    ) -> GroupError:
        """Renews a member's session. It can only make deadlines later, so the timer stays."""
        error = self.refusal(group_id)
        if error is GroupError.COORDINATOR_LOADING:
            # Clients do not expect "loading" here; their session starts anew after it anyway.
            return _OK
        entry = self._entries.get(group_id)
        if error is not _OK or entry is None:
            return GroupError.UNKNOWN_MEMBER if error is _OK else error
        return entry.group.heartbeat(who, generation, now_ms=self._now_ms())

    async def leave(
        self, group_id: GroupId, members: Sequence[MemberIdentity]
    ) -> tuple[LeaveOutcome, ...]:
        """Members leave, each with its own outcome."""
        error = self.refusal(group_id)
        entry = self._entries.get(group_id)
        if error is not _OK or entry is None:
            answer = GroupError.UNKNOWN_MEMBER if error is _OK else error
            return tuple(LeaveOutcome(who, answer) for who in members)
        outcomes, effects = entry.group.leave(members, now_ms=self._now_ms())
        self._perform(group_id, effects)
        return outcomes

    # --- positions ------------------------------------------------------------------------------

    async def commit(
        self,
        group_id: GroupId,
        who: MemberIdentity,
        generation: Generation,
        offsets: Mapping[PartitionKey, OffsetCommit],
        *,
        of: TransactionOf | None = None,
    ) -> dict[PartitionKey, GroupError]:
        """Stores positions; success means that the journal has them.

        If the caller goes away meanwhile the positions are stored all the same. Those of a
        transaction wait for its end.
        """
        error = self.refusal(group_id)
        entry = self._entries.get(group_id)
        # A transactional producer of before KIP-447 names no member, and is no stranger for it.
        named = of is None or generation >= 0 or who.member_id != NO_MEMBER
        if error is _OK and of is not None and self._ends.over(of):
            error = GroupError.TRANSACTION_ENDED
        elif error is _OK and entry is not None and named:
            error = entry.group.commit_check(who, generation, now_ms=self._now_ms())
        elif error is _OK and entry is None and generation >= 0:
            error = GroupError.ILLEGAL_GENERATION
        if error is not _OK:
            return dict.fromkeys(offsets, error)

        wall_ms = self._clock.wall_ms()
        bytes_max = self._settings.offset_metadata_bytes_max
        outcomes = {}
        accepted = {}
        for key, wanted in offsets.items():
            outcomes[key] = GroupError.OFFSET_METADATA_TOO_LARGE
            if len(wanted.metadata.encode()) <= bytes_max:
                accepted[key] = CommittedOffset(
                    wanted.offset, wanted.leader_epoch, wanted.metadata, wall_ms
                )
        if accepted:
            error = await self._store_offsets(group_id, accepted, of)
            outcomes.update(dict.fromkeys(accepted, error))
        return outcomes

    async def fetch(
        self, group_id: GroupId, partitions: Iterable[PartitionKey] | None = None
    ) -> OffsetFetchAnswer:
        """The stored positions of these partitions, or all."""
        error = self.refusal(group_id)
        entry = self._entries.get(group_id)
        if error is not _OK or entry is None:
            return OffsetFetchAnswer(error, {})
        found = entry.offsets.fetch(partitions)
        return OffsetFetchAnswer(_OK, found, entry.pending.partitions())

    async def end_transaction(self, marker: Marker) -> GroupError:
        """Positions of a transaction become real, or are forgotten; again and again if need be."""
        error = self.refusal()
        return error if error is not _OK else await self._ends.end(marker, self._entries)

    def describe(self, group_id: GroupId) -> GroupDescription:
        """The group as it is; one that does not exist is described as dead."""
        entry = self._entries.get(group_id)
        if entry is None:
            return GroupDescription(group_id, GroupState.DEAD, Generation(-1), "", "", ())
        return entry.group.describe()

    def groups(self, states: Collection[GroupState] = ()) -> list[GroupListing]:
        """All groups, or those in one of `states`."""
        return [
            GroupListing(
                group_id, entry.group.protocol_type or "", entry.group.state, entry.group.kind
            )
            for group_id, entry in self._entries.items()
            if not states or entry.group.state in states
        ]

    def positions(self) -> Iterator[tuple[GroupId, PartitionKey, CommittedOffset]]:
        """Every stored position of every group."""
        for group_id, entry in self._entries.items():
            for key, committed in entry.offsets.fetch().items():
                yield group_id, key, committed

    def read_up_to(self, group_id: GroupId) -> list[tuple[PartitionKey, int]]:
        """By partition, how far the group has read: its end minus this is the group's lag.

        A share group has done some records behind its first open one; they count as read.
        """
        entry = self._entries.get(group_id)
        if entry is None:
            return []
        read = [(key, position.offset) for key, position in entry.offsets.fetch().items()]
        read += [(key, one.start + one.done) for key, one in entry.shares.items() if one.start >= 0]
        return read

    def _now_ms(self) -> float:
        return self._clock.monotonic_ms()

    def refusal(self, group_id: GroupId | None = None) -> GroupError:
        """Why the group, or any, is not served here now, if it is not."""
        if self._closed:
            return self._closed_because
        if not self._loaded:
            return GroupError.COORDINATOR_LOADING
        return GroupError.INVALID_GROUP_ID if group_id == "" else _OK

    def _entry(self, group_id: GroupId) -> GroupEntry:
        entry = self._entries.get(group_id)
        if entry is None:
            entry = self._entries[group_id] = GroupEntry(self._new_group(group_id))
        return entry

    def _new_group(self, group_id: GroupId) -> Group:
        return Group(
            group_id,
            self._settings,
            new_member_id=self._new_member_id,
            topics_of=self._topics_of,
        )

    def _perform(self, group_id: GroupId, effects: Sequence[Effect | ConsumerEffect]) -> None:
        """Performs the effects of a group, forgets it if nothing is left, sets its alarm."""
        entry = self._entries[group_id]
        for effect in effects:
            if isinstance(effect, Persist):
                self._store_group(group_id, effect)
            elif isinstance(effect, ConsumerPersist):
                self._store_consumer(group_id, effect)
            else:
                _resolve(effect)
        if entry.is_idle:
            del self._entries[group_id]
            return
        self._alarms.set(group_id, entry)

    async def _run_timer(self) -> None:
        while True:
            self.tick()
            await self._alarms.wait(self._sweep_due_ms, self._now_ms)

    def _store_group(self, group_id: GroupId, effect: Persist) -> None:
        entry = self._entries[group_id]
        group = entry.group
        stored = StoredGroup(effect.snapshot, self._clock.wall_ms())

        def then(error: GroupError) -> None:
            if self._closed or not isinstance(group, Group):
                return
            if error is _OK:
                entry.stored = stored
                effects = group.persisted(effect.ticket, now_ms=self._now_ms())
            else:
                effects = group.persist_failed(effect.ticket, error, now_ms=self._now_ms())
            self._perform(group_id, effects)

        self._writer.append([group_record(group_id, stored)], then)

    def _store_offsets(
        self,
        group_id: GroupId,
        accepted: dict[PartitionKey, CommittedOffset],
        of: TransactionOf | None,
    ) -> asyncio.Future[GroupError]:
        if of is not None:
            return self._ends.store(of, group_id, self._entry(group_id), accepted)
        entry = self._entries.get(group_id)
        unsaved = None if entry is None else entry.group.unsaved_snapshot()
        emptied = None if unsaved is None else StoredGroup(unsaved, self._clock.wall_ms())
        records = [] if emptied is None else [group_record(group_id, emptied)]
        records += [offset_record(group_id, key, at) for key, at in accepted.items()]
        older = NOTHING_WAITS if entry is None else entry.pending.at(accepted)
        records += [pending_record(group_id, place, None) for place in older]
        overtaken = None if entry is None else entry.pending
        if overtaken is not None:
            overtaken.overtake(older)

        def then(error: GroupError) -> None:
            if overtaken is not None:
                overtaken.settle(older, stored=error is _OK)
            if error is not _OK:
                return
            entry = self._entry(group_id)
            for key, committed in accepted.items():
                entry.offsets.put(key, committed)
            if emptied is not None and unsaved is not None and isinstance(entry.group, Group):
                entry.stored = emptied
                entry.group.saved(unsaved)

        return self._writer.append(records, then)


def _resolve(effect: Effect | ConsumerEffect) -> None:
    """Answers a waiting request, unless its caller went away."""
    if isinstance(effect, Answer):
        waiting = effect.token
        if isinstance(waiting, asyncio.Future) and not waiting.done():
            waiting.set_result(effect.answer)
