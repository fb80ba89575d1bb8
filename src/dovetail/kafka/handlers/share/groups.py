"""ShareGroupHeartbeat and ShareGroupDescribe: membership of a share group (KIP-932)."""

from dovetail.access import Kind, Operation
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.consumer_groups import by_topic
from dovetail.kafka.handlers.group_codes import group_code
from dovetail.kafka.handlers.groups import coordinator_of
from dovetail.log.groups.consumer_types import JOINING, LEAVING, ConsumerBeat, ConsumerMember
from dovetail.log.groups.types import GroupError, GroupId, MemberId


async def heartbeat(
    backend: Backend, call: Call, request: m.ShareGroupHeartbeatRequest
) -> m.ShareGroupHeartbeatResponse:
    """A member joins, lives on or leaves."""
    for name in request.subscribed_topic_names or ():
        if not call.access.allows(Operation.DESCRIBE, Kind.TOPIC, name):
            return _refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
    wrong = _refusal(request)
    if wrong is not None:
        return _refused(ErrorCode.INVALID_REQUEST, wrong)

    coordinator = coordinator_of(backend, call, Operation.READ, request.group_id)
    answer = await coordinator.beat_share(
        GroupId(request.group_id),
        ConsumerBeat(
            member_id=MemberId(request.member_id),
            epoch=request.member_epoch,
            rack=request.rack_id,
            names=request.subscribed_topic_names,
            client_id=call.client_id,
            client_host=call.client_host,
        ),
    )

    if answer.error is not GroupError.NONE:
        return _refused(group_code(answer.error), answer.message)
    assignment = None
    if answer.assignment is not None:
        assignment = m.ShareGroupHeartbeatResponseAssignment(
            topic_partitions=tuple(
                m.ShareGroupHeartbeatResponseTopic(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in by_topic(answer.assignment)
            )
        )
    return m.ShareGroupHeartbeatResponse(
        error_code=ErrorCode.NONE,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.interval_ms,
        assignment=assignment,
    )


def _refused(code: ErrorCode, message: str | None) -> m.ShareGroupHeartbeatResponse:
    return m.ShareGroupHeartbeatResponse(
        error_code=code, error_message=message, member_epoch=0, heartbeat_interval_ms=0
    )


def _refusal(request: m.ShareGroupHeartbeatRequest) -> str | None:
    """What no client of this protocol sends, in Kafka's words."""
    if not request.member_id.strip():
        return "MemberId can't be empty."
    if not request.group_id.strip():
        return "GroupId can't be empty."
    if request.rack_id is not None and not request.rack_id.strip():
        return "RackId can't be empty."
    if request.member_epoch < LEAVING:
        return "MemberEpoch is invalid."
    if request.member_epoch == JOINING and not request.subscribed_topic_names:
        return "SubscribedTopicNames must be set in first request."
    return None


async def describe(
    backend: Backend, call: Call, request: m.ShareGroupDescribeRequest
) -> m.ShareGroupDescribeResponse:
    """Each group with its members."""
    return m.ShareGroupDescribeResponse(
        groups=tuple(
            _describe(backend, call, group_id) for group_id in dict.fromkeys(request.group_ids)
        )
    )


def _describe(backend: Backend, call: Call, group_id: str) -> m.ShareGroupDescribeResponseGroup:
    coordinator = coordinator_of(backend, call, Operation.DESCRIBE, group_id)
    code, message = group_code(coordinator.refusal(GroupId(group_id))), None
    found = coordinator.share_described(GroupId(group_id)) if code is ErrorCode.NONE else None
    if found is None and code is ErrorCode.NONE:
        code, message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."

    if found is not None:
        hidden = any(
            not call.access.allows(Operation.DESCRIBE, Kind.TOPIC, name)
            for member in found.members
            for name in member.names
        )
        if hidden:
            code, found = ErrorCode.TOPIC_AUTHORIZATION_FAILED, None
            message = "The group has described topic(s) that the client is not authorized to "
            message += "describe."
    if found is None:
        return m.ShareGroupDescribeResponseGroup(
            error_code=code,
            error_message=message,
            group_id=group_id,
            group_state="",
            group_epoch=0,
            assignment_epoch=0,
            assignor_name="",
            members=(),
        )

    names = {record.id: record.name for record in backend.log.topics()}
    return m.ShareGroupDescribeResponseGroup(
        error_code=ErrorCode.NONE,
        group_id=found.group_id,
        group_state=found.state.value,
        group_epoch=found.header.epoch,
        assignment_epoch=found.header.target_epoch,
        assignor_name=found.header.assignor,
        members=tuple(_member(names, member) for member in found.members),
    )


def _member(names: dict[str, str], member: ConsumerMember) -> m.ShareGroupDescribeResponseMember:
    return m.ShareGroupDescribeResponseMember(
        member_id=member.member_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=f"/{member.client_host}",
        subscribed_topic_names=member.names,
        assignment=m.ShareGroupDescribeResponseAssignment(
            topic_partitions=tuple(
                m.ShareGroupDescribeResponseTopic(
                    topic_id=topic_id, topic_name=names.get(topic_id.hex(), ""), partitions=numbers
                )
                for topic_id, numbers in by_topic(member.assigned)
            )
        ),
    )
