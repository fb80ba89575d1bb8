"""A share group: its members, and which partitions each of them may share; pure.

It is a group of the new protocol (`groups/consumer_group.py`), with its epochs, its sessions and
its journal. It differs in one point: partitions are shared, so no member has to give one up before
another may have it. A member reaches its target with its next heartbeat.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dovetail.log.groups.assignors import SHARE_ASSIGNORS, Assignment, Assignor
from dovetail.log.groups.consumer_group import ConsumerGroup, Refused
from dovetail.log.groups.consumer_member import Member
from dovetail.log.groups.consumer_types import JOINING, ConsumerBeat, ConsumerEffect, TopicView
from dovetail.log.groups.types import (
    Answer,
    ConsumerLimits,
    Generation,
    GroupError,
    GroupId,
    GroupSettings,
    GroupState,
    JoinAnswer,
    JoinRequest,
    LeaveOutcome,
    MemberIdentity,
    SyncAnswer,
    SyncRequest,
)
from dovetail.log.share.types import ShareSettings


class ShareGroup(ConsumerGroup):
    """Every event returns the effects to perform, in their order."""

    kind = "share"
    protocol_type = "share"
    assignors: Mapping[str, Assignor] = SHARE_ASSIGNORS

    def __init__(
        self,
        group_id: GroupId,
        settings: GroupSettings,
        topics: TopicView,
        *,
        limits: ShareSettings,
        epoch: int = 0,
    ) -> None:
        super().__init__(group_id, settings, topics, epoch=epoch)
        self.limit(limits)

    def limit(self, limits: ShareSettings) -> None:
        """The group's own limits, from now on."""
        self._settings = replace(
            self._settings,
            group_size_max=self._settings.share_size_max,
            consumer=ConsumerLimits(limits.heartbeat_interval_ms, limits.session_timeout_ms),
        )

    @property
    def state(self) -> GroupState:
        """Kafka knows no others: members never wait for each other."""
        return GroupState.STABLE if self._members else GroupState.EMPTY

    # --- what members of other kinds of groups ask ----------------------------------------------

    def join(
        self, request: JoinRequest, token: object, *, now_ms: float
    ) -> Sequence[ConsumerEffect]:
        """Refuses a member of the classic protocol."""
        return [Answer(token, JoinAnswer(GroupError.INCONSISTENT_PROTOCOL, request.member_id))]

    def sync(
        self, request: SyncRequest, token: object, *, now_ms: float
    ) -> Sequence[ConsumerEffect]:
        """Refuses a member of the classic protocol."""
        return [Answer(token, SyncAnswer(GroupError.UNKNOWN_MEMBER))]

    def heartbeat(
        self, who: MemberIdentity, generation: Generation, *, now_ms: float
    ) -> GroupError:
        """Refuses a member of the classic protocol."""
        return GroupError.UNKNOWN_MEMBER

    def leave(
        self, leaving: Iterable[MemberIdentity], *, now_ms: float
    ) -> tuple[tuple[LeaveOutcome, ...], Sequence[ConsumerEffect]]:
        """Refuses members of the classic protocol."""
        return tuple(LeaveOutcome(who, GroupError.UNKNOWN_MEMBER) for who in leaving), ()

    def commit_check(
        self, who: MemberIdentity, generation: Generation, *, now_ms: float
    ) -> GroupError:
        """A share group has no positions that a member could commit."""
        return GroupError.GROUP_ID_NOT_FOUND

    # --- heartbeats -----------------------------------------------------------------------------

    def _identify(self, request: ConsumerBeat) -> tuple[Member, bool]:
        member = self._members.get(request.member_id)
        if request.epoch == JOINING:
            if member is not None:
                return member, True
            return Member(request.member_id), False
        if member is None:
            raise Refused(GroupError.UNKNOWN_MEMBER, "the group has no such member")
        if request.epoch not in (member.epoch, member.epoch_before):
            raise Refused(
                GroupError.FENCED_MEMBER_EPOCH,
                f"epoch {request.epoch}, the member is at {member.epoch}; join again",
            )
        return member, True

    def _reconcile(self, member: Member, owned: Assignment | None, now_ms: float) -> None:
        member.assigned = member.target
        if member.epoch != self._header.target_epoch:
            member.epoch_before, member.epoch = member.epoch, self._header.target_epoch
