"""`dovetail access`: what users may do."""

from typing import Annotated

import msgspec
import typer

from dovetail.admin import access as admin
from dovetail.cli.client import kafka_of
from dovetail.cli.options import BootstrapOption, JsonOption, TimeoutOption, examples
from dovetail.cli.output import note, plural, print_rows
from dovetail.cli.program import program

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples(
        "dovetail access allow alice read --topic 'orders*' --group billing",
        "dovetail access deny bob write --topic audit",
        "dovetail access list",
    ),
)

UserArgument = Annotated[
    str, typer.Argument(metavar="USER", help="Name of the user; '*' means everybody.")
]
OperationsArgument = Annotated[
    list[str],
    typer.Argument(metavar="OPERATION...", help=f"Operations: {', '.join(admin.OPERATIONS)}."),
]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC", help="Topic; 'orders*' means a prefix, '*' all."),
]
TimelinesOption = Annotated[
    list[str] | None, typer.Option("--timeline", metavar="TIMELINE", help="Timeline, as --topic.")
]
GroupsOption = Annotated[
    list[str] | None, typer.Option("--group", metavar="GROUP", help="Group, as --topic.")
]
IdsOption = Annotated[
    list[str] | None,
    typer.Option("--transactional-id", metavar="ID", help="Transactional id, as --topic."),
]
ClusterOption = Annotated[
    bool, typer.Option("--cluster", help="The cluster: users, rules, new topics.")
]


@app.command(
    "allow",
    epilog=examples(
        "dovetail access allow alice read --topic 'orders*' --group billing",
        "dovetail access allow shop write create --topic orders",
        "dovetail access allow bot all --timeline reminders",
    ),
)
def allow(
    ctx: typer.Context,
    user: UserArgument,
    operations: OperationsArgument,
    topics: TopicsOption = None,
    timelines: TimelinesOption = None,
    groups: GroupsOption = None,
    ids: IdsOption = None,
    cluster: ClusterOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Allow a user to do something. Whoever may read or write also sees that it exists."""
    on = admin.resources(
        topics=topics, timelines=timelines, groups=groups, transactional_ids=ids, cluster=cluster
    )
    rules = admin.rules_for(user, operations, on, permission="allow")
    admin.add_rules(kafka_of(ctx, bootstrap, timeout), rules)
    note(f"{plural(len(rules), 'rule')} added")


@app.command("deny", epilog=examples("dovetail access deny bob write --topic audit"))
def deny(
    ctx: typer.Context,
    user: UserArgument,
    operations: OperationsArgument,
    topics: TopicsOption = None,
    timelines: TimelinesOption = None,
    groups: GroupsOption = None,
    ids: IdsOption = None,
    cluster: ClusterOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Deny a user something, whatever other rules allow."""
    on = admin.resources(
        topics=topics, timelines=timelines, groups=groups, transactional_ids=ids, cluster=cluster
    )
    rules = admin.rules_for(user, operations, on, permission="deny")
    admin.add_rules(kafka_of(ctx, bootstrap, timeout), rules)
    note(f"{plural(len(rules), 'rule')} added")


@app.command(
    "list", epilog=examples("dovetail access list", "dovetail access list --user alice --json")
)
def list_rules(
    ctx: typer.Context,
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="Only rules that name this user.")
    ] = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the rules."""
    rules = admin.list_rules(kafka_of(ctx, bootstrap, timeout), user=user)
    empty = f"no rules; grant something with `{program()} access allow USER OPERATION`"
    print_rows(as_json, msgspec.to_builtins(rules), empty=empty)


@app.command("remove", epilog=examples("dovetail access remove alice read --topic 'orders*'"))
def remove(
    ctx: typer.Context,
    user: UserArgument,
    operations: OperationsArgument,
    topics: TopicsOption = None,
    timelines: TimelinesOption = None,
    groups: GroupsOption = None,
    ids: IdsOption = None,
    cluster: ClusterOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Remove rules, those that allow and those that deny, as they were given."""
    on = admin.resources(
        topics=topics, timelines=timelines, groups=groups, transactional_ids=ids, cluster=cluster
    )
    rules = admin.rules_for(user, operations, on, permission="any")
    removed = admin.remove_rules(kafka_of(ctx, bootstrap, timeout), rules)
    note(f"{plural(removed, 'rule')} removed")
