"""`dovetail consume`: read a topic to its end or follow it, alone or in a group.

Alone, it reads each partition from the given position up to the end that the partition had at the
start; with `--follow` it waits for more. In a group it continues where the group stopped, and
commits after printing: a crash can make it print a record twice, never skip one.
"""

import base64
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from dovetail.admin.kafka import Kafka, Partition
from dovetail.admin.positions import Position, all_bounds_of, parse_position, resolve
from dovetail.cli.client import kafka_of, no_partition, partitions_of
from dovetail.cli.completing import group_names, topic_names
from dovetail.cli.options import BootstrapOption, JsonLinesOption, TimeoutOption, examples
from dovetail.cli.printable import json_text, printable
from dovetail.cli.program import program
from dovetail.errors import InvalidInput

EPILOG = examples(
    "dovetail consume orders",
    "dovetail consume orders --follow --from end",
    "dovetail consume orders --from 2026-01-31T08:00 --count 10 --json",
    "dovetail consume orders --group billing --follow",
)

#: Records asked for at once; the wait is short so that Ctrl-C is felt at once.
BATCH_RECORDS_MAX = 500
POLL_S = 0.2


def consume(
    ctx: typer.Context,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Topic to read.", autocompletion=topic_names)
    ],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more at the end; Ctrl-C stops.")
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="POSITION", help="beginning (default), end, an offset or a time."
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after this many records.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Read as a member of this group.",
            autocompletion=group_names,
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Only this partition.")
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Print the key and a tab first.")] = False,
    headers: Annotated[bool, typer.Option("--headers", help="Print the headers first.")] = False,
    as_json: JsonLinesOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Print the records of a topic, one per line."""
    position = parse_position(start) if start else Position("beginning")
    if group is not None and (partition is not None or position.kind in {"offset", "time"}):
        raise InvalidInput(
            "a group keeps its own positions: with --group, --from can only be beginning or end "
            "(where the group has none yet), and --partition is not allowed; "
            f"move a group with `{program()} group reset`"
        )
    if as_json:
        render: Callable[[Message], bytes] = render_json
    else:
        escape = sys.stdout.isatty()

        def render(message: Message) -> bytes:
            return render_text(message, keys=keys, headers=headers, escape=escape)

    kafka = kafka_of(ctx, bootstrap, timeout)
    if group is not None:
        _read_in_group(kafka, topic, group, position, render=render, follow=follow, count=count)
    else:
        _read_alone(kafka, topic, partition, position, render=render, follow=follow, count=count)


@contextmanager
def _reading(consumer: Consumer, *, follow: bool) -> Iterator[None]:
    """Closes the consumer at the end.

    Ctrl-C is how following is meant to end, once it has begun: before, and without `--follow`, it
    is an interruption, and the exit code must not call that a success.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not follow:
            raise
    finally:
        consumer.close()


def _read_alone(
    kafka: Kafka,
    topic: str,
    partition: int | None,
    position: Position,
    *,
    render: Callable[[Message], bytes],
    follow: bool,
    count: int | None,
) -> None:
    partitions = partitions_of(kafka, topic)
    if partition is not None:
        if (topic, partition) not in partitions:
            raise no_partition(topic, partition, count=len(partitions))
        partitions = [(topic, partition)]
    bounds = all_bounds_of(kafka, partitions)
    starts = resolve(kafka, position, bounds)

    ends = {key: bound.end for key, bound in bounds.items() if follow or starts[key] < bound.end}
    if not ends:
        return
    consumer = _consumer(kafka, group_id="dovetail-cli", reset="earliest")
    with _reading(consumer, follow=follow):
        consumer.assign([TopicPartition(*key, starts[key]) for key in ends])
        until = None if follow else ends
        _print_records(consumer, kafka, render=render, until=until, count=count)


