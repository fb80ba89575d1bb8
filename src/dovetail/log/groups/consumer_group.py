"""A consumer group of the new protocol (KIP-848): the group decides, members follow; pure.

Members send heartbeats and learn what they may read. The group has an *epoch*, which grows when a
member joins, leaves or changes its subscription, or when a topic changes. For each epoch an
assignor computes the *target*: what each member is to have in the end. Each member moves there
through these states:

    reached      the member is at the target's epoch and has its target
    revoking     it has partitions that belong to another; it is told to give them up, and stays at
                 its epoch until its heartbeat reports that it did
    waiting      it is at the target's epoch, but others still have some of its partitions; it gets
                 them as they become free

Promises:
- A partition is assigned to a member only when no other member has it, neither assigned nor being
  revoked. A member no longer has it when it left, was silent for the session timeout, or did not
  give up its partitions within its rebalance timeout.
- What a member learns was stored first. Changes that arrive during a write are stored together
  after it, and an answer waits for everything that was decided before it.
- After a failed append the group returns to what was last known to be stored. What may be stored
  besides that was told to nobody, and the next change overwrites it (`_unsure`).
- A heartbeat of an older epoch is refused, except of the previous one if its answer may be lost.

Not here: the classic protocol (`group.py`), positions, and how all of it is stored.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from dovetail.errors import InvalidInput
from dovetail.log.groups.assignors import ASSIGNORS, Assignment, Assignor, Part, Subscriber
from dovetail.log.groups.consumer_member import NOTHING, Member
from dovetail.log.groups.consumer_types import (
    JOINING,
    LEAVING,
    LEAVING_FOR_NOW,
    Batch,
    ConsumerBeat,
    ConsumerDescription,
    ConsumerEffect,
    ConsumerHeader,
    ConsumerMember,
    ConsumerPersist,
    TopicView,
    failed,
)
from dovetail.log.groups.subscriptions import CHECKSUM_OF_NOTHING, Subscriptions
from dovetail.log.groups.types import (
    Answer,
    ConsumerAnswer,
    Generation,
    GroupDescription,
    GroupError,
    GroupId,
    GroupSettings,
    GroupState,
    InstanceId,
    JoinAnswer,
    MemberId,
    MemberIdentity,
    SyncAnswer,
)


class Refused(Exception):
    """Why a heartbeat is not taken."""

    def __init__(self, error: GroupError, message: str) -> None:
        super().__init__(message)
        self.error = error


class ConsumerGroup:
    """See the module. Every event returns the effects to perform, in their order."""

    kind = "consumer"
    protocol_type = "consumer"
    #: By name; the first one is used if nobody asks. The kinds of groups have none in common.
    assignors: Mapping[str, Assignor] = ASSIGNORS

    def __init__(
        self, group_id: GroupId, settings: GroupSettings, topics: TopicView, *, epoch: int = 0
    ) -> None:
        """`epoch` is that of the group which it follows, so that epochs never go back."""
        self.group_id = group_id
        self._settings = settings
        self._subscriptions = Subscriptions(topics)
        self._header = ConsumerHeader(epoch, epoch, next(iter(self.assignors)), CHECKSUM_OF_NOTHING)
        self._members: dict[MemberId, Member] = {}
        self._owners: dict[Part, MemberId] = {}

        #: What is known to be stored; the group goes back to it when an append fails.
        self._stored_header = self._header
        self._stored: dict[MemberId, ConsumerMember] = {}
        self._unsure: set[MemberId] = set()
        self._next = Batch()
        self._writing: Batch | None = None
        self._effects: list[ConsumerEffect] = []

    # --- what others ask of every kind of group -------------------------------------------------

    def restore(
        self, header: ConsumerHeader, members: Mapping[MemberId, ConsumerMember], *, now_ms: float
    ) -> None:
        """Becomes what was stored; members get a fresh session."""
        self._stored_header, self._stored = header, dict(members)
        self._return(now_ms)

    def stored_members(self) -> Mapping[MemberId, ConsumerMember]:
        """What is known to be stored of the members."""
        return self._stored

    @property
    def state(self) -> GroupState:
        """Derived: how far the group is on its way to its target."""
        if not self._members:
            return GroupState.EMPTY
        if self._header.epoch > self._header.target_epoch:
            return GroupState.ASSIGNING
        reached = all(
            member.epoch == self._header.target_epoch
            and member.assigned == member.target
            and not member.revoking
            for member in self._members.values()
        )
        return GroupState.STABLE if reached else GroupState.RECONCILING

    @property
    def epoch(self) -> int:
        return self._header.epoch

    @property
    def is_empty(self) -> bool:
        """No member, and nothing being stored."""
        return not self._members and self._writing is None and self._next.empty

    @property
    def next_deadline_ms(self) -> float | None:
        """When `tick` has something to do."""
        due = [member.session_ms for member in self._members.values()]
        due += [m.revoke_ms for m in self._members.values() if m.revoke_ms is not None]
        return min(due, default=None)

    def subscribed_topics(self) -> frozenset[str]:
        """The names of all topics to which any member is subscribed."""
        return self._subscriptions.names

    def unsaved_snapshot(self) -> None:
        """Nothing is left unsaved: what could not be stored did not happen."""

    def describe(self) -> GroupDescription:
        """For those who know classic groups only, there is none."""
        return GroupDescription(self.group_id, GroupState.DEAD, Generation(-1), "", "", ())

    def described(self) -> ConsumerDescription:
        """As it is now."""
        members = tuple(member.kept() for _, member in sorted(self._members.items()))
        return ConsumerDescription(self.group_id, self.state, self._header, members)

    def commit_check(
        self, who: MemberIdentity, generation: Generation, *, now_ms: float
    ) -> GroupError:
        """Whether a commit or a fetch of positions is to be accepted of this member and epoch."""
        if generation < 0 and not self._members:
            return GroupError.NONE
        member = self._members.get(who.member_id)
        if member is None:
            return GroupError.UNKNOWN_MEMBER
        return GroupError.NONE if generation == member.epoch else GroupError.STALE_MEMBER_EPOCH

    def end(self, error: GroupError) -> Sequence[ConsumerEffect]:
        """The group is deleted or moves away: all waiting requests get `error`."""
        batches = [self._next] if self._writing is None else [self._writing, self._next]
        return [failed(one, error) for batch in batches for one in batch.waiting]

    # --- heartbeats -----------------------------------------------------------------------------

    def beat(
        self, request: ConsumerBeat, token: object, *, now_ms: float
    ) -> Sequence[ConsumerEffect]:
        """A member joins, lives on or leaves; the answer comes as an effect."""
        try:
            if request.epoch in (LEAVING, LEAVING_FOR_NOW):
                answer = self._leave(request)
            else:
                answer = self._heartbeat(request, now_ms)
        except Refused as refused:
            self._effects.append(Answer(token, ConsumerAnswer(refused.error, str(refused))))
            return self._drain()

        self._answer(token, answer)
        return self._drain()

    def _answer(self, token: object, answer: ConsumerAnswer | JoinAnswer | SyncAnswer) -> None:
        """Answers when everything that was decided so far is stored."""
        waits_for = self._next if self._writing is None or not self._next.empty else self._writing
        waits_for.waiting.append(Answer(token, answer))

    def _heartbeat(self, request: ConsumerBeat, now_ms: float) -> ConsumerAnswer:
        self._check(request)
        member, known = self._identify(request)
        before = replace(member)
        subscribed = self._update(member, request)
        self._advance(
            member, before if known else None, request.owned, now_ms, subscribed=subscribed
        )

        behind = request.epoch != member.epoch or request.rebalance_timeout_ms >= 0
        told = behind or member.assigned != before.assigned
        return ConsumerAnswer(
            GroupError.NONE,
            None,
            member.member_id,
            member.epoch,
            self._settings.consumer.heartbeat_interval_ms,
            member.assigned if told else None,
        )

    def _advance(
        self,
        member: Member,
        before: Member | None,
        owned: Assignment | None,
        now_ms: float,
        *,
        subscribed: bool,
    ) -> None:
        """Applies a member's request: a new epoch if need be, and the member's next step."""
        if before is None and len(self._members) >= self._settings.group_size_max:
            raise Refused(GroupError.GROUP_MAX_SIZE, f"the group has {len(self._members)} members")
        if before is None:
            self._put(member)
        if subscribed or before is None:
            self._subscriptions.changed()
        changed = self._refresh_topics()
        if before is None or subscribed or changed:
            self._header = msgspec.structs.replace(self._header, epoch=self._header.epoch + 1)
        if self._header.epoch > self._header.target_epoch:
            self._retarget()

        self._reconcile(member, owned, now_ms)
        self._renew(member, now_ms)
        self._note(member, before)

    def _renew(self, member: Member, now_ms: float) -> None:
        """Restarts a member's session."""
        timeout_ms = self._settings.consumer.session_timeout_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        member.session_ms = now_ms + timeout_ms

    def _check(self, request: ConsumerBeat) -> None:
        """Refuses what no member can say, before anything is changed."""
        if request.assignor is not None and request.assignor not in ASSIGNORS:
            raise Refused(
                GroupError.UNSUPPORTED_ASSIGNOR,
                f"assignor {request.assignor[:80]!r} is unknown; use one of {', '.join(ASSIGNORS)}",
            )
        if request.pattern:
            try:
                self._subscriptions.learn(request.pattern)
            except InvalidInput as error:
                raise Refused(GroupError.INVALID_PATTERN, str(error)) from error

    def _identify(self, request: ConsumerBeat) -> tuple[Member, bool]:
        """The member that a heartbeat is of, and whether the group knew it."""
        holder = None if request.instance_id is None else self._holder(request.instance_id)
        member = self._members.get(request.member_id)

        if request.epoch == JOINING:
            if holder is not None and holder.member_id != request.member_id:
                return self._take_over(holder, request), True
            if member is not None:
                return member, True
            return Member(request.member_id, request.instance_id), False

        if request.instance_id is not None and holder is None:
            raise Refused(GroupError.UNKNOWN_MEMBER, "the group has no such instance")
        if holder is not None and holder.member_id != request.member_id:
            raise Refused(GroupError.FENCED_INSTANCE, "another member uses this instance id")
        if member is None:
            raise Refused(GroupError.UNKNOWN_MEMBER, "the group has no such member")
        lost_answer = (
            request.epoch == member.epoch_before
            and request.owned is not None
            and request.owned <= member.assigned
        )
        if request.epoch != member.epoch and not lost_answer:
            raise Refused(
                GroupError.FENCED_MEMBER_EPOCH,
                f"epoch {request.epoch}, the member is at {member.epoch}; join again",
            )
        return member, True

    def _holder(self, instance_id: InstanceId) -> Member | None:
        """The static member of this instance id."""
        found = (one for one in self._members.values() if one.instance_id == instance_id)
        return next(found, None)

    def _take_over(self, holder: Member, request: ConsumerBeat) -> Member:
        """A static member has returned under another id; it continues with what it had."""
        if holder.epoch != LEAVING_FOR_NOW and holder.classic is None:
            raise Refused(
                GroupError.UNRELEASED_INSTANCE,
                f"instance {request.instance_id!r} is still in use by another member",
            )
        return self._replace(holder, request.member_id)

    def _replace(self, holder: Member, member_id: MemberId) -> Member:
        """Gives what a member has to the same one under another id."""
        member = replace(holder, member_id=member_id, epoch=0, epoch_before=0, classic=None)
        self._drop(holder)
        self._put(member)
        self._next.members[member_id] = member.kept()
        return member

    def _update(self, member: Member, request: ConsumerBeat) -> bool:
        """Takes over what the member says of itself; whether its subscription is another."""
        before = (member.names, member.pattern, member.assignor)
        names = member.names if request.names is None else frozenset(request.names)
        pattern = member.pattern if request.pattern is None else request.pattern or None
        member.names, member.pattern = names, pattern
        if request.assignor is not None:
            member.assignor = request.assignor
        if request.rack is not None:
            member.rack = request.rack
        if request.rebalance_timeout_ms >= 0:
            member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        return before != (member.names, member.pattern, member.assignor)

    def _leave(self, request: ConsumerBeat) -> ConsumerAnswer:
        member = self._members.get(request.member_id)
        if member is None:
            raise Refused(GroupError.UNKNOWN_MEMBER, "the group has no such member")
        if member.instance_id != request.instance_id:
            raise Refused(GroupError.UNKNOWN_MEMBER, "the member has another instance id")
        if request.epoch == LEAVING_FOR_NOW and member.instance_id is not None:
            before = replace(member)
            member.epoch = LEAVING_FOR_NOW
            self._note(member, before)
        else:
            self._remove(member)
        return ConsumerAnswer(GroupError.NONE, None, request.member_id, request.epoch)

    # --- targets --------------------------------------------------------------------------------

    def _refresh_topics(self) -> bool:
        """Looks at the topics again if they changed; whether that matters to this group."""
        self._subscriptions.refresh(self._members.values())
        return self._subscriptions.checksum != self._header.topics

    def _retarget(self) -> None:
        """Computes what each member is to have in the end."""
        asked = Counter(m.assignor for m in self._members.values() if m.assignor is not None)
        name = (
            min(asked, key=lambda one: (-asked[one], one)) if asked else next(iter(self.assignors))
        )
        subscribers: dict[str, Subscriber] = {
            member.member_id: Subscriber(
                member.instance_id or member.member_id,
                self._subscriptions.of(member),
                member.target,
            )
            for member in self._members.values()
        }
        targets = self.assignors[name](subscribers, self._subscriptions.counts)
        for member in self._members.values():
            if member.target != targets[member.member_id]:
                member.target = targets[member.member_id]
                self._next.members[member.member_id] = member.kept()
        epoch = self._header.epoch
        self._header = ConsumerHeader(epoch, epoch, name, self._subscriptions.checksum)
        self._next.header = True

    def _reconcile(self, member: Member, owned: Assignment | None, now_ms: float) -> None:
        """Brings a member one step nearer to its target."""
        target_epoch = self._header.target_epoch
        if member.revoking:
            if owned is None or owned & member.revoking:
                return
            self._release(member, member.revoking)
            member.revoking, member.revoke_ms = NOTHING, None
        elif member.epoch == target_epoch and member.assigned == member.target:
            return

        surplus = member.assigned - member.target
        if surplus and (owned is None or owned & surplus):
            member.assigned -= surplus
            member.revoking = surplus
            member.revoke_ms = now_ms + member.rebalance_timeout_ms
            return
        self._release(member, surplus)
        free = {part for part in member.target - member.assigned if part not in self._owners}
        member.assigned = (member.assigned & member.target) | free
        for part in free:
            self._owners[part] = member.member_id
        if member.epoch != target_epoch:
            member.epoch_before, member.epoch = member.epoch, target_epoch

    # --- members --------------------------------------------------------------------------------

    def _put(self, member: Member) -> None:
        self._members[member.member_id] = member
        for part in member.assigned | member.revoking:
            self._owners[part] = member.member_id

    def _release(self, member: Member, parts: Assignment) -> None:
        for part in parts:
            if self._owners.get(part) == member.member_id:
                del self._owners[part]

    def _drop(self, member: Member) -> None:
        self._release(member, member.assigned | member.revoking)
        del self._members[member.member_id]
        self._next.members[member.member_id] = None

    def _remove(self, member: Member) -> None:
        """A member is gone: the next heartbeat of anybody computes a new target."""
        self._drop(member)
        epoch = self._header.epoch + 1
        self._header = msgspec.structs.replace(self._header, epoch=epoch)
        self._next.header = True
        self._subscriptions.changed()
        if not self._members:
            self._refresh_topics()
            self._header = msgspec.structs.replace(self._header, target_epoch=epoch)

    def _note(self, member: Member, before: Member | None) -> None:
        """Has a member stored if it is another than before."""
        kept = member.kept()
        if before is None or kept != before.kept() or member.member_id in self._next.members:
            self._next.members[member.member_id] = kept

    # --- time and storing -----------------------------------------------------------------------

    def tick(self, *, now_ms: float) -> Sequence[ConsumerEffect]:
        """Removes members that were silent, or did not give up what they had to."""
        for member in [*self._members.values()]:
            late = member.revoke_ms is not None and member.revoke_ms <= now_ms
            if late or member.session_ms <= now_ms:
                self._remove(member)
        return self._drain()

    def written(self, error: GroupError, *, now_ms: float) -> Sequence[ConsumerEffect]:
        """What was being stored is stored, or `error` says that it may not be."""
        batch, self._writing = self._writing, None
        if batch is None or batch.sent is None:
            raise AssertionError(f"group {self.group_id!r} was not being stored")
        if error is GroupError.NONE:
            self._stored_header = batch.sent
            for member_id, kept in batch.members.items():
                if kept is None:
                    self._stored.pop(member_id, None)
                else:
                    self._stored[member_id] = kept
            self._unsure -= batch.members.keys()
            self._effects += batch.waiting
            return self._drain()

        self._unsure |= batch.members.keys() | self._next.members.keys()
        self._effects += [failed(one, error) for one in (*batch.waiting, *self._next.waiting)]
        self._next = Batch()
        self._return(now_ms)
        return self._drain()

    def _return(self, now_ms: float) -> None:
        """Becomes what is known to be stored."""
        self._header = self._stored_header
        self._members, self._owners = {}, {}
        self._subscriptions.changed()
        for kept in self._stored.values():
            member = Member.restored(kept)
            self._renew(member, now_ms)
            if member.revoking:
                member.revoke_ms = now_ms + member.rebalance_timeout_ms
            if member.pattern is not None:
                self._subscriptions.learn(member.pattern)
            self._put(member)

    def _drain(self) -> Sequence[ConsumerEffect]:
        """Begins to store what changed, unless something is being stored."""
        if self._writing is None and self._next.empty:
            self._effects += self._next.waiting
            self._next = Batch()
        elif self._writing is None:
            batch, self._next = self._next, Batch()
            for member_id in self._unsure - batch.members.keys():
                batch.members[member_id] = self._stored.get(member_id)
            batch.sent = self._header
            self._writing = batch
            self._effects.append(ConsumerPersist(self._header, batch.members))
        effects, self._effects = self._effects, []
        return effects
