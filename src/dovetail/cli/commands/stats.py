"""`dovetail stats`: counts, bytes, keys, lateness and hot partitions per window; a Spark job."""

from typing import Annotated

import typer

from dovetail.cli.completing import topic_names
from dovetail.cli.options import (
    BootstrapOption,
    JsonOption,
    TimeoutOption,
    examples,
    target_of,
)
from dovetail.cli.spark_options import MasterOption, SinceOption, UntilOption, range_of, started

EPILOG = examples(
    "dovetail stats orders",
    "dovetail stats orders --window '10 minutes' --from 2026-01-31T08:00 --json",
)


def stats(
    ctx: typer.Context,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Topic to look at.", autocompletion=topic_names)
    ],
    window: Annotated[
        str,
        typer.Option("--window", metavar="INTERVAL", help="Length of a window, in Spark's words."),
    ] = "1 hour",
    since: SinceOption = None,
    until: UntilOption = None,
    archive: Annotated[
        str | None,
        typer.Option("--archive", metavar="PATH", help="Look at this archive instead."),
    ] = None,
    master: MasterOption = "local[*]",
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a topic got, per window of the records' own times."""
    from dataclasses import asdict

    from dovetail.cli.client import connect, topic_of
    from dovetail.cli.output import note, print_json, print_table, progress_bar

    chosen = range_of(since, until)
    target = target_of(ctx, bootstrap, timeout)
    if archive is None:
        topic_of(connect(target), target, topic)
    with started(f"stats {topic}", master) as spark, progress_bar(quiet=as_json) as bar:
        from pyspark.sql import functions as f

        from dovetail.spark.archive import topic_frame
        from dovetail.spark.statistics import statistics

        bar.add_task(f"counting {topic}", total=None)
        if archive is None:
            frame = topic_frame(spark, target.brokers(), topic)
        else:
            frame = spark.read.parquet(archive).where(f.col("topic") == topic)
        found = statistics(frame, window=window, chosen=chosen)
    rows = [asdict(one) | {"start": one.start.isoformat(sep=" ")} for one in found]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(list(rows[0]), (list(row.values()) for row in rows), title=topic)
    else:
        note(f"topic {topic!r} has no records in this range")
