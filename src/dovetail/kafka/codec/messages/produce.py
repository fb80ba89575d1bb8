"""Produce: append record batches to partitions.

Versions 0 to 2 are declared only so that they can be refused in their own format.
"""

from dataclasses import dataclass
from typing import Annotated

from dovetail.kafka.codec.messages.leaders import LEADER_UNKNOWN, LeaderIdAndEpoch, NodeEndpoint
from dovetail.kafka.codec.schema import Int16, Int32, Int64, Records, String, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequestPartition:
    """Batches for one partition."""

    index: Int32
    records: Records | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequestTopic:
    """Batches for one topic."""

    name: String
    partition_data: tuple[ProduceRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    """Append batches; `acks` is 0 (send no response), 1 or -1 (all)."""

    transactional_id: Annotated[String | None, Wire(since=3)] = None
    acks: Int16
    timeout_ms: Int32
    topic_data: tuple[ProduceRequestTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponseRecordError:
    """A record that made the batch be refused."""

    batch_index: Int32
    batch_index_error_message: String | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponsePartition:
    """The offset of the first record, or why the batch was not stored."""

    index: Int32
    error_code: Int16
    base_offset: Int64
    log_append_time_ms: Annotated[Int64, Wire(since=2)] = -1
    log_start_offset: Annotated[Int64, Wire(since=5)] = -1
    record_errors: Annotated[tuple[ProduceResponseRecordError, ...], Wire(since=8)] = ()
    error_message: Annotated[String | None, Wire(since=8)] = None
    current_leader: Annotated[LeaderIdAndEpoch, Wire(since=10, tag=0)] = LEADER_UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponseTopic:
    """Outcomes for one topic."""

    name: String
    partition_responses: tuple[ProduceResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    """The outcome for each partition."""

    responses: tuple[ProduceResponseTopic, ...]
    throttle_time_ms: Annotated[Int32, Wire(since=1)] = 0
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], Wire(since=10, tag=0)] = ()
