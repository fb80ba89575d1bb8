"""A Spark session that knows `format("dovetail")`, with defaults for small micro-batches."""

import os
import sys
from collections.abc import Mapping
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
    # A filter on offset, partition, topic or time decides what is read.
    "spark.sql.python.filterPushdown.enabled": "true",
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
    # Where the executor is in the driver's process, only a pause of both can delay its heartbeats:
    # after two minutes of that Spark would write it off, and end itself ten minutes later.
    "spark.storage.blockManagerHeartbeatTimeoutMs": "3650d",
    "spark.sql.session.timeZone": "UTC",
    # Pipelines and queries of one session share its slots.
    "spark.scheduler.mode": "FAIR",
    "spark.log.level": "ERROR",
}

#: Only for a `local` master: other machines cannot reach a loopback address, and their checkpoints
#: are on file systems whose own manager is better.
_LOCAL_ONLY = (
    "spark.driver.bindAddress",
    "spark.driver.host",
    "spark.sql.streaming.checkpointFileManagerClass",
)
#: Only where executors are no processes of their own.
_ONE_PROCESS_ONLY = ("spark.storage.blockManagerHeartbeatTimeoutMs",)


def session(name: str, *, master: str | None = None, **conf: str) -> "SparkSession":
    """A session with `format("dovetail")`; `conf` has Spark's settings, `__` standing for a dot.

    What is given here counts, then what `spark-submit`, `PYSPARK_SUBMIT_ARGS` or
    `spark-defaults.conf` say, then `DEFAULTS` and the master `local[*]`. A session that this
    process has already is returned, and gets what is given here alone.

    Raises `JavaMissing` or `Unavailable` if Spark cannot be started for lack of Java or PySpark.
    """
    spark = plain_session(name, master=master, **conf)
    register(spark)
    return spark


def plain_session(name: str, *, master: str | None = None, **conf: str) -> "SparkSession":
    """The same without the format. It starts in half the time, because Spark's SQL does not."""
    _need_pyspark()
    from pyspark.sql import SparkSession

    given = given_settings(conf)
    builder = SparkSession.Builder().appName(name)
    if not session_running():
        there = submitted_settings(given if master is None else given | {"spark.master": master})
        master = master or there.get("spark.master") or "local[*]"
        # Workers need the driver's Python; on other machines it must be at the same place.
        program = python_program(os.environ) if is_local(master) else sys.executable
        os.environ.setdefault("PYSPARK_PYTHON", str(program))
        builder = builder.master(master)
        given = default_settings(master, there) | given

    for key, value in given.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def given_settings(conf: dict[str, str]) -> dict[str, str]:
    """The caller's settings by Spark's names. Raises `InvalidInput`."""
    given = {key.replace("__", "."): str(value) for key, value in conf.items()}
    for key in given:
        if not key.startswith("spark."):
            raise InvalidInput(
                f"{key!r} is not a Spark setting; write spark__sql__shuffle__partitions=8 or "
                "**{'spark.sql.shuffle.partitions': '8'}"
            )
    return given


def submitted_settings(given: dict[str, str]) -> dict[str, str]:
    """What is set for Spark outside of this program; starts its Java, unless it runs.

    `given` are settings that Java must have when it starts, such as its memory. Raises
    `JavaMissing`, `Unavailable`.
    """
    _need_pyspark()
    from pyspark import SparkConf, SparkContext

    os.environ["JAVA_HOME"] = str(find_java(os.environ).home)
    launched = SparkConf(loadDefaults=False)
    for key, value in given.items():
        launched.set(key, value)
    # Under spark-submit Java runs already, and has what its command line and files say. Without, it
    # is started here as PySpark would start it a moment later, and reads the same.
    SparkContext._ensure_initialized(conf=launched)
    found = dict(SparkConf().getAll())
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        # Java that a program starts believes that it serves a shell, and sets this by itself.
        found.pop("spark.ui.showConsoleProgress", None)
    return found


def _need_pyspark() -> None:
    try:
        import pyspark.sql  # noqa: F401 - whether it can be imported
    except ImportError as error:
        raise Unavailable(
            "Spark tables and teams need PySpark and Arrow: pip install 'dovetailmq[spark]'"
        ) from error


def default_settings(master: str, there: Mapping[str, str]) -> dict[str, str]:
    """The defaults for a master that are not set otherwise."""
    left_out = set(there)
    if not is_local(master):
        left_out |= set(_LOCAL_ONLY)
    if not is_local(master) or master.startswith("local-cluster"):
        left_out |= set(_ONE_PROCESS_ONLY)
    return {key: value for key, value in DEFAULTS.items() if key not in left_out}


def is_local(master: str) -> bool:
    """Whether all of Spark runs on this machine."""
    return master.startswith("local")


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
