"""The Java process behind a session: whether it is alive, and its end by force.

Without it a session is useless: calls to it fail at once, and calls to one that hangs wait for
ever. Under `spark-submit` Java is the parent: it started this process, and takes it along.
"""

import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from dovetail.errors import DovetailError
from dovetail.logging import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger("spark")


class SparkGone(DovetailError):
    """Spark has ended or does not answer; this process must be started again."""

    retriable = False


def has_exited(spark: "SparkSession | None") -> bool:
    """Whether the Java that this process started has ended. Asks nobody."""
    process = _process_of(spark)
    return process is not None and process.poll() is not None


def has_ended(spark: "SparkSession | None") -> bool:
    """Whether Java has ended, or has stopped its context."""
    if spark is None or has_exited(spark):
        return spark is not None
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001 - whatever it is, nobody answers
        return True


def end(spark: "SparkSession") -> None:
    """kill -9 for the Java that this process started; who waits for its answer gets an error."""
    process = _process_of(spark)
    if process is not None:
        _log.error("Spark does not answer; killing its Java", process=process.pid)
        process.kill()


def stop(spark: "SparkSession") -> None:
    """Stops a session, unless there is nothing left to stop."""
    if has_exited(spark):
        return
    try:
        spark.stop()
    except Exception:
        # It may end in the middle.
        if not has_exited(spark):
            raise


def _process_of(spark: "SparkSession | None") -> "subprocess.Popen[bytes] | None":
    with suppress(AttributeError):
        found = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        return found if isinstance(found, subprocess.Popen) else None
    return None
