"""The phases of a rebalance: membership, and how one generation follows another.

`group` has the theory and the events; this is the machinery that they share. Each step appends to
`_effects`, which the event drains.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.errors import Damaged
from dovetail.log.groups.member import Member, elect_protocol
from dovetail.log.groups.types import (
    NO_MEMBER,
    Answer,
    Effect,
    Generation,
    GroupError,
    GroupId,
    GroupSettings,
    GroupSnapshot,
    GroupState,
    InstanceId,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    MemberId,
    Persist,
    SyncAnswer,
)

_S = GroupState
#: The table of `group`'s docstring.
_TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    _S.EMPTY: frozenset({_S.PREPARING_REBALANCE, _S.DEAD}),
    _S.PREPARING_REBALANCE: frozenset({_S.COMPLETING_REBALANCE, _S.EMPTY, _S.DEAD}),
    _S.COMPLETING_REBALANCE: frozenset({_S.STABLE, _S.PREPARING_REBALANCE, _S.DEAD}),
    _S.STABLE: frozenset({_S.PREPARING_REBALANCE, _S.DEAD}),
    _S.DEAD: frozenset({_S.DEAD}),
}


@dataclass(frozen=True, slots=True)
class GenerationWrite:
    """The members of a new generation are being stored; then they are answered."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class AssignmentWrite:
    """A generation's assignment is being stored; then the members are answered."""

    generation: Generation
    assignments: dict[MemberId, bytes]


@dataclass(frozen=True, slots=True)
class ReplacementWrite:
    """The new id of a restarted instance is being stored; then it is put in the old one's place."""

    generation: Generation
    request: JoinRequest
    token: object
    old_id: MemberId
    new_id: MemberId


@dataclass(frozen=True, slots=True)
class EmptiedWrite:
    """A group without members is being stored; nobody waits."""


Write = GenerationWrite | AssignmentWrite | ReplacementWrite | EmptiedWrite


