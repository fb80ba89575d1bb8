"""Metadata, DescribeCluster and FindCoordinator: who is where."""

from dovetail.access import CLUSTER_NAME, Kind, Operation
from dovetail.errors import DovetailError, Forbidden, InvalidInput, TopicExists, TopicUnknown
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode, code_of
from dovetail.kafka.handlers.backend import Backend, BrokerAddress, Call
from dovetail.log.groups.types import GroupId
from dovetail.log.topic import TopicRecord, check_name

_GROUP = 0
_TRANSACTION = 1
_CONTROLLERS = 2


async def metadata(backend: Backend, call: Call, request: m.MetadataRequest) -> m.MetadataResponse:
    """The cluster and its topics, or those that are asked for.

    Brokers that went moments ago are still listed, though nothing is led by them: when
    one answer says that the leader is another and that the old leader is not a broker any more,
    librdkafka loses the partition for a second.
    """
    if request.topics is None or (call.api_version == 0 and not request.topics):
        topics = [
            _known(backend, record)
            for record in backend.log.topics()
            if call.access.allows(Operation.DESCRIBE, Kind.TOPIC, record.name)
        ]
    else:
        topics = [
            await _asked_for(backend, call, wanted, create=request.allow_auto_topic_creation)
            for wanted in dict.fromkeys(request.topics)
        ]
    return m.MetadataResponse(
        brokers=tuple(
            m.MetadataResponseBroker(node_id=broker.node_id, host=broker.host, port=broker.port)
            for broker in (backend.brokers_gone() | backend.brokers()).values()
        ),
        cluster_id=backend.cluster_id,
        controller_id=backend.node_id,
        topics=tuple(topics),
    )


async def _asked_for(
    backend: Backend, call: Call, wanted: m.MetadataRequestTopic, *, create: bool
) -> m.MetadataResponseTopic:
    if wanted.name is None:
        try:
            record = backend.log.topic_by_id(wanted.topic_id.hex())
            call.access.demand(Operation.DESCRIBE, Kind.TOPIC, record.name)
            return _known(backend, record)
        except (TopicUnknown, Forbidden):
            return m.MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                name=None,
                topic_id=wanted.topic_id,
                partitions=(),
            )

    try:
        check_name(wanted.name)
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
        return _known(backend, record)
    return m.MetadataResponseTopic(error_code=code, name=wanted.name, partitions=())


async def _find_or_create(backend: Backend, name: str, *, create: bool) -> TopicRecord:
    try:
        return backend.log.topic(name)
    except TopicUnknown:
        if not create or not backend.topic_auto_create:
            raise
    return await backend.log.create_topic(name, partitions=backend.partitions_default)


def _known(backend: Backend, record: TopicRecord) -> m.MetadataResponseTopic:
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


def _partition(
    backend: Backend, brokers: dict[int, BrokerAddress], record: TopicRecord, number: int
) -> m.MetadataResponsePartition:
    """Led by its owner; all that clients need to know of its copies is that they are there."""
    term, owner = backend.log.ownership(record, number)
    out_of_service = (record.name, number) in backend.log.broken()
    if owner not in brokers or out_of_service:
        return m.MetadataResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=number,
            leader_id=-1,
            replica_nodes=(owner,),
            isr_nodes=(),
            offline_replicas=(owner,),
        )

    return m.MetadataResponsePartition(
        error_code=ErrorCode.NONE,
        partition_index=number,
        leader_id=owner,
        leader_epoch=term,
        replica_nodes=(owner,),
        isr_nodes=(owner,),
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
                broker_id=broker.node_id, host=broker.host, port=broker.port
            )
            for broker in backend.brokers().values()
        ),
    )


async def find_coordinator(
    backend: Backend, call: Call, request: m.FindCoordinatorRequest
) -> m.FindCoordinatorResponse:
    """Who coordinates each group; nobody coordinates transactions."""
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
    if key_type == _TRANSACTION:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        message = "transactions are not supported; leave transactional.id unset"
    elif key_type != _GROUP:
        code, message = ErrorCode.INVALID_REQUEST, f"key type {key_type} is unknown"
    elif not call.access.allows(Operation.DESCRIBE, Kind.GROUP, key):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    else:
        try:
            broker = backend.brokers().get(backend.groups.owner_of(GroupId(key)))
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
