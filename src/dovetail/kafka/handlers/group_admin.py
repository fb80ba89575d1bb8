"""ListGroups, DescribeGroups and DeleteGroups: administration of groups."""

from dovetail.access import Kind, Operation
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.group_codes import group_code
from dovetail.kafka.handlers.groups import coordinator_of
from dovetail.log.groups.types import GroupId, GroupState


async def list_groups(
    backend: Backend, call: Call, request: m.ListGroupsRequest
) -> m.ListGroupsResponse:
    """All groups, or those in some states."""
    wanted = {name.lower() for name in request.states_filter}
    states = [state for state in GroupState if state.value.lower() in wanted]
    types = {name.lower() for name in request.types_filter}
    found = [] if wanted and not states else backend.groups.groups(states)

    return m.ListGroupsResponse(
        error_code=ErrorCode.NONE,
        groups=tuple(
            m.ListGroupsResponseGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state.value,
                group_type=group.kind,
            )
            for group in found
            if not types or group.kind in types
            if call.access.allows(Operation.DESCRIBE, Kind.GROUP, group.group_id)
        ),
    )


async def describe_groups(
    backend: Backend, call: Call, request: m.DescribeGroupsRequest
) -> m.DescribeGroupsResponse:
    """Each group with its members."""
    return m.DescribeGroupsResponse(
        groups=tuple(
            _describe(backend, call, group_id) for group_id in dict.fromkeys(request.groups)
        )
    )


def _describe(backend: Backend, call: Call, group_id: str) -> m.DescribeGroupsResponseGroup:
    coordinator = coordinator_of(backend, call, Operation.DESCRIBE, group_id)
    group = coordinator.describe(GroupId(group_id))
    code, message = group_code(coordinator.refusal(GroupId(group_id))), None
    if group.state is GroupState.DEAD and code is ErrorCode.NONE and call.api_version >= 6:
        code, message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
    return m.DescribeGroupsResponseGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=tuple(
            m.DescribeGroupsResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=f"/{member.client_host}",
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ),
    )


async def delete_groups(
    backend: Backend, call: Call, request: m.DeleteGroupsRequest
) -> m.DeleteGroupsResponse:
    """Deletes groups that have no members."""
    results = []
    for group_id in request.groups_names:
        coordinator = coordinator_of(backend, call, Operation.DELETE, group_id)
        error = await coordinator.delete_group(GroupId(group_id))
        results.append(
            m.DeleteGroupsResponseResult(group_id=group_id, error_code=group_code(error))
        )
    return m.DeleteGroupsResponse(results=tuple(results))
