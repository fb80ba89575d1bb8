"""Where a published message goes: one protocol, four backends (O1).

    kafka         sent now; returns when all replicas asked for have it
    kafka_async   sent soon; errors go to the log and to `on_error`. Unsent messages are sent at
                  `flush`, at `close` and when the interpreter exits; a kill loses them
    db            written to the outbox, in the caller's own transaction
    test          kept in memory, for the tests of an application

The settings, the producer, or the call choose the backend.
"""

import atexit
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dovetail.background import keep_thread
from dovetail.errors import InvalidInput, InvalidSetting, Uncertain
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.partitioner import PARTITIONERS
from dovetail.logging import get_logger
from dovetail.outbox import publishing
from dovetail.outbox.message import MESSAGE_ID_HEADER, Message

if TYPE_CHECKING:
    from dovetail.settings import Settings

_log = get_logger("outbox")

#: Called with a topic and a reason for each message that was not delivered.
OnError = Callable[[str, str], None]

#: How long an end waits for what is not acknowledged yet.
FLUSH_S = 30.0
#: Between two looks for answers of the broker while nothing is published.
_POLL_S = 0.2
#: How long the number of a topic's partitions counts; Kafka's own clients ask every five minutes.
_PARTITIONS_S = 60.0

#: Producers that a fork has inherited: without their threads, even putting them away would hang.
_inherited: list[Any] = []

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

    def flush(self, timeout_s: float = FLUSH_S) -> int:
        """Waits for outstanding messages; returns how many are still not acknowledged."""
        ...

    def close(self, timeout_s: float = FLUSH_S) -> None:
        """Flushes and ends. Raises `Uncertain` if something is still not acknowledged."""
        ...


class _NothingOutstanding:
    """A backend that has nothing on its way when `publish` returns."""

    def flush(self, timeout_s: float = FLUSH_S) -> int:
        del timeout_s
        return 0

    def close(self, timeout_s: float = FLUSH_S) -> None:
        del timeout_s


class DatabaseBackend(_NothingOutstanding):
    """The outbox."""

    def __init__(self, *, serialise: bool = True) -> None:
        self._serialise = serialise

    def publish(self, messages: Sequence[Message], on: Any) -> None:
        publishing.insert(_needed(on), messages, serialise=self._serialise)

    async def publish_async(self, messages: Sequence[Message], on: Any) -> None:
        await publishing.insert_async(_needed(on), messages, serialise=self._serialise)


