"""A shared log in a topic with one partition, on Dovetail or on Apache Kafka.

Every record is appended with all acknowledgements, and its outcome is known when this member has
read its own record back: what precedes it in the partition decides whether it counts. The broker
needs only to keep the partition's order, so the promise is the same on both:

    Dovetail   holds across the death, pause and return of any broker: the storage nodes refuse the
               appends of an old owner.
    Kafka      holds as far as the partition keeps what it acknowledged: replication 3,
               `min.insync.replicas` 2 and no unclean leader election.

Several environments can share the topic: the record's key is the environment. Before old records
are deleted, snapshots of all environments are written behind them; a reader whose log was cut off
starts from the snapshot. Records are signed in a header; environments with another secret keep a
log from being trimmed, because no member could sign all snapshots.

Survives: brokers that go and return (reading and writing resume by themselves), lost answers
(`Uncertain`), a missing topic (it is created, with unlimited retention).
"""

import asyncio
import time
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from dovetail.clock import Clock
from dovetail.election.fold import Record, decode_record, encode_record
from dovetail.election.kafka_client import ClientConfig, Poller, base_config, consumer_config
from dovetail.election.shared_log import FollowedLog, LogFollower, OnEntry, Signing, fenced
from dovetail.election.signature import SIGNATURE_HEADER, Mark
from dovetail.errors import InvalidSetting, TopicUnknown, Unavailable, Uncertain
from dovetail.logging import get_logger

#: Longest wait for the topic and for what is in it at the start.
OPEN_S_MAX = 30.0
#: Records that are taken from the client at a time.
RECORDS_MAX = 1_000
#: A poll without records returns after this, so that a stop is noticed.
POLL_S = 0.1
#: An append is given up after this time at the earliest; a slow disk is not an outage.
APPEND_MS_MIN = 1_000
_PARTITION = 0
#: Answers about a topic that other brokers, or this client, have not heard of yet.
_NOT_YET = (
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)

#: Offset, wall time, environment, record, who signed it.
_Taken = tuple[int, int, str, Record | None, Mark | None]

_log = get_logger("election")