def _print_records(
    consumer: Consumer,
    kafka: Kafka,
    *,
    render: Callable[[Message], bytes],
    until: Mapping[Partition, int] | None,
    count: int | None,
) -> None:
    open_until = dict(until) if until is not None else None
    left = count
    while (left is None or left > 0) and (open_until is None or open_until):
        printed = []
        for message in _poll(consumer, kafka, left):
            key = (str(message.topic()), int(message.partition() or 0))
            offset = int(message.offset() or 0)
            if open_until is not None:
                if key not in open_until:
                    continue
                if offset >= open_until[key] - 1 or message.error() is not None:
                    end = open_until.pop(key)
                    if offset >= end:
                        continue
            if message.error() is None:
                printed.append(render(message))
        _write(printed)
        if left is not None:
            left -= len(printed)


def _read_in_group(
    kafka: Kafka,
    topic: str,
    group: str,
    position: Position,
    *,
    render: Callable[[Message], bytes],
    follow: bool,
    count: int | None,
) -> None:
    partitions_of(kafka, topic)
    reset = "earliest" if position.kind == "beginning" else "latest"
    consumer = _consumer(kafka, group_id=group, reset=reset)
    assigned: set[Partition] | None = None
    at_end: set[Partition] = set()

    def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
        nonlocal assigned
        assigned = {(item.topic, item.partition) for item in partitions}
        at_end.clear()

    with _reading(consumer, follow=follow):
        consumer.subscribe([topic], on_assign=on_assign)
        left = count

        while left is None or left > 0:
            printed: list[bytes] = []
            last: Message | None = None
            for message in _poll(consumer, kafka, left):
                key = (str(message.topic()), int(message.partition() or 0))
                if message.error() is not None:
                    at_end.add(key)
                    continue
                at_end.discard(key)
                printed.append(render(message))
                last = message
                consumer.store_offsets(message=message)

            _write(printed)
            if last is not None:
                kafka.call(
                    f"committing positions of group {group!r}",
                    lambda: consumer.commit(asynchronous=False),
                )
            if left is not None:
                left -= len(printed)
            if not follow and assigned is not None and assigned <= at_end:
                break


def _consumer(kafka: Kafka, *, group_id: str, reset: str) -> Consumer:
    return Consumer(
        kafka.config(
            group_id=group_id,
            auto_offset_reset=reset,
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            enable_partition_eof=True,
            fetch_wait_max_ms=100,
        )
    )


def _poll(consumer: Consumer, kafka: Kafka, left: int | None) -> Iterable[Message]:
    """The next messages; the end of a partition comes as one whose error says so."""
    ask = BATCH_RECORDS_MAX if left is None else min(left, BATCH_RECORDS_MAX)
    messages: list[Message] = kafka.call(
        "reading", lambda: consumer.consume(num_messages=ask, timeout=POLL_S)
    )
    for message in messages:
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            yield message
        elif not error.retriable() and error.code() not in {
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._TRANSPORT,
        }:
            raise kafka.error_of("reading", error)


def _write(lines: Iterable[bytes]) -> None:
    block = b"".join(line + b"\n" for line in lines)
    if block:
        sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()


def render_json(message: Message) -> bytes:
    """The record as one JSON object; bytes that are not UTF-8 become {"base64": "..."}."""
    _, timestamp_ms = message.timestamp()
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC) if timestamp_ms >= 0 else None
    record = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": timestamp_ms if moment else None,
        "time": moment.isoformat(timespec="milliseconds") if moment else None,
        "key": readable(message.key()),
        "value": readable(message.value()),
        "headers": [[name, readable(value)] for name, value in _header_pairs(message)],
    }
    return json_text(record).encode()


def render_text(message: Message, *, keys: bool, headers: bool, escape: bool) -> bytes:
    """The record as a line: headers, key, value, with tabs between.

    With `escape`, control characters are shown, not sent: a record must not command a terminal.
    """
    parts = []
    if headers:
        pairs = (name.encode() + b"=" + (value or b"") for name, value in _header_pairs(message))
        parts.append(b",".join(pairs))
    if keys:
        parts.append(message.key() or b"")
    parts.append(message.value() or b"")
    line = b"\t".join(parts)
    if not escape:
        return line
    return printable(line.decode(errors="replace"), keep="\t").encode()


def _header_pairs(message: Message) -> list[tuple[str, bytes | None]]:
    pairs: Any = message.headers() or []
    return list(pairs)


def readable(content: bytes | None) -> object:
    """Text as it is; bytes that are not UTF-8 as {"base64": "..."}."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
