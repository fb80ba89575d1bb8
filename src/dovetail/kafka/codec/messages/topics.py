"""Topics: create, delete, add partitions."""

from typing import Annotated

from dovetail.kafka.codec.schema import (
    ZERO_UUID,
    Bool,
    Int8,
    Int16,
    Int32,
    String,
    Uuid,
    Wire,
    message,
)


@message
class CreateTopicsRequestAssignment:
    """Replicas of one partition, chosen by hand."""

    partition_index: Int32
    broker_ids: tuple[Int32, ...]


@message
class CreateTopicsRequestConfig:
    """A setting of the new topic."""

    name: String
    value: String | None


@message
class CreateTopicsRequestTopic:
    """A topic to be; -1 partitions or replicas is the broker's default."""

    name: String
    num_partitions: Int32
    replication_factor: Int16
    assignments: tuple[CreateTopicsRequestAssignment, ...]
    configs: tuple[CreateTopicsRequestConfig, ...]


@message
class CreateTopicsRequest:
    """Create topics, or only check that it would work."""

    topics: tuple[CreateTopicsRequestTopic, ...]
    timeout_ms: Int32 = 60000
    validate_only: Bool = False


@message
class CreateTopicsResponseConfig:
    """A setting of the topic as created."""

    name: String
    value: String | None
    read_only: Bool
    config_source: Int8 = -1
    is_sensitive: Bool


@message
class CreateTopicsResponseTopic:
    """The topic as created, or why not."""

    name: String
    topic_id: Annotated[Uuid, Wire(since=7)] = ZERO_UUID
    error_code: Int16
    error_message: String | None = None
    topic_config_error_code: Annotated[Int16, Wire(since=5, tag=0)] = 0
    num_partitions: Annotated[Int32, Wire(since=5)] = -1
    replication_factor: Annotated[Int16, Wire(since=5)] = -1
    configs: Annotated[tuple[CreateTopicsResponseConfig, ...] | None, Wire(since=5)] = None


@message
class CreateTopicsResponse:
    """The outcome for each topic."""

    throttle_time_ms: Int32 = 0
    topics: tuple[CreateTopicsResponseTopic, ...]


@message
class DeleteTopicsRequestTopic:
    """A topic by name or by id."""

    name: String | None = None
    topic_id: Uuid


@message
class DeleteTopicsRequest:
    """Delete topics: `topic_names` up to version 5, `topics` from 6."""

    topics: Annotated[tuple[DeleteTopicsRequestTopic, ...], Wire(since=6)] = ()
    topic_names: Annotated[tuple[String, ...], Wire(until=5)] = ()
    timeout_ms: Int32


@message
class DeleteTopicsResponseTopic:
    """Whether this topic was deleted."""

    name: Annotated[String | None, Wire(nullable=6)]
    topic_id: Annotated[Uuid, Wire(since=6)] = ZERO_UUID
    error_code: Int16
    error_message: Annotated[String | None, Wire(since=5)] = None


@message
class DeleteTopicsResponse:
    """The outcome for each topic."""

    throttle_time_ms: Int32 = 0
    responses: tuple[DeleteTopicsResponseTopic, ...]


@message
class CreatePartitionsRequestAssignment:
    """Replicas of one new partition."""

    broker_ids: tuple[Int32, ...]


@message
class CreatePartitionsRequestTopic:
    """A topic and its new total."""

    name: String
    count: Int32
    assignments: tuple[CreatePartitionsRequestAssignment, ...] | None


@message
class CreatePartitionsRequest:
    """Raise the number of partitions."""

    topics: tuple[CreatePartitionsRequestTopic, ...]
    timeout_ms: Int32
    validate_only: Bool


@message
class CreatePartitionsResponseTopic:
    """Whether this topic has its partitions."""

    name: String
    error_code: Int16
    error_message: String | None = None


@message
class CreatePartitionsResponse:
    """The outcome for each topic."""

    throttle_time_ms: Int32 = 0
    results: tuple[CreatePartitionsResponseTopic, ...]
