"""`dovetail produce`: lines, one record, or a generated load, into a topic."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from dovetail.admin.kafka import Kafka
from dovetail.cli.client import kafka_of, no_partition, partitions_of
from dovetail.cli.completing import topic_names
from dovetail.cli.options import (
    BootstrapOption,
    CompressionOption,
    JsonOption,
    TimeoutOption,
    bytes_given,
    examples,
    named_values,
)
from dovetail.cli.output import note, plural, print_done
from dovetail.cli.progress import progress_bar
from dovetail.errors import DovetailError, InvalidInput, TopicUnknown, Uncertain, Unreachable

EPILOG = examples(
    "echo 'hello' | dovetail produce orders",
    "dovetail produce orders --key 42 --value 'paid' --header source=shop",
    "dovetail produce orders --file lines.txt --key-separator :",
    "dovetail produce orders --count 1000000 --bytes 100",
)

#: Time that a record may wait in this process unless --timeout says another; longer than any
#: pause of a healthy node.
DELIVERY_MS_MAX = 60_000

#: Time for what is on its way to be acknowledged after Ctrl-C; more would feel like a hang.
INTERRUPTED_S_MAX = 2.0

#: Largest generated record; above it, the default limit of a topic refuses the record anyway.
GENERATED_BYTES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to send."""

    key: bytes | None
    value: bytes | None


ValueOption = Annotated[
    str | None, typer.Option("--value", "-v", metavar="TEXT", help="Value of the record.")
]
KeyOption = Annotated[
    str | None, typer.Option("--key", "-k", metavar="TEXT", help="Key of every record.")
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header; repeatable."),
]
FileOption = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="FILE", help="Read lines from a file."),
]
KeySeparatorOption = Annotated[
    str | None,
    typer.Option(
        "--key-separator", "-K", metavar="TEXT", help="What separates key and value in a line."
    ),
]


