"""`dovetail timeline`: messages of a timeline: schedule, peek, consume, dead letters."""

import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, cast

import typer

from dovetail.background import first_of
from dovetail.cli.commands.consume import readable
from dovetail.cli.commands.timeline import TimelineArgument, app
from dovetail.cli.options import (
    BootstrapOption,
    JsonLinesOption,
    JsonOption,
    TimeoutOption,
    bytes_given,
    examples,
    target_of,
)
from dovetail.cli.output import plural, print_done, print_rows
from dovetail.cli.printable import json_text, printable
from dovetail.cli.timeline_client import ask, connect_to
from dovetail.errors import InvalidInput
from dovetail.timeline.client import Dovetail, Draft, Message, Scheduled
from dovetail.timeline.client.draft import OnTakenName
from dovetail.timeline.client.retry import NotHandled
from dovetail.timeline.message import Shown

__all__ = ["app"]

LimitOption = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=10_000, help="Show at most this many.")
]


BodyArgument = Annotated[
    str, typer.Argument(metavar="BODY", help="The message; - reads lines of standard input.")
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key", "-k", metavar="KEY", help="Unique key: stored once while its message exists."
    ),
]
OrderKeyOption = Annotated[
    str | None,
    typer.Option("--order-key", metavar="KEY", help="One at a time and in order within this key."),
]
AttemptsOption = Annotated[
    int | None,
    typer.Option("--attempts", min=1, max=10_000, help="Attempts before it becomes a dead letter."),
]
BackoffOption = Annotated[
    str | None,
    typer.Option("--backoff", metavar="DURATION", help="Delay after the first failed attempt."),
]
TtlOption = Annotated[
    str | None,
    typer.Option(
        "--ttl", metavar="DURATION", help="Not handled later than this after its due time."
    ),
]
OnTakenOption = Annotated[
    str,
    typer.Option(
        "--on-taken",
        metavar="RULE",
        help="While a message has the key: keep, replace, earlier or fail.",
    ),
]
HoldOption = Annotated[
    str | None,
    typer.Option(
        "--hold", metavar="DURATION", help="How long the key stays taken after it is done."
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
    order_key: OrderKeyOption = None,
    attempts: AttemptsOption = None,
    backoff: BackoffOption = None,
    ttl: TtlOption = None,
    on_taken: OnTakenOption = "keep",
    hold: HoldOption = None,
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
    terms = (after, at, key, order_key, attempts, backoff, ttl, hold)
    if recurring and any(term is not None for term in terms):
        raise InvalidInput("a recurring schedule takes no times, keys and limits of one message")
    bodies = [line.rstrip("\n") for line in sys.stdin] if body == "-" else [body]
    moment = moment_given(at)

    async def store(client: Dovetail) -> list[Scheduled]:
        found = client.timeline(timeline)
        if recurring:
            await found.put_schedule(
                name or "", bytes_given(bodies[0], "body"), cron=cron or "", zone=zone, every=every
            )
            return []
        drafts = [
            Draft(
                bytes_given(text, "body"),
                at=moment,
                delay=after,
                key=key,
                priority=priority,
                order_key=order_key,
                attempts=attempts,
                backoff=backoff,
                ttl=ttl,
                on_taken=cast(OnTakenName, on_taken),
                hold=hold,
            )
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


def moment_given(text: str | None) -> datetime | None:
    """The time that a person wrote. Raises `InvalidInput`."""
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
    """Show dead letters: messages whose last attempt failed, with the reason."""
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
            "order_key": shown.order_key,
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
        "order_key": message.order_key,
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
