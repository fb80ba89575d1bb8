"""`dovetail archive`: a topic to Parquet files or to Iceberg, incrementally; a Spark job."""

from typing import Annotated, Any

import typer

from dovetail.admin.positions import bounds_of
from dovetail.cli.client import partitions_of
from dovetail.cli.options import (
    BootstrapOption,
    JsonOption,
    TimeoutOption,
    examples,
    named_values,
    target_of,
)
from dovetail.cli.output import plural, print_done
from dovetail.cli.progress import progress_bar
from dovetail.cli.spark_options import CatalogOption, MasterOption, TopicArgument, started
from dovetail.errors import InvalidInput
from dovetail.spark import archive as jobs
from dovetail.spark import iceberg

EPILOG = examples(
    "dovetail archive orders --to /var/archive/orders",
    "dovetail archive orders --to s3a://bucket/orders --by hour --master spark://host:7077",
    "dovetail archive orders --format iceberg --to /var/lake",
    "dovetail archive orders --format iceberg --to shop.orders --catalog prod "
    '--column "text=string(value)"',
)


def archive(
    ctx: typer.Context,
    topic: TopicArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PATH",
            help="Folder, or any path that Hadoop knows; with --catalog: namespace.table.",
        ),
    ],
    by: Annotated[
        str, typer.Option("--by", metavar="UNIT", help="One folder per day or hour.")
    ] = "day",
    form: Annotated[
        str, typer.Option("--format", metavar="NAME", help="parquet or iceberg.")
    ] = "parquet",
    catalog: CatalogOption = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="NAME=SQL",
            help="A further column of a table of Iceberg, from the record's; repeatable.",
        ),
    ] = None,
    master: MasterOption = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Append the new records of a topic to Parquet files. Run it as often as you like.

    With --format iceberg, to a table of Apache Iceberg.
    """
    if by not in ("day", "hour"):
        raise InvalidInput(f"--by {by} is not a unit; write day or hour")
    if form not in ("parquet", "iceberg"):
        raise InvalidInput(f"--format {form} is not known; write parquet or iceberg")
    if form == "parquet" and (catalog or column):
        raise InvalidInput("--catalog and --column are for tables of Iceberg: --format iceberg")
    columns = dict(named_values("--column", column))
    target = target_of(ctx, bootstrap, timeout)
    kafka = target.kafka()
    kafka.check()
    bounds = bounds_of(kafka, partitions_of(kafka, topic))
    total = sum(bound.end - bound.first for bound in bounds.values())

    with started(f"archive {topic}", master) as spark, progress_bar(quiet=as_json) as bar:
        task = bar.add_task(f"archiving {topic}", total=total)
        given: dict[str, Any] = {
            "period": by,
            "on_rows": lambda done: bar.update(task, completed=done),
        }
        if form == "iceberg":
            place = iceberg.Place(to, catalog)
            made = iceberg.archive(spark, target.brokers(), topic, place, columns=columns, **given)
            rows, found = made.rows, {"metadata": made.metadata}
        else:
            rows, found = jobs.archive(spark, target.brokers(), topic, to, **given), {}
    print_done(
        as_json,
        {"topic": topic, "to": to, "records": rows, **found},
        f"archived {plural(rows, 'new record')} of topic {topic!r} to {to}",
    )
