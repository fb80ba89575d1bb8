"""Archives a topic to Parquet files, and replays a range of a topic or of an archive.

*archive* is a stream that runs to the end of the topic, with its checkpoint beside the files: run
again, it continues where it stopped. Spark's file sink lists the files of a finished micro-batch in
`_spark_metadata` at once, so a reader sees each record exactly once, whichever process is killed.

*replay* writes a range to another topic. Keys, values, headers and times are kept, and so is the
order within each source partition. What a failed replay wrote stays, and a second run writes the
range from its beginning again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dovetail.errors import InvalidInput
from dovetail.kafka.client.brokers import Brokers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Period = Literal["day", "hour"]

#: Between two progress reports.
_LOOK_S = 0.5

_PERIODS: dict[Period, str] = {"day": "yyyy-MM-dd", "hour": "yyyy-MM-dd-HH"}


@dataclass(frozen=True, slots=True)
class Range:
    """Records with `since_ms` <= time < `until_ms`."""

    since_ms: int | None = None
    until_ms: int | None = None

    def __post_init__(self) -> None:
        if self.since_ms is None or self.until_ms is None:
            return
        if self.since_ms >= self.until_ms:
            raise InvalidInput(
                f"the range is empty: it begins at {self.since_ms} ms and ends before "
                f"{self.until_ms} ms"
            )


def topic_frame(spark: "SparkSession", brokers: Brokers, topic: str) -> "DataFrame":
    """All records of a topic, with headers."""
    reader = spark.read.format("dovetail").options(**brokers.for_tables())
    return reader.options(subscribe=topic, includeHeaders="true").load()


def within(frame: "DataFrame", chosen: Range) -> "DataFrame":
    """The rows of a range."""
    from pyspark.sql import functions as f

    if chosen.since_ms is not None:
        frame = frame.where(f.col("timestamp") >= f.timestamp_millis(f.lit(chosen.since_ms)))
    if chosen.until_ms is not None:
        frame = frame.where(f.col("timestamp") < f.timestamp_millis(f.lit(chosen.until_ms)))
    return frame


def archive(
    spark: "SparkSession",
    brokers: Brokers,
    topic: str,
    path: str,
    *,
    period: Period = "day",
    rows_max: int = 1_000_000,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> int:
    """Appends the records that are not archived yet; returns how many.

    `rows_max` bounds a micro-batch, and so how much is done again after a kill.
    """
    from pyspark.sql import functions as f

    reader = spark.readStream.format("dovetail").options(**brokers.for_tables())
    frame = reader.options(
        subscribe=topic,
        startingOffsets="earliest",
        includeHeaders="true",
        maxOffsetsPerTrigger=str(rows_max),
    ).load()

    dated = frame.withColumn(period, f.date_format("timestamp", _PERIODS[period]))
    writer = dated.writeStream.format("parquet").partitionBy(period).option("path", path)
    query = (
        writer.option("checkpointLocation", f"{path.rstrip('/')}/_checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    return _followed(query, on_rows)


def _followed(query: Any, on_rows: Callable[[int], None]) -> int:
    """Waits for a stream to end and reports its rows; raises what it failed with."""
    done: dict[int, int] = {}
    while True:
        ended = query.awaitTermination(_LOOK_S)
        done |= {one["batchId"]: one["numInputRows"] for one in query.recentProgress}
        on_rows(sum(done.values()))
        if ended:
            return sum(done.values())


def replay(
    spark: "SparkSession",
    brokers: Brokers,
    source: "DataFrame",
    target: str,
    *,
    chosen: Range,
) -> int:
    """Writes a range of a topic or of an archive to a topic; returns the number of rows."""
    rows = within(source, chosen).select(
        "key", "value", "headers", "timestamp", "topic", "partition", "offset"
    )

    # One partition's records stay in one task and in order; the sink keeps a task's order.
    parts = max(1, spark.sparkContext.defaultParallelism)
    ordered = rows.repartition(parts, "topic", "partition").sortWithinPartitions(
        "topic", "partition", "offset"
    )

    counted = ordered.select("key", "value", "headers", "timestamp").cache()
    try:
        writer = counted.write.format("dovetail").mode("append").options(**brokers.for_tables())
        writer.option("topic", target).save()
        return counted.count()
    finally:
        counted.unpersist()
