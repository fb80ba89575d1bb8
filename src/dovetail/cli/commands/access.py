"""`dovetail access`: what users may do."""

from typing import Annotated, Any

import typer

from dovetail.cli.options import BootstrapOption, JsonOption, TimeoutOption, examples, target_of
from dovetail.cli.program import program
from dovetail.errors import InvalidInput

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples(
        "dovetail access allow alice read --topic 'orders*' --group billing",
        "dovetail access deny bob write --topic audit",
        "dovetail access list",
    ),
)

_OPERATIONS = "all, read, write, create, delete, alter, describe, describe-configs, alter-configs"

UserArgument = Annotated[
    str, typer.Argument(metavar="USER", help="Name of the user; '*' is everybody.")
]
OperationsArgument = Annotated[
    list[str], typer.Argument(metavar="OPERATION...", help=f"What it is about: {_OPERATIONS}.")
]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="TOPIC", help="Topic; 'orders*' is all that begin so, '*' is all."
    ),
]
TimelinesOption = Annotated[
    list[str] | None, typer.Option("--timeline", metavar="TIMELINE", help="Timeline, as --topic.")
]
GroupsOption = Annotated[
    list[str] | None, typer.Option("--group", metavar="GROUP", help="Group, as --topic.")
]
ClusterOption = Annotated[
    bool, typer.Option("--cluster", help="The cluster itself: users, rules, new topics.")
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
    cluster: ClusterOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Allow a user to do something. Who may read or write may also see that it is there."""
    _add(
        ctx,
        "ALLOW",
        user,
        operations,
        _named(topics, timelines, groups, cluster),
        bootstrap,
        timeout,
    )


@app.command("deny", epilog=examples("dovetail access deny bob write --topic audit"))
def deny(
    ctx: typer.Context,
    user: UserArgument,
    operations: OperationsArgument,
    topics: TopicsOption = None,
    timelines: TimelinesOption = None,
    groups: GroupsOption = None,
    cluster: ClusterOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Deny a user something, whatever other rules allow."""
    _add(
        ctx,
        "DENY",
        user,
        operations,
        _named(topics, timelines, groups, cluster),
        bootstrap,
        timeout,
    )


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
    from dovetail.cli.client import call, connect, wait_for
    from dovetail.cli.output import note, print_json, print_table

    target = target_of(ctx, bootstrap, timeout)
    admin = connect(target)
    doing = "listing access rules"
    wanted = _filter(user=user)
    rules = wait_for(doing, target, call(doing, target, lambda: admin.describe_acls(wanted)))
    rows = sorted(_row(rule) for rule in rules)
    columns = ["user", "rule", "operation", "kind", "name", "host"]
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif rows:
        print_table(columns, rows)
    else:
        note(f"no rules; allow something with `{program()} access allow USER OPERATION`")


@app.command("remove", epilog=examples("dovetail access remove alice read --topic 'orders*'"))
def remove(
    ctx: typer.Context,
    user: UserArgument,
    operations: OperationsArgument,
    topics: TopicsOption = None,
    timelines: TimelinesOption = None,
    groups: GroupsOption = None,
    cluster: ClusterOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Remove rules, allowing and denying ones, as they were given."""
    from dovetail.cli.client import call, connect, wait_for
    from dovetail.cli.output import note, plural

    target = target_of(ctx, bootstrap, timeout)
    admin = connect(target)
    doing = "removing access rules"
    filters = [
        _filter(user=user, operation=operation, kind=kind, name=name)
        for operation in _operations(operations)
        for kind, name in _named(topics, timelines, groups, cluster)
    ]
    removed = [
        rule
        for future in call(doing, target, lambda: admin.delete_acls(filters)).values()
        for rule in wait_for(doing, target, future)
    ]
    note(f"{plural(len(removed), 'rule')} removed")


def _add(
    ctx: typer.Context,
    permission: str,
    user: str,
    operations: list[str],
    named: list[tuple[str, str]],
    bootstrap: str | None,
    timeout: str | None,
) -> None:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AclBinding,
        AclOperation,
        AclPermissionType,
        ResourceType,
    )

    from dovetail.cli.client import call, connect, wait_for
    from dovetail.cli.output import note, plural

    target = target_of(ctx, bootstrap, timeout)
    rules = [
        AclBinding(
            ResourceType[kind],
            *_pattern(name),
            f"User:{user}",
            "*",
            AclOperation[operation],
            AclPermissionType[permission],
        )
        for operation in _operations(operations)
        for kind, name in named
    ]
    admin = connect(target)
    doing = "adding access rules"
    for future in call(doing, target, lambda: admin.create_acls(rules)).values():
        wait_for(doing, target, future)
    note(f"{plural(len(rules), 'rule')} added")


def _named(
    topics: list[str] | None, timelines: list[str] | None, groups: list[str] | None, cluster: bool
) -> list[tuple[str, str]]:
    """Kafka's kinds and names of what a rule is about."""
    from dovetail.access import CLUSTER_NAME, timeline_name

    named = [("TOPIC", name) for name in topics or ()]
    named += [("TOPIC", timeline_name(name)) for name in timelines or ()]
    named += [("GROUP", name) for name in groups or ()]
    if cluster:
        named.append(("BROKER", CLUSTER_NAME))
    if not named:
        raise InvalidInput("say what it is about: --topic, --timeline, --group or --cluster")
    return named


def _operations(given: list[str]) -> list[str]:
    known = [name.strip() for name in _OPERATIONS.split(",")]
    for name in given:
        if name.lower() not in known:
            raise InvalidInput(f"{name!r} is no operation; there are {_OPERATIONS}")
    return [name.upper().replace("-", "_") for name in given]


def _pattern(name: str) -> tuple[str, Any]:
    from confluent_kafka.admin import ResourcePatternType  # type: ignore[attr-defined]

    if len(name) > 1 and name.endswith("*"):
        return name[:-1], ResourcePatternType.PREFIXED
    return name, ResourcePatternType.LITERAL


def _filter(
    *,
    user: str | None = None,
    operation: str = "ANY",
    kind: str = "ANY",
    name: str | None = None,
) -> Any:
    """The rules that are meant, for requests; all of them if nothing is said."""
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    found, how = (None, ResourcePatternType.ANY) if name is None else _pattern(name)
    # Its annotations do not know the None that stands for anything.
    make: Any = AclBindingFilter
    return make(
        ResourceType[kind],
        found,
        how,
        None if user is None else f"User:{user}",
        None,
        AclOperation[operation],
        AclPermissionType.ANY,
    )


def _row(rule: Any) -> tuple[str, str, str, str, str, str]:
    from confluent_kafka.admin import ResourcePatternType  # type: ignore[attr-defined]

    name, kind = rule.name, rule.restype.name.lower()
    if rule.resource_pattern_type is ResourcePatternType.PREFIXED:
        name += "*"
    if kind == "topic" and name.startswith("timeline:"):
        kind, name = "timeline", name.removeprefix("timeline:")
    return (
        rule.principal.removeprefix("User:"),
        rule.permission_type.name.lower(),
        rule.operation.name.lower().replace("_", "-"),
        "cluster" if kind == "broker" else kind,
        name,
        rule.host,
    )
