"""`dovetail bench`: how fast this machine gets records in and out of a node."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

from dovetail.admin.kafka import Kafka
from dovetail.admin.topics import create_topic, delete_topics
from dovetail.cli.client import kafka_of
from dovetail.cli.options import (
    BootstrapOption,
    CompressionOption,
    JsonOption,
    TimeoutOption,
    examples,
)
from dovetail.cli.output import note, print_json, print_table
from dovetail.cli.program import program
from dovetail.cli.progress import progress_bar
from dovetail.errors import DovetailError, Unavailable

EPILOG = examples(
    "dovetail bench",
    "dovetail bench --messages 1000000 --bytes 100 --partitions 4",
    "dovetail bench --bytes 1024 --json",
)

#: A bench that gets nothing for this long has failed; a healthy node never pauses so long.
STALL_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Rate:
    """How long one direction took."""

    phase: str
    messages: int
    message_bytes: int
    seconds: float

    @property
    def messages_per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def mib_per_second(self) -> float:
        return self.messages * self.message_bytes / self.seconds / 1024**2


def bench(
    ctx: typer.Context,
    messages: Annotated[
        int, typer.Option("--messages", "-n", min=1, help="Number of messages.")
    ] = 200_000,
    size_bytes: Annotated[
        int, typer.Option("--bytes", min=1, max=1_000_000, help="Size of each value.")
    ] = 100,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, help="Of the temporary topic.")
    ] = 1,
    compression: CompressionOption = "none",
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the topic.")] = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast records are produced and consumed, in a temporary topic.

    A record counts as produced when the node has acknowledged it. The figures depend on the node's
    durability setting and on this client process.
    """
    kafka = kafka_of(ctx, bootstrap, timeout)
    topic = f"dovetail-bench-{secrets.token_hex(4)}"
    create_topic(kafka, topic, partitions=partitions, config={})
    try:
        with progress_bar(quiet=as_json) as bar:

            def watch(phase: str) -> Callable[[int], None]:
                task = bar.add_task(phase, total=messages)
                return lambda done: bar.update(task, completed=done)

            rates = [
                _produce(kafka, topic, messages, size_bytes, compression, watch("producing")),
                _consume(kafka, topic, partitions, messages, size_bytes, watch("consuming")),
            ]
    finally:
        if not keep:
            _delete(kafka, topic)

    rows = [
        {
            "phase": rate.phase,
            "messages": rate.messages,
            "bytes_each": rate.message_bytes,
            "seconds": round(rate.seconds, 3),
            "messages_per_second": round(rate.messages_per_second),
            "mib_per_second": round(rate.mib_per_second, 2),
        }
        for rate in rates
    ]
    if as_json:
        print_json({"node": kafka.bootstrap, "partitions": partitions, "phases": rows})
    else:
        columns = list(rows[0])
        print_table(
            [column.replace("_", " ") for column in columns],
            ([row[column] for column in columns] for row in rows),
        )


def _produce(
    kafka: Kafka,
    topic: str,
    messages: int,
    size_bytes: int,
    compression: str,
    on_progress: Callable[[int], None],
) -> Rate:
    failures: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    config = kafka.config(
        enable_idempotence=True,
        linger_ms=5,
        batch_size=1_000_000,
        compression_type=compression,
        delivery_report_only_error=True,
    )
    producer = kafka.call("opening a producer", lambda: Producer(config))
    value = secrets.token_bytes(size_bytes)

    started = time.monotonic()
    for index in range(messages):
        while True:
            try:
                producer.produce(topic, value, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.05)
        if index % 2000 == 0:
            producer.poll(0)
            on_progress(index - len(producer))
        if failures:
            break
    while len(producer) and not failures:
        producer.flush(0.2)
        on_progress(messages - len(producer))
    seconds = time.monotonic() - started

    if failures:
        producer.purge()
        raise kafka.error_of(f"producing to {topic!r}", failures[0])
    return Rate("produce", messages, size_bytes, seconds)


def _consume(
    kafka: Kafka,
    topic: str,
    partitions: int,
    messages: int,
    size_bytes: int,
    on_progress: Callable[[int], None],
) -> Rate:
    config = kafka.config(
        group_id="dovetail-cli",
        enable_auto_commit=False,
        fetch_message_max_bytes=8 * 1024 * 1024,
        queued_min_messages=1_000_000,
        # The library's own second of waiting when its queue is full would count as the node's.
        fetch_queue_backoff_ms=5,
    )
    consumer: Any = Consumer(config)

    try:
        started = last_s = time.monotonic()
        consumer.assign(
            [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)]
        )
        done = 0

        while done < messages:
            # No more than are left, so that the last record ends the wait.
            ask = min(10_000, messages - done)
            batch = kafka.call("reading", partial(consumer.consume, ask, 0.05))
            for message in batch:
                if message.error() is not None:
                    raise kafka.error_of("reading", message.error())
            done += len(batch)
            on_progress(done)
            now_s = time.monotonic()
            last_s = now_s if batch else last_s
            if now_s - last_s > STALL_S_MAX:
                raise Unavailable(
                    f"only {done:,} of {messages:,} messages came back, and nothing for "
                    f"{STALL_S_MAX:g} s"
                )
        return Rate("consume", messages, size_bytes, time.monotonic() - started)
    finally:
        consumer.close()


def _delete(kafka: Kafka, topic: str) -> None:
    try:
        delete_topics(kafka, [topic])
    except DovetailError as error:
        note(f"{error}\nThe topic is still there; delete it: {program()} topic delete {topic}")
