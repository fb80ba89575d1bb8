"""Share groups (KIP-932): ShareGroupHeartbeat, ShareGroupDescribe, ShareFetch, ShareAcknowledge,
DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets."""

from typing import Annotated

from dovetail.kafka.codec.messages.leaders import LEADER_UNKNOWN, LeaderIdAndEpoch, NodeEndpoint
from dovetail.kafka.codec.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    RecordsList,
    String,
    Uuid,
    Wire,
    message,
)


@message
class ShareGroupHeartbeatRequest:
    """A member lives on: epoch 0 joins, -1 leaves. Null is as before."""

    group_id: String
    member_id: String
    member_epoch: Int32
    rack_id: String | None = None
    subscribed_topic_names: tuple[String, ...] | None = None


@message
class ShareGroupHeartbeatResponseTopic:
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: tuple[Int32, ...]


@message
class ShareGroupHeartbeatResponseAssignment:
    """What the member may read, with others."""

    topic_partitions: tuple[ShareGroupHeartbeatResponseTopic, ...]


@message
class ShareGroupHeartbeatResponse:
    """The member's epoch, and what it may read if that is new."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32
    heartbeat_interval_ms: Int32
    assignment: ShareGroupHeartbeatResponseAssignment | None = None


@message
class ShareGroupDescribeRequest:
    """State and members of share groups."""

    group_ids: tuple[String, ...]
    include_authorized_operations: Bool


@message
class ShareGroupDescribeResponseTopic:
    """Partitions of one topic."""

    topic_id: Uuid
    topic_name: String
    partitions: tuple[Int32, ...]


@message
class ShareGroupDescribeResponseAssignment:
    """What a member has."""

    topic_partitions: tuple[ShareGroupDescribeResponseTopic, ...]


@message
class ShareGroupDescribeResponseMember:
    """One member."""

    member_id: String
    rack_id: String | None = None
    member_epoch: Int32
    client_id: String
    client_host: String
    subscribed_topic_names: tuple[String, ...]
    assignment: ShareGroupDescribeResponseAssignment


@message
class ShareGroupDescribeResponseGroup:
    """One group."""

    error_code: Int16
    error_message: String | None = None
    group_id: String
    group_state: String
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: String
    members: tuple[ShareGroupDescribeResponseMember, ...]
    authorized_operations: Int32 = -2147483648


@message
class ShareGroupDescribeResponse:
    """Each group as it is."""

    throttle_time_ms: Int32 = 0
    groups: tuple[ShareGroupDescribeResponseGroup, ...]


@message
class ShareAcknowledgementBatch:
    """What became of records: one type for all, or one for each."""

    first_offset: Int64
    last_offset: Int64
    acknowledge_types: tuple[Int8, ...]


@message
class ShareFetchRequestPartition:
    """A partition of the session; with what became of records that were acquired before."""

    partition_index: Int32
    acknowledgement_batches: tuple[ShareAcknowledgementBatch, ...] = ()


@message
class ShareFetchRequestTopic:
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: tuple[ShareFetchRequestPartition, ...]


@message
class ShareFetchRequestForgottenTopic:
    """Partitions that leave the session."""

    topic_id: Uuid
    partitions: tuple[Int32, ...]


@message
class ShareFetchRequest:
    """Acquire records. Session epoch 0 opens a session, -1 closes it."""

    group_id: String | None = None
    member_id: String | None
    share_session_epoch: Int32
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = 0x7FFFFFFF
    max_records: Int32
    batch_size: Int32
    share_acquire_mode: Annotated[Int8, Wire(since=2)] = 0
    is_renew_ack: Annotated[Bool, Wire(since=2)] = False
    topics: tuple[ShareFetchRequestTopic, ...]
    forgotten_topics_data: tuple[ShareFetchRequestForgottenTopic, ...]


@message
class ShareFetchResponseAcquired:
    """Records that the member has now, and how often they have been delivered."""

    first_offset: Int64
    last_offset: Int64
    delivery_count: Int16


@message
class ShareFetchResponsePartition:
    """Batches, of which the acquired records count; and what became of acknowledgements."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: String | None = None
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: String | None = None
    current_leader: LeaderIdAndEpoch = LEADER_UNKNOWN
    records: RecordsList = ()
    acquired_records: tuple[ShareFetchResponseAcquired, ...] = ()


@message
class ShareFetchResponseTopic:
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: tuple[ShareFetchResponsePartition, ...]