class KafkaSharedLog(FollowedLog):
    """The shared log of one environment in a topic."""

    def __init__(
        self,
        bootstrap: str,
        *,
        topic: str,
        environment: str,
        timeout_ms: int,
        config: ClientConfig | None = None,
        clock: Clock | None = None,
        create: bool = True,
        signing: Signing | None = None,
    ) -> None:
        super().__init__(clock, signing)
        self._topic = topic
        self._create = create
        self._environment = environment
        self._append_ms = max(timeout_ms, APPEND_MS_MIN)
        self._config = base_config(bootstrap, timeout_ms, config or {})
        self._consumer_config = consumer_config(
            bootstrap, timeout_ms, config or {}, group=f"dovetail-stream-{environment}"
        )
        self._followers = {environment: self._follower}
        #: Other environments whose snapshots cannot be written here: their secret is another one.
        self._strangers: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pollers: list[Poller] = []
        self._end_at_open: asyncio.Future[None] | None = None
        self._open_until = 0

    async def open(self, on_entry: OnEntry) -> None:
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._make_topic)
        self._producer = Producer(
            {
                **self._config,
                "acks": "all",
                "linger.ms": 0,
                "max.in.flight": 1,
                "message.timeout.ms": self._append_ms,
            }
        )

        self._consumer = Consumer({**self._consumer_config, "auto.offset.reset": "earliest"})
        try:
            self._first, self._open_until = await asyncio.to_thread(self._bounds)
        except KafkaException as error:
            await asyncio.to_thread(self._consumer.close)
            raise Unavailable(
                f"cannot read the shared log {self._topic!r}: {error.args[0].str()}"
            ) from error

        self._end_at_open = self._loop.create_future()
        self._consumer.assign([TopicPartition(self._topic, _PARTITION, OFFSET_BEGINNING)])
        self._pollers = [
            Poller("stream-log-writer", lambda: self._producer.poll(POLL_S), _go_on),
            Poller("stream-log-reader", self._poll, self._read_again),
        ]
        for poller in self._pollers:
            poller.start()

        self._check_opened()
        try:
            async with asyncio.timeout(OPEN_S_MAX):
                await self._end_at_open
        except TimeoutError as error:
            await self.close()
            raise Unavailable(
                f"cannot read the shared log {self._topic!r} to its end within {OPEN_S_MAX:g} s"
            ) from error

        for follower in self._followers.values():
            follower.close_gap()
        self._follower.follow(on_entry)

    async def append(self, record: Record) -> None:
        index = await self._store(record, self._environment)
        if not await self._follower.verdict(index, timeout_s=self._append_ms / 1000):
            raise fenced(record, self.state)

    async def trim(self) -> None:
        if any(follower.has_gap for follower in self._followers.values()):
            return
        if self._strangers:
            names = ", ".join(sorted(self._strangers))
            _log.warning(
                "cannot trim the shared log: these environments have other secrets",
                environments=names,
            )
            return
        base = self._follower.index_next - 1
        snapshots = {
            environment: follower.state.snapshot(base=base)
            for environment, follower in self._followers.items()
        }
        for environment, snapshot in snapshots.items():
            await self._store(snapshot, environment)
        await asyncio.to_thread(self._delete_below, base + 1)
        self._first = base + 1

    async def close(self) -> None:
        pollers, self._pollers = self._pollers, []
        if not pollers:
            return
        for poller in pollers:
            poller.stop()
        for poller in pollers:
            await asyncio.to_thread(poller.join)
        await asyncio.to_thread(self._consumer.close)

    # --- writing ------------------------------------------------------------------------------

    async def _store(self, record: Record, environment: str) -> int:
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[int] = loop.create_future()

        def delivered(error: KafkaError | None, message: Message) -> None:
            loop.call_soon_threadsafe(_settle, stored, error, message.offset())

        payload = encode_record(record)
        signature = None if self._signer is None else self._signer.sign(environment, payload)
        try:
            self._producer.produce(
                self._topic,
                key=environment.encode(),
                value=payload,
                headers=[] if signature is None else [(SIGNATURE_HEADER, signature)],
                partition=_PARTITION,
                on_delivery=delivered,
            )
        except (BufferError, KafkaException) as error:
            raise Unavailable(f"cannot append to shared log {self._topic!r}: {error}") from error

        try:
            async with asyncio.timeout(self._append_ms / 1000):
                return await stored
        except TimeoutError as error:
            raise Uncertain(
                f"the shared log {self._topic!r} did not acknowledge within {self._append_ms} ms; "
                "the record may or may not be stored"
            ) from error

    # --- reading, on a thread of its own --------------------------------------------------------

    def _poll(self) -> None:
        first = self._consumer.poll(POLL_S)
        if first is None:
            return
        messages = [first, *self._consumer.consume(RECORDS_MAX, 0)]
        taken: list[_Taken] = []
        for message in messages:
            error = message.error()
            offset = message.offset()
            if error is None and offset is not None:
                taken.append((offset, message.timestamp()[1], *self._read(message)))
            elif error is not None:
                _log.warning("reading the shared log again", reason=error.str())
        if taken and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take, taken)

    def _read(self, message: Message) -> tuple[str, Record | None, Mark | None]:
        """The environment, the record, and who signed it; no record if it should be ignored."""
        environment = (message.key() or b"").decode(errors="replace")
        payload = message.value() or b""
        signature = dict(message.headers() or ()).get(SIGNATURE_HEADER)
        record, mark = decode_record(payload), None
        if self._signer is not None:
            mark = self._signer.mark_of(environment, payload, signature)  # type: ignore[arg-type]

        signed_here = (signature is None) if self._signer is None else (mark is not None)
        if environment != self._environment:
            if record is not None and not signed_here:
                self._strangers.add(environment)
            return environment, record, None
        if self._required and mark is None:
            _log.warning("ignoring a record that no member has signed", index=message.offset())
            return environment, None, None
        return environment, record, mark

    def _read_again(self, _: BaseException) -> None:
        """What was polled and not taken must come again: an order with holes is none."""
        self._consumer.seek(TopicPartition(self._topic, _PARTITION, self._follower.index_next))

    def _take(self, taken: "list[_Taken]") -> None:
        for index, wall_ms, environment, record, mark in taken:
            if environment not in self._followers:
                self._followers[environment] = follower = LogFollower(self._clock)
                opening = self._end_at_open is not None and not self._end_at_open.done()
                # Once all was read, what stands before it is known to be none of its own.
                follower.index_next = 0 if opening else index
            for name, follower in self._followers.items():
                mine = name == environment
                follower.take(index, record if mine else None, wall_ms, mark if mine else None)
        self._check_opened()

    def _check_opened(self) -> None:
        opened = self._end_at_open
        if opened is not None and not opened.done() and self._is_at_end():
            opened.set_result(None)

    def _is_at_end(self) -> bool:
        return self._open_until <= max(self._first, self._follower.index_next)

    # --- the topic ------------------------------------------------------------------------------

    def _bounds(self) -> tuple[int, int]:
        """First and next offset; a topic that was made just now may take a moment to be known."""
        partition = TopicPartition(self._topic, _PARTITION)
        deadline_s = time.monotonic() + OPEN_S_MAX
        while True:
            try:
                first, end = self._consumer.get_watermark_offsets(partition, timeout=OPEN_S_MAX)
                return int(first), int(end)
            except KafkaException as error:
                if error.args[0].code() not in _NOT_YET or time.monotonic() > deadline_s:
                    raise
                time.sleep(POLL_S)

    def _make_topic(self) -> None:
        """Makes the topic if it is not there. Raises `Unavailable` or `InvalidSetting`."""
        admin = AdminClient(self._config)
        try:
            topics = admin.list_topics(timeout=OPEN_S_MAX).topics
            if self._topic not in topics and not self._create:
                raise TopicUnknown(
                    f"no topic {self._topic!r} on {self._config['bootstrap.servers']}: no member "
                    "has started there yet, or the shared log has another name"
                )
            if self._topic not in topics:
                kept = {"retention.ms": "-1", "retention.bytes": "-1"}
                new = NewTopic(self._topic, num_partitions=1, replication_factor=-1, config=kept)
                _wait_for_topic(admin.create_topics([new])[self._topic])
                topics = admin.list_topics(timeout=OPEN_S_MAX).topics
        except KafkaException as error:
            raise Unavailable(
                f"cannot reach the shared log {self._topic!r}: {error.args[0].str()}. Is "
                f"{self._config['bootstrap.servers']} the address of a broker?"
            ) from error

        found = topics.get(self._topic)
        if found is not None and len(found.partitions) > 1:
            raise InvalidSetting(
                f"topic {self._topic!r} has {len(found.partitions)} partitions; a shared log needs "
                "one, because all members must see one order. Name another topic"
            )

    def _delete_below(self, offset: int) -> None:
        admin = AdminClient(self._config)
        partition = TopicPartition(self._topic, _PARTITION, offset)
        try:
            for future in admin.delete_records([partition]).values():
                future.result(OPEN_S_MAX)
        except KafkaException as error:
            raise Unavailable(
                f"cannot delete old records of {self._topic!r}: {error.args[0].str()}"
            ) from error


def _go_on(_: BaseException) -> None:
    """A delivery report was lost; its append ends with `Uncertain`."""


def _settle(stored: "asyncio.Future[int]", error: KafkaError | None, offset: int | None) -> None:
    if stored.done():
        return
    if error is None and offset is not None:
        stored.set_result(offset)
    else:
        reason = "the broker gave no offset" if error is None else error.str()
        stored.set_exception(Uncertain(f"the record may or may not be in the shared log: {reason}"))


def _wait_for_topic(future: Any) -> None:
    """Another member may have been faster."""
    try:
        future.result(OPEN_S_MAX)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
