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
from tests.compat.drivers import base
from tests.loop_thread import LoopThread

Result = TypeVar("Result")


#: aiokafka's own names, where they differ from the protocol's.
NAMES = {"MESSAGE_SIZE_TOO_LARGE": "MESSAGE_TOO_LARGE"}


def own_error(error: BaseException) -> base.ClientError:
    name = getattr(error, "message", None) or type(error).__name__
    return base.ClientError(NAMES.get(name, name), str(error))


def refuse(code: int) -> None:
    """Raise what an answer says that aiokafka hands on without a look at its error code."""
    if code:
        raise for_code(code)


def record_of(raw: Any) -> base.Record:
    return base.Record(
        raw.partition, raw.offset, raw.timestamp, raw.key, raw.value, tuple(raw.headers)
    )


class AiokafkaMember(base.CommittingMember):
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

    def take(self) -> list[base.Record]:
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


class AiokafkaDriver(base.Driver):
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
            return self._loop.run(work, 2 * base.CALL_SECONDS_MAX)
        except KafkaError as error:
            raise own_error(error) from error

    def close(self) -> None:
        self.run(self._admin.close())
        self._loop.close()

    def send(self, sending: base.Sending) -> None:
        self.run(self._send(sending))

    async def _send(self, sending: base.Sending) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            compression_type=None if sending.codec == "none" else sending.codec,
            enable_idempotence=sending.idempotent,
            max_request_size=base.REQUEST_BYTES_MAX,
            max_batch_size=base.REQUEST_BYTES_MAX,
            linger_ms=5,
            request_timeout_ms=sending.timeout_ms,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(sending.topic, **message.as_arguments())
                for message in sending.messages
            ]
            await asyncio.gather(*futures)
        finally:
            await producer.stop()

    def _consumer_settings(self, reset: str) -> dict[str, Any]:
        return base.python_consumer_settings(self.bootstrap, reset)

    def fetch(self, reading: base.Reading) -> list[base.Record]:
        return self.run(asyncio.wait_for(self._fetch(reading), base.CALL_SECONDS_MAX))

    async def _fetch(self, reading: base.Reading) -> list[base.Record]:
        part = TopicPartition(reading.topic, reading.partition)
        consumer = AIOKafkaConsumer(**self._consumer_settings(reading.reset))
        await consumer.start()
        try:
            consumer.assign([part])
            if reading.start is None:
                await consumer.seek_to_beginning(part)
            else:
                consumer.seek(part, reading.start)
            return [record_of(await consumer.getone(part)) for _ in range(reading.count)]
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
        settings = base.python_member_settings(self.bootstrap, group, instance)
        return AiokafkaMember(self, topic, settings | {"metadata_max_age_ms": 1000})

    def topics(self) -> Mapping[str, int]:
        listed = self.run(self._admin.describe_topics())
        return {view["topic"]: len(view["partitions"]) for view in listed}

    def cluster(self) -> base.ClusterView:
        view = self.run(self._admin.describe_cluster())
        addresses = frozenset(f"{broker['host']}:{broker['port']}" for broker in view["brokers"])
        return base.ClusterView(addresses, view["controller_id"] >= 0)

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

    def group(self, group: str) -> base.GroupView:
        async def describe() -> base.GroupView:
            (answer,) = await self._admin.describe_consumer_groups([group])
            code, _, state, _, _, members, *_ = answer.groups[0]
            refuse(code)
            return base.GroupView(state.lower(), len(members))

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
