"""`dovetail replay`: a range of a topic, or of its archive, into another topic; a Spark job."""

from typing import Annotated

import typer

from dovetail.cli.client import partitions_of
from dovetail.cli.options import BootstrapOption, JsonOption, TimeoutOption, examples, target_of
from dovetail.cli.output import plural, print_done
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
from dovetail.errors import InvalidInput
from dovetail.spark import archive as jobs

EPILOG = examples(
    "dovetail replay orders --to orders-again --from 2026-01-31T08:00 --until 2026-01-31T09:00",
    "dovetail replay orders --to orders-again --archive /var/archive/orders",
)


def replay(
    ctx: typer.Context,
    topic: TopicArgument,
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Topic to write to.")],
    archive: ArchiveOption = None,
    catalog: CatalogOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    master: MasterOption = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write records again to another topic, with their keys, headers, times and order."""
    chosen = range_of(since, until)
    if to == topic:
        raise InvalidInput(f"--to {to} is the same topic; its records would be duplicated")
    target = target_of(ctx, bootstrap, timeout)
    kafka = target.kafka()
    kafka.check()
    for needed in [to] if archive else [to, topic]:
        partitions_of(kafka, needed)

    with started(f"replay {topic}", master) as spark, progress_bar(quiet=as_json) as bar:
        bar.add_task(f"replaying {topic}", total=None)
        source = frame_of(spark, target, topic, archive, catalog)
        rows = jobs.replay(spark, target.brokers(), source, to, chosen=chosen)
    print_done(
        as_json,
        {"topic": topic, "to": to, "records": rows},
        f"replayed {plural(rows, 'record')} of topic {topic!r} to topic {to!r}",
    )