class GroupPhases:
    """Members, phases and writes of one group."""

    def __init__(self, group_id: GroupId, settings: GroupSettings) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = Generation(0)
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: MemberId | None = None
        #: What is stored is older than what is here, and nobody waits for it.
        self._unsaved = False
        self._settings = settings
        self._members: dict[MemberId, Member] = {}
        self._instances: dict[InstanceId, MemberId] = {}
        #: Ids that were given out and not yet used, with the time when they are forgotten.
        self._pending: dict[MemberId, float] = {}
        self._join_deadline_ms: float | None = None
        self._sync_deadline_ms: float | None = None
        #: By how much the initial delay may still grow; None outside of it.
        self._initial_remaining_ms: float | None = None
        self._member_added = False
        #: The current generation is stored, and its members were answered.
        self._reported = True
        self._writes: dict[int, Write] = {}
        self._tickets = 0
        self._effects: list[Effect] = []

    def _drain(self) -> Sequence[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def _move(self, to: GroupState) -> None:
        if to not in _TRANSITIONS[self.state]:
            raise Damaged(f"group {self.group_id} cannot go from {self.state} to {to}")
        self.state = to

    # --- members --------------------------------------------------------------------------------

    def _insert(self, member: Member) -> None:
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id

    def _remove(self, member: Member, error: GroupError = GroupError.UNKNOWN_MEMBER) -> None:
        """Removes a member, and answers it if it waits."""
        self._dismiss_join(member, error)
        self._dismiss_sync(member, error)
        del self._members[member.member_id]
        if member.instance_id is not None:
            del self._instances[member.instance_id]

    def _replace(self, old: Member, new: Member) -> None:
        """Puts a restarted instance in the place of what it was; the old id is fenced."""
        self._remove(old, GroupError.FENCED_INSTANCE)
        new.assignment = old.assignment
        new.synced = old.synced
        self._insert(new)
        if self.leader == old.member_id:
            self.leader = new.member_id

    def _after_removal(self, now_ms: float, *, removed: bool) -> None:
        if removed and self.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
            self._prepare_rebalance(now_ms)
        else:
            self._maybe_complete_join(now_ms)

    def _rebalance_timeout_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self._members.values()), default=0)

    # --- phases ---------------------------------------------------------------------------------

    def _prepare_rebalance(self, now_ms: float) -> None:
        """Calls all members to join. Those that already wait in join stay there."""
        if self.state is GroupState.COMPLETING_REBALANCE:
            for member in self._members.values():
                member.assignment = b""
                if member.sync_token is not None:
                    self._dismiss_sync(member, GroupError.REBALANCE_IN_PROGRESS)
                    member.renew(now_ms)
        self._sync_deadline_ms = None
        delay_ms = self._settings.initial_rebalance_delay_ms
        initial = self.state is GroupState.EMPTY and delay_ms > 0
        self._move(GroupState.PREPARING_REBALANCE)
        if initial:
            self._initial_remaining_ms = max(self._rebalance_timeout_ms() - delay_ms, 0)
            self._member_added = False
            self._join_deadline_ms = now_ms + delay_ms
        else:
            self._join_deadline_ms = now_ms + self._rebalance_timeout_ms()
            self._maybe_complete_join(now_ms)

    def _maybe_complete_join(self, now_ms: float) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        all_here = not self._pending and self._all_wait()
        if not self._members or (all_here and self._initial_remaining_ms is None):
            self._complete_join(now_ms)

    def _all_wait(self) -> bool:
        return all(m.join_token is not None for m in self._members.values())

    def _join_phase_over(self, now_ms: float) -> None:
        """The join deadline has come; the initial delay grows while new members come."""
        remaining_ms = self._initial_remaining_ms
        if remaining_ms and self._member_added:
            delay_ms = min(self._settings.initial_rebalance_delay_ms, remaining_ms)
            self._member_added = False
            self._initial_remaining_ms = remaining_ms - delay_ms
            self._join_deadline_ms = now_ms + delay_ms
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: float) -> None:
        """Begins the next generation with the members that joined, and the static ones."""
        self._initial_remaining_ms = None
        for member in [*self._members.values()]:
            if member.join_token is None and member.instance_id is None:
                self._remove(member)

        waiting = [m.member_id for m in self._members.values() if m.join_token is not None]
        if self._members and not waiting:
            # Only static members, and none came: wait for one of them, or for their sessions.
            patience_ms = max(self._rebalance_timeout_ms(), self._settings.session_timeout_ms_min)
            self._join_deadline_ms = now_ms + patience_ms
            return

        self._join_deadline_ms = None
        self.generation = Generation(self.generation + 1)
        if not self._members:
            self.protocol = self.leader = None
            self._move(GroupState.EMPTY)
            self._persist(EmptiedWrite(), self._snapshot({}))
            return

        if self.leader not in waiting:
            self.leader = waiting[0]
        self.protocol = elect_protocol([m.protocols for m in self._members.values()])
        for member in self._members.values():
            member.assignment = b""
            member.synced = False

        self._move(GroupState.COMPLETING_REBALANCE)
        self._reported = False
        self._persist(GenerationWrite(self.generation), self._snapshot(None))

    def _report_generation(self, now_ms: float) -> None:
        """The generation is stored: its members learn of it and have time to sync."""
        self._reported = True
        self._sync_deadline_ms = now_ms + self._rebalance_timeout_ms()
        for member in self._members.values():
            member.renew(now_ms)
            if member.join_token is not None:
                member.is_new = False
                token, member.join_token = member.join_token, None
                self._answer_join(token, member)

    def _store_assignment(self, given: dict[MemberId, bytes]) -> None:
        """Stores what the leader brought; a member it left out gets nothing."""
        assignments = {member_id: given.get(member_id, b"") for member_id in self._members}
        self._persist(AssignmentWrite(self.generation, assignments), self._snapshot(assignments))

    def _assignment_in_flight(self) -> bool:
        return any(
            isinstance(write, AssignmentWrite) and write.generation == self.generation
            for write in self._writes.values()
        )

    def _assign(self, assignments: dict[MemberId, bytes], now_ms: float) -> None:
        """The assignment is stored: the group is stable, and waiting members are answered."""
        self._move(GroupState.STABLE)
        for member in self._members.values():
            member.assignment = assignments[member.member_id]
            if member.sync_token is not None:
                token, member.sync_token = member.sync_token, None
                member.renew(now_ms)
                self._answer_sync(token, member)

    # --- storing and answering ------------------------------------------------------------------

    def _persist(self, write: Write, snapshot: GroupSnapshot) -> None:
        self._tickets += 1
        self._writes[self._tickets] = write
        self._effects.append(Persist(self._tickets, snapshot))

    def _snapshot(
        self, assignments: dict[MemberId, bytes] | None, swap: tuple[Member, Member] | None = None
    ) -> GroupSnapshot:
        """The group with these assignments (None: none yet), and one member swapped for another."""
        old, new = swap or (None, None)
        leader = self.leader
        if old is not None and new is not None and leader == old.member_id:
            leader = new.member_id
        members = []
        for member in self._members.values():
            kept = new if new is not None and member is old else member
            members.append(kept.snapshot((assignments or {}).get(member.member_id, b"")))
        return GroupSnapshot(
            self.generation,
            self.protocol_type,
            self.protocol,
            leader,
            assigned=assignments is not None,
            members=tuple(members),
        )

    def _answer_join(
        self,
        token: object,
        member: Member,
        *,
        leader: MemberId | None = None,
        skip_assignment: bool = False,
    ) -> None:
        """Answers a member with its generation. A `leader` that is given hides who really leads."""
        told_leader = leader or self.leader or NO_MEMBER
        members: tuple[JoinedMember, ...] = ()
        if told_leader == member.member_id:
            members = tuple(m.joined(self.protocol) for m in self._members.values())
        answer = JoinAnswer(
            GroupError.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            told_leader,
            members,
            skip_assignment,
        )
        self._effects.append(Answer(token, answer))

    def _answer_sync(self, token: object, member: Member) -> None:
        answer = SyncAnswer(GroupError.NONE, member.assignment, self.protocol_type, self.protocol)
        self._effects.append(Answer(token, answer))

    def _refuse_join(self, token: object, member_id: MemberId, error: GroupError) -> None:
        self._effects.append(Answer(token, JoinAnswer(error, member_id)))

    def _dismiss_join(self, member: Member, error: GroupError) -> None:
        if member.join_token is not None:
            self._refuse_join(member.join_token, member.member_id, error)
            member.join_token = None

    def _dismiss_sync(self, member: Member, error: GroupError) -> None:
        if member.sync_token is not None:
            self._effects.append(Answer(member.sync_token, SyncAnswer(error)))
            member.sync_token = None
