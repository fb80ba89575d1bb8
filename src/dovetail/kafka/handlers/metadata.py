"""Metadata, DescribeCluster and FindCoordinator: who is where."""

from dovetail.errors import DovetailError, InvalidInput, TopicExists, TopicUnknown
from dovetail.kafka import messages as m
from dovetail.kafka.error_codes import ErrorCode
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.outcome import code_of
from dovetail.log.topic import TopicRecord, check_name

_GROUP = 0
_TRANSACTION = 1
_CONTROLLERS = 2


async def metadata(backend: Backend, call: Call, request: m.MetadataRequest) -> m.MetadataResponse:
    """The cluster and its topics, or those that are asked for."""
    if request.topics is None or (call.api_version == 0 and not request.topics):
        topics = [_known(backend, record) for record in backend.log.topics()]
    else:
        topics = [
            await _asked_for(backend, wanted, create=request.allow_auto_topic_creation)
            for wanted in dict.fromkeys(request.topics)
        ]
    broker = m.MetadataResponseBroker(node_id=backend.node_id, host=backend.host, port=backend.port)
    return m.MetadataResponse(
        brokers=(broker,),
        cluster_id=backend.cluster_id,
        controller_id=backend.node_id,
        topics=tuple(topics),
    )


async def _asked_for(
    backend: Backend, wanted: m.MetadataRequestTopic, *, create: bool
) -> m.MetadataResponseTopic:
    if wanted.name is None:
        try:
            return _known(backend, backend.log.topic_by_id(wanted.topic_id.hex()))
        except TopicUnknown:
            return m.MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                name=None,
                topic_id=wanted.topic_id,
                partitions=(),
            )
    try:
        check_name(wanted.name)
        record = await _find_or_create(backend, wanted.name, create=create)
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
    return m.MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=record.name,
        topic_id=bytes.fromhex(record.id),
        is_internal=record.internal,
        partitions=tuple(
            _partition(backend, record.name, number) for number in range(record.partitions)
        ),
    )


def _partition(backend: Backend, topic: str, number: int) -> m.MetadataResponsePartition:
    here = (backend.node_id,)
    try:
        term = backend.log.partition(topic, number).term
    except DovetailError:
        return m.MetadataResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=number,
            leader_id=-1,
            replica_nodes=here,
            isr_nodes=(),
            offline_replicas=here,
        )
    return m.MetadataResponsePartition(
        error_code=ErrorCode.NONE,
        partition_index=number,
        leader_id=backend.node_id,
        leader_epoch=term,
        replica_nodes=here,
        isr_nodes=here,
    )


async def describe_cluster(
    backend: Backend, call: Call, request: m.DescribeClusterRequest
) -> m.DescribeClusterResponse:
    """The brokers."""
    if request.endpoint_type == _CONTROLLERS:
        return m.DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this port serves brokers",
            cluster_id=backend.cluster_id,
            brokers=(),
        )
    broker = m.DescribeClusterResponseBroker(
        broker_id=backend.node_id, host=backend.host, port=backend.port
    )
    return m.DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=backend.cluster_id,
        controller_id=backend.node_id,
        brokers=(broker,),
    )


async def find_coordinator(
    backend: Backend, call: Call, request: m.FindCoordinatorRequest
) -> m.FindCoordinatorResponse:
    """Who coordinates a group; nobody coordinates transactions."""
    code, message = ErrorCode.NONE, None
    if request.key_type == _TRANSACTION:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        message = "transactions are not supported; leave transactional.id unset"
    elif request.key_type != _GROUP:
        code, message = ErrorCode.INVALID_REQUEST, f"key type {request.key_type} is unknown"
    found = code is ErrorCode.NONE
    node_id, host, port = (backend.node_id, backend.host, backend.port) if found else (-1, "", -1)
    return m.FindCoordinatorResponse(
        error_code=code,
        error_message=message,
        node_id=node_id,
        host=host,
        port=port,
        coordinators=tuple(
            m.FindCoordinatorResponseCoordinator(
                key=key,
                node_id=node_id,
                host=host,
                port=port,
                error_code=code,
                error_message=message,
            )
            for key in request.coordinator_keys
        ),
    )
