"""`dovetail topic`: create, list, describe, alter and delete topics."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.completing import topic_names
from dovetail.cli.options import (
    BootstrapOption,
    JsonOption,
    TimeoutOption,
    examples,
    target_of,
)
from dovetail.cli.outcome import ExitCode
from dovetail.cli.program import program
from dovetail.errors import InvalidInput

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from dovetail.cli.options import Target

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples("dovetail topic create orders --partitions 4", "dovetail topic list"),
)

TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=topic_names)
]
TopicConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE", help="Kafka topic setting; repeatable."),
]
RetentionOption = Annotated[
    str | None,
    typer.Option("--retention", metavar="DURATION", help="Age at which records go; or none."),
]
RetentionBytesOption = Annotated[
    str | None,
    typer.Option("--retention-bytes", metavar="SIZE", help="Bytes kept per partition; or none."),
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
        int | None, typer.Option("--partitions", "-p", min=1, help="Default: the node's setting.")
    ] = None,
    config: TopicConfigOption = None,
    retention: RetentionOption = None,
    retention_bytes: RetentionBytesOption = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a topic. Exit code 4 if it exists."""
    from dovetail.cli.client import NewTopic, call, connect, topic_of, wait_for
    from dovetail.cli.output import note, plural, print_json

    target = target_of(ctx, bootstrap, timeout)
    wanted = _topic_config(config, retention, retention_bytes)
    admin = connect(target)
    doing = f"creating topic {topic!r}"
    new = NewTopic(topic, num_partitions=partitions or -1, replication_factor=-1, config=wanted)
    futures = call(
        doing, target, lambda: admin.create_topics([new], request_timeout=target.timeout_s)
    )
    wait_for(doing, target, futures[topic])
    count = partitions or len(topic_of(admin, target, topic).partitions)
    if as_json:
        print_json({"topic": topic, "partitions": count, "config": wanted})
    else:
        note(f"created topic {topic!r} with {plural(count, 'partition')}")


