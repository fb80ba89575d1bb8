"""Tests that need Java: skipped where there is none, failed in CI; and what makes it start fast.

Half of what a short Spark program costs is loading classes: 8.3 s of a processor, and 4.4 s from an
archive in which Java finds them parsed and verified. A run of the tests starts dozens of such
Javas. `python -m tests.java` makes the archive beside the Python of this environment, once; `make
test` does that. Without it all works, slowly, and Java ignores one that does not fit.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.spark.runtime import JavaMissing, find_java

#: A test is over before Java's second compiler and its parallel collector pay.
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Programs of Apache Kafka have another class path, and Java would warn on their standard output.
_SILENT = "-Xlog:disable"
_TRAINING_S_MAX = 300


def need_java() -> None:
    """Skips the test without Java; in CI it fails."""
    try:
        find_java(os.environ)
    except JavaMissing as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


def options() -> str:
    """What every Java of the tests is told, by `JAVA_TOOL_OPTIONS`."""
    archive = _archive()
    if archive is None or not archive.exists():
        return OPTIONS
    return f"{OPTIONS} {_SILENT} -XX:SharedArchiveFile={archive}"


def _archive() -> Path | None:
    """Where the classes of this PySpark for this Java are kept."""
    try:
        import pyspark

        java = find_java(os.environ).home
    except (ImportError, JavaMissing):
        return None
    fit = f"{pyspark.__version__} {pyspark.__file__} {java}"
    if (release := java / "release").exists():
        fit += release.read_text()
    return Path(sys.prefix) / f"spark-{hashlib.sha256(fit.encode()).hexdigest()[:16]}.jsa"


def make_archive() -> None:
    """Runs Spark once; when its Java ends, it writes down which classes it loaded."""
    archive = _archive()
    if archive is None or archive.exists():
        return
    made = archive.with_suffix(f".{os.getpid()}")
    environment = {
        **os.environ,
        "JAVA_TOOL_OPTIONS": f"{OPTIONS} {_SILENT} -XX:ArchiveClassesAtExit={made}",
        "JAVA_HOME": str(find_java(os.environ).home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.java", "train"],
        env=environment,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=False,
        timeout=_TRAINING_S_MAX,
    )
    # Spark's launcher leaves a small one of its own, which the Java behind it replaces.
    if done.returncode == 0:
        made.replace(archive)
    else:
        made.unlink(missing_ok=True)


def _train() -> None:
    """What most of the tests make Spark do: a query, a stream, functions in Python, Arrow."""
    from pyspark.sql import DataFrame, SparkSession

    def batch(rows: DataFrame, _number: int) -> None:
        rows.mapInArrow(lambda tables: tables, rows.schema).collect()

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = spark.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    session.range(9).selectExpr("id % 3 AS k").groupBy("k").count().collect()
    stream = session.readStream.format("rate").load().writeStream.foreachBatch(batch)
    stream.trigger(availableNow=True).start().awaitTermination()
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    # It ends when its standard input does, and only then are its classes written.
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    if sys.argv[1:] == ["train"]:
        _train()
    else:
        make_archive()
