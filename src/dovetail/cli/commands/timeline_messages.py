"""`dovetail timeline`: messages of a timeline: schedule, peek, consume, dead letters, replay."""

import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from dovetail.background import first_of
from dovetail.cli.commands.consume import readable
from dovetail.cli.commands.timeline import TimelineArgument, app
from dovetail.cli.options import (
    BootstrapOption,
    JsonLinesOption,
    JsonOption,
    TimeoutOption,
    examples,
    target_of,
)
from dovetail.cli.outcome import ExitCode
from dovetail.cli.output import plural, print_done, print_rows
from dovetail.cli.printable import json_text, printable
from dovetail.cli.timeline_client import ask, connect_to
from dovetail.errors import InvalidInput
from dovetail.timeline.client import Dovetail, Draft, Message, Scheduled
from dovetail.timeline.client.retry import NotHandled
from dovetail.timeline.message import Shown, Status

__all__ = ["app"]

LimitOption = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=10_000, help="Show at most this many.")
]

#: Dead letters that one request replays.
_REPLAY_BATCH = 1_000


BodyArgument = Annotated[
    str, typer.Argument(metavar="BODY", help="The message; - reads lines of standard input.")
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key", "-k", metavar="KEY", help="Unique key: stored once while its message exists."
    ),
]
CronOption = Annotated[
    str | None,
    typer.Option("--cron", metavar="LINE", help="Repeat by this cron line; needs --name."),
]
EveryOption = Annotated[
    str | None,
    typer.Option("--every", metavar="DURATION", help="Repeat at this interval; needs --name."),
]
ZoneOption = Annotated[str, typer.Option("--zone", metavar="ZONE", help="Time zone of --cron.")]
NameOption = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Name of the recurring schedule.")
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
        str | None,
        typer.Option("--in", metavar="DURATION", help="Due after this time, such as 90s."),
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Due at this time: 2026-12-24T18:00.")
    ] = None,
    key: KeyOption = None,
    priority: Annotated[
        int, typer.Option("--priority", min=0, max=9, help="0 to 9; 9 goes first.")
    ] = 0,
    cron: CronOption = None,
    every: EveryOption = None,
    zone: ZoneOption = "UTC",
    name: NameOption = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Schedule a message, or a recurring one."""
    target = target_of(ctx, bootstrap, timeout)
    recurring = cron is not None or every is not None
    if recurring != (name is not None):
        raise InvalidInput("a recurring schedule needs --name and one of --cron and --every")
    if recurring and (after or at or key):
        raise InvalidInput("a recurring schedule takes no --in, --at or --key")
    bodies = [line.rstrip("\n") for line in sys.stdin] if body == "-" else [body]
    moment = _moment(at)

    async def store(client: Dovetail) -> list[Scheduled]:
        found = client.timeline(timeline)
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

    done = ask(target, store)
    new = sum(item.created for item in done)
    there = len(done) - new
    known = f"; {plural(there, 'message')} with this key existed already" if there else ""
    text = f"scheduled {plural(new, 'message')}{known}"
    print_done(
        as_json,
        [{"id": item.id, "created": item.created} for item in done],
        f"schedule {name!r} is set" if recurring else text,
    )


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{text!r} is not a time; write it like 2026-12-24T18:00 or 2026-12-24T18:00:00Z"
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
    found = ask(target, lambda client: client.timeline(timeline).peek(limit))
    _print_messages(found, as_json=as_json)


@app.command("dead", epilog=examples("dovetail timeline dead reminders --limit 100 --json"))
def dead(
    ctx: typer.Context,
    timeline: TimelineArgument,
    limit: LimitOption = 20,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show dead letters: messages that have failed for the last time, with the reason."""
    target = target_of(ctx, bootstrap, timeout)
    found = ask(target, lambda client: client.timeline(timeline).dead(limit=limit))
    _print_messages(found, as_json=as_json, dead=True)


def _print_messages(messages: Sequence[Shown], *, as_json: bool, dead: bool = False) -> None:
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
    columns = ["id", "due", "attempts", "key", "reason" if dead else "state", "body"]
    empty = "no dead letters" if dead else "no message waits"
    print_rows(as_json, rows, columns=columns, empty=empty)


def _json_line(message: Message) -> bytes:
    shown = {
        "id": message.id,
        "due": _time(message.due_ms),
        "attempt": message.attempt,
        "key": message.key,
        "priority": message.priority,
        "headers": [[name, readable(value)] for name, value in message.headers],
        "body": readable(message.body),
    }
    return json_text(shown).encode()


def _body(message: Message) -> bytes:
    return message.body


def _escaped_body(message: Message) -> bytes:
    return printable(message.body.decode(errors="replace"), keep="\t\n").encode()


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
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Those whose reason holds this.")
    ] = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Turn dead letters into messages again, due now, with all their attempts."""
    target = target_of(ctx, bootstrap, timeout)
    if (bool(ids), everything, bool(reason)).count(True) != 1:
        raise InvalidInput("give the ids of dead letters, or --all, or --reason")

    async def replay_all(client: Dovetail) -> list[Status]:
        found = client.timeline(timeline)
        wanted = list(ids or [])
        if not ids:
            text = reason or ""
            wanted = [shown.id async for shown in found.all_dead() if text in shown.reason]
        statuses: list[Status] = []
        for start in range(0, len(wanted), _REPLAY_BATCH):
            statuses += await found.replay(*wanted[start : start + _REPLAY_BATCH])
        return statuses

    statuses = ask(target, replay_all)
    done = statuses.count(Status.OK)
    left = len(statuses) - done
    rest = f"; {left} could not be replayed" if left else ""
    print_done(
        as_json,
        {"replayed": done, "left": left},
        f"replayed {plural(done, 'message')}{rest}",
    )
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
        int | None, typer.Option("--count", "-n", min=1, help="Stop after this many.")
    ] = None,
    lease: Annotated[
        str, typer.Option("--lease", metavar="DURATION", help="How long each message is leased.")
    ] = "30s",
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Print messages as they become due, and delete each. Ctrl-C stops it."""
    target = target_of(ctx, bootstrap, timeout)
    as_text = _escaped_body if sys.stdout.isatty() else _body
    render = _json_line if as_json else as_text

    async def work() -> None:
        enough = asyncio.Event()
        printed = 0
        failure: OSError | None = None

        async def show(message: Message) -> None:
            nonlocal printed, failure
            try:
                sys.stdout.buffer.write(render(message) + b"\n")
                sys.stdout.buffer.flush()
            except OSError as error:
                # The reader has had enough, as in `| head -1`, or the disk is full: the message
                # has not failed, and waits for somebody who can print it.
                failure = error
                enough.set()
                raise NotHandled from error
            printed += 1
            if count is not None and printed >= count:
                enough.set()

        async with connect_to(target) as client:
            await client.timeline(timeline).describe()
            # One at a time, or more than `count` would be taken.
            client.consumer(timeline, lease=lease, concurrency=1)(show)
            await first_of(client.run(), enough.wait())
        if failure is not None:
            raise failure

    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        return
