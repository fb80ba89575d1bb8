"""`dovetail timeline`: messages of a timeline: schedule, peek, consume, dead letters, replay."""

import asyncio
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.commands.timeline import TimelineArgument, app
from dovetail.cli.options import (
    BootstrapOption,
    JsonOption,
    TimeoutOption,
    examples,
    target_of,
)
from dovetail.cli.outcome import ExitCode
from dovetail.cli.timeline_client import connect_to, run
from dovetail.errors import InvalidInput

if TYPE_CHECKING:
    from dovetail.timeline.client import Message
    from dovetail.timeline.message import Shown

__all__ = ["app"]

LimitOption = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=10_000, help="Show at most so many.")
]

#: Dead letters that one request replays.
_REPLAY_BATCH = 1_000


BodyArgument = Annotated[
    str, typer.Argument(metavar="BODY", help="The message; - reads lines of standard input.")
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", "-k", metavar="KEY", help="Unique key: stored once while it is there."),
]
CronOption = Annotated[
    str | None, typer.Option("--cron", metavar="LINE", help="Again and again; needs --name.")
]
EveryOption = Annotated[
    str | None, typer.Option("--every", metavar="DURATION", help="The same, every so often.")
]
ZoneOption = Annotated[str, typer.Option("--zone", metavar="ZONE", help="Time zone of --cron.")]
NameOption = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Of a recurring schedule.")
]


