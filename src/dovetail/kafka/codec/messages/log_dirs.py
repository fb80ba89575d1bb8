"""DescribeLogDirs: where partitions lie, and how large they are."""

from typing import Annotated

from dovetail.kafka.codec.schema import Bool, Int16, Int32, Int64, String, Wire, message


@message
class DescribeLogDirsRequestTopic:
    """Partitions of one topic."""

    topic: String
    partitions: tuple[Int32, ...]


@message
class DescribeLogDirsRequest:
    """About which partitions; null is all."""

    topics: tuple[DescribeLogDirsRequestTopic, ...] | None


@message
class DescribeLogDirsResponsePartition:
    """A partition and its bytes.

    The tagged fields are our own, and Kafka's clients pass over them: how far a compacted partition
    is compacted, its bytes that are and that are not, when the last pass over it ended, and the
    bytes that it read a second; -1 where it is unknown.
    """

    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: Bool
    cleaned_to: Annotated[Int64, Wire(since=2, tag=10_000)] = -1
    clean_bytes: Annotated[Int64, Wire(since=2, tag=10_001)] = -1
    dirty_bytes: Annotated[Int64, Wire(since=2, tag=10_002)] = -1
    compacted_ms: Annotated[Int64, Wire(since=2, tag=10_003)] = -1
    compacted_bytes_per_second: Annotated[Int64, Wire(since=2, tag=10_004)] = -1


@message
class DescribeLogDirsResponseTopic:
    """Partitions of one topic."""

    name: String
    partitions: tuple[DescribeLogDirsResponsePartition, ...]


@message
class DescribeLogDirsResponseResult:
    """A folder and what lies in it."""

    error_code: Int16
    log_dir: String
    topics: tuple[DescribeLogDirsResponseTopic, ...]
    total_bytes: Annotated[Int64, Wire(since=4)] = -1
    usable_bytes: Annotated[Int64, Wire(since=4)] = -1
    is_cordoned: Annotated[Bool, Wire(since=5)] = False


@message
class DescribeLogDirsResponse:
    """Every folder of the broker."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Wire(since=3)] = 0
    results: tuple[DescribeLogDirsResponseResult, ...]
