"""`dovetail stats`: counts, bytes, keys, lateness and hot partitions per window; a Spark job."""

from dataclasses import asdict
from typing import Annotated

import typer

from dovetail.cli.client import partitions_of
from dovetail.cli.options import BootstrapOption, JsonOption, TimeoutOption, examples, target_of
from dovetail.cli.output import print_rows
from dovetail.cli.progress import progress_bar
from dovetail.cli.spark_options import (
    ArchiveOption,
    CatalogOption,
    MasterOption,
    SinceOption,
    TopicArgument,
    UntilOption,
    frame_of,
    range_of,
    started,
)
from dovetail.spark.statistics import statistics

EPILOG = examples(
    "dovetail stats orders",
    "dovetail stats orders --window '10 minutes' --from 2026-01-31T08:00 --json",
)


def stats(
    ctx: typer.Context,
    topic: TopicArgument,
    window: Annotated[
        str,
        typer.Option("--window", metavar="INTERVAL", help="Length of a window, in Spark's form."),
    ] = "1 hour",
    since: SinceOption = None,
    until: UntilOption = None,
    archive: ArchiveOption = None,
    catalog: CatalogOption = None,
    master: MasterOption = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a topic received, per window of the records' own timestamps."""
    chosen = range_of(since, until)
    target = target_of(ctx, bootstrap, timeout)
    if archive is None:
        kafka = target.kafka()
        kafka.check()
        partitions_of(kafka, topic)

    with started(f"stats {topic}", master) as spark, progress_bar(quiet=as_json) as bar:
        bar.add_task(f"counting {topic}", total=None)
        frame = frame_of(spark, target, topic, archive, catalog)
        found = statistics(frame, window=window, chosen=chosen)
    print_rows(
        as_json,
        [asdict(one) | {"start": one.start.isoformat(sep=" ")} for one in found],
        empty=f"topic {topic!r} has no records in this range",
        title=topic,
    )
