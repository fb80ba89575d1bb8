"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments.

Owners are elected as soon as one is missing, and storage nodes are chosen by load and repaired; so
there is never an election to hold, and no move that a client began. A reassignment to the nodes
that hold the partition already is granted, any other refused with the way to do it here.
"""

from dovetail.access import CLUSTER_NAME, Kind, Operation
from dovetail.errors import DovetailError, TopicUnknown
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode, code_of
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.log.topic import TopicRecord

_PREFERRED = 0
_UNCLEAN = 1

_Outcome = tuple[ErrorCode, str | None]


async def elect_leaders(
    backend: Backend, call: Call, request: m.ElectLeadersRequest
) -> m.ElectLeadersResponse:
    """Every partition that can have an owner has one; asked for all, there is nothing to tell."""
    if not call.access.allows(Operation.ALTER, Kind.CLUSTER, CLUSTER_NAME):
        return m.ElectLeadersResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, replica_election_results=()
        )
    if request.election_type not in (_PREFERRED, _UNCLEAN):
        return m.ElectLeadersResponse(
            error_code=ErrorCode.INVALID_REQUEST, replica_election_results=()
        )

    wanted = {t.topic: t.partitions for t in request.topic_partitions or ()}
    if request.topic_partitions is None:
        wanted = {record.name: tuple(range(record.partitions)) for record in backend.log.topics()}
    results = []
    for topic, numbers in wanted.items():
        outcomes = {n: _election(backend, topic, n, request.election_type) for n in numbers}
        if request.topic_partitions is None:
            not_needed = ErrorCode.ELECTION_NOT_NEEDED
            outcomes = {n: told for n, told in outcomes.items() if told[0] is not not_needed}
        if outcomes:
            results.append(
                m.ElectLeadersResponseTopic(
                    topic=topic,
                    partition_result=tuple(
                        m.ElectLeadersResponsePartition(
                            partition_id=number, error_code=code, error_message=message
                        )
                        for number, (code, message) in outcomes.items()
                    ),
                )
            )
    return m.ElectLeadersResponse(
        error_code=ErrorCode.NONE, replica_election_results=tuple(results)
    )


def _election(backend: Backend, topic: str, number: int, kind: int) -> _Outcome:
    try:
        record = _existing(backend, topic, number)
    except TopicUnknown as error:
        return code_of(error), "No such topic as " + topic
    owner = backend.log.ownership(record, number).owner
    if owner in backend.brokers():
        return ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    if kind == _PREFERRED:
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "no broker can lead it now"
    return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no broker can lead it now"


def _existing(backend: Backend, topic: str, number: int) -> TopicRecord:
    record = backend.log.topic(topic)
    if not 0 <= number < record.partitions:
        raise TopicUnknown(f"topic {topic!r} has partitions 0 to {record.partitions - 1}")
    return record


async def alter_reassignments(
    backend: Backend, call: Call, request: m.AlterPartitionReassignmentsRequest
) -> m.AlterPartitionReassignmentsResponse:
    """Grants what is so already."""
    if not call.access.allows(Operation.ALTER, Kind.CLUSTER, CLUSTER_NAME):
        return m.AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            responses=(),
        )

    responses = []
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            code, message = ErrorCode.NONE, None
            try:
                code, message = _move(backend, topic.name, wanted)
            except DovetailError as error:
                code, message = code_of(error), str(error)
            partitions.append(
                m.AlterPartitionReassignmentsResponsePartition(
                    partition_index=wanted.partition_index, error_code=code, error_message=message
                )
            )
        responses.append(
            m.AlterPartitionReassignmentsResponseTopic(
                name=topic.name, partitions=tuple(partitions)
            )
        )
    return m.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.NONE,
        responses=tuple(responses),
    )


def _move(
    backend: Backend, topic: str, wanted: m.AlterPartitionReassignmentsRequestPartition
) -> _Outcome:
    number = wanted.partition_index
    record = _existing(backend, topic, number)
    if wanted.replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None
    if not wanted.replicas or len(set(wanted.replicas)) < len(wanted.replicas):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, "name each node once, and one at least"
    held = backend.log.holders(record, number) or (backend.log.ownership(record, number).owner,)
    if set(wanted.replicas) == set(held):
        return ErrorCode.NONE, None
    return (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"partition {topic}-{number} is on storage nodes {sorted(held)}; they are chosen by load. "
        "To empty a node, drain it: dovetail storage decommission; for more copies set "
        "dovetail.write.quorum of the topic",
    )


async def list_reassignments(
    backend: Backend, call: Call, request: m.ListPartitionReassignmentsRequest
) -> m.ListPartitionReassignmentsResponse:
    """None that a client began is under way."""
    if not call.access.allows(Operation.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME):
        return m.ListPartitionReassignmentsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, topics=()
        )
    return m.ListPartitionReassignmentsResponse(error_code=ErrorCode.NONE, topics=())