@app.command(
    "list",
    epilog=examples(
        "dovetail topic list", "dovetail topic list --all", "dovetail topic list --json"
    ),
)
def list_topics(
    ctx: typer.Context,
    with_internal: Annotated[
        bool, typer.Option("--all", "-a", help="Also those that the node keeps for itself.")
    ] = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the topics with their partitions and records."""
    from dovetail.cli.client import bounds_of, connect, is_internal, partitions_of, topics_of
    from dovetail.cli.output import note, print_json, print_table

    target = target_of(ctx, bootstrap, timeout)
    admin = connect(target)
    topics = {
        name: metadata
        for name, metadata in topics_of(admin, target).items()
        if with_internal or not is_internal(name)
    }
    bounds = bounds_of(
        admin,
        target,
        [partition for metadata in topics.values() for partition in partitions_of(metadata)],
    )
    records = dict.fromkeys(topics, 0)
    for (name, _), (first, end) in bounds.items():
        records[name] += end - first
    columns = ["topic", "partitions", "records", "internal"]
    rows = [
        (name, len(topics[name].partitions), records[name], is_internal(name))
        for name in sorted(topics)
    ]
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif rows:
        shown = len(columns) if with_internal else len(columns) - 1
        print_table(columns[:shown], (row[:shown] for row in rows))
    else:
        note(f"no topics yet; create one: {program()} topic create hello")


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
    from dovetail.cli.client import (
        ConfigResource,
        ResourceType,
        bounds_of,
        call,
        connect,
        partitions_of,
        topic_of,
        wait_for,
    )
    from dovetail.cli.output import print_json, print_table

    target = target_of(ctx, bootstrap, timeout)
    admin = connect(target)
    metadata = topic_of(admin, target, topic)
    bounds = bounds_of(admin, target, partitions_of(metadata))
    doing = f"reading the settings of topic {topic!r}"
    resource = ConfigResource(ResourceType.TOPIC, topic)
    futures = call(
        doing, target, lambda: admin.describe_configs([resource], request_timeout=target.timeout_s)
    )
    config = wait_for(doing, target, futures[resource])
    partitions = [
        {
            "partition": number,
            "leader": metadata.partitions[number].leader,
            "replicas": list(metadata.partitions[number].replicas),
            "first": first,
            "end": end,
            "records": end - first,
        }
        for (_, number), (first, end) in sorted(bounds.items())
    ]
    settings = [
        {"name": name, "value": entry.value, "default": entry.is_default}
        for name, entry in sorted(config.items())
    ]
    if as_json:
        print_json({"topic": topic, "partitions": partitions, "config": settings})
        return
    columns = ["partition", "leader", "replicas", "first", "end", "records"]
    print_table(columns, ([row[column] for column in columns] for row in partitions), title=topic)
    print_table(
        ["setting", "value", "default"],
        ([row["name"], row["value"], row["default"]] for row in settings),
    )


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
        int | None, typer.Option("--partitions", "-p", min=1, help="New number; only ever more.")
    ] = None,
    config: TopicConfigOption = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Back to the node's default; repeatable."),
    ] = None,
    retention: RetentionOption = None,
    retention_bytes: RetentionBytesOption = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add partitions to a topic, or change its settings."""
    from dovetail.cli.client import connect, topic_of
    from dovetail.cli.output import note, print_json

    target = target_of(ctx, bootstrap, timeout)
    wanted = _topic_config(config, retention, retention_bytes)
    if partitions is None and not wanted and not unset:
        raise InvalidInput(
            "nothing to alter; give --partitions, --retention, --retention-bytes, --config "
            "or --unset"
        )
    admin = connect(target)
    topic_of(admin, target, topic, advise_create=False)
    if wanted or unset:
        _alter_config(admin, target, topic, wanted, unset or [])
    if partitions is not None:
        _add_partitions(admin, target, topic, partitions)
    if as_json:
        print_json(
            {"topic": topic, "partitions": partitions, "config": wanted, "unset": unset or []}
        )
    else:
        note(f"altered topic {topic!r}")


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
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask; needed without a terminal.")
    ] = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete topics with all their records. Asks first; where nobody can answer, give --yes."""
    from dovetail.cli.client import call, connect, is_internal, topic_of, wait_for
    from dovetail.cli.output import note, print_json

    target = target_of(ctx, bootstrap, timeout)
    internal = [topic for topic in topics if is_internal(topic)]
    if internal:
        raise InvalidInput(
            f"topic {internal[0]!r} is internal: the node keeps its own state in it, such as the "
            "positions of groups, and it cannot be deleted"
        )
    if not yes and not sys.stdin.isatty():
        raise InvalidInput(
            f"deleting {', '.join(topics)} needs a yes, and there is no terminal to ask on; "
            "give --yes"
        )
    admin = connect(target)
    for topic in topics:
        topic_of(admin, target, topic, advise_create=False)
    question = f"Delete {', '.join(topics)} on {target.bootstrap} with all records?"
    if not yes and not typer.confirm(question, err=True):
        note("nothing was deleted")
        raise typer.Exit(ExitCode.FAILED)
    futures = call(
        "deleting topics",
        target,
        lambda: admin.delete_topics(topics, request_timeout=target.timeout_s),
    )
    for topic, future in futures.items():
        wait_for(f"deleting topic {topic!r}", target, future)
        if not as_json:
            note(f"deleted topic {topic!r}")
    if as_json:
        print_json({"deleted": topics})


def _alter_config(
    admin: "AdminClient", target: "Target", topic: str, wanted: dict[str, str], unset: list[str]
) -> None:
    from dovetail.cli.client import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
        call,
        wait_for,
    )

    changes = [
        *(
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in wanted.items()
        ),
        *(
            ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)
            for name in unset
        ),
    ]
    doing = f"changing the settings of topic {topic!r}"
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    futures = call(
        doing,
        target,
        lambda: admin.incremental_alter_configs([resource], request_timeout=target.timeout_s),
    )
    for future in futures.values():
        wait_for(doing, target, future)


def _add_partitions(admin: "AdminClient", target: "Target", topic: str, partitions: int) -> None:
    from dovetail.cli.client import NewPartitions, call, wait_for

    doing = f"adding partitions to topic {topic!r}"
    new = NewPartitions(topic, partitions)
    futures = call(
        doing, target, lambda: admin.create_partitions([new], request_timeout=target.timeout_s)
    )
    wait_for(doing, target, futures[topic])


def _topic_config(
    config: Iterable[str] | None, retention: str | None, retention_bytes: str | None
) -> dict[str, str]:
    from dovetail.settings import parse_bytes, parse_duration_ms

    wanted: dict[str, str] = {}
    for text in config or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInput(f"--config {text!r} is no setting; write --config name=value")
        wanted[name] = value
    if retention is not None:
        wanted["retention.ms"] = str(parse_duration_ms(retention))
    if retention_bytes is not None:
        wanted["retention.bytes"] = str(parse_bytes(retention_bytes))
    return wanted
