"""One consumer group: Kafka's classic protocol as a pure state machine.

Promise: in one generation every member has at most one assignment, the one that the leader of
that generation gave it. A generation number is used once and never decreases, even across a crash
of the coordinator. A request of an older generation, of a removed member or of a replaced instance
is refused.

States and transitions (also in `_TRANSITIONS`; every state can go to DEAD, which is final):

    from                  to                    when
    EMPTY                 PREPARING_REBALANCE   a member joins (and the initial delay begins)
    PREPARING_REBALANCE   COMPLETING_REBALANCE  all members wait in join, or the rebalance timeout
                                                is over: the missing ones are removed
    PREPARING_REBALANCE   EMPTY                 no member is left
    COMPLETING_REBALANCE  STABLE                the leader's assignment is stored
    COMPLETING_REBALANCE  PREPARING_REBALANCE   a member joins, changes, leaves, expires, does not
                                                sync within the rebalance timeout, or a store fails
    STABLE                PREPARING_REBALANCE   a member joins, changes, leaves or expires; the
                                                leader joins again; an instance changed its offer

What is stored, and when (`Persist`; the coordinator reports back with the ticket):
- a new generation with its members, before any join is answered. Kafka does not store it, and can
  issue a generation number twice after a crash. If a restart finds it without an assignment, the
  group is loaded as PREPARING_REBALANCE: its members join again and get a higher generation.
- the assignment, before any sync is answered. If a restart finds it, the group is STABLE and its
  members continue with heartbeats and commits, without a rebalance.
- the new member id of a restarted instance, before its join is answered.
- an emptied group; nobody waits for it. If that fails the group has an `unsaved_snapshot`, and the
  next store for the group includes it.

Static members (with an instance id) are not removed when a rebalance completes without them, only
when their session ends or when they do not fetch their new assignment in time. One that returns
without a member id gets a new id; the old id is fenced. In a STABLE group that causes no rebalance,
unless it changed its topics or the protocol that the group would choose.

Survives: any order of requests and ticks, and a store that fails or does not answer.
Not here: time (an argument), waiting requests (opaque tokens), storage, and positions (see
`offsets`). The parts: `joining`, `phases`, `member`.
"""

from collections.abc import Iterable, Sequence

from dovetail.log.groups.joining import GroupJoining
from dovetail.log.groups.member import member_from_snapshot
from dovetail.log.groups.phases import (
    AssignmentWrite,
    EmptiedWrite,
    GenerationWrite,
    ReplacementWrite,
)
from dovetail.log.groups.types import (
    NO_MEMBER,
    Answer,
    Effect,
    Generation,
    GroupDescription,
    GroupError,
    GroupSnapshot,
    GroupState,
    JoinRequest,
    LeaveOutcome,
    MemberIdentity,
    SyncAnswer,
    SyncRequest,
)


