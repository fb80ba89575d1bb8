"""A Spark session that knows `format("dovetail")`, with defaults for small micro-batches."""

import os
import sys
from typing import TYPE_CHECKING

from dovetail.errors import InvalidInput, Unavailable
from dovetail.spark.runtime import find_java, python_program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

#: Spark settings that the caller does not set.
DEFAULTS = {
    # Batches go to Python in columns.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # One Arrow batch of a fetch has tens of thousands of rows; 10,000 would cut it up again.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # A query that shuffles little is served by few partitions; 200 is for large clusters.
    "spark.sql.shuffle.partitions": "4",
    # The next micro-batch starts as soon as there is something.
    "spark.sql.streaming.pollingDelay": "10ms",
    # Without stateful operators a batch without data does nothing.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # The checkpoint keeps what a restart can need, and not a hundred files of it.
    "spark.sql.streaming.minBatchesToRetain": "20",
    # Its web server costs a second of start-up; our reports show the progress.
    "spark.ui.enabled": "false",
    # Its bar on standard error would disturb our own display.
    "spark.ui.showConsoleProgress": "false",
    # A Python worker connects back within so long of its start; 15 s are short on a loaded machine.
    "spark.python.authenticate.socketTimeout": "60s",
    # No name server is asked for this machine's address.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Without Hadoop's native library the default one starts child processes for each file of a
    # local checkpoint: 70 to 145 ms of a micro-batch. Both look before they rename (decision 52).
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
}

#: Only for a `local` master: other machines cannot reach a loopback address, and their checkpoints
#: are on file systems whose own manager is better.
_LOCAL_ONLY = (
    "spark.driver.bindAddress",
    "spark.driver.host",
    "spark.sql.streaming.checkpointFileManagerClass",
)


def session(name: str, *, master: str = "local[*]", **conf: str) -> "SparkSession":
    """A session with `format("dovetail")`; `conf` has Spark's settings, `__` standing for a dot.

    Raises `JavaMissing` or `Unavailable` if Spark cannot be started for lack of Java or PySpark.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise Unavailable(
            "Spark tables and teams need PySpark and Arrow: pip install 'dovetail[spark]'"
        ) from error

    os.environ["JAVA_HOME"] = str(find_java(os.environ).home)
    # Workers need the driver's Python; on other machines it must be at the same place.
    program = python_program(os.environ) if master.startswith("local") else sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", str(program))

    builder = SparkSession.Builder().appName(name).master(master)
    for key, value in session_settings(master, conf).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def session_settings(master: str, conf: dict[str, str]) -> dict[str, str]:
    """The defaults with the caller's settings over them. Raises `InvalidInput`."""
    given = {key.replace("__", "."): str(value) for key, value in conf.items()}
    for key in given:
        if not key.startswith("spark."):
            raise InvalidInput(
                f"{key!r} is not a Spark setting; write spark__sql__shuffle__partitions=8 or "
                "**{'spark.sql.shuffle.partitions': '8'}"
            )
    local = master.startswith("local")
    chosen = {key: value for key, value in DEFAULTS.items() if local or key not in _LOCAL_ONLY}
    return chosen | given


def session_running() -> bool:
    """Whether this process has a session already; `session` then returns that one."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        return False
    return SparkSession.getActiveSession() is not None


def register(spark: "SparkSession") -> None:
    """Registers `format("dovetail")` with a session; registering it again changes nothing."""
    from dovetail.spark.source import DovetailSource

    register_source(spark, DovetailSource)


def register_source(spark: "SparkSession", source: "type[DataSource]") -> None:
    """Registers a data source with a session; registering it again changes nothing."""
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
