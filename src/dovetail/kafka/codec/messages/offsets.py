"""Positions in a partition: by time, by leader epoch, and the lowest one kept."""

from typing import Annotated

from dovetail.kafka.codec.schema import Int8, Int16, Int32, Int64, String, Wire, message


@message
class ListOffsetsRequestPartition:
    """The timestamp to look for in one partition."""

    partition_index: Int32
    current_leader_epoch: Annotated[Int32, Wire(since=4)] = -1
    timestamp: Int64


@message
class ListOffsetsRequestTopic:
    """Questions about one topic."""

    name: String
    partitions: tuple[ListOffsetsRequestPartition, ...]


@message
class ListOffsetsRequest:
    """Offsets by timestamp; -1 is the end, -2 the start, -3 the largest timestamp."""

    replica_id: Int32
    isolation_level: Annotated[Int8, Wire(since=2)] = 0
    topics: tuple[ListOffsetsRequestTopic, ...]
    timeout_ms: Annotated[Int32, Wire(since=10)] = 0


@message
class ListOffsetsResponsePartition:
    """The first offset at or after the timestamp; -1 if there is none."""

    partition_index: Int32
    error_code: Int16
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Wire(since=4)] = -1


@message
class ListOffsetsResponseTopic:
    """Answers about one topic."""

    name: String
    partitions: tuple[ListOffsetsResponsePartition, ...]


@message
class ListOffsetsResponse:
    """An offset for each question."""

    throttle_time_ms: Annotated[Int32, Wire(since=2)] = 0
    topics: tuple[ListOffsetsResponseTopic, ...]


@message
class OffsetForLeaderEpochRequestPartition:
    """The epoch to look for in one partition."""

    partition: Int32
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32


@message
class OffsetForLeaderEpochRequestTopic:
    """Questions about one topic."""

    topic: String
    partitions: tuple[OffsetForLeaderEpochRequestPartition, ...]


@message
class OffsetForLeaderEpochRequest:
    """Where a leader epoch ended; `replica_id` -1 is a consumer, -2 a debugger."""

    replica_id: Annotated[Int32, Wire(since=3)] = -2
    topics: tuple[OffsetForLeaderEpochRequestTopic, ...]


@message
class OffsetForLeaderEpochResponsePartition:
    """The largest epoch not above the one asked for, and its end."""

    error_code: Int16
    partition: Int32
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


@message
class OffsetForLeaderEpochResponseTopic:
    """Answers about one topic."""

    topic: String
    partitions: tuple[OffsetForLeaderEpochResponsePartition, ...]


@message
class OffsetForLeaderEpochResponse:
    """The end of each epoch."""

    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetForLeaderEpochResponseTopic, ...]


@message
class DeleteRecordsRequestPartition:
    """The first offset to keep; -1 drops all."""

    partition_index: Int32
    offset: Int64


@message
class DeleteRecordsRequestTopic:
    """Partitions of one topic."""

    name: String
    partitions: tuple[DeleteRecordsRequestPartition, ...]


@message
class DeleteRecordsRequest:
    """Drop everything below an offset."""

    topics: tuple[DeleteRecordsRequestTopic, ...]
    timeout_ms: Int32


@message
class DeleteRecordsResponsePartition:
    """The lowest offset that is now kept."""

    partition_index: Int32
    low_watermark: Int64
    error_code: Int16


@message
class DeleteRecordsResponseTopic:
    """Outcomes for one topic."""

    name: String
    partitions: tuple[DeleteRecordsResponsePartition, ...]


@message
class DeleteRecordsResponse:
    """The outcome for each partition."""

    throttle_time_ms: Int32 = 0
    topics: tuple[DeleteRecordsResponseTopic, ...]