class KafkaBackend:
    """A Kafka, directly. One idempotent producer, shared by all threads, made at the first use.

    With `wait=False` a thread of its own takes the broker's answers, so that `on_error` is called
    while nothing is published, too.
    """

    def __init__(
        self,
        config: dict[str, Any],
        *,
        wait: bool,
        on_error: OnError | None = None,
    ) -> None:
        self._config = {"enable.idempotence": True, "acks": "all", **config}
        self._wait = wait
        self._on_error = on_error
        self._lock = threading.Lock()
        self._producer: Any = None
        #: The process that made the producer, which does not work in a fork of it.
        self._pid = 0
        self._closed = False
        self._partitions: dict[str, tuple[int, float]] = {}

    def publish(self, messages: Sequence[Message], on: Any) -> None:
        """Raises `Uncertain` naming what was not acknowledged (`kafka`)."""
        del on
        for message in messages:
            _check_at_once(message)
        producer = self._made()
        # Answers may come on any thread that polls: appending is the one step that needs no lock.
        answers: list[str | None] = []

        def on_delivery(error: Any, message: Any) -> None:
            if error is not None:
                # Perhaps the partition is gone.
                self._partitions.pop(str(message.topic()), None)
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

    def flush(self, timeout_s: float = FLUSH_S) -> int:
        """Waits for outstanding messages; returns how many are still not acknowledged."""
        if not self._is_mine():
            return 0
        return int(self._producer.flush(timeout_s))

    def close(self, timeout_s: float = FLUSH_S) -> None:
        """Flushes and ends. Raises `Uncertain` if something is still not acknowledged."""
        self._closed = True
        atexit.unregister(self._close_at_exit)
        left = self.flush(timeout_s)
        self._put_away()
        if left:
            raise Uncertain(
                f"{left} messages were not acknowledged within {timeout_s:g} s; they may or may "
                "not be stored"
            )

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except Uncertain as error:
            _log.error("messages lost at exit", reason=str(error))

    def _made(self) -> Any:
        from confluent_kafka import Producer as KafkaProducer

        with self._lock:
            if self._closed:
                raise InvalidInput("the producer is closed; make another to publish")
            if not self._is_mine():
                self._put_away()
                self._producer, self._pid = KafkaProducer(self._config), os.getpid()
                if not self._wait:
                    atexit.register(self._close_at_exit)
                    keep_thread(
                        self._take_answers, name="outbox/answers", stopped=threading.Event()
                    )
            return self._producer

    def _is_mine(self) -> bool:
        """Whether there is a producer that works in this process."""
        return self._producer is not None and self._pid == os.getpid()

    def _put_away(self) -> None:
        if self._producer is not None and not self._is_mine():
            _inherited.append(self._producer)
        self._producer = None

    def _take_answers(self) -> None:
        while (producer := self._producer) is not None:
            producer.poll(_POLL_S)

    def _produce(self, producer: Any, message: Message, on_delivery: Any) -> str | None:
        """Hands the message to librdkafka; returns its objection, or None."""
        from confluent_kafka import KafkaException

        headers: list[tuple[str, bytes | None]] = [
            (MESSAGE_ID_HEADER, message.id.encode()),
            *message.headers,
        ]

        fixed: dict[str, Any] = {}
        while True:
            try:
                # librdkafka chooses the partition by the key only: a partition key needs a number.
                if message.partition_key is not None:
                    fixed["partition"] = self._partition(producer, message)
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
        count, asked = self._partitions.get(message.topic, (0, 0.0))
        if not count or time.monotonic() - asked > _PARTITIONS_S:
            known = producer.list_topics(message.topic, timeout=10).topics[message.topic]
            count = len(known.partitions)
            self._partitions[message.topic] = count, time.monotonic()

        named = {value: name for name, value in _PARTITIONERS.items()}
        chosen = named.get(self._config.get("partitioner", "consistent_random"), "crc32")
        assert message.partition_key is not None
        return PARTITIONERS[chosen](message.partition_key, max(1, count))

    def _report(self, topic: str, reason: str) -> None:
        _log.error("message not delivered", topic=topic, reason=reason)
        if self._on_error is None:
            return
        try:
            self._on_error(topic, reason)
        except Exception:  # noqa: BLE001 - a user's mistake must not cost the other answers
            _log.exception("on_error raised", topic=topic)


class TestBackend(_NothingOutstanding):
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


def backend_of(name: str, settings: "Settings", *, on_error: OnError | None = None) -> Backend:
    """The backend of this name. Raises `InvalidInput` for a name that is none."""
    if name == "db":
        return DatabaseBackend(serialise=settings.outbox.serialise)
    if name == "test":
        return TestBackend()
    if name in {"kafka", "kafka_async"}:
        return KafkaBackend(_client_config(settings), wait=name == "kafka", on_error=on_error)
    raise InvalidInput(f"unknown backend {name!r}; choose kafka, kafka_async, db or test")


def brokers_of(settings: "Settings") -> Brokers:
    """The Kafka of section `outbox`, for the relay too. Raises `InvalidSetting`."""
    try:
        return Brokers.at(settings.outbox_bootstrap(), settings.outbox.login())
    except InvalidInput as error:
        raise InvalidSetting(f"section outbox: {error}") from error


def timelines_of(settings: "Settings") -> Brokers | None:
    """Where the timelines are, if not at that Kafka. Raises `InvalidSetting`."""
    if not settings.outbox.timelines:
        return None
    try:
        return Brokers.at(settings.outbox.timelines, settings.outbox.login())
    except InvalidInput as error:
        raise InvalidSetting(f"outbox.timelines: {error}") from error


def _client_config(settings: "Settings") -> dict[str, Any]:
    return {
        **brokers_of(settings).for_librdkafka(),
        "partitioner": _PARTITIONERS[settings.outbox.partitioner],
        "message.timeout.ms": settings.outbox.delivery_ms,
        "compression.type": settings.outbox.compression,
        "linger.ms": 0,
    }


def _check_at_once(message: Message) -> None:
    if message.timeline is not None or message.is_due_later:
        raise InvalidInput(
            "only the relay sends messages with a due time or for a timeline: publish with the "
            "backend 'db'"
        )


def _needed(on: Any) -> Any:
    if on is None:
        raise InvalidInput(
            "the backend 'db' writes into your transaction: give the session or connection as `on=`"
        )
    return on
