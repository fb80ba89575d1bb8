"""`dovetail group`: consumer groups, their lag, and moving them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.completing import group_names, topic_names
from dovetail.cli.options import BootstrapOption, JsonOption, TimeoutOption, examples, target_of
from dovetail.cli.position import parse_position
from dovetail.cli.program import program
from dovetail.errors import InvalidInput, NotFound, Refused

if TYPE_CHECKING:
    from dovetail.cli.client import AdminClient, Partition
    from dovetail.cli.options import Target

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples("dovetail group list", "dovetail group describe billing"),
)

GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", help="Name of the group.", autocompletion=group_names)
]


@app.command("list", epilog=examples("dovetail group list", "dovetail group list --json"))
def list_groups(
    ctx: typer.Context,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List all groups with their state and number of members."""
    from dovetail.cli.client import call, connect, error_of, wait_for
    from dovetail.cli.output import note, print_json, print_table

    target = target_of(ctx, bootstrap, timeout)
    admin = connect(target)
    doing = "listing groups"
    future = call(
        doing, target, lambda: admin.list_consumer_groups(request_timeout=target.timeout_s)
    )
    listing = wait_for(doing, target, future)
    for error in listing.errors:
        raise error_of(doing, error, target)
    names = sorted(group.group_id for group in listing.valid)
    rows = []
    for name, description in _describe(admin, target, names).items():
        rows.append((name, _state_of(description), len(description.members)))
    if as_json:
        print_json([dict(zip(("group", "state", "members"), row, strict=True)) for row in rows])
    elif rows:
        print_table(["group", "state", "members"], rows)
    else:
        note(f"no groups yet; a consumer makes one: {program()} consume TOPIC --group NAME")


@app.command(
    "describe",
    epilog=examples("dovetail group describe billing", "dovetail group describe billing --json"),
)
def describe(
    ctx: typer.Context,
    group: GroupArgument,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a group's members, and for each partition of its topics the position and lag.

    Where nothing is committed yet, the lag is all that the partition holds.
    """
    from dovetail.cli.client import bounds_of, connect
    from dovetail.cli.output import answers, plural, print_json, print_table

    target = target_of(ctx, bootstrap, timeout)
    admin = connect(target)
    description = _describe(admin, target, [group])[group]
    committed = _committed(admin, target, group)
    owner = {
        (item.topic, item.partition): member
        for member in description.members
        for item in member.assignment.topic_partitions
    }
    if not committed and not description.members and _state_of(description) in {"dead", "unknown"}:
        raise _no_group(group, target)
    shown = _partitions_of_topics(admin, target, {topic for topic, _ in (*committed, *owner)})
    rows: list[dict[str, Any]] = []
    for key, (first, end) in bounds_of(admin, target, shown).items():
        position, member = committed.get(key), owner.get(key)
        rows.append(
            {
                "topic": key[0],
                "partition": key[1],
                "committed": position,
                "end": end,
                "lag": max(0, end - (first if position is None else position)),
                "client": member.client_id if member else None,
                "host": member.host if member else None,
                "member": member.member_id if member else None,
            }
        )
    lag = sum(row["lag"] for row in rows)
    state, members = _state_of(description), len(description.members)
    if as_json:
        print_json(
            {"group": group, "state": state, "members": members, "lag": lag, "partitions": rows}
        )
        return
    answers().print(f"{group}: {state}, {plural(members, 'member')}, lag {lag:,}", markup=False)
    columns = ["topic", "partition", "committed", "end", "lag", "client", "host", "member"]
    print_table(columns, ([row[column] for column in columns] for row in rows))


@dataclass(frozen=True, slots=True)
class _Move:
    topic: str
    partition: int
    before: int | None
    after: int

    @property
    def moved_by(self) -> int | None:
        return None if self.before is None else self.after - self.before


@app.command(
    "reset",
    epilog=examples(
        "dovetail group reset billing --to earliest --dry-run",
        "dovetail group reset billing --to 2026-01-31T08:00 --topic orders",
        "dovetail group reset billing --to 1200 --topic orders --partition 0",
    ),
)
def reset(
    ctx: typer.Context,
    group: GroupArgument,
    to: Annotated[
        str, typer.Option("--to", metavar="POSITION", help="earliest, latest, an offset or a time.")
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="Only this topic; repeatable. Default: all it reads.",
            autocompletion=topic_names,
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Only this partition.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show, and change nothing.")] = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a group to another position. Its members must be stopped first."""
    from dovetail.cli.client import connect
    from dovetail.cli.output import note, plural, print_json, print_table

    target = target_of(ctx, bootstrap, timeout)
    position = parse_position(to)
    admin = connect(target)
    members = _member_count(admin, target, group)
    if members and not dry_run:
        raise Refused(
            f"group {group!r} has {plural(members, 'active member')}, which "
            "would overwrite the new position; stop them first, or look with --dry-run"
        )
    before = _committed(admin, target, group)
    partitions = _partitions_to_move(admin, target, group, topics, partition, before)
    after = _resolve(admin, target, position, partitions)
    moves = [_Move(*key, before.get(key), after[key]) for key in partitions]
    if not dry_run:
        _alter(admin, target, group, moves)
    if as_json:
        rows = [
            {"topic": m.topic, "partition": m.partition, "before": m.before, "after": m.after}
            for m in moves
        ]
        print_json({"group": group, "changed": not dry_run, "partitions": rows})
        return
    print_table(
        ["topic", "partition", "before", "after", "moved by"],
        ((m.topic, m.partition, m.before, m.after, m.moved_by) for m in moves),
    )
    note("nothing was changed (--dry-run)" if dry_run else f"group {group!r} was moved")


def _describe(admin: "AdminClient", target: "Target", groups: list[str]) -> dict[str, Any]:
    """The descriptions by name; of a group that does not exist, one that says it is dead."""
    from dovetail.cli.client import call, wait_for

    if not groups:
        return {}
    futures = call(
        "describing groups",
        target,
        lambda: admin.describe_consumer_groups(groups, request_timeout=target.timeout_s),
    )
    return {
        name: wait_for(f"describing group {name!r}", target, future)
        for name, future in futures.items()
    }


def _member_count(admin: "AdminClient", target: "Target", group: str) -> int:
    """The members of a group; none if it does not exist yet, which is no error when moving it."""
    try:
        return len(_describe(admin, target, [group])[group].members)
    except NotFound:
        return 0


def _state_of(description: Any) -> str:
    return str(description.state.name).lower().replace("_", " ")


def _committed(admin: "AdminClient", target: "Target", group: str) -> "dict[Partition, int]":
    from confluent_kafka import ConsumerGroupTopicPartitions

    from dovetail.cli.client import call, wait_for

    doing = f"reading the positions of group {group!r}"
    futures = call(
        doing,
        target,
        lambda: admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=target.timeout_s
        ),
    )
    result = wait_for(doing, target, futures[group])
    return {
        (item.topic, item.partition): item.offset
        for item in result.topic_partitions
        if item.error is None and item.offset >= 0
    }


