"""Classic members in a group of the new protocol, so that a live group can migrate; pure.

The group decides for them too: they join, learn that another member leads, and ask for their
assignment. Their generation is their epoch. If the group moves to another target, their heartbeat
tells them to join again, which is how they take their next step: an eager member gives everything
up before that, a cooperative one reports what it has.

A stable classic group becomes such a group when the first member of the new protocol joins: what
its members have is their assignment, under the same generation (`adopt`). They can be restarted one
by one, with the new protocol or, to go back, with the classic one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dovetail.log.groups.assignors import ASSIGNORS
from dovetail.log.groups.consumer_group import ConsumerGroup, Refused
from dovetail.log.groups.consumer_member import Member
from dovetail.log.groups.consumer_types import (
    ClassicPart,
    ConsumerEffect,
    ConsumerHeader,
    ConsumerMember,
    MemberFormats,
    TopicView,
)
from dovetail.log.groups.subscriptions import CHECKSUM_OF_NOTHING
from dovetail.log.groups.types import (
    NO_MEMBER,
    Answer,
    ConsumerLimits,
    Generation,
    GroupError,
    GroupId,
    GroupSettings,
    GroupSnapshot,
    JoinAnswer,
    JoinRequest,
    LeaveOutcome,
    MemberIdentity,
    MemberIdSource,
    SyncAnswer,
    SyncRequest,
)

_CONSUMER = "consumer"


class MixedGroup(ConsumerGroup):
    """A group of the new protocol that has room for members of the classic one."""

    def __init__(
        self,
        group_id: GroupId,
        settings: GroupSettings,
        topics: TopicView,
        *,
        formats: MemberFormats,
        new_member_id: MemberIdSource,
        epoch: int = 0,
    ) -> None:
        super().__init__(group_id, settings, topics, epoch=epoch)
        self._formats = formats
        self._new_member_id = new_member_id

    def limit(self, limits: ConsumerLimits) -> None:
        """The group's own limits, from now on."""
        self._settings = replace(self._settings, consumer=limits)

    def adopt(self, kept: GroupSnapshot, *, now_ms: float) -> bool:
        """Becomes what a classic group is; False if its members are no consumers."""
        members = {}
        for member in kept.members:
            offered = {protocol.name: protocol.metadata for protocol in member.protocols}
            said = self._formats.subscription(offered.get(kept.protocol or "", b""))
            if said is None or kept.protocol_type != _CONSUMER:
                return False

            has = tuple(sorted(self._subscriptions.ids(self._formats.assigned(member.assignment))))
            members[member.member_id] = ConsumerMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack=None,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                assignor=None,
                names=tuple(sorted(said[0])),
                pattern=None,
                epoch=kept.generation,
                epoch_before=kept.generation,
                assigned=has,
                revoking=(),
                target=has,
                classic=ClassicPart(member.session_timeout_ms, kept.protocol or ""),
            )

        generation, assignor = kept.generation, next(iter(ASSIGNORS))
        header = ConsumerHeader(generation, generation, assignor, CHECKSUM_OF_NOTHING)
        self.restore(header, members, now_ms=now_ms)
        self._unsure = set(members)  # All of them are stored with the first change.
        return True

    # --- requests of the classic protocol -------------------------------------------------------

    def join(
        self, request: JoinRequest, token: object, *, now_ms: float
    ) -> Sequence[ConsumerEffect]:
        """A member joins, for the first time or again; the answer names another as leader."""
        try:
            self._answer(token, self._join(request, now_ms))
        except Refused as refused:
            self._effects.append(Answer(token, JoinAnswer(refused.error, request.member_id)))
        return self._drain()

    def _join(self, request: JoinRequest, now_ms: float) -> JoinAnswer:
        settings = self._settings
        shortest, longest = settings.session_timeout_ms_min, settings.session_timeout_ms_max
        if not shortest <= request.session_timeout_ms <= longest:
            raise Refused(
                GroupError.INVALID_SESSION_TIMEOUT,
                "the session timeout is outside the broker's bounds",
            )
        offered = request.protocols[0] if request.protocols else None
        said = None if offered is None else self._formats.subscription(offered.metadata)
        if request.protocol_type != _CONSUMER or offered is None or said is None:
            raise Refused(
                GroupError.INCONSISTENT_PROTOCOL,
                "the group accepts only consumers, each with a subscription",
            )

        member, known = self._joining(request)
        before = replace(member)
        subscribed = member.names != said[0]
        member.names, member.pattern = said[0], None
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        member.classic = ClassicPart(request.session_timeout_ms, offered.name)
        member.revoke_ms = None

        owned = self._subscriptions.ids(said[1])
        self._advance(member, before if known else None, owned, now_ms, subscribed=subscribed)
        return JoinAnswer(
            GroupError.NONE, member.member_id, Generation(member.epoch), _CONSUMER, offered.name
        )

    def _joining(self, request: JoinRequest) -> tuple[Member, bool]:
        """The member that joins, and whether the group knew it.

        One without an id is taken at once. One whose id is unknown was removed, and may believe
        that it still has what others have now: it has to hear that first.
        """
        holder = None if request.instance_id is None else self._holder(request.instance_id)
        if request.member_id == NO_MEMBER:
            made = self._new_member_id(request.instance_id or request.client_id)
            if holder is not None:  # It was restarted.
                return self._replace(holder, made), True
            return Member(made, request.instance_id), False

        if holder is not None and holder.member_id != request.member_id:
            raise Refused(GroupError.FENCED_INSTANCE, "another member uses this instance id")
        member = self._members.get(request.member_id)
        if member is None:
            raise Refused(GroupError.UNKNOWN_MEMBER, "the group has no such member")
        return member, True

    def sync(
        self, request: SyncRequest, token: object, *, now_ms: float
    ) -> Sequence[ConsumerEffect]:
        """A member asks for what it may read."""
        error = self._refusal(request.member, request.generation)
        if error is not GroupError.NONE:
            self._effects.append(Answer(token, SyncAnswer(error)))
            return self._drain()
        member = self._members[request.member.member_id]
        self._renew(member, now_ms)
        assignment = self._formats.assignment(self._subscriptions.named(member.assigned))
        protocol = member.classic.protocol if member.classic is not None else ""
        self._answer(token, SyncAnswer(GroupError.NONE, assignment, _CONSUMER, protocol))
        return self._drain()

    def heartbeat(
        self, who: MemberIdentity, generation: Generation, *, now_ms: float
    ) -> GroupError:
        """A member lives on; if there is a step to take it has to join again, in time."""
        error = self._refusal(who, generation)
        if error is not GroupError.NONE:
            return error
        member = self._members[who.member_id]
        self._renew(member, now_ms)
        free = any(part not in self._owners for part in member.target - member.assigned)
        moved = member.epoch < self._header.epoch or self._refresh_topics()
        if not (moved or member.revoking or free or member.assigned - member.target):
            return GroupError.NONE
        if member.revoke_ms is None:
            member.revoke_ms = now_ms + member.rebalance_timeout_ms
        return GroupError.REBALANCE_IN_PROGRESS

    def leave(
        self, leaving: Iterable[MemberIdentity], *, now_ms: float
    ) -> tuple[tuple[LeaveOutcome, ...], Sequence[ConsumerEffect]]:
        """Members go, each with its own outcome; an empty member id goes by instance id."""
        outcomes = []
        for who in leaving:
            named = who
            holder = None if who.instance_id is None else self._holder(who.instance_id)
            if who.member_id == NO_MEMBER and holder is not None:
                named = MemberIdentity(holder.member_id, who.instance_id)
            error = self._known(named)
            if error is GroupError.NONE:
                self._remove(self._members[named.member_id])
            outcomes.append(LeaveOutcome(who, error))
        return tuple(outcomes), self._drain()

    def commit_check(
        self, who: MemberIdentity, generation: Generation, *, now_ms: float
    ) -> GroupError:
        """As for all members; those of the classic protocol get its errors."""
        member = self._members.get(who.member_id)
        if member is None or member.classic is None:
            return super().commit_check(who, generation, now_ms=now_ms)
        error = self._refusal(who, generation)
        if error is GroupError.NONE:
            self._renew(member, now_ms)
        return error

    def _refusal(self, who: MemberIdentity, generation: Generation) -> GroupError:
        error = self._known(who)
        if error is not GroupError.NONE:
            return error
        at_it = self._members[who.member_id].epoch == generation
        return GroupError.NONE if at_it else GroupError.ILLEGAL_GENERATION

    def _known(self, who: MemberIdentity) -> GroupError:
        if who.instance_id is not None:
            holder = self._holder(who.instance_id)
            if holder is None:
                return GroupError.UNKNOWN_MEMBER
            if holder.member_id != who.member_id:
                return GroupError.FENCED_INSTANCE
        member = self._members.get(who.member_id)
        known = member is not None and member.classic is not None
        return GroupError.NONE if known else GroupError.UNKNOWN_MEMBER