def produce(
    ctx: typer.Context,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Topic to write to.", autocompletion=topic_names)
    ],
    value: ValueOption = None,
    key: KeyOption = None,
    header: HeaderOption = None,
    file: FileOption = None,
    key_separator: KeySeparatorOption = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Send this many generated records.")
    ] = None,
    size_bytes: Annotated[
        int,
        typer.Option("--bytes", min=1, max=GENERATED_BYTES_MAX, help="Record size, with --count."),
    ] = 100,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Default: by key, or spread.")
    ] = None,
    compression: CompressionOption = "none",
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write records to a topic, from standard input, a file or the options.

    Each line is a record. Returns when the node has acknowledged every record, each stored once.
    """
    if file is not None and (value is not None or count is not None):
        raise InvalidInput("--file excludes --value and --count: the records are its lines")
    headers = [
        (name, bytes_given(text, "value of a header"))
        for name, text in named_values("--header", header)
    ]
    key_bytes = bytes_given(key, "key") if key is not None else None
    kafka = kafka_of(ctx, bootstrap, timeout)
    _demand(kafka, topic)
    sender = _Sender(
        kafka,
        topic,
        headers=headers,
        partition=partition,
        compression=compression,
        delivery_ms_max=DELIVERY_MS_MAX if timeout is None else round(kafka.timeout_s * 1000),
    )

    started = time.monotonic()
    with ExitStack() as stack:
        records: Iterable[Outgoing]
        if value is not None or count is not None:
            body = bytes_given(value, "value") if value is not None else b"x" * size_bytes
            records = repeat(Outgoing(key_bytes, body), count or 1)
        else:
            stream = stack.enter_context(_open(file)) if file else sys.stdin.buffer
            if file is None and sys.stdin.isatty():
                note("type one record per line; Ctrl-D ends the input")
            records = _lines(stream, key_bytes, key_separator)
        bar = stack.enter_context(progress_bar(quiet=count is None and file is None))
        task = bar.add_task(f"producing to {topic}", total=count)
        sender.send_all(records, lambda done: bar.update(task, completed=done))
    _report(topic, sender, time.monotonic() - started, as_json=as_json)


def _demand(kafka: Kafka, topic: str) -> None:
    """Raises `TopicUnknown` at once where nobody can create the topic meanwhile.

    One broker of several may not have heard of a new topic yet; the producer goes on asking.
    """
    try:
        partitions_of(kafka, topic)
    except TopicUnknown:
        if len(kafka.metadata().brokers) <= 1:
            raise


def _report(topic: str, sender: "_Sender", elapsed_s: float, *, as_json: bool) -> None:
    rate = sender.acknowledged / max(elapsed_s, 1e-9)
    many = f" ({rate:,.0f} per second)" if sender.acknowledged > 1 else ""
    print_done(
        as_json,
        {
            "topic": topic,
            "records": sender.acknowledged,
            "bytes": sender.bytes_sent,
            "seconds": round(elapsed_s, 3),
        },
        f"{plural(sender.acknowledged, 'record')} acknowledged in {elapsed_s:.2f} s{many}",
    )


class _Sender:
    """Sends records with an idempotent producer and counts what was acknowledged."""

    def __init__(
        self,
        kafka: Kafka,
        topic: str,
        *,
        headers: list[tuple[str, bytes]],
        partition: int | None,
        compression: str,
        delivery_ms_max: int,
    ) -> None:
        self._kafka = kafka
        self._topic = topic
        self._fixed: dict[str, Any] = {"headers": headers} if headers else {}
        if partition is not None:
            self._fixed["partition"] = partition
        config = kafka.config(
            enable_idempotence=True,
            linger_ms=5,
            compression_type=compression,
            message_timeout_ms=max(1, delivery_ms_max),
            topic_metadata_propagation_max_ms=int(kafka.timeout_s * 1000),
        )
        self._producer = kafka.call("opening a producer", lambda: Producer(config))
        self._failure: DovetailError | None = None
        self._failed = 0
        self.acknowledged = 0
        self.bytes_sent = 0

    def send_all(self, records: Iterable[Outgoing], on_progress: Any) -> None:
        """Sends until the records end or one fails; raises that failure with the numbers."""
        try:
            self._send_all(records, on_progress)
        except KeyboardInterrupt:
            self._settle()
            raise
        if self._failure is not None:
            were = "was" if self.acknowledged == 1 else "were"
            were_not = "was" if self._failed == 1 else "were"
            raise type(self._failure)(
                f"{self._failure}\n{plural(self.acknowledged, 'record')} {were} acknowledged, "
                f"{self._failed:,} {were_not} not."
            ) from self._failure

    def _send_all(self, records: Iterable[Outgoing], on_progress: Any) -> None:
        try:
            for index, record in enumerate(records):
                self._send(record)
                if index % 1000 == 0:
                    on_progress(self.acknowledged)
                if self._failure is not None:
                    self._producer.purge()
                    break
        except InvalidInput as error:
            # What is no record, or too large, ends the input; what came before it is still sent.
            self._failure = error
        while len(self._producer):
            self._producer.flush(0.2)
            on_progress(self.acknowledged)

    def _settle(self) -> None:
        """Waits a moment for what is on its way, and says what has become of the records."""
        self._producer.purge(in_queue=True, in_flight=False)
        self._producer.flush(INTERRUPTED_S_MAX)
        unknown = len(self._producer)
        rest = f"; {unknown:,} more may or may not be stored" if unknown else ""
        note(f"{plural(self.acknowledged, 'record')} acknowledged before the interruption{rest}")

    def _send(self, record: Outgoing) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    value=record.value,
                    key=record.key,
                    on_delivery=self._on_delivery,
                    **self._fixed,
                )
            except BufferError:
                self._producer.poll(0.1)
                if self._failure is not None:
                    return
                continue
            except KafkaException as error:
                self._failed += 1
                self._failure = self._error_of(error.args[0])
                if isinstance(self._failure, InvalidInput):
                    raise self._failure from error
                return
            self.bytes_sent += len(record.value or b"") + len(record.key or b"")
            self._producer.poll(0)
            return

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acknowledged += 1
            return
        self._failed += 1
        if self._failure is None:
            self._failure = self._error_of(error)

    def _error_of(self, error: KafkaError) -> DovetailError:
        doing = f"producing to {self._topic!r}"
        if error.code() == KafkaError._UNKNOWN_PARTITION and "partition" in self._fixed:
            partitions = self._kafka.metadata().topics.get(self._topic)
            if partitions is not None:
                return no_partition(self._topic, self._fixed["partition"], count=len(partitions))
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            try:
                partitions_of(self._kafka, self._topic)
            except TopicUnknown as unknown:
                return unknown
        found = self._kafka.error_of(doing, error, changes=True)
        return Unreachable(str(found)) if isinstance(found, Uncertain) else found


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error


def _lines(stream: BinaryIO, key: bytes | None, key_separator: str | None) -> Iterator[Outgoing]:
    separator = key_separator.encode() if key_separator else None
    for number, line in enumerate(stream, start=1):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if separator is None:
            yield Outgoing(key, text)
            continue
        line_key, found, value = text.partition(separator)
        if not found:
            raise InvalidInput(f"line {number} has no key separator {key_separator!r}")
        yield Outgoing(line_key, value)
