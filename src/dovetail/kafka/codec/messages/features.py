"""UpdateFeatures and DescribeQuorum: requests that Kafka's controllers answer."""

from typing import Annotated

from dovetail.kafka.codec.schema import (
    ZERO_UUID,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    UInt16,
    Uuid,
    Wire,
    message,
)


@message
class UpdateFeaturesRequestUpdate:
    """A feature and its new level; type 1 is an upgrade."""

    feature: String
    max_version_level: Int16
    allow_downgrade: Annotated[Bool, Wire(until=0)] = False
    upgrade_type: Annotated[Int8, Wire(since=1)] = 1


@message
class UpdateFeaturesRequest:
    """Raise or lower features of the cluster."""

    timeout_ms: Int32 = 60000
    feature_updates: tuple[UpdateFeaturesRequestUpdate, ...]
    validate_only: Annotated[Bool, Wire(since=1)] = False


@message
class UpdateFeaturesResponseResult:
    """The outcome for one feature."""

    feature: String
    error_code: Int16
    error_message: String | None = None


@message
class UpdateFeaturesResponse:
    """Whether the features were changed."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    results: Annotated[tuple[UpdateFeaturesResponseResult, ...], Wire(until=1)] = ()


@message
class DescribeQuorumRequestPartition:
    """A partition."""

    partition_index: Int32


@message
class DescribeQuorumRequestTopic:
    """Partitions of one topic."""

    topic_name: String
    partitions: tuple[DescribeQuorumRequestPartition, ...]


@message
class DescribeQuorumRequest:
    """About the quorum behind a partition."""

    topics: tuple[DescribeQuorumRequestTopic, ...]


@message
class DescribeQuorumResponseReplica:
    """How far a node is."""

    replica_id: Int32
    replica_directory_id: Annotated[Uuid, Wire(since=2)] = ZERO_UUID
    log_end_offset: Int64
    last_fetch_timestamp: Annotated[Int64, Wire(since=1)] = -1
    last_caught_up_timestamp: Annotated[Int64, Wire(since=1)] = -1


@message
class DescribeQuorumResponsePartition:
    """Leader, voters and observers."""

    partition_index: Int32
    error_code: Int16
    error_message: Annotated[String | None, Wire(since=2)] = ""
    leader_id: Int32
    leader_epoch: Int32
    high_watermark: Int64
    current_voters: tuple[DescribeQuorumResponseReplica, ...]
    observers: tuple[DescribeQuorumResponseReplica, ...]


@message
class DescribeQuorumResponseTopic:
    """Quorums of one topic."""

    topic_name: String
    partitions: tuple[DescribeQuorumResponsePartition, ...]


@message
class DescribeQuorumResponseListener:
    """An address."""

    name: Annotated[String, Wire(since=2)] = ""
    host: Annotated[String, Wire(since=2)] = ""
    port: Annotated[UInt16, Wire(since=2)] = 0


@message
class DescribeQuorumResponseNode:
    """A voter and its addresses."""

    node_id: Annotated[Int32, Wire(since=2)] = 0
    listeners: Annotated[tuple[DescribeQuorumResponseListener, ...], Wire(since=2)] = ()


@message
class DescribeQuorumResponse:
    """Who votes and who follows."""

    error_code: Int16
    error_message: Annotated[String | None, Wire(since=2)] = ""
    topics: tuple[DescribeQuorumResponseTopic, ...]
    nodes: Annotated[tuple[DescribeQuorumResponseNode, ...], Wire(since=2)] = ()
