"""DescribeLogDirs: where partitions lie, and how large they are."""

from dataclasses import dataclass
from typing import Annotated

from dovetail.kafka.codec.schema import Bool, Int16, Int32, Int64, String, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsRequestTopic:
    """Partitions of one topic."""

    topic: String
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsRequest:
    """About which partitions; null is all."""

    topics: tuple[DescribeLogDirsRequestTopic, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResponsePartition:
    """A partition and its bytes."""

    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: Bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResponseTopic:
    """Partitions of one topic."""

    name: String
    partitions: tuple[DescribeLogDirsResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResponseResult:
    """A folder and what lies in it."""

    error_code: Int16
    log_dir: String
    topics: tuple[DescribeLogDirsResponseTopic, ...]
    total_bytes: Annotated[Int64, Wire(since=4)] = -1
    usable_bytes: Annotated[Int64, Wire(since=4)] = -1
    is_cordoned: Annotated[Bool, Wire(since=5)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResponse:
    """Every folder of the broker."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Wire(since=3)] = 0
    results: tuple[DescribeLogDirsResponseResult, ...]
