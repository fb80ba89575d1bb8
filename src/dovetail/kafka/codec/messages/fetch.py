"""Fetch: read record batches from partitions.

From version 13 a topic is named by its id alone.
"""

from typing import Annotated

from dovetail.kafka.codec.messages.leaders import LEADER_UNKNOWN, LeaderIdAndEpoch, NodeEndpoint
from dovetail.kafka.codec.schema import (
    ZERO_UUID,
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
class FetchRequestReplicaState:
    """Identity of a follower; -1 for a consumer."""

    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


@message
class FetchRequestPartition:
    """Where to read, and how much at most."""

    partition: Int32
    current_leader_epoch: Annotated[Int32, Wire(since=9)] = -1
    fetch_offset: Int64
    last_fetched_epoch: Annotated[Int32, Wire(since=12)] = -1
    log_start_offset: Annotated[Int64, Wire(since=5)] = -1
    partition_max_bytes: Int32
    replica_directory_id: Annotated[Uuid, Wire(since=17, tag=0)] = ZERO_UUID
    high_watermark: Annotated[Int64, Wire(since=18, tag=1)] = (1 << 63) - 1


@message
class FetchRequestTopic:
    """Partitions to read of one topic."""

    topic: Annotated[String, Wire(until=12)] = ""
    topic_id: Annotated[Uuid, Wire(since=13)] = ZERO_UUID
    partitions: tuple[FetchRequestPartition, ...]


@message
class FetchRequestForgottenTopic:
    """Partitions to drop from an incremental fetch session."""

    topic: Annotated[String, Wire(until=12)] = ""
    topic_id: Annotated[Uuid, Wire(since=13)] = ZERO_UUID
    partitions: tuple[Int32, ...]


@message
class FetchRequest:
    """Read from partitions; waits up to `max_wait_ms` for `min_bytes`."""

    cluster_id: Annotated[String | None, Wire(since=12, tag=0)] = None
    replica_id: Annotated[Int32, Wire(until=14)] = -1
    replica_state: Annotated[FetchRequestReplicaState, Wire(since=15, tag=1)] = (
        FetchRequestReplicaState()
    )
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, Wire(since=7)] = 0
    session_epoch: Annotated[Int32, Wire(since=7)] = -1
    topics: tuple[FetchRequestTopic, ...]
    forgotten_topics_data: Annotated[tuple[FetchRequestForgottenTopic, ...], Wire(since=7)] = ()
    rack_id: Annotated[String, Wire(since=11)] = ""


@message
class FetchResponseEpochEndOffset:
    """Where the reader's log parts from the leader's."""

    epoch: Int32 = -1
    end_offset: Int64 = -1


@message
class FetchResponseSnapshotId:
    """The snapshot to read instead; unused here."""

    end_offset: Int64 = -1
    epoch: Int32 = -1


@message
class FetchResponseAbortedTransaction:
    """A transaction whose records the reader must skip."""

    producer_id: Int64
    first_offset: Int64


@message
class FetchResponsePartition:
    """Batches from one partition, each buffer sent as it is."""

    partition_index: Int32
    error_code: Int16
    high_watermark: Int64
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, Wire(since=5)] = -1
    diverging_epoch: Annotated[FetchResponseEpochEndOffset, Wire(since=12, tag=0)] = (
        FetchResponseEpochEndOffset()
    )
    current_leader: Annotated[LeaderIdAndEpoch, Wire(since=12, tag=1)] = LEADER_UNKNOWN
    snapshot_id: Annotated[FetchResponseSnapshotId, Wire(since=12, tag=2)] = (
        FetchResponseSnapshotId()
    )
    aborted_transactions: tuple[FetchResponseAbortedTransaction, ...] | None = None
    preferred_read_replica: Annotated[Int32, Wire(since=11)] = -1
    records: RecordsList | None


@message
class FetchResponseTopic:
    """What was read of one topic."""

    topic: Annotated[String, Wire(until=12)] = ""
    topic_id: Annotated[Uuid, Wire(since=13)] = ZERO_UUID
    partitions: tuple[FetchResponsePartition, ...]


@message
class FetchResponse:
    """What was read, or why the whole fetch failed."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Wire(since=7)] = 0
    session_id: Annotated[Int32, Wire(since=7)] = 0
    responses: tuple[FetchResponseTopic, ...]
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], Wire(since=16, tag=0)] = ()
