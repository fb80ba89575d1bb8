"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: groups of the new protocol (KIP-848)."""

import uuid
from collections.abc import Iterable

from dovetail.access import Kind, Operation
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.group_codes import group_code
from dovetail.kafka.handlers.groups import coordinator_of
from dovetail.log.groups.consumer_types import (
    JOINING,
    LEAVING_FOR_NOW,
    ConsumerBeat,
    ConsumerDescription,
    ConsumerMember,
)
from dovetail.log.groups.types import GroupError, GroupId, InstanceId, MemberId

_CLASSIC_MEMBER = 0
_CONSUMER_MEMBER = 1

#: In Kafka's words.
_HIDDEN = "The group has described topic(s) that the client is not authorized to describe."


async def heartbeat(
    backend: Backend, call: Call, request: m.ConsumerGroupHeartbeatRequest
) -> m.ConsumerGroupHeartbeatResponse:
    """A member joins, lives on or leaves."""
    wrong = _refusal(call, request)
    for name in request.subscribed_topic_names or ():
        if not call.access.allows(Operation.DESCRIBE, Kind.TOPIC, name):
            return _refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
    if wrong is not None:
        return _refused(ErrorCode.INVALID_REQUEST, wrong)

    coordinator = coordinator_of(backend, call, Operation.READ, request.group_id)
    owned = None
    if request.topic_partitions is not None:
        owned = frozenset(
            (topic.topic_id.hex(), number)
            for topic in request.topic_partitions
            for number in topic.partitions
        )
    answer = await coordinator.beat(
        GroupId(request.group_id),
        ConsumerBeat(
            member_id=MemberId(request.member_id or uuid.uuid4().hex),
            epoch=request.member_epoch,
            instance_id=None if request.instance_id is None else InstanceId(request.instance_id),
            rack=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            names=request.subscribed_topic_names,
            pattern=request.subscribed_topic_regex,
            assignor=request.server_assignor,
            owned=owned,
            client_id=call.client_id,
            client_host=call.client_host,
        ),
    )

    if answer.error is not GroupError.NONE:
        return _refused(group_code(answer.error), answer.message)
    assignment = None
    if answer.assignment is not None:
        assignment = m.ConsumerGroupHeartbeatResponseAssignment(
            topic_partitions=tuple(
                m.ConsumerGroupHeartbeatResponseTopic(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in by_topic(answer.assignment)
            )
        )
    return m.ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.NONE,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.interval_ms,
        assignment=assignment,
    )


def _refused(code: ErrorCode, message: str | None) -> m.ConsumerGroupHeartbeatResponse:
    return m.ConsumerGroupHeartbeatResponse(
        error_code=code, error_message=message, member_epoch=0, heartbeat_interval_ms=0
    )


def _refusal(call: Call, request: m.ConsumerGroupHeartbeatRequest) -> str | None:
    """What no client of this protocol sends, in Kafka's words."""
    epoch = request.member_epoch
    if not request.member_id and (call.api_version > 0 or epoch != JOINING):
        return "MemberId can't be empty."
    if not request.group_id.strip():
        return "GroupId can't be empty."
    if request.instance_id is not None and not request.instance_id.strip():
        return "InstanceId can't be empty."
    if request.rack_id is not None and not request.rack_id.strip():
        return "RackId can't be empty."
    if epoch == LEAVING_FOR_NOW and request.instance_id is None:
        return "InstanceId can't be null."
    if epoch < LEAVING_FOR_NOW:
        return f"MemberEpoch is invalid: {epoch}."
    if epoch != JOINING:
        return None
    if request.rebalance_timeout_ms < 0:
        return "RebalanceTimeoutMs must be provided in first request."
    if request.topic_partitions is None or request.topic_partitions:
        return "TopicPartitions must be empty when (re-)joining."
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when joining."
    return None


def by_topic(parts: Iterable[tuple[str, int]]) -> list[tuple[bytes, tuple[int, ...]]]:
    """Partitions as messages have them: by the bytes of their topic ids."""
    found: dict[str, list[int]] = {}
    for topic_id, number in sorted(parts):
        found.setdefault(topic_id, []).append(number)
    return [(bytes.fromhex(topic_id), tuple(numbers)) for topic_id, numbers in found.items()]


async def describe(
    backend: Backend, call: Call, request: m.ConsumerGroupDescribeRequest
) -> m.ConsumerGroupDescribeResponse:
    """Each group with its members."""
    return m.ConsumerGroupDescribeResponse(
        groups=tuple(
            _describe(backend, call, group_id) for group_id in dict.fromkeys(request.group_ids)
        )
    )


def _describe(backend: Backend, call: Call, group_id: str) -> m.ConsumerGroupDescribeResponseGroup:
    coordinator = coordinator_of(backend, call, Operation.DESCRIBE, group_id)
    code = group_code(coordinator.refusal(GroupId(group_id)))
    found = coordinator.described(GroupId(group_id)) if code is ErrorCode.NONE else None
    message = None
    if code is ErrorCode.NONE and found is None:
        code, message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
    names = {record.id: record.name for record in backend.log.topics()} if found else {}
    if found is not None and not _may_see(call, found, names):
        code, message = ErrorCode.TOPIC_AUTHORIZATION_FAILED, _HIDDEN
    if found is None or code is not ErrorCode.NONE:
        return m.ConsumerGroupDescribeResponseGroup(
            error_code=code,
            error_message=message,
            group_id=group_id,
            group_state="",
            group_epoch=0,
            assignment_epoch=0,
            assignor_name="",
            members=(),
        )
    return _described(found, names)


def _may_see(call: Call, found: ConsumerDescription, names: dict[str, str]) -> bool:
    """Whether the client may see every topic that a description would name."""
    parts = (part for one in found.members for part in (*one.assigned, *one.target))
    topics = {names[topic_id] for topic_id, _ in parts if topic_id in names}
    topics.update(name for one in found.members for name in one.names)
    return all(call.access.allows(Operation.DESCRIBE, Kind.TOPIC, topic) for topic in topics)


def _described(
    found: ConsumerDescription, names: dict[str, str]
) -> m.ConsumerGroupDescribeResponseGroup:
    return m.ConsumerGroupDescribeResponseGroup(
        error_code=ErrorCode.NONE,
        group_id=found.group_id,
        group_state=found.state.value,
        group_epoch=found.header.epoch,
        assignment_epoch=found.header.target_epoch,
        assignor_name=found.header.assignor,
        members=tuple(_member(names, member) for member in found.members),
    )


def _member(names: dict[str, str], member: ConsumerMember) -> m.ConsumerGroupDescribeResponseMember:
    return m.ConsumerGroupDescribeResponseMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=f"/{member.client_host}",
        subscribed_topic_names=member.names,
        subscribed_topic_regex=member.pattern,
        assignment=_assignment(names, member.assigned),
        target_assignment=_assignment(names, member.target),
        member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _assignment(
    names: dict[str, str], parts: Iterable[tuple[str, int]]
) -> m.ConsumerGroupDescribeResponseAssignment:
    return m.ConsumerGroupDescribeResponseAssignment(
        topic_partitions=tuple(
            m.ConsumerGroupDescribeResponseTopic(
                topic_id=topic_id, topic_name=names.get(topic_id.hex(), ""), partitions=numbers
            )
            for topic_id, numbers in by_topic(parts)
        )
    )
