"""What the commands that are Spark jobs share: options, a session that ends, the records."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.admin.positions import parse_position
from dovetail.cli.completing import topic_names
from dovetail.cli.options import Target
from dovetail.errors import DovetailError, InvalidInput, Unavailable
from dovetail.spark import iceberg
from dovetail.spark.archive import Range, topic_frame
from dovetail.spark.sessions import session, session_running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Where Spark runs: spark://host:7077, yarn, ...; "
        "default: what spark-submit set, else local[*].",
    ),
]
SinceOption = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Records not older than this.")
]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Records older than this.")
]


TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Topic to read.", autocompletion=topic_names)
]
ArchiveOption = Annotated[
    str | None,
    typer.Option("--archive", metavar="PATH", help="Read this archive of the topic instead."),
]
CatalogOption = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        metavar="NAME",
        help="A catalog in PyIceberg's configuration; the archive is a table in it.",
    ),
]


def range_of(since: str | None, until: str | None) -> Range:
    """The range between two times. Raises `InvalidInput`."""
    return Range(_moment("--from", since), _moment("--until", until))


def _moment(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    position = parse_position(text)
    if position.kind != "time":
        raise InvalidInput(f"{option} {text}; write a time such as 2026-01-31T08:00")
    return position.number


@contextmanager
def started(name: str, master: str | None) -> "Iterator[SparkSession]":
    """A session for one job; one that was there before is used, and left running.

    What Spark fails with becomes an error that a command can print.
    """
    found = session_running()
    spark = session(f"dovetail {name}", master=master, **_QUIET)
    # Only now is it certain that Spark is installed.
    from pyspark.errors import PySparkException

    try:
        yield spark
    except DovetailError:
        raise
    except PySparkException as error:
        said = error.getMessage() or str(error)
        raise Unavailable(f"Spark: {last_words(said)}") from error
    finally:
        if not found:
            spark.stop()


def frame_of(
    spark: "SparkSession",
    target: Target,
    topic: str,
    archive: str | None,
    catalog: str | None = None,
) -> "DataFrame":
    """The records of a topic, or of its archive. Raises `InvalidInput`."""
    from pyspark.sql import functions as f

    if archive is None:
        if catalog is not None:
            raise InvalidInput("--catalog needs --archive, the table's name: namespace.table")
        return topic_frame(spark, target.brokers(), topic)
    place = iceberg.Place(archive, catalog)
    if place.found:
        return iceberg.frame(spark, place, topic)
    return spark.read.parquet(archive).where(f.col("topic") == topic)


#: Spark's own progress bars would be written over ours.
_QUIET = {"spark.ui.showConsoleProgress": "false"}


def last_words(message: str) -> str:
    """What a Python worker raised, out of all that Spark says around it; else the first line."""
    lines = [line.strip() for line in message.splitlines()]
    raised = [line for line in lines if line.startswith("dovetail.errors.")]
    if raised:
        return raised[-1].partition(": ")[2]
    return next((line for line in lines if line), "failed, and did not say why")
