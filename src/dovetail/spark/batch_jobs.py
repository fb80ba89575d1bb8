"""Spark jobs over topics: archive to Parquet, replay a range, statistics per window.

- *archive* is a stream that runs to the end of what is there, with its checkpoint beside the
  files: run again, it goes on where it stopped. Spark's file sink lists the files of a finished
  micro-batch in `_spark_metadata` at once, so that a reader sees each record exactly once, whatever
  was killed on the way.
- *replay* writes a range of a topic, or of an archive of it, to another topic: keys, values,
  headers and times as they were, in order within each partition it came from. A job that fails is
  not resumed: what it wrote stays.
- *statistics* count records, bytes and keys per window of the records' own times; *lateness* is how
  far a record's time lies behind the latest before it in its partition; *skew* is the share of the
  fullest partition over an even share (1 is even).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from dovetail.errors import InvalidInput
from dovetail.kafka.client.brokers import Brokers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Period = Literal["day", "hour"]

#: Between two looks at how far a job is.
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
                f"the range is empty: it begins at {self.since_ms} and ends before "
                f"{self.until_ms} (milliseconds)"
            )


@dataclass(frozen=True, slots=True)
class WindowStatistics:
    """What happened in one window of time."""

    start: datetime
    records: int
    bytes: int
    keys: int
    late_ms_max: float
    late_ms_p99: float
    hot_partition: int
    skew: float


def topic_frame(spark: "SparkSession", brokers: Brokers, topic: str) -> "DataFrame":
    """A topic with headers, all that is there."""
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
    """Appends to Parquet files what a topic has and they do not; returns the rows.

    `rows_max` bounds a micro-batch, and so what is lost if it is killed: the work, no record.
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
    """Waits for a stream to end, telling how many rows it has done; raises what it failed with."""
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
    """Writes a range of a topic or an archive to a topic; returns the rows."""
    rows = within(source, chosen).select(
        "key", "value", "headers", "timestamp", "topic", "partition", "offset"
    )
    parts = max(1, spark.sparkContext.defaultParallelism)
    # One partition's records stay in one task and in order; the sink keeps a task's order.
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


def statistics(
    frame: "DataFrame", *, window: str = "1 hour", chosen: Range = Range()
) -> list[WindowStatistics]:
    """One row for each window that has records, in order of time."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    earlier = Window.partitionBy("topic", "partition").orderBy("offset")
    latest = f.max("timestamp").over(earlier.rowsBetween(Window.unboundedPreceding, 0))
    size = f.coalesce(f.length("key"), f.lit(0)) + f.coalesce(f.length("value"), f.lit(0))
    # Lateness looks at what came before a record, also before the range.
    marked = within(
        frame.withColumn(
            "late_ms",
            (f.unix_micros(latest) - f.unix_micros(f.col("timestamp"))) / f.lit(1_000),
        ),
        chosen,
    ).withColumn("window", f.window("timestamp", window)["start"])
    whole = marked.groupBy("window").agg(
        f.count("*").alias("records"),
        f.sum(size).alias("bytes"),
        f.approx_count_distinct("key").alias("keys"),
        f.max("late_ms").alias("late_ms_max"),
        f.percentile_approx("late_ms", 0.99).alias("late_ms_p99"),
    )
    fullest = (
        marked.groupBy("window", "partition")
        .agg(f.count("*").alias("held"))
        .groupBy("window")
        .agg(f.max(f.struct("held", "partition")).alias("hot"))
    )
    partitions = frame.select("topic", "partition").distinct().count()
    return [
        WindowStatistics(
            row["window"],
            row["records"],
            row["bytes"],
            row["keys"],
            row["late_ms_max"],
            row["late_ms_p99"],
            row["hot"]["partition"],
            row["hot"]["held"] * partitions / row["records"],
        )
        for row in whole.join(fullest, "window").orderBy("window").collect()
    ]
