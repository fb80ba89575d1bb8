"""`dovetail group`: consumer groups, their lag, and moving them."""

from typing import Annotated

import msgspec
import typer

from dovetail.admin import groups as admin
from dovetail.admin.positions import parse_position
from dovetail.cli.client import kafka_of
from dovetail.cli.completing import group_names, topic_names
from dovetail.cli.options import BootstrapOption, JsonOption, TimeoutOption, examples
from dovetail.cli.output import answers, note, plural, print_json, print_rows, print_table
from dovetail.cli.program import program

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples("dovetail group list", "dovetail group describe billing"),
)

GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", help="Name of the group.", autocompletion=group_names)
]


#: Columns of a partition: of every group, of one whose members share it, of any other.
_PLACED = ("topic", "partition", "committed", "end", "lag")
_SHARED = ("in_flight", "again", "dying", "deliveries")
_READ = ("client", "host", "member")


@app.command("list", epilog=examples("dovetail group list", "dovetail group list --json"))
def list_groups(
    ctx: typer.Context,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List all groups with their state, their members and their lag."""
    rows = [
        {"group": found.group, "state": found.state, "members": found.members, "lag": found.lag}
        for found in admin.list_groups(kafka_of(ctx, bootstrap, timeout))
    ]
    empty = f"no groups yet; a consumer creates one: {program()} consume TOPIC --group NAME"
    print_rows(as_json, rows, columns=["group", "state", "members", "lag"], empty=empty)


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

    A partition without a committed position has no lag.
    """
    found = admin.describe_group(kafka_of(ctx, bootstrap, timeout), group)
    document = msgspec.to_builtins(found)
    if as_json:
        del document["member_list"]
        print_json(document)
        return
    lag = "unknown" if found.lag is None else f"{found.lag:,}"
    members = plural(found.members, "member")
    answers().print(f"{group}: {found.state}, {members}, lag {lag}", markup=False)
    if found.outcomes is not None:
        counts = msgspec.structs.asdict(found.outcomes).items()
        said = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in counts)
        answers().print(f"records: {said}", markup=False)

    # What members share has no member of its own; what they do not share is not in flight.
    columns = [*_PLACED, *(_SHARED if found.shares else _READ)]
    rows = ([row[name] for name in columns] for row in document["partitions"])
    print_table([name.replace("_", " ") for name in columns], rows)


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
            help="Only this topic; repeatable. Default: all that it reads.",
            autocompletion=topic_names,
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Only this partition.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would move.")] = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a group to another position. Its members must be stopped first."""
    position = parse_position(to)
    moves = admin.reset_group(
        kafka_of(ctx, bootstrap, timeout),
        group,
        position,
        topics=topics or [],
        partition=partition,
        dry_run=dry_run,
    )

    if as_json:
        rows = msgspec.to_builtins(moves)
        print_json({"group": group, "changed": not dry_run, "partitions": rows})
        return
    print_table(
        ["topic", "partition", "before", "after", "moved by"],
        (
            (
                m.topic,
                m.partition,
                m.before,
                m.after,
                None if m.before is None else m.after - m.before,
            )
            for m in moves
        ),
    )
    note("nothing was changed (--dry-run)" if dry_run else f"moved group {group!r}")
