"""confluent-kafka, the Python binding of librdkafka."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka import Message as RawMessage
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from tests.compat.drivers import base

#: librdkafka's short names, where they differ from the protocol's.
NAMES = {
    "UNKNOWN_TOPIC_OR_PART": "UNKNOWN_TOPIC_OR_PARTITION",
    "_UNKNOWN_TOPIC": "UNKNOWN_TOPIC_OR_PARTITION",
    "MSG_SIZE_TOO_LARGE": "MESSAGE_TOO_LARGE",
    "_AUTO_OFFSET_RESET": "OFFSET_OUT_OF_RANGE",
}


def own_error(error: KafkaError) -> base.ClientError:
    return base.ClientError(NAMES.get(error.name(), error.name()), error.str())


def result_of(futures: Mapping[Any, Any]) -> Any:
    """The one result of an admin call on one thing."""
    (future,) = futures.values()
    try:
        return future.result(base.CALL_SECONDS_MAX)
    except KafkaException as error:
        raise own_error(error.args[0]) from error


def record_of(raw: RawMessage) -> base.Record:
    _, timestamp_ms = raw.timestamp()
    partition, offset = raw.partition(), raw.offset()
    assert partition is not None
    assert offset is not None
    headers: Any = raw.headers() or []
    value: Any = raw.value()
    key: Any = raw.key()
    return base.Record(partition, offset, timestamp_ms, key, value, tuple(headers))


class ConfluentMember(base.PollingMember):
    def __init__(self, settings: dict[str, Any], topic: str) -> None:
        super().__init__()
        self._topic = topic
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic])
        self.start()

    def _poll(self) -> Sequence[base.Record]:
        raw = self._consumer.poll(0.05)
        if raw is None:
            return []
        error = raw.error()
        if error is not None:
            raise own_error(error)
        return [record_of(raw)]

    def _assigned(self) -> frozenset[int]:
        return frozenset(part.partition for part in self._consumer.assignment())

    def _commit(self, positions: Mapping[int, int]) -> None:
        parts = [TopicPartition(self._topic, part, at) for part, at in positions.items()]
        for part in self._consumer.commit(offsets=parts, asynchronous=False) or []:
            if part.error is not None:
                raise own_error(part.error)

    def _close(self) -> None:
        self._consumer.close()


class ConfluentDriver(base.Driver):
    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def send(self, sending: base.Sending) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": "all",
                "compression.type": sending.codec,
                "enable.idempotence": sending.idempotent,
                "message.max.bytes": base.REQUEST_BYTES_MAX,
                "message.timeout.ms": sending.timeout_ms,
                "topic.metadata.propagation.max.ms": sending.timeout_ms // 2,
            }
        )
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None:
                errors.append(error)

        for message in sending.messages:
            settings: dict[str, Any] = {"headers": list(message.headers)}
            if message.timestamp_ms is not None:
                settings["timestamp"] = message.timestamp_ms
            producer.produce(
                sending.topic,
                message.value,
                message.key,
                partition=message.partition,
                on_delivery=delivered,
                **settings,
            )
        left = producer.flush(sending.timeout_s + 1)
        if errors:
            raise own_error(errors[0])
        assert left == 0, f"{left} messages not delivered"

    def _consumer_settings(self, group: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": base.SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": base.HEARTBEAT_INTERVAL_MS,
            "fetch.wait.max.ms": base.FETCH_WAIT_MS_MAX,
        }

    def fetch(self, reading: base.Reading) -> list[base.Record]:
        settings = self._consumer_settings("unused")
        settings["auto.offset.reset"] = {"none": "error"}.get(reading.reset, reading.reset)
        consumer = Consumer(settings)
        try:
            position = OFFSET_BEGINNING if reading.start is None else reading.start
            consumer.assign([TopicPartition(reading.topic, reading.partition, position)])
            records: list[base.Record] = []
            deadline = time.monotonic() + base.CALL_SECONDS_MAX
            while left := reading.count - len(records):
                assert time.monotonic() < deadline, f"{left} of {reading.count} did not come"
                for raw in consumer.consume(left, timeout=0.1):
                    error = raw.error()
                    if error is not None:
                        raise own_error(error)
                    records.append(record_of(raw))
            return records
        finally:
            consumer.close()

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        consumer = Consumer(self._consumer_settings("unused"))
        try:
            (found,) = consumer.offsets_for_times(
                [TopicPartition(topic, partition, timestamp_ms)], timeout=base.CALL_SECONDS_MAX
            )
            return found.offset if found.offset >= 0 else None
        finally:
            consumer.close()

    def member(self, group: str, topic: str, *, instance: str | None = None) -> ConfluentMember:
        settings = self._consumer_settings(group)
        if instance is not None:
            settings["group.instance.id"] = instance
        return ConfluentMember(settings, topic)

    def topics(self) -> Mapping[str, int]:
        listed = self._admin.list_topics(timeout=base.CALL_SECONDS_MAX).topics
        return {name: len(view.partitions) for name, view in listed.items()}

    def cluster(self) -> base.ClusterView:
        view = self._admin.describe_cluster(request_timeout=base.CALL_SECONDS_MAX).result()
        addresses = frozenset(f"{node.host}:{node.port}" for node in view.nodes)
        return base.ClusterView(addresses, view.controller is not None)

    def create_topic(
        self, topic: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        wanted = NewTopic(topic, num_partitions=partitions, config=dict(config or {}))
        result_of(self._admin.create_topics([wanted], operation_timeout=base.CALL_SECONDS_MAX))

    def delete_topic(self, topic: str) -> None:
        result_of(self._admin.delete_topics([topic], operation_timeout=base.CALL_SECONDS_MAX))

    def add_partitions(self, topic: str, total: int) -> None:
        result_of(self._admin.create_partitions([NewPartitions(topic, total)]))

    def config(self, topic: str) -> Mapping[str, str | None]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = result_of(self._admin.describe_configs([resource]))
        return {name: entry.value for name, entry in entries.items()}

    def set_config(self, topic: str, config: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        result_of(self._admin.incremental_alter_configs([resource]))

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        result_of(self._admin.delete_records([TopicPartition(topic, partition, before)]))

    def groups(self) -> frozenset[str]:
        listing = self._admin.list_consumer_groups().result(base.CALL_SECONDS_MAX)
        assert not listing.errors, listing.errors
        return frozenset(group.group_id for group in listing.valid)

    def group(self, group: str) -> base.GroupView:
        view = result_of(self._admin.describe_consumer_groups([group]))
        return base.GroupView(view.state.name.lower().replace("_", ""), len(view.members))

    def committed(self, group: str, topic: str, partitions: Sequence[int]) -> Mapping[int, int]:
        parts = [TopicPartition(topic, part) for part in partitions]
        asked = [ConsumerGroupTopicPartitions(group, parts)]
        found = result_of(self._admin.list_consumer_group_offsets(asked)).topic_partitions
        return {part.partition: part.offset for part in found if part.offset >= 0}

    def set_committed(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        parts = [TopicPartition(topic, part, at) for part, at in positions.items()]
        asked = [ConsumerGroupTopicPartitions(group, parts)]
        for part in result_of(self._admin.alter_consumer_group_offsets(asked)).topic_partitions:
            if part.error is not None:
                raise own_error(part.error)

    def delete_group(self, group: str) -> None:
        result_of(self._admin.delete_consumer_groups([group]))
