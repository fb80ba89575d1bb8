"""Produce: append record batches to partitions.

Versions 0 to 2 are declared only so that they can be refused in their own format.
"""

from typing import Annotated

from dovetail.kafka.codec.messages.leaders import LEADER_UNKNOWN, LeaderIdAndEpoch, NodeEndpoint
from dovetail.kafka.codec.schema import (
    ZERO_UUID,
    Int16,
    Int32,
    Int64,
    Records,
    String,
    Uuid,
    Wire,
    message,
)


@message
class ProduceRequestPartition:
    """Batches for one partition."""

    index: Int32
    records: Records | None


@message
class ProduceRequestTopic:
    """Batches for one topic."""

    name: Annotated[String, Wire(until=12)] = ""
    topic_id: Annotated[Uuid, Wire(since=13)] = ZERO_UUID
    partition_data: tuple[ProduceRequestPartition, ...]


@message
class ProduceRequest:
    """Append batches; `acks` is 0 (send no response), 1 or -1 (all)."""

    transactional_id: Annotated[String | None, Wire(since=3)] = None
    acks: Int16
    timeout_ms: Int32
    topic_data: tuple[ProduceRequestTopic, ...]


@message
class ProduceResponseRecordError:
    """A record that made the batch be refused."""

    batch_index: Int32
    batch_index_error_message: String | None = None


@message
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


@message
class ProduceResponseTopic:
    """Outcomes for one topic."""

    name: Annotated[String, Wire(until=12)] = ""
    topic_id: Annotated[Uuid, Wire(since=13)] = ZERO_UUID
    partition_responses: tuple[ProduceResponsePartition, ...]


@message
class ProduceResponse:
    """The outcome for each partition."""

    responses: tuple[ProduceResponseTopic, ...]
    throttle_time_ms: Annotated[Int32, Wire(since=1)] = 0
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], Wire(since=10, tag=0)] = ()