class Group(GroupJoining):
    """A consumer group. Every event returns the effects to perform, in their order."""

    kind = "classic"

    # --- life across restarts -------------------------------------------------------------------

    def restore(self, kept: GroupSnapshot, *, now_ms: float) -> None:
        """Becomes what was stored; members get a fresh session."""
        self.generation = kept.generation
        self.protocol_type = kept.protocol_type
        self.protocol = kept.protocol
        self.leader = kept.leader
        for member_kept in kept.members:
            member = member_from_snapshot(member_kept, synced=kept.assigned)
            member.renew(now_ms)
            self._insert(member)
        if not kept.members:
            self.state = GroupState.EMPTY
        elif kept.assigned:
            self.state = GroupState.STABLE
        else:
            self.state = GroupState.PREPARING_REBALANCE
            self._join_deadline_ms = now_ms + self._rebalance_timeout_ms()

    def settled(self) -> GroupSnapshot | None:
        """The group as it is stored, if it is stable and nothing is on its way."""
        if self.state is not GroupState.STABLE or self._writes or self._deferred:
            return None
        return self._snapshot({m.member_id: m.assignment for m in self._members.values()})

    def unsaved_snapshot(self) -> GroupSnapshot | None:
        """The emptied group, if storing it failed; to be stored with what comes next.

        Otherwise a commit from outside the group could be kept, and the end of the last
        generation forgotten, and a member of it could overwrite that commit.
        """
        if self._unsaved and self.state is GroupState.EMPTY:
            return self._snapshot({})
        return None

    def saved(self, snapshot: GroupSnapshot) -> None:
        """What `unsaved_snapshot` gave is stored."""
        if snapshot.generation == self.generation:
            self._unsaved = False

    def end(self, error: GroupError) -> Sequence[Effect]:
        """The group is deleted or moves away: all waiting requests get `error`."""
        for member in self._members.values():
            self._dismiss_join(member, error)
            self._dismiss_sync(member, error)
        for write in self._writes.values():
            if isinstance(write, ReplacementWrite):
                self._deferred.append((write.request, write.token))
        for request, token in self._deferred:
            self._refuse_join(token, request.member_id, error)
        self._writes.clear()
        self._deferred.clear()
        self._join_deadline_ms = self._sync_deadline_ms = None
        self._move(GroupState.DEAD)
        return self._drain()

    # --- what can be asked ----------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """No member, none to come, nothing being stored."""
        return self.state is GroupState.EMPTY and not self._pending and not self._writes

    @property
    def next_deadline_ms(self) -> float | None:
        """When `tick` has something to do; it may turn out to be nothing."""
        if self.state is GroupState.DEAD:
            return None
        deadlines = [*self._pending.values()]
        deadlines += [m.session_deadline_ms for m in self._members.values() if m.session_counts]
        deadlines += [d for d in (self._join_deadline_ms, self._sync_deadline_ms) if d is not None]
        return min(deadlines, default=None)

    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics of all members, or None if a member's metadata is no subscription."""
        topics: frozenset[str] = frozenset()
        for member in self._members.values():
            for protocol in member.protocols:
                read = self._topics_of(self.protocol_type or "", protocol.metadata)
                if read is None:
                    return None
                topics |= read
        return topics

    def describe(self) -> GroupDescription:
        stable = self.state is GroupState.STABLE
        return GroupDescription(
            self.group_id,
            self.state,
            self.generation,
            self.protocol_type or "",
            self.protocol or "" if stable else "",
            tuple(m.described(self.protocol, stable=stable) for m in self._members.values()),
        )

    # --- events ---------------------------------------------------------------------------------

    def join(self, request: JoinRequest, token: object, *, now_ms: float) -> Sequence[Effect]:
        """A member joins, for the first time or again; the answer comes as an effect."""
        self._join(request, token, now_ms)
        return self._drain()

    def sync(self, request: SyncRequest, token: object, *, now_ms: float) -> Sequence[Effect]:
        """A member asks for its assignment; the answer comes as an effect."""
        error = self._sync_refusal(request)
        if error is not GroupError.NONE:
            self._effects.append(Answer(token, SyncAnswer(error)))
            return self._drain()
        member = self._members[request.member.member_id]
        member.synced = True
        if all(m.synced for m in self._members.values()):
            self._sync_deadline_ms = None
        if self.state is GroupState.STABLE:
            member.renew(now_ms)
            self._answer_sync(token, member)
        else:
            self._dismiss_sync(member, GroupError.REBALANCE_IN_PROGRESS)
            member.sync_token = token
            if member.member_id == self.leader and not self._assignment_in_flight():
                self._store_assignment(dict(request.assignments))
        return self._drain()

    def heartbeat(
        self, who: MemberIdentity, generation: Generation, *, now_ms: float
    ) -> GroupError:
        """A member says that it lives; the answer says if it should join a rebalance."""
        error = self._identity_refusal(who)
        if error is not GroupError.NONE:
            return error
        member = self._members[who.member_id]
        if generation != self.generation:
            # It waits in join while the new generation is being stored: not stale, only early.
            early = member.join_token is not None and not self._reported
            return GroupError.REBALANCE_IN_PROGRESS if early else GroupError.ILLEGAL_GENERATION
        member.renew(now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            return GroupError.REBALANCE_IN_PROGRESS
        return GroupError.NONE

    def leave(
        self, leaving: Iterable[MemberIdentity], *, now_ms: float
    ) -> tuple[tuple[LeaveOutcome, ...], Sequence[Effect]]:
        """Members go, each with its own outcome; an empty member id goes by instance id."""
        outcomes = []
        removed = False
        for who in leaving:
            if who.instance_id is None and self._pending.pop(who.member_id, None) is not None:
                error = GroupError.NONE
            else:
                named = who
                if who.member_id == NO_MEMBER and who.instance_id is not None:
                    member_id = self._instances.get(who.instance_id, NO_MEMBER)
                    named = MemberIdentity(member_id, who.instance_id)
                error = self._identity_refusal(named)
                if error is GroupError.NONE:
                    self._remove(self._members[named.member_id])
                    removed = True
            outcomes.append(LeaveOutcome(who, error))
        self._after_removal(now_ms, removed=removed)
        return tuple(outcomes), self._drain()

    def commit_check(
        self, who: MemberIdentity, generation: Generation, *, now_ms: float
    ) -> GroupError:
        """Whether a commit is to be accepted now; a member's commit also renews its session."""
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return GroupError.NONE
        if generation < 0 and who == MemberIdentity(NO_MEMBER):
            return GroupError.UNKNOWN_MEMBER
        error = self._identity_refusal(who)
        if error is not GroupError.NONE:
            return error
        if generation != self.generation:
            return GroupError.ILLEGAL_GENERATION
        if self.state is GroupState.COMPLETING_REBALANCE:
            return GroupError.REBALANCE_IN_PROGRESS
        self._members[who.member_id].renew(now_ms)
        return GroupError.NONE

    def tick(self, *, now_ms: float) -> Sequence[Effect]:
        """Does what is due: ended sessions, unused ids, the end of a phase."""
        if self.state is GroupState.DEAD:
            return ()
        self._pending = {m: due for m, due in self._pending.items() if due > now_ms}
        expired = [
            m
            for m in self._members.values()
            if m.session_counts and m.session_deadline_ms <= now_ms
        ]
        for member in expired:
            self._remove(member)
        self._after_removal(now_ms, removed=bool(expired))
        if self._join_deadline_ms is not None and self._join_deadline_ms <= now_ms:
            self._join_phase_over(now_ms)
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            self._sync_deadline_ms = None
            missing = [m for m in self._members.values() if not m.synced]
            for member in missing:
                self._remove(member)
            self._after_removal(now_ms, removed=bool(missing))
        return self._drain()

    def persisted(self, ticket: int, *, now_ms: float) -> Sequence[Effect]:
        """The snapshot of this ticket is stored."""
        write = self._writes.pop(ticket, None)
        self._unsaved = False
        current = self.state is GroupState.COMPLETING_REBALANCE
        match write:
            case GenerationWrite(generation) if current and generation == self.generation:
                self._report_generation(now_ms)
            case AssignmentWrite(generation, given) if current and generation == self.generation:
                self._assign(given, now_ms)
            case ReplacementWrite():
                self._replacement_stored(write, now_ms)
        self._run_deferred(now_ms)
        return self._drain()

    def persist_failed(self, ticket: int, error: GroupError, *, now_ms: float) -> Sequence[Effect]:
        """The snapshot may or may not be stored: whoever waits for it is answered with `error`.

        A generation that could not be stored is not used again; its members join anew.
        """
        write = self._writes.pop(ticket, None)
        current = self.state is GroupState.COMPLETING_REBALANCE
        match write:
            case GenerationWrite(generation) if current and generation == self.generation:
                for member in self._members.values():
                    self._dismiss_join(member, error)
                    member.renew(now_ms)
                self._prepare_rebalance(now_ms)
            case AssignmentWrite(generation) if current and generation == self.generation:
                for member in self._members.values():
                    self._dismiss_sync(member, error)
                    member.renew(now_ms)
                self._prepare_rebalance(now_ms)
            case ReplacementWrite(request=request, token=token):
                self._refuse_join(token, request.member_id, error)
            case EmptiedWrite():
                self._unsaved = True
        self._run_deferred(now_ms)
        return self._drain()

    def _sync_refusal(self, request: SyncRequest) -> GroupError:
        error = self._identity_refusal(request.member)
        if error is not GroupError.NONE:
            return error
        if request.generation != self.generation:
            return GroupError.ILLEGAL_GENERATION
        if self.state is GroupState.PREPARING_REBALANCE or not self._reported:
            return GroupError.REBALANCE_IN_PROGRESS
        same_type = request.protocol_type in {None, self.protocol_type}
        if not same_type or request.protocol not in {None, self.protocol}:
            return GroupError.INCONSISTENT_PROTOCOL
        return GroupError.NONE
