"""Statistics of a topic per window of time: records, bytes, keys, lateness and skew.

Windows follow the records' own times. *Lateness* is how far a record's time lies behind the latest
time before it in its partition; *skew* is the share of the fullest partition over an even share
(1 is even).
"""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from dovetail.spark.archive import Range, within

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
