"""Produce and consume through confluent-kafka, as an ordinary user of it would.

A produced message counts when it is acknowledged: the clock stops when `flush` has seen every
delivery report. Reports of success are not called back one by one (`delivery.report.only.error`),
which would measure Python's calls and not the log; an error raises.
"""

import multiprocessing
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

#: For throughput: batches of 1 MB, and a queue so deep that the sender never waits for us.
THROUGHPUT: Mapping[str, object] = {
    "linger.ms": 10,
    "batch.size": 1_000_000,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_000_000,
}

#: With the default of 100,000 messages in its queue the client pauses fetching for a second at a
#: time (fetch.queue.backoff.ms): 0.2 million messages a second instead of 1.7 million.
READING: Mapping[str, object] = {"queued.min.messages": 1_000_000}

#: Messages of one `produce_batch`.
_BATCH = 1000

#: Messages handed over between two looks at the delivery reports.
_POLL_EVERY = 10_000

#: Nothing is silent for so long unless it is broken.
STALL_S_MAX = 60.0


class NotDelivered(Exception):
    """The node refused a message, or did not answer for it."""


def create_topic(bootstrap: str, name: str, *, partitions: int = 1) -> str:
    """A new topic; returns its name once clients can use it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = f"{name}-{uuid.uuid4().hex[:8]}"
    made = admin.create_topics([NewTopic(topic, partitions, -1)])
    made[topic].result(STALL_S_MAX)
    return topic


class Span(NamedTuple):
    """When something began and ended, on the clock that all processes of a machine share."""

    started: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.started


def produce(
    bootstrap: str,
    topic: str,
    *,
    messages: int,
    message_bytes: int,
    idempotent: bool = False,
    by_batch: bool = False,
    batch_messages: int | None = None,
) -> Span:
    """From the first message to the last acknowledgement. Raises `NotDelivered`.

    With `batch_messages` a record batch has at most so many.

    `by_batch` hands messages to the client by the thousand instead of one by one, which saves a
    third of the client's processor time.
    """
    failures: list[str] = []

    def on_failure(error: object, _: object) -> None:
        failures.append(str(error))

    sender = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": idempotent,
            "delivery.report.only.error": True,
            **THROUGHPUT,
            **({} if batch_messages is None else {"batch.num.messages": batch_messages}),
        }
    )
    value = b"x" * message_bytes
    sender.list_topics(topic, timeout=STALL_S_MAX)
    hand_over = _hand_over_batches if by_batch else _hand_over_singly
    started = time.perf_counter()
    hand_over(sender, topic, value, messages, on_failure)
    missing = sender.flush(STALL_S_MAX)
    ended = time.perf_counter()
    if failures or missing:
        raise NotDelivered(f"{missing} without an answer, refused: {failures[:3]}")
    return Span(started, ended)


OnFailure = Callable[[object, object], None]


def _hand_over_singly(
    sender: Producer, topic: str, value: bytes, messages: int, on_failure: OnFailure
) -> None:
    send, poll = sender.produce, sender.poll
    for at in range(messages):
        if at % _POLL_EVERY == 0:
            poll(0)
        while True:
            try:
                send(topic, value, on_delivery=on_failure)
                break
            except BufferError:
                poll(0.01)


def _hand_over_batches(
    sender: Producer, topic: str, value: bytes, messages: int, on_failure: OnFailure
) -> None:
    batch = [{"value": value} for _ in range(_BATCH)]
    taken = 0
    while taken < messages:
        wanted = batch[: messages - taken]
        count = sender.produce_batch(topic, wanted, on_delivery=on_failure)
        taken += count
        sender.poll(0.01 if count < len(wanted) else 0)


def produce_from(
    processes: int, bootstrap: str, topic: str, *, messages: int, message_bytes: int
) -> Span:
    """`produce` by the batch from several processes at once, `messages` each."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        spans = [
            pool.submit(
                produce,
                bootstrap,
                topic,
                messages=messages,
                message_bytes=message_bytes,
                by_batch=True,
            )
            for _ in range(processes)
        ]
        found = [span.result() for span in spans]
    return Span(min(span.started for span in found), max(span.ended for span in found))


def consume(bootstrap: str, topic: str, *, messages: int) -> Span:
    """Reads all messages under a group, with a commit behind every 10,000; waits for the last."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"bench-{uuid.uuid4().hex[:8]}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **READING,
        }
    )
    # Joining a group waits for other members by design; what is measured is reading.
    reader.assign([TopicPartition(topic, 0, 0)])
    seen, silent_since = 0, time.perf_counter()
    started = time.perf_counter()
    while seen < messages:
        found = reader.consume(10_000, timeout=1.0)
        for message in found:
            if message.error():
                raise NotDelivered(str(message.error()))
        if found:
            seen += len(found)
            silent_since = time.perf_counter()
            last = found[-1]
            reader.commit(message=last, asynchronous=True)
        elif time.perf_counter() - silent_since > STALL_S_MAX:
            raise NotDelivered(f"nothing for {STALL_S_MAX} s after {seen} of {messages} messages")
    reader.commit(message=last, asynchronous=False)
    ended = time.perf_counter()
    reader.close()
    return Span(started, ended)
