"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments."""

from typing import Annotated

from dovetail.kafka.codec.schema import Bool, Int8, Int16, Int32, String, Wire, message


@message
class ElectLeadersRequestTopic:
    """Partitions of one topic."""

    topic: String
    partitions: tuple[Int32, ...]


@message
class ElectLeadersRequest:
    """Elect leaders of these partitions; null is all. Type 0 is preferred, 1 unclean."""

    election_type: Annotated[Int8, Wire(since=1)] = 0
    topic_partitions: tuple[ElectLeadersRequestTopic, ...] | None
    timeout_ms: Int32 = 60000


@message
class ElectLeadersResponsePartition:
    """The outcome of one election."""

    partition_id: Int32
    error_code: Int16
    error_message: String | None = None


@message
class ElectLeadersResponseTopic:
    """Outcomes in one topic."""

    topic: String
    partition_result: tuple[ElectLeadersResponsePartition, ...]


@message
class ElectLeadersResponse:
    """The outcome for each partition."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Wire(since=1)] = 0
    replica_election_results: tuple[ElectLeadersResponseTopic, ...]


@message
class AlterPartitionReassignmentsRequestPartition:
    """The nodes that shall hold a partition; null ends a move."""

    partition_index: Int32
    replicas: tuple[Int32, ...] | None = None


@message
class AlterPartitionReassignmentsRequestTopic:
    """Partitions of one topic."""

    name: String
    partitions: tuple[AlterPartitionReassignmentsRequestPartition, ...]


@message
class AlterPartitionReassignmentsRequest:
    """Move partitions to other nodes."""

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Annotated[Bool, Wire(since=1)] = True
    topics: tuple[AlterPartitionReassignmentsRequestTopic, ...]


@message
class AlterPartitionReassignmentsResponsePartition:
    """Whether the move has begun."""

    partition_index: Int32
    error_code: Int16
    error_message: String | None = None


@message
class AlterPartitionReassignmentsResponseTopic:
    """Outcomes in one topic."""

    name: String
    partitions: tuple[AlterPartitionReassignmentsResponsePartition, ...]


@message
class AlterPartitionReassignmentsResponse:
    """The outcome for each partition."""

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, Wire(since=1)] = True
    error_code: Int16
    error_message: String | None = None
    responses: tuple[AlterPartitionReassignmentsResponseTopic, ...]


@message
class ListPartitionReassignmentsRequestTopic:
    """Partitions of one topic."""

    name: String
    partition_indexes: tuple[Int32, ...]


@message
class ListPartitionReassignmentsRequest:
    """About which partitions; null is all."""

    timeout_ms: Int32 = 60000
    topics: tuple[ListPartitionReassignmentsRequestTopic, ...] | None = None


@message
class ListPartitionReassignmentsResponsePartition:
    """A move."""

    partition_index: Int32
    replicas: tuple[Int32, ...]
    adding_replicas: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...]


@message
class ListPartitionReassignmentsResponseTopic:
    """Moves in one topic."""

    name: String
    partitions: tuple[ListPartitionReassignmentsResponsePartition, ...]


@message
class ListPartitionReassignmentsResponse:
    """The moves that are under way."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    topics: tuple[ListPartitionReassignmentsResponseTopic, ...]
