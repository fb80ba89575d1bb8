"""aiokafka, the client for asyncio.

The driver owns one event loop on one thread, for as long as it lives; every client object is made
and used on it.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-untyped]
from aiokafka.admin import (  # type: ignore[import-untyped]
    AIOKafkaAdminClient,
    NewPartitions,
    NewTopic,
    RecordsToDelete,
)
from aiokafka.admin.config_resource import (  # type: ignore[import-untyped]
    ConfigResource,
    ConfigResourceType,
)
from aiokafka.errors import KafkaError, for_code  # type: ignore[import-untyped]
from aiokafka.structs import OffsetAndMetadata, TopicPartition  # type: ignore[import-untyped]
from tests.compat.drivers.base import (
    CALL_SECONDS_MAX,
    FETCH_WAIT_MS_MAX,
    HEARTBEAT_INTERVAL_MS,
    REQUEST_BYTES_MAX,
    SESSION_TIMEOUT_MS,
    ClientError,
    ClusterView,
    CommittingMember,
    Driver,
    GroupView,
    Message,
    Record,
)
from tests.loop_thread import LoopThread

Result = TypeVar("Result")


#: aiokafka's own names, where they differ from the protocol's.
NAMES = {"MESSAGE_SIZE_TOO_LARGE": "MESSAGE_TOO_LARGE"}


def own_error(error: BaseException) -> ClientError:
    name = getattr(error, "message", None) or type(error).__name__
    return ClientError(NAMES.get(name, name), str(error))


def refuse(code: int) -> None:
    """Raise what an answer says that aiokafka hands on without a look at its error code."""
    if code:
        raise for_code(code)


def record_of(raw: Any) -> Record:
    return Record(raw.partition, raw.offset, raw.timestamp, raw.key, raw.value, tuple(raw.headers))


class AiokafkaMember(CommittingMember):
    """aiokafka keeps a member alive by tasks of its own; records are fetched when asked for."""

    def __init__(self, driver: "AiokafkaDriver", topic: str, settings: dict[str, Any]) -> None:
        self._driver = driver
        self._topic = topic
        self._consumer: Any = None
        driver.run(self._open(settings))

    async def _open(self, settings: dict[str, Any]) -> None:
        self._consumer = AIOKafkaConsumer(self._topic, **settings)
        # start() waits until the first rebalance is over, which needs the other members' time.
        await self._consumer.start()

    def partitions(self) -> frozenset[int]:
        return frozenset(part.partition for part in self._consumer.assignment())

    def take(self) -> list[Record]:
        batches = self._driver.run(self._consumer.getmany(timeout_ms=20)).values()
        return [record_of(raw) for batch in batches for raw in batch]

    def commit(self, positions: Mapping[int, int]) -> None:
        self._driver.run(
            self._consumer.commit(
                {TopicPartition(self._topic, part): at for part, at in positions.items()}
            )
        )

    def close(self) -> None:
        self._driver.run(self._consumer.stop())


class AiokafkaDriver(Driver):
    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._loop = LoopThread()
        self._admin = self.run(self._open_admin())

    async def _open_admin(self) -> Any:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        return admin

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run on the driver's loop, and translate what the client raises."""
        try:
            return self._loop.run(work, 2 * CALL_SECONDS_MAX)
        except KafkaError as error:
            raise own_error(error) from error

    def close(self) -> None:
        self.run(self._admin.close())
        self._loop.close()

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        idempotent: bool = False,
        timeout_s: float = CALL_SECONDS_MAX,
    ) -> None:
        self.run(self._produce(topic, messages, codec, idempotent, timeout_s))

    async def _produce(
        self,
        topic: str,
        messages: Sequence[Message],
        codec: str,
        idempotent: bool,
        timeout_s: float,
    ) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            max_request_size=REQUEST_BYTES_MAX,
            max_batch_size=REQUEST_BYTES_MAX,
            linger_ms=5,
            request_timeout_ms=int(timeout_s * 1000),
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers),
                    partition=message.partition,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            await asyncio.gather(*futures)
        finally:
            await producer.stop()

    def _consumer_settings(self, reset: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap,
            "auto_offset_reset": reset,
            "enable_auto_commit": False,
            "fetch_max_wait_ms": FETCH_WAIT_MS_MAX,
        }

    def read(
        self,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        start: int | None = None,
        reset: str = "earliest",
    ) -> list[Record]:
        reading = self._read(TopicPartition(topic, partition), count, start, reset)
        return self.run(asyncio.wait_for(reading, CALL_SECONDS_MAX))

    async def _read(self, part: Any, count: int, start: int | None, reset: str) -> list[Record]:
        consumer = AIOKafkaConsumer(**self._consumer_settings(reset))
        await consumer.start()
        try:
            consumer.assign([part])
            if start is None:
                await consumer.seek_to_beginning(part)
            else:
                consumer.seek(part, start)
            return [record_of(await consumer.getone(part)) for _ in range(count)]
        finally:
            await consumer.stop()

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        return self.run(self._offset_at(TopicPartition(topic, partition), timestamp_ms))

    async def _offset_at(self, part: Any, timestamp_ms: int) -> int | None:
        consumer = AIOKafkaConsumer(**self._consumer_settings("earliest"))
        await consumer.start()
        try:
            found = (await consumer.offsets_for_times({part: timestamp_ms}))[part]
            return None if found is None else int(found.offset)
        finally:
            await consumer.stop()

    def member(self, group: str, topic: str, *, instance: str | None = None) -> AiokafkaMember:
        settings = self._consumer_settings("earliest") | {
            "group_id": group,
            "group_instance_id": instance,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
            "metadata_max_age_ms": 1000,
        }
        return AiokafkaMember(self, topic, settings)

    def topics(self) -> Mapping[str, int]:
        listed = self.run(self._admin.describe_topics())
        return {view["topic"]: len(view["partitions"]) for view in listed}

    def cluster(self) -> ClusterView:
        view = self.run(self._admin.describe_cluster())
        addresses = frozenset(f"{broker['host']}:{broker['port']}" for broker in view["brokers"])
        return ClusterView(addresses, view["controller_id"] >= 0)

    def create_topic(
        self, topic: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        wanted = NewTopic(topic, partitions, 1, topic_configs=dict(config or {}))

        async def create() -> None:
            answer = await self._admin.create_topics([wanted])
            refuse(answer.topic_errors[0][1])

        self.run(create())

    def delete_topic(self, topic: str) -> None:
        async def delete() -> None:
            answer = await self._admin.delete_topics([topic])
            refuse(answer.topic_error_codes[0][1])

        self.run(delete())

    def add_partitions(self, topic: str, total: int) -> None:
        self.run(self._admin.create_partitions({topic: NewPartitions(total)}))

    def config(self, topic: str) -> Mapping[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = self.run(self._admin.describe_configs([resource]))
        (view,) = answer.resources
        return {entry[0]: entry[1] for entry in view[4]}

    def set_config(self, topic: str, config: Mapping[str, str]) -> None:
        async def alter() -> None:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(config))
            (answer,) = await self._admin.alter_configs([resource])
            refuse(answer.resources[0][0])

        self.run(alter())

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        wanted = {TopicPartition(topic, partition): RecordsToDelete(before)}
        self.run(self._admin.delete_records(wanted))

    def groups(self) -> frozenset[str]:
        return frozenset(view[0] for view in self.run(self._admin.list_consumer_groups()))

    def group(self, group: str) -> GroupView:
        async def describe() -> GroupView:
            (answer,) = await self._admin.describe_consumer_groups([group])
            code, _, state, _, _, members, *_ = answer.groups[0]
            refuse(code)
            return GroupView(state.lower(), len(members))

        return self.run(describe())

    def committed(self, group: str, topic: str, partitions: Sequence[int]) -> Mapping[int, int]:
        parts = [TopicPartition(topic, part) for part in partitions]
        found = self.run(self._admin.list_consumer_group_offsets(group, partitions=parts))
        return {part.partition: at.offset for part, at in found.items() if at.offset >= 0}

    def set_committed(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        """aiokafka has no admin call for it; a consumer without membership commits instead."""
        self.run(self._set_committed(group, topic, positions))

    async def _set_committed(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        consumer = AIOKafkaConsumer(group_id=group, **self._consumer_settings("earliest"))
        await consumer.start()
        try:
            wanted = {
                TopicPartition(topic, part): OffsetAndMetadata(at, "")
                for part, at in positions.items()
            }
            consumer.assign(list(wanted))
            await consumer.commit(wanted)
        finally:
            await consumer.stop()
