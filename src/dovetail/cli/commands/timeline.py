"""`dovetail timeline`: create, list, describe (also live) and delete timelines."""

import asyncio
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dovetail.admin import timelines as admin
from dovetail.cli.completing import timeline_names
from dovetail.cli.confirming import confirm
from dovetail.cli.options import (
    BootstrapOption,
    ConfigOption,
    JsonOption,
    SetOption,
    Target,
    TimeoutOption,
    WatchOption,
    YesOption,
    examples,
    named_values,
    settings_of,
    target_of,
)
from dovetail.cli.output import answers, note, print_done, print_json, print_rows
from dovetail.cli.printable import printable
from dovetail.cli.program import program
from dovetail.cli.timeline_client import ask, connect_to
from dovetail.errors import InvalidInput, InvalidSetting
from dovetail.timeline.config import check_name, config_of
from dovetail.timeline.stores.postgres_database import PostgresStores

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples(
        "dovetail timeline create reminders",
        "dovetail timeline schedule reminders 'call Ada' --in 2h",
    ),
)

TimelineArgument = Annotated[
    str,
    typer.Argument(metavar="TIMELINE", help="Name of the timeline.", autocompletion=timeline_names),
]
#: Time between two looks of `describe --watch`.
_WATCH_S = 1.0


@app.command(
    "create",
    epilog=examples(
        "dovetail timeline create reminders",
        "dovetail timeline create reminders --config attempts_max=5 --config window_ms=500",
    ),
)
def create(
    ctx: typer.Context,
    timeline: TimelineArgument,
    settings: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="NAME=VALUE", help="Setting of the timeline; repeatable."),
    ] = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a timeline. Exit code 4 if it exists."""
    target = target_of(ctx, bootstrap, timeout)
    check_name(timeline)
    given: dict[str, str | int] = dict(named_values("--config", settings))
    config = config_of(given)
    ask(target, lambda client: client.timeline(timeline).create(config))
    print_done(as_json, {"timeline": timeline, "config": given}, f"created timeline {timeline!r}")


@app.command("list", epilog=examples("dovetail timeline list", "dovetail timeline list --json"))
def list_timelines(
    ctx: typer.Context,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the timelines with their messages by state."""
    columns = ["timeline", "state", "waiting", "due", "leased", "dead", "consumers"]
    found = ask(target_of(ctx, bootstrap, timeout), admin.list_timelines)
    rows = [
        {column: value for column in columns if (value := getattr(one, column)) is not None}
        for one in found
    ]
    empty = f"no timelines yet; create one: {program()} timeline create reminders"
    print_rows(as_json, rows, columns=columns, empty=empty)


