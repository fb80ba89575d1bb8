"""Reads a topic through `mapInArrow` with Spark's own connector and with our source, in turns.

    python spark_connector_driver.py JARS BOOTSTRAP TOPIC COUNT ROUNDS

Runs in the Spark that `spark_connector` installs. The last line has the rates as JSON.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    import pyarrow as pa

SOURCES = ("dovetail", "kafka")


def same(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """The function that does nothing."""
    return batches


def main(jars: str, bootstrap: str, topic: str, count: str, rounds: str) -> None:
    settings = {
        "spark.jars": ",".join(str(path) for path in Path(jars).glob("*.jar")),
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.python.authenticate.socketTimeout": "60s",
        # Batches of both are as large, where Spark cuts them.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    }
    builder = SparkSession.Builder().master("local[2]").appName("connector")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()

    at = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    frames = {}
    for source in SOURCES:
        reader = spark.read.format(source).options(**at)
        if source == "dovetail":
            # Spark tells its own source of the columns, and a source in Python of none.
            reader = reader.schema("key binary, value binary")
        loaded = reader.load().select("key", "value")
        assert loaded.count() == int(count), source
        frames[source] = loaded.mapInArrow(same, "key binary, value binary")

    best = dict.fromkeys(SOURCES, 0.0)
    # The first round warms.
    for at_round in range(int(rounds) + 1):
        for source, frame in frames.items():
            started = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            rate = int(count) / (time.perf_counter() - started)
            if at_round:
                best[source] = max(best[source], rate)
    spark.stop()
    print(json.dumps(best), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
