"""CreateTopics, DeleteTopics and CreatePartitions."""

import asyncio
from collections import Counter
from collections.abc import Callable

from dovetail.access import CLUSTER_NAME, Kind, Operation
from dovetail.errors import DovetailError, InvalidInput
from dovetail.foreign import check_topic
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode, code_of
from dovetail.kafka.codec.schema import ZERO_UUID
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.log.topic import check_config, check_partitions, config_for_copies

#: "The broker's default", for partitions and replicas.
_DEFAULT = -1

#: A deletion is waited for as long as the client says, but not longer than this.
_DELETION_WAIT_MS_MAX = 30_000


class _Refusal(Exception):
    """Why a topic was refused, with Kafka's code for it."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


async def create_topics(
    backend: Backend, call: Call, request: m.CreateTopicsRequest
) -> m.CreateTopicsResponse:
    """Creates each topic, or only checks that it would work."""
    named = Counter(topic.name for topic in request.topics)
    topics = []
    for topic in request.topics:
        try:
            if named[topic.name] > 1:
                raise _Refusal(ErrorCode.INVALID_REQUEST, f"{topic.name!r} is named twice")
            _demand_create(call, topic.name)
            topics.append(await _create(backend, topic, check_only=request.validate_only))
        except (_Refusal, DovetailError) as error:
            code = error.code if isinstance(error, _Refusal) else code_of(error)
            topics.append(
                m.CreateTopicsResponseTopic(
                    name=topic.name, error_code=code, error_message=str(error)
                )
            )
    return m.CreateTopicsResponse(topics=tuple(topics))


def _demand_create(call: Call, name: str) -> None:
    """Who may create any topic may create this one."""
    if not call.access.allows(Operation.CREATE, Kind.CLUSTER, CLUSTER_NAME):
        call.access.demand(Operation.CREATE, Kind.TOPIC, name)


async def _create(
    backend: Backend, topic: m.CreateTopicsRequestTopic, *, check_only: bool
) -> m.CreateTopicsResponseTopic:
    partitions = _partition_count(backend, topic)
    config: dict[str, str] = {}
    for setting in topic.configs:
        if setting.value is None:
            raise _Refusal(ErrorCode.INVALID_CONFIG, f"{setting.name} has no value")
        config[setting.name] = setting.value

    _check(ErrorCode.INVALID_TOPIC_EXCEPTION, lambda: check_topic(topic.name))
    _check(ErrorCode.INVALID_PARTITIONS, lambda: check_partitions(partitions))
    config = {**_copies(backend, topic), **config}
    _check(ErrorCode.INVALID_CONFIG, lambda: check_config(config, backend.log.defaults))

    record = await backend.log.create_topic(
        topic.name, partitions=partitions, config=config, check_only=check_only
    )
    shown = backend.log.config(record).as_strings()
    return m.CreateTopicsResponseTopic(
        name=topic.name,
        topic_id=ZERO_UUID if check_only else bytes.fromhex(record.id),
        error_code=ErrorCode.NONE,
        num_partitions=partitions,
        replication_factor=backend.log.config(record).quorum.write,
        configs=tuple(
            m.CreateTopicsResponseConfig(
                name=name,
                value=value,
                read_only=False,
                config_source=1 if name in config else 5,
                is_sensitive=False,
            )
            for name, value in shown.items()
        ),
    )


def _check(code: ErrorCode, check: Callable[[], object]) -> None:
    try:
        check()
    except InvalidInput as error:
        raise _Refusal(code, str(error)) from error


def _partition_count(backend: Backend, topic: m.CreateTopicsRequestTopic) -> int:
    if topic.assignments:
        if topic.num_partitions != _DEFAULT or topic.replication_factor != _DEFAULT:
            raise _Refusal(
                ErrorCode.INVALID_REQUEST,
                "give either assignments or the numbers of partitions and replicas, not both",
            )
        numbers = sorted(assignment.partition_index for assignment in topic.assignments)
        if numbers != list(range(len(numbers))):
            raise _Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must be 0 to n - 1")
        for assignment in topic.assignments:
            _check_assignment(backend, assignment.broker_ids)
        return len(numbers)
    if topic.num_partitions == _DEFAULT:
        return backend.partitions_default
    return topic.num_partitions


def _copies(backend: Backend, topic: m.CreateTopicsRequestTopic) -> dict[str, str]:
    """The settings that give each record the copies that are asked for."""
    wanted = topic.replication_factor
    if topic.assignments or wanted in (_DEFAULT, backend.log.defaults.quorum.write):
        return {}
    nodes = backend.storage_nodes()
    if not 1 <= wanted <= nodes:
        raise _Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {wanted}: the cluster has only {nodes} storage nodes, and each "
            "copy needs its own",
        )
    return config_for_copies(wanted)


def _check_assignment(backend: Backend, wanted: tuple[int, ...]) -> None:
    """Only where there is one broker can a partition be put on the one that is named."""
    if len(backend.brokers()) > 1 or wanted != (backend.node_id,):
        raise _Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"cannot place partitions on brokers {list(wanted)}: load decides that; leave it out",
        )


async def delete_topics(
    backend: Backend, call: Call, request: m.DeleteTopicsRequest
) -> m.DeleteTopicsResponse:
    """Deletes each topic; waits for the deletion, so that the name can be used right after."""
    wanted = [(topic.name, topic.topic_id) for topic in request.topics]
    wanted += [(name, ZERO_UUID) for name in request.topic_names]
    responses = [await _delete(backend, call, name, topic_id) for name, topic_id in wanted]
    timeout_ms = min(max(request.timeout_ms, 0), _DELETION_WAIT_MS_MAX)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await backend.log.deletions_done()
    except TimeoutError:
        pass  # Clients see the topics no more; the rest goes on by itself.
    return m.DeleteTopicsResponse(responses=tuple(responses))


async def _delete(
    backend: Backend, call: Call, name: str | None, topic_id: bytes
) -> m.DeleteTopicsResponseTopic:
    try:
        if (name is None) == (topic_id == ZERO_UUID):
            raise InvalidInput("name the topic by its name or by its id, not by both")
        if name is not None:
            call.access.demand(Operation.DELETE, Kind.TOPIC, name)
        record = (
            backend.log.topic_by_id(topic_id.hex()) if name is None else backend.log.topic(name)
        )
        call.access.demand(Operation.DELETE, Kind.TOPIC, record.name)
        if record.internal:
            raise InvalidInput(f"topic {record.name!r} is internal")
        await backend.log.delete_topic(record.name)
    except DovetailError as error:
        code = code_of(error)
        if name is None and code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        return m.DeleteTopicsResponseTopic(
            name=name, topic_id=topic_id, error_code=code, error_message=str(error)
        )
    return m.DeleteTopicsResponseTopic(
        name=record.name, topic_id=bytes.fromhex(record.id), error_code=ErrorCode.NONE
    )


async def create_partitions(
    backend: Backend, call: Call, request: m.CreatePartitionsRequest
) -> m.CreatePartitionsResponse:
    """Gives topics more partitions."""
    results = []
    for topic in request.topics:
        code, message = ErrorCode.NONE, None
        try:
            call.access.demand(Operation.ALTER, Kind.TOPIC, topic.name)
            for assignment in topic.assignments or ():
                _check_assignment(backend, assignment.broker_ids)
            if backend.log.topic(topic.name).internal:
                raise InvalidInput(f"topic {topic.name!r} is internal")
            await backend.log.add_partitions(
                topic.name, topic.count, check_only=request.validate_only
            )
        except InvalidInput as error:
            code, message = ErrorCode.INVALID_PARTITIONS, str(error)
        except DovetailError as error:
            code, message = code_of(error), str(error)
        except _Refusal as error:
            code, message = error.code, str(error)

        results.append(
            m.CreatePartitionsResponseTopic(name=topic.name, error_code=code, error_message=message)
        )
    return m.CreatePartitionsResponse(results=tuple(results))
