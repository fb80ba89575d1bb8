"""`dovetail archive`: a topic to Parquet files, incrementally; a Spark job."""

from typing import Annotated

import typer

from dovetail.admin.positions import bounds_of
from dovetail.cli.client import partitions_of
from dovetail.cli.options import BootstrapOption, JsonOption, TimeoutOption, examples, target_of
from dovetail.cli.output import plural, print_done
from dovetail.cli.progress import progress_bar
from dovetail.cli.spark_options import MasterOption, TopicArgument, started
from dovetail.errors import InvalidInput
from dovetail.spark import archive as jobs

EPILOG = examples(
    "dovetail archive orders --to /var/archive/orders",
    "dovetail archive orders --to s3a://bucket/orders --by hour --master spark://host:7077",
)


def archive(
    ctx: typer.Context,
    topic: TopicArgument,
    to: Annotated[
        str, typer.Option("--to", metavar="PATH", help="Folder, or any path that Hadoop knows.")
    ],
    by: Annotated[
        str, typer.Option("--by", metavar="UNIT", help="One folder per day or hour.")
    ] = "day",
    master: MasterOption = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Append the new records of a topic to Parquet files. Run it as often as you like."""
    if by not in ("day", "hour"):
        raise InvalidInput(f"--by {by} is not a unit; write day or hour")
    target = target_of(ctx, bootstrap, timeout)
    kafka = target.kafka()
    kafka.check()
    bounds = bounds_of(kafka, partitions_of(kafka, topic))
    total = sum(bound.end - bound.first for bound in bounds.values())

    with started(f"archive {topic}", master) as spark, progress_bar(quiet=as_json) as bar:
        task = bar.add_task(f"archiving {topic}", total=total)
        rows = jobs.archive(
            spark,
            target.brokers(),
            topic,
            to,
            period="hour" if by == "hour" else "day",
            on_rows=lambda done: bar.update(task, completed=done),
        )
    print_done(
        as_json,
        {"topic": topic, "to": to, "records": rows},
        f"archived {plural(rows, 'new record')} of topic {topic!r} to {to}",
    )