@message
class ShareFetchResponse:
    """What was acquired, and for how long."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Int32 = 0
    responses: tuple[ShareFetchResponseTopic, ...] = ()
    node_endpoints: tuple[NodeEndpoint, ...] = ()


@message
class ShareAcknowledgeRequestPartition:
    """What became of records of one partition."""

    partition_index: Int32
    acknowledgement_batches: tuple[ShareAcknowledgementBatch, ...]


@message
class ShareAcknowledgeRequestTopic:
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: tuple[ShareAcknowledgeRequestPartition, ...]


@message
class ShareAcknowledgeRequest:
    """What became of records, with no wish for more."""

    group_id: String | None = None
    member_id: String | None
    share_session_epoch: Int32
    is_renew_ack: Annotated[Bool, Wire(since=2)] = False
    topics: tuple[ShareAcknowledgeRequestTopic, ...]


@message
class ShareAcknowledgeResponsePartition:
    """Whether it is stored."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: String | None = None
    current_leader: LeaderIdAndEpoch = LEADER_UNKNOWN


@message
class ShareAcknowledgeResponseTopic:
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: tuple[ShareAcknowledgeResponsePartition, ...]


@message
class ShareAcknowledgeResponse:
    """Whether each partition has stored it."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Annotated[Int32, Wire(since=2)] = 0
    responses: tuple[ShareAcknowledgeResponseTopic, ...] = ()
    node_endpoints: tuple[NodeEndpoint, ...] = ()


@message
class DescribeShareGroupOffsetsRequestTopic:
    """Partitions of one topic."""

    topic_name: String
    partitions: tuple[Int32, ...]


@message
class DescribeShareGroupOffsetsRequestGroup:
    """A group; null is all that it has."""

    group_id: String
    topics: tuple[DescribeShareGroupOffsetsRequestTopic, ...] | None


@message
class DescribeShareGroupOffsetsRequest:
    """Where groups begin in their partitions."""

    groups: tuple[DescribeShareGroupOffsetsRequestGroup, ...]


@message
class DescribeShareGroupOffsetsResponsePartition:
    """The first offset that is not done with; -1 if the group has not begun.

    The tagged fields are our own, and Kafka's clients pass over them: records that members have,
    that wait to be delivered again, the highest delivery count, and records that wait for their
    dead letters, -1 if it is not in use; and what became of records since the owner has the
    partition, in the order of `log.share.types.COUNTED`.
    """

    partition_index: Int32
    start_offset: Int64
    leader_epoch: Int32
    lag: Annotated[Int64, Wire(since=1)] = -1
    error_code: Int16 = 0
    error_message: String | None = None
    acquired: Annotated[Int64, Wire(tag=10_000)] = -1
    again: Annotated[Int64, Wire(tag=10_001)] = -1
    deliveries: Annotated[Int32, Wire(tag=10_002)] = -1
    dying: Annotated[Int64, Wire(tag=10_003)] = -1
    counts: Annotated[tuple[Int64, ...], Wire(tag=10_004)] = ()


@message
class DescribeShareGroupOffsetsResponseTopic:
    """Partitions of one topic."""

    topic_name: String
    topic_id: Uuid
    partitions: tuple[DescribeShareGroupOffsetsResponsePartition, ...]


@message
class DescribeShareGroupOffsetsResponseGroup:
    """One group."""

    group_id: String
    topics: tuple[DescribeShareGroupOffsetsResponseTopic, ...]
    error_code: Int16 = 0
    error_message: String | None = None


@message
class DescribeShareGroupOffsetsResponse:
    """Each group."""

    throttle_time_ms: Int32 = 0
    groups: tuple[DescribeShareGroupOffsetsResponseGroup, ...]


@message
class AlterShareGroupOffsetsRequestPartition:
    """Where the group is to begin."""

    partition_index: Int32
    start_offset: Int64


@message
class AlterShareGroupOffsetsRequestTopic:
    """Partitions of one topic."""

    topic_name: String
    partitions: tuple[AlterShareGroupOffsetsRequestPartition, ...]


@message
class AlterShareGroupOffsetsRequest:
    """Moves a group that has no members."""

    group_id: String
    topics: tuple[AlterShareGroupOffsetsRequestTopic, ...]


@message
class AlterShareGroupOffsetsResponsePartition:
    """Whether it is moved."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: String | None = None


@message
class AlterShareGroupOffsetsResponseTopic:
    """Partitions of one topic."""

    topic_name: String
    topic_id: Uuid
    partitions: tuple[AlterShareGroupOffsetsResponsePartition, ...]


@message
class AlterShareGroupOffsetsResponse:
    """Each partition."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: tuple[AlterShareGroupOffsetsResponseTopic, ...] = ()


@message
class DeleteShareGroupOffsetsRequestTopic:
    """A topic by its name."""

    topic_name: String


@message
class DeleteShareGroupOffsetsRequest:
    """A group without members forgets where it was in these topics."""

    group_id: String
    topics: tuple[DeleteShareGroupOffsetsRequestTopic, ...]


@message
class DeleteShareGroupOffsetsResponseTopic:
    """Whether it is forgotten."""

    topic_name: String
    topic_id: Uuid
    error_code: Int16 = 0
    error_message: String | None = None


@message
class DeleteShareGroupOffsetsResponse:
    """Each topic."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: tuple[DeleteShareGroupOffsetsResponseTopic, ...] = ()
