"""Metadata, DescribeTopicPartitions, DescribeCluster and FindCoordinator: addresses and owners."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from dovetail.access import CLUSTER_NAME, Kind, Operation
from dovetail.errors import DovetailError, Forbidden, InvalidInput, TopicExists, TopicUnknown
from dovetail.foreign import check_topic
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode, code_of
from dovetail.kafka.codec.schema import ZERO_UUID
from dovetail.kafka.handlers.backend import Backend, BrokerAddress, Call
from dovetail.log.groups.types import GroupId
from dovetail.log.topic import TopicRecord

#: Partitions on one page of DescribeTopicPartitions; Kafka's limit.
_PAGE_MAX = 2000

_COORDINATED: dict[int, tuple[Kind, Callable[[Backend, str], int]]] = {
    0: (Kind.GROUP, lambda backend, key: backend.groups.owner_of(GroupId(key))),
    1: (Kind.TRANSACTIONAL_ID, lambda backend, key: backend.transactions.owner_of(key)),
}
_CONTROLLERS = 2

#: From this version on a topic may have no name in an answer.
_NULL_NAMES_SINCE = 12


async def metadata(backend: Backend, call: Call, request: m.MetadataRequest) -> m.MetadataResponse:
    """The cluster and its topics, or those that are asked for.

    Brokers that went moments ago are still listed, though nothing is led by them: when
    one answer says that the leader is another and that the old leader is not a broker any more,
    librdkafka loses the partition for a second.
    """
    if request.topics is None or (call.api_version == 0 and not request.topics):
        topics = _known(
            backend,
            (
                record
                for record in backend.log.topics()
                if call.access.allows(Operation.DESCRIBE, Kind.TOPIC, record.name)
            ),
        )
    else:
        topics = [
            await _asked_for(backend, call, wanted, create=request.allow_auto_topic_creation)
            for wanted in dict.fromkeys(request.topics)
        ]
    return m.MetadataResponse(
        brokers=tuple(
            m.MetadataResponseBroker(
                node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack
            )
            for broker in (backend.brokers_gone() | backend.brokers()).values()
        ),
        cluster_id=backend.cluster_id,
        controller_id=backend.node_id,
        topics=tuple(topics),
    )


async def _asked_for(
    backend: Backend, call: Call, wanted: m.MetadataRequestTopic, *, create: bool
) -> m.MetadataResponseTopic:
    # Java's consumer sends an empty name with an id, others none.
    if wanted.name is None or (not wanted.name and wanted.topic_id != ZERO_UUID):
        try:
            record = backend.log.topic_by_id(wanted.topic_id.hex())
            call.access.demand(Operation.DESCRIBE, Kind.TOPIC, record.name)
            return _known(backend, [record])[0]
        except (TopicUnknown, Forbidden):
            return m.MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                name=None if call.api_version >= _NULL_NAMES_SINCE else "",
                topic_id=wanted.topic_id,
                partitions=(),
            )

    try:
        check_topic(wanted.name)
        call.access.demand(Operation.DESCRIBE, Kind.TOPIC, wanted.name)
        may_create = call.access.allows(Operation.CREATE, Kind.TOPIC, wanted.name)
        record = await _find_or_create(backend, wanted.name, create=create and may_create)
    except TopicExists:  # It is being created or deleted: the client asks again.
        code = ErrorCode.LEADER_NOT_AVAILABLE
    except InvalidInput:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    except DovetailError as error:
        code = code_of(error)
    else:
        return _known(backend, [record])[0]
    return m.MetadataResponseTopic(error_code=code, name=wanted.name, partitions=())


async def _find_or_create(backend: Backend, name: str, *, create: bool) -> TopicRecord:
    try:
        return backend.log.topic(name)
    except TopicUnknown:
        if not create or not backend.topic_auto_create:
            raise
    return await backend.log.create_topic(name, partitions=backend.partitions_default)


def _known(backend: Backend, records: Iterable[TopicRecord]) -> list[m.MetadataResponseTopic]:
    present = backend.storage_present()
    backend.told.begin(
        set(backend.brokers()),
        None if present is None else set(present),
        set(backend.log.broken()),
    )
    return [
        backend.told.of(record.id, backend.log.version(record), partial(_topic, backend, record))
        for record in records
    ]


def _topic(backend: Backend, record: TopicRecord) -> m.MetadataResponseTopic:
    brokers = backend.brokers()
    return m.MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=record.name,
        topic_id=bytes.fromhex(record.id),
        is_internal=record.internal,
        partitions=tuple(
            _partition(backend, brokers, record, number) for number in range(record.partitions)
        ),
    )


class _Where(NamedTuple):
    """Who leads a partition, and who holds it."""

    code: ErrorCode
    leader: int
    term: int
    replicas: tuple[int, ...]
    offline: tuple[int, ...]

    @property
    def in_sync(self) -> tuple[int, ...]:
        return tuple(node for node in self.replicas if node not in self.offline)


def _where(
    backend: Backend, brokers: dict[int, BrokerAddress], record: TopicRecord, number: int
) -> _Where:
    """A partition is led by its owner, and held by the storage nodes of its newest ledger.

    Their ids need not be those of brokers: clients connect to the leader alone, and tools show
    replicas by their ids. Before its first ledger a partition is its owner's.
    """
    term, owner = backend.log.ownership(record, number)
    replicas = backend.log.holders(record, number) or (owner,)
    present = backend.storage_present()
    offline = () if present is None else tuple(n for n in replicas if n not in present)
    if owner not in brokers or (record.name, number) in backend.log.broken():
        return _Where(ErrorCode.LEADER_NOT_AVAILABLE, -1, -1, replicas, offline)
    return _Where(ErrorCode.NONE, owner, term, replicas, offline)


def _partition(
    backend: Backend, brokers: dict[int, BrokerAddress], record: TopicRecord, number: int
) -> m.MetadataResponsePartition:
    where = _where(backend, brokers, record, number)
    return m.MetadataResponsePartition(
        error_code=where.code,
        partition_index=number,
        leader_id=where.leader,
        leader_epoch=where.term,
        replica_nodes=where.replicas,
        isr_nodes=where.in_sync,
        offline_replicas=where.offline,
    )


async def describe_topic_partitions(
    backend: Backend, call: Call, request: m.DescribeTopicPartitionsRequest
) -> m.DescribeTopicPartitionsResponse:
    """Topics by name, partition by partition, up to the limit of a page."""
    first = request.cursor
    names = {topic.name for topic in request.topics}
    everything = not names
    if everything:
        names = {record.name for record in backend.log.topics()}

    room = min(max(request.response_partition_limit, 1), _PAGE_MAX)
    topics = []
    following = None
    for name in sorted(names):
        if first is not None and name < first.topic_name:
            continue
        try:
            call.access.demand(Operation.DESCRIBE, Kind.TOPIC, name)
            record = backend.log.topic(name)
        except DovetailError as error:
            if not everything:
                topics.append(
                    m.DescribeTopicPartitionsResponseTopic(
                        error_code=code_of(error),
                        name=name,
                        topic_id=ZERO_UUID,
                        partitions=(),
                    )
                )
            continue

        start = first.partition_index if first is not None and name == first.topic_name else 0
        end = min(record.partitions, max(start, 0) + room)
        if room:
            topics.append(_page(backend, record, range(max(start, 0), end)))
        room -= max(end - max(start, 0), 0)
        if end < record.partitions or not room:
            following = m.DescribeTopicPartitionsResponseCursor(
                topic_name=name, partition_index=end
            )
            break
    return m.DescribeTopicPartitionsResponse(topics=tuple(topics), next_cursor=following)


def _page(
    backend: Backend, record: TopicRecord, numbers: range
) -> m.DescribeTopicPartitionsResponseTopic:
    brokers = backend.brokers()
    partitions = []
    for number in numbers:
        where = _where(backend, brokers, record, number)
        partitions.append(
            m.DescribeTopicPartitionsResponsePartition(
                error_code=where.code,
                partition_index=number,
                leader_id=where.leader,
                leader_epoch=where.term,
                replica_nodes=where.replicas,
                isr_nodes=where.in_sync,
                eligible_leader_replicas=(),
                last_known_elr=(),
                offline_replicas=where.offline,
            )
        )
    return m.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=record.name,
        topic_id=bytes.fromhex(record.id),
        is_internal=record.internal,
        partitions=tuple(partitions),
    )


async def describe_cluster(
    backend: Backend, call: Call, request: m.DescribeClusterRequest
) -> m.DescribeClusterResponse:
    """The brokers."""
    if not call.access.allows(Operation.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME):
        return m.DescribeClusterResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            cluster_id=backend.cluster_id,
            brokers=(),
        )
    if request.endpoint_type == _CONTROLLERS:
        return m.DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this port serves brokers",
            cluster_id=backend.cluster_id,
            brokers=(),
        )

    return m.DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=backend.cluster_id,
        controller_id=backend.node_id,
        brokers=tuple(
            m.DescribeClusterResponseBroker(
                broker_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack
            )
            for broker in backend.brokers().values()
        ),
    )


async def find_coordinator(
    backend: Backend, call: Call, request: m.FindCoordinatorRequest
) -> m.FindCoordinatorResponse:
    """Who coordinates each group or transactional id."""
    keys = request.coordinator_keys or (request.key,)
    found = [_coordinator(backend, call, request.key_type, key) for key in keys]
    return m.FindCoordinatorResponse(
        error_code=found[0].error_code,
        error_message=found[0].error_message,
        node_id=found[0].node_id,
        host=found[0].host,
        port=found[0].port,
        coordinators=tuple(found) if request.coordinator_keys else (),
    )


def _coordinator(
    backend: Backend, call: Call, key_type: int, key: str
) -> m.FindCoordinatorResponseCoordinator:
    code, message = ErrorCode.COORDINATOR_NOT_AVAILABLE, None
    kind, owner_of = _COORDINATED.get(key_type, (None, None))
    if kind is None or owner_of is None:
        code, message = ErrorCode.INVALID_REQUEST, f"key type {key_type} is unknown"
    elif not call.access.allows(Operation.DESCRIBE, kind, key):
        code = code_of(Forbidden("may not be described", kind=kind.name.lower()))
    else:
        try:
            broker = backend.brokers().get(owner_of(backend, key))
        except TopicUnknown:
            broker = None
        if broker is not None:
            return m.FindCoordinatorResponseCoordinator(
                key=key,
                node_id=broker.node_id,
                host=broker.host,
                port=broker.port,
                error_code=ErrorCode.NONE,
                error_message=None,
            )

    return m.FindCoordinatorResponseCoordinator(
        key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message
    )
