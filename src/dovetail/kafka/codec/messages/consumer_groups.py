"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: groups of the new protocol (KIP-848)."""

from typing import Annotated

from dovetail.kafka.codec.schema import Bool, Int8, Int16, Int32, String, Uuid, Wire, message


@message
class ConsumerGroupHeartbeatRequestTopic:
    """Partitions of one topic that the member has."""

    topic_id: Uuid
    partitions: tuple[Int32, ...]


@message
class ConsumerGroupHeartbeatRequest:
    """A member lives on: epoch 0 joins, -1 leaves, -2 leaves for now. Null is as before."""

    group_id: String
    member_id: String
    member_epoch: Int32
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: tuple[String, ...] | None = None
    subscribed_topic_regex: Annotated[String | None, Wire(since=1)] = None
    server_assignor: String | None = None
    topic_partitions: tuple[ConsumerGroupHeartbeatRequestTopic, ...] | None = None


@message
class ConsumerGroupHeartbeatResponseTopic:
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: tuple[Int32, ...]


@message
class ConsumerGroupHeartbeatResponseAssignment:
    """What the member may read."""

    topic_partitions: tuple[ConsumerGroupHeartbeatResponseTopic, ...]


@message
class ConsumerGroupHeartbeatResponse:
    """The member's epoch, and what it may read if that is new."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32
    heartbeat_interval_ms: Int32
    assignment: ConsumerGroupHeartbeatResponseAssignment | None = None


@message
class ConsumerGroupDescribeRequest:
    """State and members of groups of the new protocol."""

    group_ids: tuple[String, ...]
    include_authorized_operations: Bool


@message
class ConsumerGroupDescribeResponseTopic:
    """Partitions of one topic."""

    topic_id: Uuid
    topic_name: String
    partitions: tuple[Int32, ...]


@message
class ConsumerGroupDescribeResponseAssignment:
    """What a member has, or is to have."""

    topic_partitions: tuple[ConsumerGroupDescribeResponseTopic, ...]


@message
class ConsumerGroupDescribeResponseMember:
    """One member; type 0 is classic, 1 of the new protocol."""

    member_id: String
    instance_id: String | None = None
    rack_id: String | None = None
    member_epoch: Int32
    client_id: String
    client_host: String
    subscribed_topic_names: tuple[String, ...]
    subscribed_topic_regex: String | None = None
    assignment: ConsumerGroupDescribeResponseAssignment
    target_assignment: ConsumerGroupDescribeResponseAssignment
    member_type: Annotated[Int8, Wire(since=1)] = -1


@message
class ConsumerGroupDescribeResponseGroup:
    """One group."""

    error_code: Int16
    error_message: String | None = None
    group_id: String
    group_state: String
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: String
    members: tuple[ConsumerGroupDescribeResponseMember, ...]
    authorized_operations: Int32 = -2147483648


@message
class ConsumerGroupDescribeResponse:
    """Each group as it is."""

    throttle_time_ms: Int32 = 0
    groups: tuple[ConsumerGroupDescribeResponseGroup, ...]