@app.command(
    "describe",
    epilog=examples(
        "dovetail timeline describe reminders", "dovetail timeline describe reminders --watch"
    ),
)
def describe(
    ctx: typer.Context,
    timeline: TimelineArgument,
    watch: WatchOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a timeline: messages by state, load, lateness, consumers and settings."""
    target = target_of(ctx, bootstrap, timeout)
    if watch and as_json:
        raise InvalidInput("--watch is for people; leave out --json, or call it repeatedly")
    if watch:
        _watch(target, timeline)
        return

    found = ask(target, lambda client: admin.describe_timeline(client.timeline(timeline)))
    if as_json:
        print_json(_document(found))
        return
    console = answers()
    for table in _tables(found, with_settings=True):
        console.print(table)


def _document(found: admin.TimelineShown) -> dict[str, Any]:
    return {
        name: value
        for name, value in msgspec.to_builtins(found).items()
        if name not in ("oldest_due_ms", "window_ms", "schedules")
    }


def _watch(target: Target, timeline: str) -> None:
    async def work() -> None:
        async with connect_to(target) as client:
            chosen = client.timeline(timeline)
            found = await admin.describe_timeline(chosen)
            with Live(Group(*_tables(found)), auto_refresh=False) as live:
                while True:
                    await asyncio.sleep(_WATCH_S)
                    found = await admin.describe_timeline(chosen)
                    live.update(Group(*_tables(found)), refresh=True)

    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        return


def _tables(found: admin.TimelineShown, *, with_settings: bool = False) -> list[Table]:
    tables = [_table_of_now(found)]
    if found.consumer_list:
        table = Table(header_style="bold")
        for name in ("consumer", "rack", "buckets", "credit", "leased", "latency", "lease"):
            table.add_column(name, justify="left" if name in ("consumer", "rack") else "right")
        for each in found.consumer_list:
            table.add_row(
                Text(printable(each.id)),
                Text(printable(each.rack)),
                f"{each.buckets:,}",
                f"{each.credit:,}",
                f"{each.leased:,}",
                f"{each.latency_ms:.1f} ms",
                f"{each.lease_ms:,} ms",
            )
        tables.append(table)

    if with_settings:
        table = Table("setting", "value", header_style="bold")
        for name, value in found.config.items():
            table.add_row(name, str(value))
        tables.append(table)
    return tables


def _table_of_now(found: admin.TimelineShown) -> Table:
    table = Table(title=found.timeline, title_justify="left", header_style="bold")
    for name in ("waiting", "due", "leased", "dead", "late p50", "late p99", "in/s", "done/s"):
        table.add_column(name, justify="right")
    table.add_row(
        f"{found.waiting:,}",
        f"{found.due:,}",
        f"{found.leased:,}",
        f"{found.dead:,}",
        *("-" if ms is None else f"{ms:,.1f} ms" for ms in (found.late_ms.p50, found.late_ms.p99)),
        f"{found.arrivals_per_second:,.1f}",
        f"{found.done_per_second:,.1f}",
    )
    ahead = ", ".join(f"{count:,}" for count in found.next_windows)
    table.caption = (
        f"next windows: {ahead}; consumers {found.consumers}, suggested "
        f"{found.consumers_suggested}; {found.condition} {'; '.join(found.reasons)}"
    )
    return table


@app.command(
    "delete",
    epilog=examples("dovetail timeline delete reminders", "dovetail timeline delete old --yes"),
)
def delete(
    ctx: typer.Context,
    timeline: TimelineArgument,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a timeline with all its messages. Exit code 3 if there is none."""
    target = target_of(ctx, bootstrap, timeout)
    confirm(f"Delete timeline {timeline} on {target.bootstrap} with all messages?", yes=yes)
    ask(target, lambda client: client.timeline(timeline).delete())
    print_done(as_json, {"deleted": [timeline]}, f"deleted timeline {timeline!r}")


@app.command(
    "adopt",
    epilog=examples("dovetail timeline adopt 6f0c1d 9b27ae --set timeline.dsn=postgresql://..."),
)
def adopt(
    ctx: typer.Context,
    before: Annotated[str, typer.Argument(metavar="LOST", help="Id of the cluster that is gone.")],
    after: Annotated[str, typer.Argument(metavar="CLUSTER", help="Id of its successor.")],
    yes: YesOption = False,
    config_file: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Hand the timelines in a PostgreSQL schema from a lost cluster to its successor.

    Works on the database of timeline.dsn and timeline.schema_name. Stop all
    nodes of the lost cluster first. Nodes of its successor find the timelines when they start.
    """
    found = settings_of(ctx, config=config_file, assignments=assignments).timeline
    if not found.dsn:
        raise InvalidSetting("timeline.dsn must say which database; give --set timeline.dsn=...")
    confirm(f"Give the timelines of cluster {before} to {after}? Does no node of it run?", yes=yes)

    async def hand_over() -> None:
        stores = await PostgresStores.connect(found.dsn, schema=found.schema_name)
        try:
            await stores.hand_over(before, after)
        finally:
            await stores.close()

    asyncio.run(hand_over())
    note(f"schema {found.schema_name!r} belongs to cluster {after} now; start its nodes")
