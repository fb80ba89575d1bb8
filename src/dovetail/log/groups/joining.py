"""How members join a group: for the first time, again, and after a restart.

Part of `group`, which has the theory. A join is refused, answered at once with the current
generation, or parked on its member until the next generation is stored.
"""

from dovetail.log.groups.member import Member, common_protocols, elect_protocol, member_from_request
from dovetail.log.groups.phases import GroupPhases, ReplacementWrite
from dovetail.log.groups.types import (
    NO_MEMBER,
    GroupError,
    GroupId,
    GroupSettings,
    GroupState,
    JoinRequest,
    MemberId,
    MemberIdentity,
    MemberIdSource,
    SubscriptionReader,
)


class GroupJoining(GroupPhases):
    """A group that members can join."""

    def __init__(
        self,
        group_id: GroupId,
        settings: GroupSettings,
        *,
        new_member_id: MemberIdSource,
        topics_of: SubscriptionReader,
    ) -> None:
        super().__init__(group_id, settings)
        self._new_member_id = new_member_id
        self._topics_of = topics_of
        #: Restarts of instances that wait until nothing else is being stored.
        self._deferred: list[tuple[JoinRequest, object]] = []

    def _join(self, request: JoinRequest, token: object, now_ms: float) -> None:
        member_id = request.member_id
        error = self._join_refusal(request)
        if error is not GroupError.NONE:
            self._refuse_join(token, member_id, error)
            if error is GroupError.GROUP_MAX_SIZE and member_id in self._members:
                self._remove(self._members[member_id])
                self._after_removal(now_ms, removed=True)
        elif member_id == NO_MEMBER:
            self._join_without_id(request, token, now_ms)
        elif member_id in self._pending:
            del self._pending[member_id]
            self._join_new(member_id, request, token, now_ms)
        else:
            self._join_again(self._members[member_id], request, token, now_ms)

    def _join_refusal(self, request: JoinRequest) -> GroupError:
        settings = self._settings
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        timeout_ms = request.session_timeout_ms
        if not settings.session_timeout_ms_min <= timeout_ms <= settings.session_timeout_ms_max:
            return GroupError.INVALID_SESSION_TIMEOUT
        known_id = self._instances.get(request.instance_id) if request.instance_id else None
        if request.member_id in self._pending:
            if request.instance_id is not None:
                return GroupError.UNKNOWN_MEMBER
        elif request.member_id != NO_MEMBER:
            known_id = request.member_id
            error = self._identity_refusal(MemberIdentity(known_id, request.instance_id))
            if error is not GroupError.NONE:
                return error
        if not self._has_room(known_id, pending=request.member_id in self._pending):
            return GroupError.GROUP_MAX_SIZE
        return self._protocol_refusal(request, known_id)

    def _has_room(self, known_id: MemberId | None, *, pending: bool) -> bool:
        """Whether this member fits; a known one always does, unless the limit was lowered."""
        size_max = self._settings.group_size_max
        known = self._members.get(known_id) if known_id is not None else None
        if known is None and not pending and len(self._pending) >= size_max:
            return False
        if self.state is GroupState.PREPARING_REBALANCE:
            waiting = sum(m.join_token is not None for m in self._members.values())
            return waiting < size_max or (known is not None and known.join_token is not None)
        return known is not None or len(self._members) < size_max

    def _protocol_refusal(self, request: JoinRequest, known_id: MemberId | None) -> GroupError:
        """A join must leave a protocol that all support; what the member itself offered before
        does not bind it."""
        others = [m.protocols for m in self._members.values() if m.member_id != known_id]
        fits = bool(request.protocol_type) and bool(request.protocols)
        if others:
            fits = fits and request.protocol_type == self.protocol_type
            fits = fits and bool(common_protocols([*others, request.protocols]))
        return GroupError.NONE if fits else GroupError.INCONSISTENT_PROTOCOL

    def _join_without_id(self, request: JoinRequest, token: object, now_ms: float) -> None:
        instance_id = request.instance_id
        old_id = self._instances.get(instance_id) if instance_id is not None else None
        if old_id is not None:
            self._join_restarted(self._members[old_id], request, token, now_ms)
            return
        member_id = self._new_member_id(instance_id or request.client_id)
        if request.member_id_required and instance_id is None:
            self._pending[member_id] = now_ms + request.session_timeout_ms
            self._refuse_join(token, member_id, GroupError.MEMBER_ID_REQUIRED)
        else:
            self._join_new(member_id, request, token, now_ms)

    def _join_new(
        self, member_id: MemberId, request: JoinRequest, token: object, now_ms: float
    ) -> None:
        member = member_from_request(member_id, request)
        member.join_token = token
        member.session_deadline_ms = now_ms + self._settings.new_member_join_timeout_ms
        if not self._members:
            self.protocol_type = request.protocol_type
        self._insert(member)
        self._member_added = True
        self._rebalance(now_ms)

    def _join_again(
        self, member: Member, request: JoinRequest, token: object, now_ms: float
    ) -> None:
        """A known member joins. Its answer may have been lost, it may have changed, or, if it
        leads, the topics may have changed, which only the leader watches."""
        changed = member.protocols != request.protocols
        if self.state is GroupState.STABLE:
            settled = not changed and member.member_id != self.leader
        else:
            settled = not changed and self.state is GroupState.COMPLETING_REBALANCE
        if member.is_new:
            member.session_deadline_ms = now_ms + self._settings.new_member_join_timeout_ms
        else:
            member.renew(now_ms)
        if settled and self._reported:
            self._answer_join(token, member)
            return
        self._dismiss_join(member, GroupError.REBALANCE_IN_PROGRESS)
        member.update(request)
        member.join_token = token
        if not settled:
            self._rebalance(now_ms)

    def _rebalance(self, now_ms: float) -> None:
        """Begins a rebalance, or continues the one that is being prepared."""
        if self.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(now_ms)
        else:
            self._prepare_rebalance(now_ms)

    # --- static members that restarted ----------------------------------------------------------

    def _join_restarted(
        self, old: Member, request: JoinRequest, token: object, now_ms: float
    ) -> None:
        """An instance that the group knows comes without its id: it was restarted."""
        if self.state is GroupState.STABLE and not self._restart_matters(old, request):
            if self._writes:
                # Two restarts at once must each be stored on top of the other.
                self._deferred.append((request, token))
            else:
                self._store_replacement(old, request, token)
            return
        new = member_from_request(self._new_member_id(request.instance_id or ""), request)
        self._replace(old, new)
        new.is_new = False
        new.join_token = token
        new.renew(now_ms)
        self._rebalance(now_ms)

    def _restart_matters(self, old: Member, request: JoinRequest) -> bool:
        """Whether the others must know: it has other topics, or the group another choice.

        Metadata that is a subscription is compared by its topics, because it also holds what the
        member owned, which a restarted one no longer knows. Other metadata must be the same.
        """
        members = self._members.values()
        offers = [m.protocols if m is not old else request.protocols for m in members]
        if elect_protocol(offers) != self.protocol:
            return True
        before = old.metadata(self.protocol)
        after = next(p.metadata for p in request.protocols if p.name == self.protocol)
        topics = self._topics_of(self.protocol_type or "", before)
        if topics is None:
            return before != after
        return topics != self._topics_of(self.protocol_type or "", after)

    def _store_replacement(self, old: Member, request: JoinRequest, token: object) -> None:
        new = member_from_request(self._new_member_id(request.instance_id or ""), request)
        assignments = {m.member_id: m.assignment for m in self._members.values()}
        self._persist(
            ReplacementWrite(self.generation, request, token, old.member_id, new.member_id),
            self._snapshot(assignments, swap=(old, new)),
        )

    def _replacement_stored(self, write: ReplacementWrite, now_ms: float) -> None:
        """Puts the restarted member in; if the group went on meanwhile, it joins that."""
        old = self._members.get(write.old_id)
        stable = self.state is GroupState.STABLE and self.generation == write.generation
        if old is None or not stable:
            self._join(write.request, write.token, now_ms)
            return
        led_by = self.leader
        new = member_from_request(write.new_id, write.request)
        self._replace(old, new)
        new.is_new = False
        new.renew(now_ms)
        if write.request.skip_assignment_supported:
            skip = self.leader == new.member_id
            self._answer_join(write.token, new, skip_assignment=skip)
        else:
            # A client that cannot skip must not think that it leads, for nobody would get
            # what it assigns: it hears the old leader's id, which is not its own.
            self._answer_join(write.token, new, leader=led_by)

    def _run_deferred(self, now_ms: float) -> None:
        if not self._writes:
            deferred, self._deferred = self._deferred, []
            for request, token in deferred:
                self._join(request, token, now_ms)

    def _identity_refusal(self, who: MemberIdentity) -> GroupError:
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if who.instance_id is not None:
            holder = self._instances.get(who.instance_id)
            if holder is None:
                return GroupError.UNKNOWN_MEMBER
            if holder != who.member_id:
                return GroupError.FENCED_INSTANCE
        return GroupError.NONE if who.member_id in self._members else GroupError.UNKNOWN_MEMBER
