"""Membership of a consumer group: find the coordinator, join, sync, heartbeat, leave."""

from typing import Annotated

from dovetail.kafka.codec.schema import Bool, Bytes, Int8, Int16, Int32, String, Wire, message


@message
class FindCoordinatorRequest:
    """Who coordinates `key`, or from version 4 each of `coordinator_keys`; type 0 is a group."""

    key: Annotated[String, Wire(until=3)] = ""
    key_type: Annotated[Int8, Wire(since=1)] = 0
    coordinator_keys: Annotated[tuple[String, ...], Wire(since=4)] = ()


@message
class FindCoordinatorResponseCoordinator:
    """The coordinator of one key."""

    key: String
    node_id: Int32
    host: String
    port: Int32
    error_code: Int16
    error_message: String | None = None


@message
class FindCoordinatorResponse:
    """One coordinator up to version 3, a list from 4."""

    throttle_time_ms: Annotated[Int32, Wire(since=1)] = 0
    error_code: Annotated[Int16, Wire(until=3)] = 0
    error_message: Annotated[String | None, Wire(since=1, until=3)] = None
    node_id: Annotated[Int32, Wire(until=3)] = 0
    host: Annotated[String, Wire(until=3)] = ""
    port: Annotated[Int32, Wire(until=3)] = 0
    coordinators: Annotated[tuple[FindCoordinatorResponseCoordinator, ...], Wire(since=4)] = ()


@message
class JoinGroupRequestProtocol:
    """An assignor that the member knows, with its subscription."""

    name: String
    metadata: Bytes


@message
class JoinGroupRequest:
    """Join, or join again after a rebalance."""

    group_id: String
    session_timeout_ms: Int32
    rebalance_timeout_ms: Annotated[Int32, Wire(since=1)] = -1
    member_id: String
    group_instance_id: Annotated[String | None, Wire(since=5)] = None
    protocol_type: String
    protocols: tuple[JoinGroupRequestProtocol, ...]
    reason: Annotated[String | None, Wire(since=8)] = None


@message
class JoinGroupResponseMember:
    """A member and its subscription."""

    member_id: String
    group_instance_id: Annotated[String | None, Wire(since=5)] = None
    metadata: Bytes


@message
class JoinGroupResponse:
    """The new generation; only the leader gets the members."""

    throttle_time_ms: Annotated[Int32, Wire(since=2)] = 0
    error_code: Int16
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, Wire(since=7)] = None
    protocol_name: Annotated[String | None, Wire(nullable=7)]
    leader: String
    skip_assignment: Annotated[Bool, Wire(since=9)] = False
    member_id: String
    members: tuple[JoinGroupResponseMember, ...]


@message
class SyncGroupRequestAssignment:
    """What one member gets."""

    member_id: String
    assignment: Bytes


@message
class SyncGroupRequest:
    """Ask for an assignment; the leader brings everybody's."""

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[String | None, Wire(since=3)] = None
    protocol_type: Annotated[String | None, Wire(since=5)] = None
    protocol_name: Annotated[String | None, Wire(since=5)] = None
    assignments: tuple[SyncGroupRequestAssignment, ...]


@message
class SyncGroupResponse:
    """What this member gets."""

    throttle_time_ms: Annotated[Int32, Wire(since=1)] = 0
    error_code: Int16
    protocol_type: Annotated[String | None, Wire(since=5)] = None
    protocol_name: Annotated[String | None, Wire(since=5)] = None
    assignment: Bytes


@message
class HeartbeatRequest:
    """Still here."""

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[String | None, Wire(since=3)] = None


@message
class HeartbeatResponse:
    """Stay, or join again."""

    throttle_time_ms: Annotated[Int32, Wire(since=1)] = 0
    error_code: Int16


@message
class LeaveGroupRequestMember:
    """A member that leaves, by id or by instance id."""

    member_id: String
    group_instance_id: String | None = None
    reason: Annotated[String | None, Wire(since=5)] = None


@message
class LeaveGroupRequest:
    """Leave: one member up to version 2, a list from 3."""

    group_id: String
    member_id: Annotated[String, Wire(until=2)] = ""
    members: Annotated[tuple[LeaveGroupRequestMember, ...], Wire(since=3)] = ()


@message
class LeaveGroupResponseMember:
    """Whether this member left."""

    member_id: String
    group_instance_id: String | None
    error_code: Int16


@message
class LeaveGroupResponse:
    """The outcome; from version 3 also for each member."""

    throttle_time_ms: Annotated[Int32, Wire(since=1)] = 0
    error_code: Int16
    members: Annotated[tuple[LeaveGroupResponseMember, ...], Wire(since=3)] = ()
