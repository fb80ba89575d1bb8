"""The options of `format("dovetail")`: names and meanings as in Spark's Kafka source and sink.

Pure: strings in, a frozen object out, or `InvalidInput` that names the option, its value and what
to write instead. Options that contradict each other are refused, even where Spark's own source
silently prefers one. `option_list` has every option; `given_options` parses them one by one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dovetail.compression import codec_number
from dovetail.errors import InvalidInput
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import (
    EARLIEST,
    LATEST,
    USUAL_MANNERS,
    KafkaClient,
    Manners,
    Partition,
    client_of,
)
from dovetail.logging import get_logger
from dovetail.spark.fetching import FETCH_BYTES, USUAL_SIZES, FetchSizes
from dovetail.spark.given_options import GivenOptions
from dovetail.spark.offsets import Bound

_CHOICES = ("subscribe", "subscribePattern", "assign")
_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")

#: Spark's maxTriggerDelay by default.
_DELAY_MS_MAX = 15 * 60 * 1000
#: What one task of a batch reads: what it reads of files, spark.sql.files.maxPartitionBytes.
TASK_BYTES = 128 * 1024 * 1024
#: Of a record batch before compression; brokers take 1 MiB by default, with a header of 61 bytes.
BATCH_BYTES = 950_000
#: What a batch has beside its records, at most.
_HEADER_BYTES = 1024

#: The levels that Kafka takes; -1 is its word for gzip's default.
_LEVELS = {"gzip": (-1, 9), "lz4": (1, 17), "zstd": (-131_072, 22)}

_log = get_logger("spark")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read; exactly one of `topics`, `pattern` and `assigned` is set."""

    brokers: Brokers
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[Partition, ...] = ()
    starting: Bound | None = None
    ending: Bound | None = None
    #: For a time after the last record: fail, or begin at the end.
    time_without_record: Literal["error", "latest"] = "error"
    rows_max: int | None = None
    #: A stream waits until there are so many, but no longer than the delay.
    rows_min: int | None = None
    delay_ms_max: int = _DELAY_MS_MAX
    partitions_min: int | None = None
    task_rows_max: int | None = None
    #: Of a batch: a larger range is given to several tasks.
    task_bytes_max: int = TASK_BYTES
    fail_on_data_loss: bool = True
    include_headers: bool = False
    #: Positions are committed to this group, for display only.
    group: str | None = None
    #: Whether records of open and of aborted transactions are left out.
    committed: bool = False
    sizes: FetchSizes = USUAL_SIZES
    manners: Manners = USUAL_MANNERS

    @classmethod
    def of(cls, given: Mapping[str, str], *, of_table: bool = False) -> "ReadOptions":
        """From the options of `read` or `readStream`, or `of_table`. Raises `InvalidInput`."""
        options = GivenOptions(given, "read", both_sides=of_table)
        # One table is for reading and writing: what it writes to is what it reads.
        choices = (*_CHOICES, "topic") if of_table and options.none_of(_CHOICES) else _CHOICES
        chosen = options.one_of(choices, needed="which topics to read")
        pattern = options.text("subscribePattern")
        if pattern is not None:
            options.check_pattern(pattern)
        isolation = options.choice("kafka.isolation.level", ("read_uncommitted", "read_committed"))
        strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"))
        rows_min, rows_max = (options.number(f"{word}OffsetsPerTrigger") for word in ("min", "max"))
        if rows_min is not None and rows_max is not None and rows_min > rows_max:
            raise InvalidInput(
                f"minOffsetsPerTrigger is {rows_min}, above maxOffsetsPerTrigger {rows_max}"
            )
        delay_ms = options.milliseconds("maxTriggerDelay")

        return cls(
            brokers=options.brokers(),
            topics=options.names(chosen) if chosen in ("subscribe", "topic") else (),
            pattern=pattern,
            assigned=options.assigned() if chosen == "assign" else (),
            starting=options.bound(_STARTS),
            ending=options.bound(_ENDS),
            time_without_record="latest" if strategy == "latest" else "error",
            rows_max=rows_max,
            rows_min=rows_min,
            delay_ms_max=_DELAY_MS_MAX if delay_ms is None else delay_ms,
            partitions_min=options.number("minPartitions"),
            task_rows_max=options.number("maxRecordsPerPartition"),
            task_bytes_max=options.number("maxBytesPerPartition") or TASK_BYTES,
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            include_headers=options.flag("includeHeaders", default=False),
            group=options.text("kafka.group.id"),
            committed=isolation == "read_committed",
            sizes=_sizes(options),
            manners=options.manners(give_up="kafka.default.api.timeout.ms"),
        )

    def client(self) -> KafkaClient:
        """The client of this thread for these brokers."""
        return client_of(self.brokers, self.manners)

    def check_streaming(self) -> None:
        """Raises `InvalidInput` for what a stream cannot have."""
        if self.ending is not None:
            raise InvalidInput("a stream has no end; leave endingOffsets and endingTimestamp out")

    def check_batch(self) -> None:
        """Raises `InvalidInput` for what a batch cannot have."""
        if self.starting is not None and not self.starting.by_time:
            offsets = (self.starting.everywhere, *self.starting.each.values())
            if LATEST in offsets:
                raise InvalidInput("a batch that starts at the latest offset has nothing to read")
        if self.ending is not None and not self.ending.by_time:
            offsets = (self.ending.everywhere, *self.ending.each.values())
            if EARLIEST in offsets:
                raise InvalidInput("a batch that ends at the earliest offset has nothing to read")
        if self.rows_max is not None or self.rows_min is not None:
            _log.warning("maxOffsetsPerTrigger and minOffsetsPerTrigger have no effect in a batch")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where and how to write."""

    brokers: Brokers
    #: For all rows; None: each row names its own in the column `topic`.
    topic: str | None = None
    codec: int = 0
    #: Of compression; None: the codec's own.
    level: int | None = None
    #: Of a record batch before compression.
    batch_bytes_max: int = BATCH_BYTES
    #: Rows are spread though they have keys.
    ignore_keys: bool = False
    #: The term of the master that runs the query; None: there is no election.
    term: int | None = None
    #: By id: whether a task fails if a stored row has another value, so that its next run can
    #: continue from that row. Otherwise the stored row silently stays.
    conflicts_fail: bool = False
    #: Which write a batch is: an application and its version; None: one that is not repeated.
    transaction: tuple[str, int] | None = None
    #: A row of a table has no time, no offset and no type of a time; see `tables`.
    of_table: bool = False
    manners: Manners = USUAL_MANNERS

    @classmethod
    def of(cls, given: Mapping[str, str], *, of_table: bool = False) -> "WriteOptions":
        """From the options of `write` or `writeStream`, or `of_table`. Raises `InvalidInput`."""
        options = GivenOptions(given, "write", both_sides=of_table)
        options.flag("includeHeaders", default=True)
        codec = options.text("kafka.compression.type") or "none"
        return cls(
            brokers=options.brokers(),
            topic=_topic(options, of_table=of_table),
            codec=codec_number(codec),
            level=_level(options, codec),
            batch_bytes_max=_batch_bytes(options),
            ignore_keys=options.flag("kafka.partitioner.ignore.keys", default=False),
            term=options.number("term", least=0),
            conflicts_fail=options.choice("idConflict", ("keep", "fail")) == "fail",
            transaction=_transaction(options),
            of_table=of_table,
            manners=options.manners(give_up="kafka.delivery.timeout.ms"),
        )

    def client(self) -> KafkaClient:
        """The client of this thread for these brokers."""
        return client_of(self.brokers, self.manners)


def _sizes(options: GivenOptions) -> FetchSizes:
    usual = USUAL_SIZES
    limits = (
        options.size(f"kafka.{name}") for name in ("fetch.max.bytes", "max.partition.fetch.bytes")
    )
    bytes_min = options.size("kafka.fetch.min.bytes")
    wait_ms = options.size("kafka.fetch.max.wait.ms", least=0)
    patience_ms = options.size("kafkaConsumer.pollTimeoutMs")
    return FetchSizes(
        bytes_max=min((limit for limit in limits if limit is not None), default=FETCH_BYTES),
        bytes_min=usual.bytes_min if bytes_min is None else bytes_min,
        wait_ms=usual.wait_ms if wait_ms is None else wait_ms,
        patience_s=None if patience_ms is None else patience_ms / 1000,
    )


def _topic(options: GivenOptions, *, of_table: bool) -> str | None:
    """Where rows go; a table that reads one topic writes to it."""
    topic = options.text("topic")
    if topic is None and of_table and options.text("subscribe") is not None:
        names = options.names("subscribe")
        return names[0] if len(names) == 1 else None
    return topic


def _transaction(options: GivenOptions) -> tuple[str, int] | None:
    """Which write this is. Raises `InvalidInput` for half of it."""
    application, version = options.text("txnAppId"), options.number("txnVersion", least=0)
    if application is None and version is None:
        return None
    if application is None or version is None:
        raise InvalidInput("give both txnAppId and txnVersion, or neither")
    return application, version


def _level(options: GivenOptions, codec: str) -> int | None:
    """The level of the codec that is used; those of others are taken, as Kafka takes them."""
    levels = {
        name: options.number(f"kafka.compression.{name}.level", least=least, most=most)
        for name, (least, most) in _LEVELS.items()
    }
    level = levels.get(codec)
    # Kafka's own word for gzip's default.
    return None if codec == "gzip" and level == -1 else level


def _batch_bytes(options: GivenOptions) -> int:
    request_bytes = options.size("kafka.max.request.size", least=2 * _HEADER_BYTES)
    batch_bytes = options.size("kafka.batch.size", least=0)
    limits = [BATCH_BYTES if request_bytes is None else request_bytes - _HEADER_BYTES]
    if batch_bytes is not None:
        # Kafka takes 0 for a batch for each record.
        limits.append(max(1, batch_bytes))
    return min(limits)
