"""`dovetail replay`: a range of a topic, or of its archive, into another topic; a Spark job."""

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
from dovetail.errors import InvalidInput

EPILOG = examples(
    "dovetail replay orders --to orders-again --from 2026-01-31T08:00 --until 2026-01-31T09:00",
    "dovetail replay orders --to orders-again --archive /var/archive/orders",
)


def replay(
    ctx: typer.Context,
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", help="Topic whose records are taken.", autocompletion=topic_names
        ),
    ],
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Topic to write them to.")],
    archive: Annotated[
        str | None,
        typer.Option("--archive", metavar="PATH", help="Take them from this archive instead."),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    master: MasterOption = "local[*]",
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write records once more, with their keys, headers and times, in the order they had."""
    from dovetail.cli.client import connect, topic_of
    from dovetail.cli.output import note, plural, print_json, progress_bar

    chosen = range_of(since, until)
    if to == topic:
        raise InvalidInput(f"--to {to} is the topic itself; its records would be doubled")
    target = target_of(ctx, bootstrap, timeout)
    admin = connect(target)
    topic_of(admin, target, to)
    if archive is None:
        topic_of(admin, target, topic)
    with started(f"replay {topic}", master) as spark, progress_bar(quiet=as_json) as bar:
        from pyspark.sql import functions as f

        from dovetail.spark.archive import replay as run
        from dovetail.spark.archive import topic_frame

        bar.add_task(f"replaying {topic}", total=None)
        if archive is None:
            source = topic_frame(spark, target.brokers(), topic)
        else:
            source = spark.read.parquet(archive).where(f.col("topic") == topic)
        rows = run(spark, target.brokers(), source, to, chosen=chosen)
    if as_json:
        print_json({"topic": topic, "to": to, "records": rows})
    else:
        note(f"replayed {plural(rows, 'record')} of topic {topic!r} to topic {to!r}")
