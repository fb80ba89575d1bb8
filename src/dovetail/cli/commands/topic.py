"""`dovetail topic`: create, list, describe, alter and delete topics."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer

from dovetail.admin import topics as admin
from dovetail.admin.kafka import check_not_internal
from dovetail.cli.client import kafka_of
from dovetail.cli.completing import topic_names
from dovetail.cli.confirming import confirm
from dovetail.cli.options import (
    BootstrapOption,
    JsonOption,
    TimeoutOption,
    YesOption,
    examples,
    named_values,
    target_of,
)
from dovetail.cli.output import plural, print_done, print_json, print_rows, print_table
from dovetail.cli.program import program
from dovetail.errors import InvalidInput
from dovetail.settings import parse_bytes, parse_duration_ms

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples("dovetail topic create orders --partitions 4", "dovetail topic list"),
)

TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=topic_names)
]
TopicConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE", help="Setting of the topic; repeatable."),
]
RetentionOption = Annotated[
    str | None,
    typer.Option("--retention", metavar="DURATION", help="Time that records are kept; or none."),
]
RetentionBytesOption = Annotated[
    str | None,
    typer.Option("--retention-bytes", metavar="SIZE", help="Size kept per partition; or none."),
]


@app.command(
    "create",
    epilog=examples(
        "dovetail topic create orders",
        "dovetail topic create orders --partitions 6 --retention 30d",
        "dovetail topic create audit --retention none --config max.message.bytes=4194304",
    ),
)
def create(
    ctx: typer.Context,
    topic: TopicArgument,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Number; default: the node's.")
    ] = None,
    config: TopicConfigOption = None,
    retention: RetentionOption = None,
    retention_bytes: RetentionBytesOption = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a topic. Exit code 4 if it exists."""
    wanted = _topic_config(config, retention, retention_bytes)
    kafka = kafka_of(ctx, bootstrap, timeout)
    count = admin.create_topic(kafka, topic, partitions=partitions, config=wanted)
    print_done(
        as_json,
        {"topic": topic, "partitions": count, "config": wanted},
        f"created topic {topic!r} with {plural(count, 'partition')}",
    )


@app.command(
    "list",
    epilog=examples(
        "dovetail topic list", "dovetail topic list --all", "dovetail topic list --json"
    ),
)
def list_topics(
    ctx: typer.Context,
    with_internal: Annotated[
        bool, typer.Option("--all", "-a", help="Include internal topics.")
    ] = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the topics with their partitions and records."""
    columns = ["topic", "partitions", "records", "internal"]
    rows = [
        {column: getattr(found, column) for column in columns}
        for found in admin.list_topics(kafka_of(ctx, bootstrap, timeout), internal=with_internal)
    ]
    print_rows(
        as_json,
        rows,
        columns=columns if with_internal else columns[:-1],
        empty=f"no topics yet; create one: {program()} topic create hello",
    )


@app.command(
    "describe",
    epilog=examples("dovetail topic describe orders", "dovetail topic describe orders --json"),
)
def describe(
    ctx: typer.Context,
    topic: TopicArgument,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the partitions of a topic, their offsets, and the topic's settings."""
    found = msgspec.to_builtins(admin.describe_topic(kafka_of(ctx, bootstrap, timeout), topic))
    if as_json:
        print_json(found)
        return
    tables = [(topic, found["partitions"]), ("settings", found["config"])]
    if found["compaction"]:
        tables.insert(1, ("compaction", [_compaction(row) for row in found["compaction"]]))
    for title, rows in tables:
        columns = [name.replace("_", " ") for name in rows[0]]
        print_table(columns, (row.values() for row in rows), title=title)


def _compaction(row: dict[str, Any]) -> dict[str, Any]:
    """A row, with a time that people can read."""
    last = row.pop("last_ms")
    told = None if last is None else datetime.fromtimestamp(last / 1000, UTC)
    return row | {"last_pass": told and told.isoformat(timespec="seconds")}


@app.command(
    "alter",
    epilog=examples(
        "dovetail topic alter orders --partitions 12",
        "dovetail topic alter orders --retention 2d",
        "dovetail topic alter orders --config max.message.bytes=2097152 --unset retention.bytes",
    ),
)
def alter(
    ctx: typer.Context,
    topic: TopicArgument,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="New number; it can only grow.")
    ] = None,
    config: TopicConfigOption = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Reset to the node's default; repeatable."),
    ] = None,
    retention: RetentionOption = None,
    retention_bytes: RetentionBytesOption = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add partitions to a topic, or change its settings."""
    wanted = _topic_config(config, retention, retention_bytes)
    if partitions is None and not wanted and not unset:
        raise InvalidInput(
            "nothing to alter; give --partitions, --retention, --retention-bytes, --config "
            "or --unset"
        )
    kafka = kafka_of(ctx, bootstrap, timeout)
    admin.alter_topic(kafka, topic, partitions=partitions, config=wanted, unset=unset or [])
    print_done(
        as_json,
        {"topic": topic, "partitions": partitions, "config": wanted, "unset": unset or []},
        f"altered topic {topic!r}",
    )


@app.command(
    "delete",
    epilog=examples("dovetail topic delete orders", "dovetail topic delete orders --yes"),
)
def delete(
    ctx: typer.Context,
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC...", help="Topics to delete.", autocompletion=topic_names),
    ],
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete topics with all their records. Asks first, unless --yes is given."""
    target = target_of(ctx, bootstrap, timeout)
    check_not_internal(topics)
    confirm(f"Delete {', '.join(topics)} on {target.bootstrap} with all records?", yes=yes)
    kafka = kafka_of(ctx, bootstrap, timeout)
    admin.delete_topics(kafka, topics)
    print_done(as_json, {"deleted": topics}, f"deleted {', '.join(map(repr, topics))}")


def _topic_config(
    config: Iterable[str] | None, retention: str | None, retention_bytes: str | None
) -> dict[str, str]:
    wanted = dict(named_values("--config", config))
    if retention is not None:
        wanted["retention.ms"] = str(parse_duration_ms(retention))
    if retention_bytes is not None:
        wanted["retention.bytes"] = str(parse_bytes(retention_bytes))
    return wanted
