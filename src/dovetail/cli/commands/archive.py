"""`dovetail archive`: a topic to Parquet files, incrementally; a Spark job."""

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
from dovetail.cli.spark_options import MasterOption, started
from dovetail.errors import InvalidInput

EPILOG = examples(
    "dovetail archive orders --to /var/archive/orders",
    "dovetail archive orders --to s3a://bucket/orders --by hour --master spark://host:7077",
)


def archive(
    ctx: typer.Context,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Topic to archive.", autocompletion=topic_names)
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="PATH", help="Folder, or any path that Hadoop knows.")
    ],
    by: Annotated[
        str, typer.Option("--by", metavar="UNIT", help="Folders by day or hour.")
    ] = "day",
    master: MasterOption = "local[*]",
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Append to Parquet files what the topic has and they do not. Run it as often as you like."""
    from dovetail.cli.client import bounds_of, connect, partitions_of, topic_of
    from dovetail.cli.output import note, plural, print_json, progress_bar

    if by not in ("day", "hour"):
        raise InvalidInput(f"--by {by}; it must be day or hour")
    target = target_of(ctx, bootstrap, timeout)
    admin = connect(target)
    bounds = bounds_of(admin, target, partitions_of(topic_of(admin, target, topic)))
    total = sum(end - first for first, end in bounds.values())
    with started(f"archive {topic}", master) as spark, progress_bar(quiet=as_json) as bar:
        from dovetail.spark.archive import archive as run

        task = bar.add_task(f"archiving {topic}", total=total)
        rows = run(
            spark,
            target.brokers(),
            topic,
            to,
            period="hour" if by == "hour" else "day",
            on_rows=lambda done: bar.update(task, completed=done),
        )
    if as_json:
        print_json({"topic": topic, "to": to, "records": rows})
    else:
        note(f"archived {plural(rows, 'new record')} of topic {topic!r} to {to}")
