"""Delayed jobs: from the topic of delays into a timeline, and from it to their team.

They come from a connector with `after`, or are retries with a long backoff. A delayed job that is
cancelled is moved to now, so that its team ends it (`cancelling`); one that reaches the timeline
after its cancel, while another courier is at work, is ended when it is due.

    topic of delays ─ fill ─► timeline ─ due ─ deliver ─► input topic of the team

Promise: a job does not reach its team before it is due, and takes effect there once.
Survives: a crash at any step. A position is committed after its jobs are in the timeline, and a
message leaves the timeline after its job is acknowledged; so a step may happen twice, but is never
left out. A job that is scheduled twice has one key in the timeline; the team drops a job that is
delivered twice as a repetition (T4). A job that its team's topic does not take is tried again by
itself: writing its neighbours again with it would repeat them once the team has forgotten their
ids. Any error of the courier is logged, and it restarts after a pause; `failure` reports it
meanwhile. A record that is not a delayed job is logged with its place and skipped; the topic's
retention keeps it.

Not here: the clock. The timeline decides what is due.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from dovetail.background import keep_thread
from dovetail.errors import DovetailError, InvalidInput, TopicExists, Unavailable
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import EARLIEST, LATEST, KafkaClient
from dovetail.logging import get_logger
from dovetail.spark.exactly_once import ID_HEADER
from dovetail.spark.fetching import fetch
from dovetail.spark.objects import found_in
from dovetail.teams.cancelling import keys_of
from dovetail.teams.envelope import NOT_BEFORE, TO, TRACEPARENT, number_in
from dovetail.teams.graph import cancels_topic, delays_topic
from dovetail.teams.tasks.seen_log import records_of
from dovetail.teams.team import TOPIC_NAME
from dovetail.timeline.client import Draft, Reject, Retry, Timeline, connect
from dovetail.timeline.client import Message as DueMessage
from dovetail.timeline.config import TimelineConfig

#: Jobs scheduled in one request.
BATCH = 500
_POLL_S = 0.2
_PAUSE_S = 1.0
_FLUSH_S = 30.0
#: Longer than a flush, so that only what hangs is left behind.
_STOP_S_MAX = 45.0
#: A team's topic that cannot be written is not the job's fault: with a minute between two attempts
#: it is tried for a week, as long as Kafka keeps records by default.
_ATTEMPTS_MAX = 10_000
_AGAIN_S_MAX = 60
#: The largest record that this side sends; the topic has the last word. librdkafka's limit.
_RECORD_BYTES_MAX = 1_000_000_000
#: The end of the year 9999: what is due later is not a time but a mistake.
_DUE_MS_MAX = 253_402_300_799_999

_log = get_logger("teams")


class Waiting(msgspec.Struct, array_like=True):
    """A job in the timeline."""

    topic: str
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


class Courier:
    """Carries the delayed jobs of a pipeline, on a thread beside its engine."""

    def __init__(self, pipeline: str, brokers: Brokers) -> None:
        self._topic, self._timeline = delays_topic(pipeline), f"{pipeline}-delays"
        self._cancels = cancels_topic(pipeline)
        self._brokers = brokers
        self._stopped = threading.Event()
        #: Why delayed jobs are not carried at the moment.
        self.failure: str | None = None
        self._thread: threading.Thread | None = None
        self._producer = Producer(
            {
                **brokers.for_librdkafka(),
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "message.max.bytes": _RECORD_BYTES_MAX,
            }
        )

    def start(self) -> None:
        """Starts the thread."""
        self._thread = keep_thread(
            lambda: asyncio.run(self._serve()), name="teams/delays", stopped=self._stopped
        )

    def end(self) -> None:
        """Begins to stop; jobs that wait stay in the timeline."""
        self._stopped.set()

    def stop(self) -> None:
        """Stops, or leaves behind what does not end: whatever it still carries is there once."""
        self.end()
        if self._thread is None:
            return
        self._thread.join(_STOP_S_MAX)
        if self._thread.is_alive():
            _log.error("delayed jobs are still being carried", topic=self._topic)

    async def _serve(self) -> None:
        while not self._stopped.is_set():
            try:
                await self._carry()
                continue
            except DovetailError as error:
                self.failure = str(error)
                _log.warning("cannot deliver delayed jobs", topic=self._topic, reason=str(error))
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - begins again
                self.failure = repr(error)
                _log.exception("cannot deliver delayed jobs", error, topic=self._topic)
            await asyncio.to_thread(self._stopped.wait, _PAUSE_S)

    async def _carry(self) -> None:
        login = self._brokers.login()
        async with connect(
            self._brokers.bootstrap,
            tls=login.tls,
            user=login.user,
            password=login.password,
            mechanism=login.mechanism,
        ) as client:
            timeline = client.timeline(self._timeline)
            with suppress(TopicExists):
                await timeline.create(TimelineConfig(attempts_max=_ATTEMPTS_MAX))
            client.consumer(self._timeline, lease="60s", batch=BATCH, stop="5s")(self.deliver)
            await self._fill(timeline)

    async def _fill(self, timeline: Timeline) -> None:
        consumer = Consumer(
            {
                **self._brokers.for_librdkafka(),
                "group.id": f"dovetail.{self._topic}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([self._topic, self._cancels])
        try:
            while not self._stopped.is_set():
                given = await asyncio.to_thread(consumer.consume, BATCH, _POLL_S)
                for error in (message.error() for message in given):
                    if error is not None:
                        raise Unavailable(f"cannot read {self._topic!r}: {error.str()}")

                if given:
                    cancels = [one for one in given if one.topic() == self._cancels]
                    await self._schedule(timeline, [one for one in given if one not in cancels])
                    await self._hasten(timeline, {one.key() or b"" for one in cancels})
                    await asyncio.to_thread(consumer.commit, asynchronous=False)
                self.failure = None
        finally:
            await asyncio.to_thread(consumer.close)

    async def _schedule(self, timeline: Timeline, messages: Sequence[Message]) -> None:
        """Stores the jobs of these records; a record that is none is left behind."""
        drafts = []
        for message in messages:
            try:
                drafts.append(draft_of(message))
            except InvalidInput as error:
                self._leave(f"{message.partition()}-{message.offset()}", error)

        try:
            await timeline.schedule_many(drafts)
        except InvalidInput:
            # One by one shows which of them it was; those that are stored have their keys.
            for draft in drafts:
                try:
                    await timeline.schedule_many([draft])
                except InvalidInput as error:
                    self._leave(draft.key, error)

    async def _hasten(self, timeline: Timeline, keys: set[bytes]) -> None:
        """Makes the jobs of these ids due now; one that is being delivered is left alone."""
        if not keys:
            return
        for place in await asyncio.to_thread(self._places_of, keys):
            found = await timeline.look_up_key(place)
            if found is not None:
                await timeline.move(found.id, at=time.time())

    def _places_of(self, keys: set[bytes]) -> list[str]:
        """Where the jobs of these ids lie in the topic of delays. Cancels are rare: it is read."""
        found, client = [], KafkaClient(self._brokers)
        try:
            for number in client.partitions([self._topic])[self._topic]:
                place = (self._topic, number)
                start = client.offsets({place: EARLIEST})[place]
                end = client.offsets({place: LATEST})[place]
                for fetched in fetch(client, place, start, end, committed=True):
                    records = found_in(fetched.batches, place, offset_end=end)
                    for record in records_of(records, place):
                        if not keys.isdisjoint(keys_of(record.job)):
                            found.append(f"{number}-{record.offset}")
        finally:
            client.close()
        return found

    def _leave(self, place: str | None, error: InvalidInput) -> None:
        _log.error("not a delayed job", topic=self._topic, place=place, reason=str(error))

    def deliver(self, messages: Sequence[DueMessage]) -> list[Exception | None]:
        """Writes due jobs to their teams; for each why it was not stored, or None.

        What was not comes again, alone: its neighbours are done, and must not be written again.
        """
        stored, refused = set[int](), dict[int, str]()
        outcomes: list[Exception | None] = []
        for at, message in enumerate(messages):
            try:
                job = msgspec.msgpack.decode(message.body, type=Waiting)
                record: dict[str, Any] = {"value": job.value, "headers": job.headers}
                told = partial(_note, stored, refused, at)
                self._producer.produce(job.topic, key=job.key, **record, on_delivery=told)
            except (KafkaException, BufferError) as error:
                refused[at] = str(error)
            except msgspec.DecodeError as error:
                outcomes.append(Reject(f"not a delayed job: {error}"))
                continue
            outcomes.append(None)

        self._producer.flush(_FLUSH_S)
        for at, message in enumerate(messages):
            if outcomes[at] is None and at not in stored:
                again_s = min(_AGAIN_S_MAX, 1 << min(message.attempt, 6))
                why = refused.get(at, f"not acknowledged within {_FLUSH_S:g} s")
                outcomes[at] = Retry(timedelta(seconds=again_s), f"the job is not stored: {why}")
        return outcomes


def _note(
    stored: set[int], refused: dict[int, str], at: int, error: KafkaError | None, _: Message
) -> None:
    """What the broker said of the job at a place."""
    if error is None:
        stored.add(at)
    else:
        refused[at] = error.str()


def draft_of(message: Any) -> Draft:
    """The timeline's message for a record of the topic of delays. Raises `InvalidInput`."""
    headers = {name: value or b"" for name, value in message.headers() or ()}
    topic = headers.pop(TO, b"").decode(errors="replace")
    if not TOPIC_NAME.fullmatch(topic):
        raise InvalidInput(f"its header {TO} names no topic: {topic[:40]!r}")
    due_ms = number_in(headers.pop(NOT_BEFORE, None))
    if due_ms > _DUE_MS_MAX:
        raise InvalidInput(f"its header {NOT_BEFORE} is not a time in milliseconds: {due_ms}")

    # It names the row for the sink and is not part of the job.
    headers.pop(ID_HEADER, None)
    body = Waiting(topic, message.key() or b"", message.value() or b"", list(headers.items()))
    return Draft(
        msgspec.msgpack.encode(body),
        at=due_ms / 1000,
        # Its place in the topic: scheduled twice after a crash, it is there once.
        key=f"{message.partition()}-{message.offset()}",
        headers={name: headers[name] for name in headers.keys() & {TRACEPARENT}},
    )
