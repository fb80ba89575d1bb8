"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments."""

from dataclasses import dataclass
from typing import Annotated

from dovetail.kafka.codec.schema import Bool, Int8, Int16, Int32, String, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersRequestTopic:
    """Partitions of one topic."""

    topic: String
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersRequest:
    """Elect leaders of these partitions; null is all. Type 0 is preferred, 1 unclean."""

    election_type: Annotated[Int8, Wire(since=1)] = 0
    topic_partitions: tuple[ElectLeadersRequestTopic, ...] | None
    timeout_ms: Int32 = 60000


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersResponsePartition:
    """The outcome of one election."""

    partition_id: Int32
    error_code: Int16
    error_message: String | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersResponseTopic:
    """Outcomes in one topic."""

    topic: String
    partition_result: tuple[ElectLeadersResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersResponse:
    """The outcome for each partition."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Wire(since=1)] = 0
    replica_election_results: tuple[ElectLeadersResponseTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsRequestPartition:
    """The nodes that shall hold a partition; null ends a move."""

    partition_index: Int32
    replicas: tuple[Int32, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsRequestTopic:
    """Partitions of one topic."""

    name: String
    partitions: tuple[AlterPartitionReassignmentsRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsRequest:
    """Move partitions to other nodes."""

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Annotated[Bool, Wire(since=1)] = True
    topics: tuple[AlterPartitionReassignmentsRequestTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsResponsePartition:
    """Whether the move has begun."""

    partition_index: Int32
    error_code: Int16
    error_message: String | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsResponseTopic:
    """Outcomes in one topic."""

    name: String
    partitions: tuple[AlterPartitionReassignmentsResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsResponse:
    """The outcome for each partition."""

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, Wire(since=1)] = True
    error_code: Int16
    error_message: String | None = None
    responses: tuple[AlterPartitionReassignmentsResponseTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsRequestTopic:
    """Partitions of one topic."""

    name: String
    partition_indexes: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsRequest:
    """About which partitions; null is all."""

    timeout_ms: Int32 = 60000
    topics: tuple[ListPartitionReassignmentsRequestTopic, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsResponsePartition:
    """A move."""

    partition_index: Int32
    replicas: tuple[Int32, ...]
    adding_replicas: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsResponseTopic:
    """Moves in one topic."""

    name: String
    partitions: tuple[ListPartitionReassignmentsResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsResponse:
    """The moves that are under way."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    topics: tuple[ListPartitionReassignmentsResponseTopic, ...]
