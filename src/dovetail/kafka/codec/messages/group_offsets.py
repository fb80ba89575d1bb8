"""Committed positions of a consumer group."""

from typing import Annotated

from dovetail.kafka.codec.schema import (
    ZERO_UUID,
    Bool,
    Int16,
    Int32,
    Int64,
    String,
    Uuid,
    Wire,
    message,
)


@message
class OffsetCommitRequestPartition:
    """The next offset to read in one partition."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Wire(since=6)] = -1
    committed_metadata: String | None


@message
class OffsetCommitRequestTopic:
    """Positions in one topic; from version 10 it is named by its id."""

    name: Annotated[String, Wire(until=9)] = ""
    topic_id: Annotated[Uuid, Wire(since=10)] = ZERO_UUID
    partitions: tuple[OffsetCommitRequestPartition, ...]


@message
class OffsetCommitRequest:
    """Store positions; a generation of -1 comes from outside the group."""

    group_id: String
    generation_id_or_member_epoch: Int32 = -1
    member_id: String
    group_instance_id: Annotated[String | None, Wire(since=7)] = None
    retention_time_ms: Annotated[Int64, Wire(until=4)] = -1
    topics: tuple[OffsetCommitRequestTopic, ...]


@message
class OffsetPartitionOutcome:
    """Whether the position was stored, or forgotten."""

    partition_index: Int32
    error_code: Int16


@message
class OffsetTopicOutcome:
    """Outcomes for one topic."""

    name: Annotated[String, Wire(until=9)] = ""
    topic_id: Annotated[Uuid, Wire(since=10)] = ZERO_UUID
    partitions: tuple[OffsetPartitionOutcome, ...]


@message
class OffsetCommitResponse:
    """The outcome for each partition."""

    throttle_time_ms: Annotated[Int32, Wire(since=3)] = 0
    topics: tuple[OffsetTopicOutcome, ...]


@message
class OffsetFetchRequestTopic:
    """Partitions wanted of one topic."""

    name: Annotated[String, Wire(until=9)] = ""
    topic_id: Annotated[Uuid, Wire(since=10)] = ZERO_UUID
    partition_indexes: tuple[Int32, ...]


@message
class OffsetFetchRequestGroup:
    """Positions wanted of one group; null topics are all topics."""

    group_id: String
    member_id: Annotated[String | None, Wire(since=9)] = None
    member_epoch: Annotated[Int32, Wire(since=9)] = -1
    topics: tuple[OffsetFetchRequestTopic, ...] | None


@message
class OffsetFetchRequest:
    """Read positions: of one group up to version 7, of `groups` from 8; null is all."""

    group_id: Annotated[String, Wire(until=7)] = ""
    topics: Annotated[tuple[OffsetFetchRequestTopic, ...] | None, Wire(until=7, nullable=2)] = None
    groups: Annotated[tuple[OffsetFetchRequestGroup, ...], Wire(since=8)] = ()
    require_stable: Annotated[Bool, Wire(since=7)] = False


@message
class OffsetFetchResponsePartition:
    """The position in one partition; -1 if none is stored."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Wire(since=5)] = -1
    metadata: String | None
    error_code: Int16


@message
class OffsetFetchResponseTopic:
    """Positions in one topic."""

    name: Annotated[String, Wire(until=9)] = ""
    topic_id: Annotated[Uuid, Wire(since=10)] = ZERO_UUID
    partitions: tuple[OffsetFetchResponsePartition, ...]


@message
class OffsetFetchResponseGroup:
    """Positions of one group."""

    group_id: String
    topics: tuple[OffsetFetchResponseTopic, ...]
    error_code: Int16 = 0


@message
class OffsetFetchResponse:
    """Positions: of one group up to version 7, of `groups` from 8."""

    throttle_time_ms: Annotated[Int32, Wire(since=3)] = 0
    topics: Annotated[tuple[OffsetFetchResponseTopic, ...], Wire(until=7)] = ()
    error_code: Annotated[Int16, Wire(since=2, until=7)] = 0
    groups: Annotated[tuple[OffsetFetchResponseGroup, ...], Wire(since=8)] = ()


@message
class OffsetDeleteRequestPartition:
    """One partition."""

    partition_index: Int32


@message
class OffsetDeleteRequestTopic:
    """Partitions of one topic."""

    name: String
    partitions: tuple[OffsetDeleteRequestPartition, ...]


@message
class OffsetDeleteRequest:
    """Forget positions of a group."""

    group_id: String
    topics: tuple[OffsetDeleteRequestTopic, ...]


@message
class OffsetDeleteResponse:
    """The outcome for each partition."""

    error_code: Int16
    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetTopicOutcome, ...]
