"""Administration of consumer groups: describe, list, delete."""

from typing import Annotated

from dovetail.kafka.codec.messages.access import AUTHORIZED_OPERATIONS_ABSENT
from dovetail.kafka.codec.schema import Bool, Bytes, Int16, Int32, String, Wire, message


@message
class DescribeGroupsRequest:
    """State and members of groups."""

    groups: tuple[String, ...]
    include_authorized_operations: Annotated[Bool, Wire(since=3)] = False


@message
class DescribeGroupsResponseMember:
    """One member with its subscription and assignment."""

    member_id: String
    group_instance_id: Annotated[String | None, Wire(since=4)] = None
    client_id: String
    client_host: String
    member_metadata: Bytes
    member_assignment: Bytes


@message
class DescribeGroupsResponseGroup:
    """One group; an unknown one is in state "Dead"."""

    error_code: Int16
    error_message: Annotated[String | None, Wire(since=6)] = None
    group_id: String
    group_state: String
    protocol_type: String
    protocol_data: String
    members: tuple[DescribeGroupsResponseMember, ...]
    authorized_operations: Annotated[Int32, Wire(since=3)] = AUTHORIZED_OPERATIONS_ABSENT


@message
class DescribeGroupsResponse:
    """Each group as it is."""

    throttle_time_ms: Annotated[Int32, Wire(since=1)] = 0
    groups: tuple[DescribeGroupsResponseGroup, ...]


@message
class ListGroupsRequest:
    """Groups of this broker, by state and type; an empty filter takes all."""

    states_filter: Annotated[tuple[String, ...], Wire(since=4)] = ()
    types_filter: Annotated[tuple[String, ...], Wire(since=5)] = ()


@message
class ListGroupsResponseGroup:
    """One group."""

    group_id: String
    protocol_type: String
    group_state: Annotated[String, Wire(since=4)] = ""
    group_type: Annotated[String, Wire(since=5)] = ""


@message
class ListGroupsResponse:
    """The groups."""

    throttle_time_ms: Annotated[Int32, Wire(since=1)] = 0
    error_code: Int16
    groups: tuple[ListGroupsResponseGroup, ...]


@message
class DeleteGroupsRequest:
    """Delete groups that have no members."""

    groups_names: tuple[String, ...]


@message
class DeleteGroupsResponseResult:
    """Whether this group was deleted."""

    group_id: String
    error_code: Int16


@message
class DeleteGroupsResponse:
    """The outcome for each group."""

    throttle_time_ms: Int32 = 0
    results: tuple[DeleteGroupsResponseResult, ...]
