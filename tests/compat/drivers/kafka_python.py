"""kafka-python, a client in pure Python."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from kafka import (  # type: ignore[import-untyped]
    ConsumerRebalanceListener,
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
)
from kafka.admin import ConfigResource, ConfigResourceType  # type: ignore[import-untyped]
from kafka.codec import has_lz4, has_snappy, has_zstd  # type: ignore[import-untyped]
from kafka.errors import KafkaError, for_code  # type: ignore[import-untyped]
from kafka.structs import OffsetAndMetadata, TopicPartition  # type: ignore[import-untyped]
from tests.compat.drivers import base

#: Codecs that kafka-python has only where their libraries are installed.
OPTIONAL_CODECS = {"snappy": has_snappy, "lz4": has_lz4, "zstd": has_zstd}

#: Longer than a rebalance, shorter than the patience of a test that closes a member.
POLL_MS = 400
#: A rebalance of members that heartbeat every 0.3 s is over long before.
REBALANCE_SECONDS_MAX = 2.0

#: kafka-python's own names, where they differ from the protocol's. For a topic that does not
#: exist it knows only that its metadata never came, and says so in the log.
NAMES = {
    "MESSAGE_SIZE_TOO_LARGE": "MESSAGE_TOO_LARGE",
    "KafkaTimeoutError": "UNKNOWN_TOPIC_OR_PARTITION",
}


def own_error(error: BaseException) -> base.ClientError:
    name = getattr(error, "message", None) or type(error).__name__
    return base.ClientError(NAMES.get(name, name), str(error))


def record_of(raw: Any) -> base.Record:
    headers = tuple((name, value) for name, value in raw.headers)
    return base.Record(raw.partition, raw.offset, raw.timestamp, raw.key, raw.value, headers)


class RebalanceClock(ConsumerRebalanceListener):  # type: ignore[misc]
    """When the rebalance began that is not over yet."""

    def __init__(self) -> None:
        self.began: float | None = None

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.began = time.monotonic()

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.began = None


class KafkaPythonMember(base.PollingMember):
    """A consumer that starts anew when it lost an assignment.

    kafka-python 3.0.12 forgets a rebalance when the time of a poll runs out between the answers
    to JoinGroup and SyncGroup: it neither takes the assignment nor asks again. An application
    would restart such a consumer; so does this member, and long polls make it rare.
    """

    def __init__(self, topic: str, settings: dict[str, Any]) -> None:
        super().__init__()
        self._topic = topic
        self._clock = RebalanceClock()
        self._consumer = KafkaConsumer(**settings)
        self._consumer.subscribe([topic], listener=self._clock)
        self.start()

    def _poll(self) -> Sequence[base.Record]:
        batches = self._consumer.poll(timeout_ms=POLL_MS).values()
        began = self._clock.began
        if began is not None and time.monotonic() - began > REBALANCE_SECONDS_MAX:
            self._clock.began = None
            self._consumer.unsubscribe()
            self._consumer.subscribe([self._topic], listener=self._clock)
        return [record_of(raw) for batch in batches for raw in batch]

    def _assigned(self) -> frozenset[int]:
        return frozenset(part.partition for part in self._consumer.assignment())

    def _commit(self, positions: Mapping[int, int]) -> None:
        self._consumer.commit(
            {
                TopicPartition(self._topic, part): OffsetAndMetadata(at, "", -1)
                for part, at in positions.items()
            }
        )

    def _close(self) -> None:
        self._consumer.close()


class KafkaPythonDriver(base.Driver):
    codecs = (
        "none",
        "gzip",
        *(name for name, there in OPTIONAL_CODECS.items() if there()),
    )

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def close(self) -> None:
        self._admin.close()

    def send(self, sending: base.Sending) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            compression_type=None if sending.codec == "none" else sending.codec,
            enable_idempotence=sending.idempotent,
            max_request_size=base.REQUEST_BYTES_MAX,
            linger_ms=5,
            max_block_ms=sending.timeout_ms,
            request_timeout_ms=sending.timeout_ms,
            delivery_timeout_ms=sending.timeout_ms + 10,
        )
        try:
            futures = [
                producer.send(sending.topic, **message.as_arguments())
                for message in sending.messages
            ]
            for future in futures:
                future.get(timeout=sending.timeout_s)
        except KafkaError as error:
            raise own_error(error) from error
        finally:
            producer.close(timeout=1)

    def fetch(self, reading: base.Reading) -> list[base.Record]:
        consumer = KafkaConsumer(**base.python_consumer_settings(self.bootstrap, reading.reset))
        try:
            part = TopicPartition(reading.topic, reading.partition)
            consumer.assign([part])
            if reading.start is None:
                consumer.seek_to_beginning(part)
            else:
                consumer.seek(part, reading.start)
            records: list[base.Record] = []
            deadline = time.monotonic() + base.CALL_SECONDS_MAX
            while left := reading.count - len(records):
                assert time.monotonic() < deadline, f"{left} of {reading.count} did not come"
                polled = consumer.poll(timeout_ms=100, max_records=left)
                records.extend(record_of(raw) for batch in polled.values() for raw in batch)
            return records
        except KafkaError as error:
            raise own_error(error) from error
        finally:
            consumer.close()

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        consumer = KafkaConsumer(**base.python_consumer_settings(self.bootstrap, "earliest"))
        try:
            part = TopicPartition(topic, partition)
            found = consumer.offsets_for_times({part: timestamp_ms})[part]
            return None if found is None else int(found.offset)
        finally:
            consumer.close()

    def member(self, group: str, topic: str, *, instance: str | None = None) -> KafkaPythonMember:
        settings = base.python_member_settings(self.bootstrap, group, instance)
        return KafkaPythonMember(topic, settings)

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        try:
            return getattr(self._admin, method)(*args, **options)
        except KafkaError as error:
            raise own_error(error) from error

    def topics(self) -> Mapping[str, int]:
        return {view["name"]: len(view["partitions"]) for view in self._call("describe_topics")}

    def cluster(self) -> base.ClusterView:
        view = self._call("describe_cluster")
        addresses = frozenset(f"{broker['host']}:{broker['port']}" for broker in view["brokers"])
        return base.ClusterView(addresses, view["controller_id"] >= 0)

    def create_topic(
        self, topic: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        wanted = {"num_partitions": partitions, "configs": dict(config or {})}
        self._call("create_topics", {topic: wanted})

    def delete_topic(self, topic: str) -> None:
        self._call("delete_topics", [topic])

    def add_partitions(self, topic: str, total: int) -> None:
        self._call("create_partitions", {topic: total})

    def config(self, topic: str) -> Mapping[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        view = self._call("describe_configs", [resource], config_filter="all")
        return {name: entry["value"] for name, entry in view["topic"][topic].items()}

    def set_config(self, topic: str, config: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(config))
        self._call("alter_configs", [resource])

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._call("delete_records", {TopicPartition(topic, partition): before})

    def groups(self) -> frozenset[str]:
        return frozenset(view["group_id"] for view in self._call("list_groups"))

    def group(self, group: str) -> base.GroupView:
        view = self._call("describe_groups", [group])[group]
        assert view["error"] is None, view["error"]
        return base.GroupView(view["group_state"].lower(), len(view["members"]))

    def committed(self, group: str, topic: str, partitions: Sequence[int]) -> Mapping[int, int]:
        parts = [TopicPartition(topic, part) for part in partitions]
        found = self._call("list_group_offsets", {group: parts})[group]
        return {part.partition: at.offset for part, at in found.items() if at.offset >= 0}

    def set_committed(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        wanted = {
            TopicPartition(topic, part): OffsetAndMetadata(at, "", -1)
            for part, at in positions.items()
        }
        for error in self._call("alter_group_offsets", group, wanted).values():
            assert error is for_code(0), error

    def delete_group(self, group: str) -> None:
        outcome = self._call("delete_groups", [group])[group]
        if outcome != "OK":
            raise base.ClientError(outcome, "delete_groups")
