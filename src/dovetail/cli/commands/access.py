"""`dovetail access`: what users may do."""

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
import typer

from dovetail.admin import access as admin
from dovetail.admin.access import Rule
from dovetail.admin.kafka import Kafka
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

Command = Callable[..., None]
Change = Callable[[Kafka, list[Rule]], None]
Permission = Literal["allow", "deny", "any"]

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


def _naming_rules(permission: Permission) -> Callable[[Change], Command]:
    """Makes a command of a function that changes rules; the command line names the rules."""

    def decorate(change: Change) -> Command:
        def command(
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
            on = admin.resources(
                topics=topics,
                timelines=timelines,
                groups=groups,
                transactional_ids=ids,
                cluster=cluster,
            )
            rules = admin.rules_for(user, operations, on, permission=permission)
            change(kafka_of(ctx, bootstrap, timeout), rules)

        command.__doc__ = change.__doc__
        return command

    return decorate


@app.command(
    "allow",
    epilog=examples(
        "dovetail access allow alice read --topic 'orders*' --group billing",
        "dovetail access allow shop write create --topic orders",
        "dovetail access allow bot all --timeline reminders",
    ),
)
@_naming_rules("allow")
def allow(kafka: Kafka, rules: list[Rule]) -> None:
    """Allow a user to do something. Whoever may read or write also sees that it exists."""
    _add(kafka, rules)


@app.command("deny", epilog=examples("dovetail access deny bob write --topic audit"))
@_naming_rules("deny")
def deny(kafka: Kafka, rules: list[Rule]) -> None:
    """Deny a user something, whatever other rules allow."""
    _add(kafka, rules)


def _add(kafka: Kafka, rules: list[Rule]) -> None:
    admin.add_rules(kafka, rules)
    note(f"{plural(len(rules), 'rule')} added")


@app.command("remove", epilog=examples("dovetail access remove alice read --topic 'orders*'"))
@_naming_rules("any")
def remove(kafka: Kafka, rules: list[Rule]) -> None:
    """Remove rules, those that allow and those that deny, as they were given."""
    removed = admin.remove_rules(kafka, rules)
    note(f"{plural(removed, 'rule')} removed")


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
