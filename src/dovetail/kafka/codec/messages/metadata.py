"""Metadata: brokers, topics, partitions and their leaders."""

from typing import Annotated

from dovetail.kafka.codec.messages.access import AUTHORIZED_OPERATIONS_ABSENT
from dovetail.kafka.codec.schema import (
    ZERO_UUID,
    Bool,
    EncodedOnce,
    Int16,
    Int32,
    String,
    Uuid,
    Wire,
    message,
)


@message
class MetadataRequestTopic:
    """A topic by name, or from version 12 by id with a null name."""

    topic_id: Annotated[Uuid, Wire(since=10)] = ZERO_UUID
    name: Annotated[String | None, Wire(nullable=10)]


@message
class MetadataRequest:
    """About which topics; null is all, in version 0 the empty list is all."""

    topics: Annotated[tuple[MetadataRequestTopic, ...] | None, Wire(nullable=1)]
    allow_auto_topic_creation: Annotated[Bool, Wire(since=4)] = True
    include_cluster_authorized_operations: Annotated[Bool, Wire(since=8, until=10)] = False
    include_topic_authorized_operations: Annotated[Bool, Wire(since=8)] = False


@message
class MetadataResponseBroker:
    """A broker and its advertised address."""

    node_id: Int32
    host: String
    port: Int32
    rack: Annotated[String | None, Wire(since=1)] = None


@message
class MetadataResponsePartition:
    """A partition and its leader; -1 while there is none."""

    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Annotated[Int32, Wire(since=7)] = -1
    replica_nodes: tuple[Int32, ...]
    isr_nodes: tuple[Int32, ...]
    offline_replicas: Annotated[tuple[Int32, ...], Wire(since=5)] = ()


@message
class MetadataResponseTopic(EncodedOnce):
    """A topic, or why there is none."""

    error_code: Int16
    name: Annotated[String | None, Wire(nullable=12)]
    topic_id: Annotated[Uuid, Wire(since=10)] = ZERO_UUID
    is_internal: Annotated[Bool, Wire(since=1)] = False
    partitions: tuple[MetadataResponsePartition, ...]
    topic_authorized_operations: Annotated[Int32, Wire(since=8)] = AUTHORIZED_OPERATIONS_ABSENT


@message
class MetadataResponse:
    """The cluster as clients should see it."""

    throttle_time_ms: Annotated[Int32, Wire(since=3)] = 0
    brokers: tuple[MetadataResponseBroker, ...]
    cluster_id: Annotated[String | None, Wire(since=2)] = None
    controller_id: Annotated[Int32, Wire(since=1)] = -1
    topics: tuple[MetadataResponseTopic, ...]
    cluster_authorized_operations: Annotated[Int32, Wire(since=8, until=10)] = (
        AUTHORIZED_OPERATIONS_ABSENT
    )
    error_code: Annotated[Int16, Wire(since=13)] = 0
