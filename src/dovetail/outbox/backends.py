"""Where a published message goes: one protocol, four backends (O1).

    kafka         sent now; returns when all replicas asked for have it
    kafka_async   sent soon; errors go to the log and to `on_error`
    db            written to the outbox, in the caller's own transaction
    test          kept in memory, for the tests of an application

A backend is chosen by the settings, by the producer, or by the call.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dovetail.errors import InvalidInput, InvalidSetting, Uncertain
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.partitioner import PARTITIONERS
from dovetail.logging import get_logger
from dovetail.outbox import publishing
from dovetail.outbox.message import MESSAGE_ID_HEADER, Message

if TYPE_CHECKING:
    from dovetail.settings import Settings

_log = get_logger("outbox")

BackendName = Literal["kafka", "kafka_async", "db", "test"]

#: As librdkafka names them.
_PARTITIONERS = {"crc32": "consistent_random", "murmur2": "murmur2_random"}


class Backend(Protocol):
    """A way to publish."""

    def publish(self, messages: Sequence[Message], on: Any) -> None:
        """Publishes all, or raises. `on` is what the caller writes through, for `db`."""
        ...

    async def publish_async(self, messages: Sequence[Message], on: Any) -> None:
        """The same for async callers."""
        ...


class DatabaseBackend:
    """The outbox."""

    def __init__(self, *, serialise: bool = True) -> None:
        self._serialise = serialise

    def publish(self, messages: Sequence[Message], on: Any) -> None:
        publishing.insert(_needed(on), messages, serialise=self._serialise)

    async def publish_async(self, messages: Sequence[Message], on: Any) -> None:
        await publishing.insert_async(_needed(on), messages, serialise=self._serialise)


class KafkaBackend:
    """A Kafka, directly. One idempotent producer, shared by all threads, made at the first use."""

    def __init__(
        self,
        config: dict[str, Any],
        *,
        wait: bool,
        on_error: Callable[[str, str], None] | None = None,
    ) -> None:
        self._config = {"enable.idempotence": True, "acks": "all", **config}
        self._wait = wait
        self._on_error = on_error
        self._lock = threading.Lock()
        self._producer: Any = None

    def publish(self, messages: Sequence[Message], on: Any) -> None:
        """Raises `Uncertain` naming what was not acknowledged (`kafka`)."""
        del on
        producer = self._made()
        # Answers may come on any thread that polls: appending is the one step that needs no lock.
        answers: list[str | None] = []

        def on_delivery(error: Any, message: Any) -> None:
            if error is not None:
                self._report(str(message.topic()), str(error))
            answers.append(None if error is None else str(error))

        for message in messages:
            refused = self._produce(producer, message, on_delivery)
            if refused is not None:
                self._report(message.topic, refused)
                answers.append(refused)
        producer.poll(0)
        while self._wait and len(answers) < len(messages):
            producer.poll(0.1)
        failures = [answer for answer in answers if answer is not None]
        if failures and self._wait:
            raise Uncertain(
                f"{len(failures)} of {len(messages)} messages were not acknowledged, the first "
                f"because: {failures[0]}; they may or may not be stored"
            )

    async def publish_async(self, messages: Sequence[Message], on: Any) -> None:
        import asyncio

        await asyncio.to_thread(self.publish, messages, on)

    def flush(self, timeout_s: float = 30.0) -> int:
        """Waits for outstanding messages; returns how many are still not acknowledged."""
        return 0 if self._producer is None else int(self._producer.flush(timeout_s))

    def _made(self) -> Any:
        from confluent_kafka import Producer as KafkaProducer

        with self._lock:
            if self._producer is None:
                self._producer = KafkaProducer(self._config)
            return self._producer

    def _produce(self, producer: Any, message: Message, on_delivery: Any) -> str | None:
        """Hands the message to librdkafka; returns its objection, or None."""
        from confluent_kafka import KafkaException

        headers: list[tuple[str, bytes | None]] = [
            (MESSAGE_ID_HEADER, message.id.encode()),
            *message.headers,
        ]

        # librdkafka chooses the partition by the key only, so a partition key needs the number.
        fixed: dict[str, Any] = {}
        if message.partition_key is not None:
            fixed["partition"] = self._partition(producer, message)

        while True:
            try:
                producer.produce(
                    message.topic,
                    value=message.payload,
                    key=message.key,
                    headers=headers,
                    on_delivery=on_delivery,
                    **fixed,
                )
            except BufferError:
                producer.poll(0.1)
                continue
            except KafkaException as error:
                return str(error)
            return None

    def _partition(self, producer: Any, message: Message) -> int:
        known = producer.list_topics(message.topic, timeout=10).topics[message.topic]
        named = {value: name for name, value in _PARTITIONERS.items()}
        chosen = named.get(self._config.get("partitioner", "consistent_random"), "crc32")
        assert message.partition_key is not None
        return PARTITIONERS[chosen](message.partition_key, max(1, len(known.partitions)))

    def _report(self, topic: str, reason: str) -> None:
        _log.error("message not delivered", topic=topic, reason=reason)
        if self._on_error is not None:
            self._on_error(topic, reason)


class TestBackend:
    """Keeps what is published in `messages`; for the tests of an application."""

    #: Not a test case, whatever its name.
    __test__ = False

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def publish(self, messages: Sequence[Message], on: Any) -> None:
        del on
        self.messages.extend(messages)

    async def publish_async(self, messages: Sequence[Message], on: Any) -> None:
        self.publish(messages, on)

    def on(self, topic: str) -> list[Message]:
        """What was published to one topic."""
        return [message for message in self.messages if message.topic == topic]

    def clear(self) -> None:
        """Forgets everything."""
        self.messages.clear()


def backend_of(name: str, settings: "Settings") -> Backend:
    """The backend of this name. Raises `InvalidInput` for a name that is none."""
    if name == "db":
        return DatabaseBackend(serialise=settings.outbox.serialise)
    if name == "test":
        return TestBackend()
    if name in {"kafka", "kafka_async"}:
        return KafkaBackend(_client_config(settings), wait=name == "kafka")
    raise InvalidInput(f"there is no backend {name!r}; choose kafka, kafka_async, db or test")


def brokers_of(settings: "Settings") -> Brokers:
    """The Kafka of section `outbox`, for the relay too. Raises `InvalidSetting`."""
    try:
        return Brokers.at(settings.outbox_bootstrap(), settings.outbox.login())
    except InvalidInput as error:
        raise InvalidSetting(f"section outbox: {error}") from error


def _client_config(settings: "Settings") -> dict[str, Any]:
    return {
        **brokers_of(settings).for_librdkafka(),
        "partitioner": _PARTITIONERS[settings.outbox.partitioner],
        "message.timeout.ms": settings.outbox.delivery_ms,
        "linger.ms": 0,
    }


def _needed(on: Any) -> Any:
    if on is None:
        raise InvalidInput(
            "the backend 'db' writes into your transaction: give the session or connection as `on=`"
        )
    return on
