"""`dovetail timeline`: a timeline in use: alter, pause, resume, purge; its schedules; dead letters
by filter."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from dovetail.cli.commands.timeline import TimelineArgument
from dovetail.cli.commands.timeline_messages import app
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
from dovetail.cli.output import plural, print_done, print_rows
from dovetail.cli.timeline_client import ask
from dovetail.errors import InvalidInput
from dovetail.timeline.client import Dovetail

__all__ = ["app"]

#: Dead letters that one request removes.
_DROP_BATCH = 1_000

ScheduleArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the recurring schedule.")
]


@app.command(
    "alter",
    epilog=examples("dovetail timeline alter reminders --config attempts_max=5"),
)
def alter(
    ctx: typer.Context,
    timeline: TimelineArgument,
    settings: Annotated[
        list[str],
        typer.Option("--config", metavar="NAME=VALUE", help="Setting to change; repeatable."),
    ],
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change settings of a timeline in use. All but the number of buckets can be changed."""
    target = target_of(ctx, bootstrap, timeout)
    given = dict(named_values("--config", settings))
    ask(target, lambda client: client.timeline(timeline).alter(**given))
    print_done(as_json, {"timeline": timeline, "config": given}, f"altered timeline {timeline!r}")


@app.command("pause", epilog=examples("dovetail timeline pause reminders"))
def pause(
    ctx: typer.Context,
    timeline: TimelineArgument,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Push nothing until `resume`. Messages are stored as before; what is handled goes on."""
    ask(target_of(ctx, bootstrap, timeout), lambda client: client.timeline(timeline).pause())
    print_done(as_json, {"timeline": timeline, "paused": True}, f"paused {timeline!r}")


@app.command("resume", epilog=examples("dovetail timeline resume reminders"))
def resume(
    ctx: typer.Context,
    timeline: TimelineArgument,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Push again what is due."""
    ask(target_of(ctx, bootstrap, timeout), lambda client: client.timeline(timeline).resume())
    print_done(as_json, {"timeline": timeline, "paused": False}, f"resumed {timeline!r}")


@app.command("purge", epilog=examples("dovetail timeline purge reminders --yes"))
def purge(
    ctx: typer.Context,
    timeline: TimelineArgument,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove all messages that nobody is handling. Dead letters and schedules stay."""
    target = target_of(ctx, bootstrap, timeout)
    confirm(f"Remove all messages of {timeline} on {target.bootstrap}?", yes=yes)
    removed = ask(target, lambda client: client.timeline(timeline).purge())
    print_done(as_json, {"removed": removed}, f"removed {plural(removed, 'message')}")


@app.command("schedules", epilog=examples("dovetail timeline schedules reports"))
def schedules(
    ctx: typer.Context,
    timeline: TimelineArgument,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the recurring schedules with their next times."""
    target = target_of(ctx, bootstrap, timeout)
    found = ask(target, lambda client: client.timeline(timeline).schedules())
    rows = [
        {
            "name": each.name,
            "next": datetime.fromtimestamp(each.next_ms / 1000, UTC).isoformat(timespec="seconds"),
            "cron": each.cron,
            "zone": each.zone if each.cron else "",
            "every_ms": each.every_ms or None,
        }
        for each in found
    ]
    print_rows(as_json, rows, empty="no recurring schedules")


@app.command("unschedule", epilog=examples("dovetail timeline unschedule reports weekly"))
def unschedule(
    ctx: typer.Context,
    timeline: TimelineArgument,
    name: ScheduleArgument,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a recurring schedule. Messages that it has made stay. Exit code 3 if there is none."""
    target = target_of(ctx, bootstrap, timeout)
    ask(target, lambda client: client.timeline(timeline).drop_schedule(name))
    print_done(as_json, {"dropped": name}, f"ended schedule {name!r}")


@app.command(
    "discard",
    epilog=examples("dovetail timeline discard reminders --reason 'no such customer' --yes"),
)
def discard(
    ctx: typer.Context,
    timeline: TimelineArgument,
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="ID...", help="Dead letters to remove.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Those whose reason holds this.")
    ] = None,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove dead letters for good, by id or by their reason."""
    target = target_of(ctx, bootstrap, timeout)
    if bool(ids) == bool(reason):
        raise InvalidInput("give the ids of dead letters, or --reason")

    async def drop(client: Dovetail) -> int:
        found = client.timeline(timeline)
        wanted = list(ids or [])
        if reason:
            wanted = [shown.id async for shown in found.all_dead() if reason in shown.reason]
        what = f"{plural(len(wanted), 'dead letter')} of {timeline} on {target.bootstrap}"
        confirm(f"Remove {what}?", yes=yes)
        dropped = 0
        for start in range(0, len(wanted), _DROP_BATCH):
            statuses = await found.drop_dead(*wanted[start : start + _DROP_BATCH])
            dropped += sum(status == 0 for status in statuses)
        return dropped

    dropped = ask(target, drop)
    print_done(as_json, {"dropped": dropped}, f"removed {plural(dropped, 'dead letter')}")