def _partitions_of_topics(
    admin: "AdminClient", target: "Target", names: set[str]
) -> "list[Partition]":
    """All partitions, without topics that were deleted: positions outlive their topic."""
    from dovetail.cli.client import partitions_of, topics_of

    topics = topics_of(admin, target)
    return [key for name in sorted(names & topics.keys()) for key in partitions_of(topics[name])]


def _partitions_to_move(
    admin: "AdminClient",
    target: "Target",
    group: str,
    topics: list[str] | None,
    partition: int | None,
    before: "dict[Partition, int]",
) -> "list[Partition]":
    from dovetail.cli.client import partitions_of, topic_of

    if topics:
        listed = [key for topic in topics for key in partitions_of(topic_of(admin, target, topic))]
    else:
        if not before:
            raise NotFound(f"group {group!r} has no positions; say which to set with --topic")
        listed = _partitions_of_topics(admin, target, {topic for topic, _ in before})
    chosen = [key for key in listed if partition is None or key[1] == partition]
    if not chosen:
        raise InvalidInput(f"no partition {partition} in {', '.join(topics or []) or 'its topics'}")
    return chosen


def _resolve(
    admin: "AdminClient", target: "Target", position: Any, partitions: "list[Partition]"
) -> "dict[Partition, int]":
    from dovetail.cli.client import bounds_of, resolve

    return resolve(admin, target, position, bounds_of(admin, target, partitions))


def _alter(admin: "AdminClient", target: "Target", group: str, moves: list[_Move]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    from dovetail.cli.client import call, error_of, wait_for

    doing = f"moving group {group!r}"
    request = ConsumerGroupTopicPartitions(
        group, [TopicPartition(move.topic, move.partition, move.after) for move in moves]
    )
    futures = call(
        doing,
        target,
        lambda: admin.alter_consumer_group_offsets([request], request_timeout=target.timeout_s),
    )
    for item in wait_for(doing, target, futures[group]).topic_partitions:
        if item.error is not None:
            raise error_of(f"{doing} at {item.topic}:{item.partition}", item.error, target)


def _no_group(group: str, target: "Target") -> NotFound:
    return NotFound(
        f"no group {group!r} on {target.bootstrap}; `{program()} group list` shows what there is"
    )
