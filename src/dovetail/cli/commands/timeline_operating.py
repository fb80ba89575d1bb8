"""`dovetail timeline`: alters, pauses, resumes and purges a timeline; its schedules, messages and
dead letters, by id or filter.
"""

import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from dovetail.cli.commands.timeline import TimelineArgument
from dovetail.cli.commands.timeline_choosing import Chosen, choosing
from dovetail.cli.commands.timeline_messages import app, moment_given
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
from dovetail.timeline.client import Timeline
from dovetail.timeline.client.draft import due_ms_of
from dovetail.timeline.message import Status

__all__ = ["app"]

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
    """Change settings of a timeline in use: all but the number of buckets."""
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
    """Push nothing until `resume`. Messages are still stored; running handlers continue."""
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
    """Push due messages again."""
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
    """Delete a recurring schedule; its messages stay. Exit code 3 if there is none."""
    target = target_of(ctx, bootstrap, timeout)
    ask(target, lambda client: client.timeline(timeline).drop_schedule(name))
    print_done(as_json, {"dropped": name}, f"ended schedule {name!r}")


# By id or by filter


@app.command(
    "cancel",
    epilog=examples(
        "dovetail timeline cancel reminders 4711",
        "dovetail timeline cancel reminders --key-prefix ada/ --dry-run",
        "dovetail timeline cancel reminders --header tenant=acme --yes",
    ),
)
@choosing()
def cancel(chosen: Chosen, yes: YesOption = False) -> None:
    """Remove messages that nobody is handling, by id or by filter."""
    if not chosen.dry_run and not chosen.ids:
        confirm(f"Remove messages of {chosen.timeline} on {chosen.target.bootstrap}?", yes=yes)
    chosen.change("cancel", lambda t, ids: t.cancel(*ids), verb="cancelled", noun="message")


@app.command(
    "move",
    epilog=examples("dovetail timeline move reminders --key-prefix ada/ --in 2h"),
)
@choosing()
def move(
    chosen: Chosen,
    after: Annotated[
        str | None, typer.Option("--in", metavar="DURATION", help="Due after this time.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Due at this time: 2026-12-24T18:00.")
    ] = None,
) -> None:
    """Give messages that nobody is handling another due time, by id or by filter."""
    if (after is None) == (at is None):
        raise InvalidInput("give --in or --at")
    due_ms = due_ms_of(moment_given(at), after, time.time_ns() // 1_000_000)

    async def each(found: Timeline, numbers: list[int]) -> list[Status]:
        return [await found.move(number, at=due_ms / 1000) for number in numbers]

    chosen.change("move", each, verb="moved", noun="message", due_ms=due_ms)


@app.command(
    "replay",
    epilog=examples(
        "dovetail timeline replay reminders 4711",
        "dovetail timeline replay reminders --reason timeout --older 1h",
        "dovetail timeline replay reminders --all",
    ),
)
@choosing(dead=True)
def replay(
    chosen: Chosen,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
) -> None:
    """Turn dead letters into messages again, due now, with all their attempts."""
    chosen.change("replay", lambda t, ids: t.replay(*ids), verb="replayed", noun="message")


@app.command(
    "discard",
    epilog=examples("dovetail timeline discard reminders --reason 'no such customer' --yes"),
)
@choosing(dead=True)
def discard(chosen: Chosen, yes: YesOption = False) -> None:
    """Remove dead letters for good, by id or by filter."""
    if not chosen.dry_run:
        what = plural(chosen.count("drop"), "dead letter")
        confirm(f"Remove {what} of {chosen.timeline} on {chosen.target.bootstrap}?", yes=yes)
    chosen.change("drop", lambda t, ids: t.drop_dead(*ids), verb="removed", noun="dead letter")
