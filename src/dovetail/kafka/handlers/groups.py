"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: membership of a group."""

from dovetail.access import Kind, Operation
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.group_codes import group_code
from dovetail.log.groups.coordinator import GroupCoordinator
from dovetail.log.groups.types import (
    Generation,
    GroupId,
    InstanceId,
    JoinRequest,
    MemberId,
    MemberIdentity,
    MemberProtocol,
    SyncRequest,
)

#: From these versions on a client knows what the answer means.
_MEMBER_ID_REQUIRED_SINCE = 4
_SKIP_ASSIGNMENT_SINCE = 9
_LEAVE_MANY_SINCE = 3


def identity(member_id: str, instance_id: str | None) -> MemberIdentity:
    """A member as requests name it."""
    instance = None if instance_id is None else InstanceId(instance_id)
    return MemberIdentity(MemberId(member_id), instance)


def coordinator_of(
    backend: Backend, call: Call, operation: Operation, group_id: str
) -> GroupCoordinator:
    """The group's coordinator, or one that refuses everything if the client may not do that."""
    if not call.access.allows(operation, Kind.GROUP, group_id):
        return backend.groups.forbidden
    return backend.groups.of(GroupId(group_id))


async def join_group(
    backend: Backend, call: Call, request: m.JoinGroupRequest
) -> m.JoinGroupResponse:
    """Answered when the next generation begins."""
    rebalance_timeout_ms = request.rebalance_timeout_ms
    if rebalance_timeout_ms < 0:
        rebalance_timeout_ms = request.session_timeout_ms

    answer = await coordinator_of(backend, call, Operation.READ, request.group_id).join(
        GroupId(request.group_id),
        JoinRequest(
            member_id=MemberId(request.member_id),
            protocol_type=request.protocol_type,
            protocols=tuple(MemberProtocol(p.name, bytes(p.metadata)) for p in request.protocols),
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            instance_id=identity("", request.group_instance_id).instance_id,
            client_id=call.client_id,
            client_host=call.client_host,
            member_id_required=call.api_version >= _MEMBER_ID_REQUIRED_SINCE,
            skip_assignment_supported=call.api_version >= _SKIP_ASSIGNMENT_SINCE,
        ),
    )

    return m.JoinGroupResponse(
        error_code=group_code(answer.error),
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol or "",
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=tuple(
            m.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata,
            )
            for member in answer.members
        ),
    )


async def sync_group(
    backend: Backend, call: Call, request: m.SyncGroupRequest
) -> m.SyncGroupResponse:
    """Answered when the leader's assignment is stored."""
    answer = await coordinator_of(backend, call, Operation.READ, request.group_id).sync(
        GroupId(request.group_id),
        SyncRequest(
            member=identity(request.member_id, request.group_instance_id),
            generation=Generation(request.generation_id),
            assignments=tuple(
                (MemberId(a.member_id), bytes(a.assignment)) for a in request.assignments
            ),
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
        ),
    )
    return m.SyncGroupResponse(
        error_code=group_code(answer.error),
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


async def heartbeat(
    backend: Backend, call: Call, request: m.HeartbeatRequest
) -> m.HeartbeatResponse:
    """Stay, or join again."""
    error = await coordinator_of(backend, call, Operation.READ, request.group_id).heartbeat(
        GroupId(request.group_id),
        identity(request.member_id, request.group_instance_id),
        Generation(request.generation_id),
    )
    return m.HeartbeatResponse(error_code=group_code(error))


async def leave_group(
    backend: Backend, call: Call, request: m.LeaveGroupRequest
) -> m.LeaveGroupResponse:
    """One member, or from version 3 many, each with its own outcome."""
    many = call.api_version >= _LEAVE_MANY_SINCE
    members = (
        [identity(member.member_id, member.group_instance_id) for member in request.members]
        if many
        else [identity(request.member_id, None)]
    )
    outcomes = await coordinator_of(backend, call, Operation.READ, request.group_id).leave(
        GroupId(request.group_id), members
    )

    if not many:
        return m.LeaveGroupResponse(error_code=group_code(outcomes[0].error))
    return m.LeaveGroupResponse(
        error_code=ErrorCode.NONE,
        members=tuple(
            m.LeaveGroupResponseMember(
                member_id=outcome.member.member_id,
                group_instance_id=outcome.member.instance_id,
                error_code=group_code(outcome.error),
            )
            for outcome in outcomes
        ),
    )
