"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments.

Owners are elected as soon as one is missing, so there is never an election to hold. A reassignment
names the storage nodes on which a partition is to lie. It is stored with the topic; the owner rolls
to a new ledger there, and repair moves the older ones, copy by copy. It stays in force: new ledgers
are placed there as long as all of these nodes are present and none is being drained.
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
    """Writes down where partitions are to lie; returns before they do."""
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
                code, message = await _move(backend, topic.name, wanted)
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


async def _move(
    backend: Backend, topic: str, wanted: m.AlterPartitionReassignmentsRequestPartition
) -> _Outcome:
    number = wanted.partition_index
    record = _existing(backend, topic, number)
    if wanted.replicas is None:
        if number not in await backend.log.moving(topic):
            return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None
        await backend.log.assign(topic, number, ())
        return ErrorCode.NONE, None

    nodes = wanted.replicas
    if not nodes or len(set(nodes)) < len(nodes):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, "name each node once, and one at least"
    present = backend.storage_present()
    there = {backend.node_id} if present is None else set(present)
    if not there.issuperset(nodes):
        missing = sorted(set(nodes) - there)
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"storage nodes {missing} are not there"
    ensemble = backend.log.config(record).quorum.ensemble
    if len(nodes) != ensemble:
        return (
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"partition {topic}-{number} lies on {ensemble} storage nodes; for another number set "
            "dovetail.ensemble and dovetail.write.quorum of the topic first",
        )
    if record.assigned.get(number) != nodes:
        await backend.log.assign(topic, number, nodes)
    return ErrorCode.NONE, None


async def list_reassignments(
    backend: Backend, call: Call, request: m.ListPartitionReassignmentsRequest
) -> m.ListPartitionReassignmentsResponse:
    """The partitions of which some ledger is not yet where it was asked for."""
    if not call.access.allows(Operation.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME):
        return m.ListPartitionReassignmentsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, topics=()
        )

    asked = None
    if request.topics is not None:
        asked = {topic.name: topic.partition_indexes for topic in request.topics}
    topics = []
    for record in backend.log.topics():
        if asked is not None and record.name not in asked:
            continue
        moving = await backend.log.moving(record.name)
        partitions = tuple(
            m.ListPartitionReassignmentsResponsePartition(
                partition_index=number,
                replicas=tuple(sorted(one.there | one.wanted)),
                adding_replicas=tuple(sorted(one.wanted - one.there)),
                removing_replicas=tuple(sorted(one.there - one.wanted)),
            )
            for number, one in sorted(moving.items())
            if asked is None or number in asked[record.name]
        )
        if partitions:
            topics.append(
                m.ListPartitionReassignmentsResponseTopic(name=record.name, partitions=partitions)
            )
    return m.ListPartitionReassignmentsResponse(error_code=ErrorCode.NONE, topics=tuple(topics))