@app.command(
    "schedule",
    epilog=examples(
        "dovetail timeline schedule reminders 'call Ada' --in 2h",
        "dovetail timeline schedule reminders 'call Ada' --at 2026-12-24T18:00 --key ada",
        "dovetail timeline schedule reports run --cron '0 3 * * MON' --name weekly",
    ),
)
def schedule(
    ctx: typer.Context,
    timeline: TimelineArgument,
    body: BodyArgument,
    after: Annotated[
        str | None, typer.Option("--in", metavar="DURATION", help="Due after this, such as 90s.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Due then: 2026-12-24T18:00.")
    ] = None,
    key: KeyOption = None,
    priority: Annotated[int, typer.Option("--priority", min=0, max=9, help="9 goes first.")] = 0,
    cron: CronOption = None,
    every: EveryOption = None,
    zone: ZoneOption = "UTC",
    name: NameOption = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Schedule a message, or a recurring one."""
    from dovetail.cli.output import note, plural, print_json
    from dovetail.timeline.client import Draft, Scheduled

    target = target_of(ctx, bootstrap, timeout)
    recurring = cron is not None or every is not None
    if recurring != (name is not None):
        raise InvalidInput("a recurring schedule has --name and one of --cron and --every")
    if recurring and (after or at or key):
        raise InvalidInput("a recurring schedule has no --in, --at and --key")
    bodies = [line.rstrip("\n") for line in sys.stdin] if body == "-" else [body]
    moment = _moment(at)

    async def work() -> "list[Scheduled]":
        async with connect_to(target) as d:
            found = d.timeline(timeline)
            if recurring:
                await found.put_schedule(
                    name or "", bodies[0].encode(), cron=cron or "", zone=zone, every=every
                )
                return []
            drafts = [
                Draft(text.encode(), at=moment, delay=after, key=key, priority=priority)
                for text in bodies
            ]
            return await found.schedule_many(drafts)

    done = run(target, work())
    if as_json:
        print_json([{"id": item.id, "created": item.created} for item in done])
    elif recurring:
        note(f"schedule {name!r} is set")
    else:
        new = sum(item.created for item in done)
        there = len(done) - new
        known = f"; {plural(there, 'message')} with this key was there" if there else ""
        note(f"scheduled {plural(new, 'message')}{known}")


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{text!r} is no time; write it like 2026-12-24T18:00 or 2026-12-24T18:00:00Z"
        ) from error


@app.command("peek", epilog=examples("dovetail timeline peek reminders --limit 20"))
def peek(
    ctx: typer.Context,
    timeline: TimelineArgument,
    limit: LimitOption = 10,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the next messages without taking them."""
    target = target_of(ctx, bootstrap, timeout)

    async def work() -> "list[Shown]":
        async with connect_to(target) as d:
            return await d.timeline(timeline).peek(limit)

    _print_messages(run(target, work()), as_json=as_json)


@app.command("dead", epilog=examples("dovetail timeline dead reminders --limit 100 --json"))
def dead(
    ctx: typer.Context,
    timeline: TimelineArgument,
    limit: LimitOption = 20,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show dead letters: messages that failed for the last time, with the reason."""
    target = target_of(ctx, bootstrap, timeout)

    async def work() -> "list[Shown]":
        async with connect_to(target) as d:
            return await d.timeline(timeline).dead(limit=limit)

    _print_messages(run(target, work()), as_json=as_json, dead=True)


def _print_messages(messages: "Sequence[Shown]", *, as_json: bool, dead: bool = False) -> None:
    from dovetail.cli.commands.consume import readable
    from dovetail.cli.output import note, print_json, print_table

    rows = [
        {
            "id": shown.id,
            "state": shown.state.name.lower(),
            "due": _time(shown.due_ms),
            "attempts": shown.attempts,
            "key": shown.key,
            "holder": shown.holder,
            "reason": shown.reason if as_json else shown.reason.split("\n")[0],
            "body": readable(shown.body) if as_json else shown.body.decode(errors="replace"),
        }
        for shown in messages
    ]
    if as_json:
        print_json(rows)
        return
    if not rows:
        note("no dead letters" if dead else "no message waits")
        return
    columns = ["id", "due", "attempts", "key", "reason" if dead else "state", "body"]
    print_table(columns, ([row[column] for column in columns] for row in rows))


def _line(message: "Message") -> bytes:
    from dovetail.cli.commands.consume import readable

    shown = {
        "id": message.id,
        "due": _time(message.due_ms),
        "attempt": message.attempt,
        "key": message.key,
        "priority": message.priority,
        "headers": [[name, readable(value)] for name, value in message.headers],
        "body": readable(message.body),
    }
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


@app.command(
    "replay",
    epilog=examples(
        "dovetail timeline replay reminders 4711", "dovetail timeline replay reminders --all"
    ),
)
def replay(
    ctx: typer.Context,
    timeline: TimelineArgument,
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="ID...", help="Dead letters to replay.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make messages of dead letters again, due now, from their first attempt on."""
    from dovetail.cli.output import note, plural, print_json
    from dovetail.timeline.message import Status

    target = target_of(ctx, bootstrap, timeout)
    if bool(ids) == everything:
        raise InvalidInput("name the ids of dead letters, or give --all")

    async def work() -> list[Status]:
        async with connect_to(target) as d:
            found = d.timeline(timeline)
            wanted = list(ids or [])
            if everything:
                wanted = [shown.id async for shown in found.all_dead()]
            statuses: list[Status] = []
            for start in range(0, len(wanted), _REPLAY_BATCH):
                statuses += await found.replay(*wanted[start : start + _REPLAY_BATCH])
            return statuses

    statuses = run(target, work())
    done = statuses.count(Status.OK)
    left = len(statuses) - done
    if as_json:
        print_json({"replayed": done, "left": left})
    else:
        note(f"replayed {plural(done, 'message')}" + (f"; {left} could not be" if left else ""))
    if left:
        raise typer.Exit(ExitCode.FAILED)


@app.command(
    "consume",
    epilog=examples(
        "dovetail timeline consume reminders", "dovetail timeline consume reminders --count 10"
    ),
)
def consume(
    ctx: typer.Context,
    timeline: TimelineArgument,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after so many.")
    ] = None,
    lease: Annotated[
        str, typer.Option("--lease", metavar="DURATION", help="Lease of each message.")
    ] = "30s",
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line, for programs.")
    ] = False,
) -> None:
    """Print messages as they become due, and delete each; Ctrl-C ends it."""
    target = target_of(ctx, bootstrap, timeout)

    async def work() -> None:
        enough = asyncio.Event()
        printed = 0

        async def show(message: "Message") -> None:
            nonlocal printed
            sys.stdout.buffer.write(_line(message) if as_json else message.body + b"\n")
            sys.stdout.buffer.flush()
            printed += 1
            if count is not None and printed >= count:
                enough.set()

        async with connect_to(target) as d:
            await d.timeline(timeline).describe()
            # One at a time, or more than `count` would be taken.
            d.consumer(timeline, lease=lease, concurrency=1)(show)
            running = asyncio.create_task(d.run())
            waiting = asyncio.create_task(enough.wait())
            await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            running.cancel()

    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        return
