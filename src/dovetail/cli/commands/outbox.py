"""`dovetail outbox`: tables, status, shards, dead letters, backfill and polling of an outbox."""

import inspect
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from dovetail.cli.confirming import confirm
from dovetail.cli.options import (
    DatabaseOption,
    JsonOption,
    WatchOption,
    YesOption,
    examples,
    flags_of,
    settings_of,
)
from dovetail.cli.output import note, plural, print_done, print_json, print_rows, print_table
from dovetail.cli.progress import progress_bar
from dovetail.errors import InvalidSetting, Unreachable
from dovetail.outbox.database import open_engine
from dovetail.outbox.dead import DeadMessage, drop_dead, list_dead, replay_dead, show_dead
from dovetail.outbox.poller import advance, reset, source_of
from dovetail.outbox.schema import check_version, statements_of
from dovetail.outbox.schema import migrate as migrate_tables
from dovetail.outbox.shards import set_shards
from dovetail.outbox.status import OutboxStatus, ShardStatus, read_status
from dovetail.settings import parse_duration_ms

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples(
        "dovetail outbox init --database sqlite:///shop.db",
        "dovetail outbox status --database sqlite:///shop.db",
    ),
)
dead_app = typer.Typer(
    no_args_is_help=True,
    help="Dead letters: messages that the relay set aside.",
    epilog=examples("dovetail outbox dead list", "dovetail outbox dead replay 17"),
)
app.add_typer(dead_app, name="dead")

_SHOP = "postgresql://app@localhost/shop"

TopicOption = Annotated[
    str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic.")
]
IdsArgument = Annotated[
    list[int] | None, typer.Argument(metavar="ID...", help="Ids that `dead list` shows.")
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="COLUMN", help="Unique column that becomes the key; default: primary."
    ),
]
TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="Table to read.")]
TargetOption = Annotated[
    str, typer.Option("--topic", "-t", metavar="TOPIC", help="Topic to publish to.")
]


def _engine(ctx: typer.Context, database: str | None, *, check: bool = True) -> Engine:
    flags = flags_of({"outbox.database": ("--database", database)})
    url = settings_of(ctx, flags=flags).outbox.database
    if not url:
        raise InvalidSetting(
            f"no database is named; give --database, for example --database {_SHOP}, or set "
            "outbox.database"
        )
    engine = open_engine(url)
    if check:
        _reached(engine)
        check_version(engine)
    return engine


def _reached(engine: Engine) -> None:
    """Raises `Unreachable` with the driver's words if the database does not answer."""
    try:
        engine.connect().close()
    except DBAPIError as error:
        where = engine.url.render_as_string(hide_password=True)
        raise Unreachable(f"the database {where} does not answer: {error.orig}") from error


@app.command("init", epilog=examples(f"dovetail outbox init --database {_SHOP}"))
def init(ctx: typer.Context, database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Create the tables of the outbox; does nothing if they exist."""
    migrate(ctx, database, as_json)


@app.command("migrate", epilog=examples(f"dovetail outbox migrate --database {_SHOP}"))
def migrate(
    ctx: typer.Context, database: DatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Bring the tables of the outbox to this version."""
    engine = _engine(ctx, database, check=False)
    _reached(engine)
    before, after = migrate_tables(engine)
    text = f"the tables are at version {after}, which they had already"
    if before != after:
        text = f"the tables are at version {after}; they were at version {before}"
    print_done(as_json, {"before": before, "after": after}, text)


@app.command("sql", epilog=examples("dovetail outbox sql postgresql > outbox.sql"))
def sql(
    dialect: Annotated[
        str, typer.Argument(metavar="DIALECT", help="postgresql, mysql, mariadb or sqlite.")
    ],
) -> None:
    """Print the statements that create the tables, for your own migration tool."""

    for statement in statements_of(dialect):
        typer.echo(inspect.cleandoc(statement) + ";\n")


@app.command(
    "status",
    epilog=examples(
        f"dovetail outbox status --database {_SHOP}", "dovetail outbox status --watch --sample 2s"
    ),
)
def status(
    ctx: typer.Context,
    database: DatabaseOption = None,
    sample: Annotated[
        str,
        typer.Option("--sample", metavar="DURATION", help="Time over which the rate is measured."),
    ] = "500ms",
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show how many messages wait and since when, the rate, the locks and the errors."""
    engine = _engine(ctx, database)
    sample_s = parse_duration_ms(sample) / 1000
    before, since = read_status(engine), time.monotonic()
    while True:
        time.sleep(sample_s)
        found, now = read_status(engine), time.monotonic()
        sent_before = {topic.topic: topic.sent for topic in before.topics}
        rates = {
            topic.topic: (topic.sent - sent_before.get(topic.topic, 0)) / max(now - since, 1e-9)
            for topic in found.topics
        }
        _print_status(found, rates, as_json=as_json)
        if not watch:
            return
        before, since = found, now


def _print_status(found: OutboxStatus, rates: dict[str, float], *, as_json: bool) -> None:

    if as_json:
        print_json(
            [{**asdict(topic), "sent_per_second": rates.get(topic.topic)} for topic in found.topics]
        )
        return
    if not found.topics:
        note("nothing was ever published through this outbox")
        return

    print_table(
        ["topic", "shard", "pending", "oldest s", "dead", "sent", "a second", "locked by", "error"],
        (
            (
                topic.topic,
                shard.shard,
                topic.pending if shard.shard == 0 else None,
                topic.oldest_ms / 1000 if shard.shard == 0 else None,
                topic.dead if shard.shard == 0 else None,
                shard.sent,
                rates.get(topic.topic) if shard.shard == 0 else None,
                shard.locked_by,
                shard.error,
            )
            for topic in found.topics
            for shard in topic.shards or (_NO_SHARD,)
        ),
    )


#: Of a topic that no relay has begun.
_NO_SHARD = ShardStatus(
    shard=0, locked_by=None, locked_ms=None, term=0, error=None, retries=0, retry_ms=None, sent=0
)


@app.command("shards", epilog=examples("dovetail outbox shards orders 4"))
def shards(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to share.")],
    count: Annotated[int, typer.Argument(metavar="COUNT", min=1, help="Number of workers.")],
    database: DatabaseOption = None,
) -> None:
    """Set how many workers may share a topic. Stop the relays of that topic first."""
    set_shards(_engine(ctx, database), topic, count)
    note(f"topic {topic!r} has {plural(count, 'shard')} now")


@dead_app.command("list", epilog=examples("dovetail outbox dead list --topic orders"))
def dead_list(
    ctx: typer.Context,
    topic: TopicOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")
    ] = 100,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the dead letters of the outbox, with the reason of each."""
    found = list_dead(_engine(ctx, database), topic=topic, limit=limit)
    rows = [_as_json(dead) for dead in found]
    if not as_json:
        for row, dead in zip(rows, found, strict=True):
            row |= {"bytes": len(dead.payload or b""), "age s": dead.age_ms / 1000}
    columns = ["id", "topic", "key", "bytes", "attempts", "age s", "reason"]
    print_rows(as_json, rows, columns=columns, empty="no dead letters")


@dead_app.command("show", epilog=examples("dovetail outbox dead show 17 --json"))
def dead_show(
    ctx: typer.Context,
    dead_id: Annotated[int, typer.Argument(metavar="ID", help="An id that `dead list` shows.")],
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter with its payload."""
    found = _as_json(show_dead(_engine(ctx, database), dead_id))
    if as_json:
        print_json(found)
    else:
        print_table(["field", "value"], found.items())


@dead_app.command(
    "replay",
    epilog=examples("dovetail outbox dead replay 17 18", "dovetail outbox dead replay -t orders"),
)
def dead_replay(
    ctx: typer.Context,
    ids: IdsArgument = None,
    topic: TopicOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put dead letters back into the outbox, after what waits, under their old ids."""
    count = replay_dead(_engine(ctx, database), ids=ids or None, topic=topic)
    print_done(as_json, {"replayed": count}, f"{plural(count, 'message')} put back into the outbox")


@dead_app.command("drop", epilog=examples("dovetail outbox dead drop 17 --yes"))
def dead_drop(
    ctx: typer.Context,
    ids: IdsArgument = None,
    topic: TopicOption = None,
    yes: YesOption = False,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete dead letters for good. Asks first."""

    engine = _engine(ctx, database)
    confirm("Delete these dead letters for good?", yes=yes)
    count = drop_dead(engine, ids=ids or None, topic=topic)
    print_done(as_json, {"dropped": count}, f"{plural(count, 'message')} dropped")


@app.command(
    "backfill",
    epilog=examples(f"dovetail outbox backfill customers --topic customers --database {_SHOP}"),
)
def backfill(
    ctx: typer.Context,
    table: TableArgument,
    topic: TargetOption,
    key: KeyOption = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Start over instead of continuing the last run.")
    ] = False,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish every row of a table once, as JSON. A run that was stopped continues next time."""
    engine = _engine(ctx, database)
    source = source_of(engine, table, topic=topic, key=key)
    if anew:
        reset(engine, source)
    total = 0
    with progress_bar(quiet=as_json) as bar:
        task = bar.add_task(f"backfilling {table}", total=None)
        while count := advance(engine, source):
            total += count
            bar.update(task, completed=total)
    print_done(
        as_json,
        {"table": table, "topic": topic, "published": total},
        f"{plural(total, 'row')} of {table} published to {topic!r}",
    )


@app.command(
    "poll",
    epilog=examples("dovetail outbox poll customers -t customers --updated-at updated_at"),
)
def poll(
    ctx: typer.Context,
    table: TableArgument,
    topic: TargetOption,
    updated_at: Annotated[
        str,
        typer.Option(
            "--updated-at", metavar="COLUMN", help="Column with the time of the last change."
        ),
    ],
    key: KeyOption = None,
    every: Annotated[
        str, typer.Option("--every", metavar="DURATION", help="Time between two polls.")
    ] = "1s",
    delay: Annotated[
        str,
        typer.Option(
            "--delay", metavar="DURATION", help="Longer than any transaction that writes the table."
        ),
    ] = "2s",
    once: Annotated[
        bool, typer.Option("--once", help="Publish what has changed so far, then exit.")
    ] = False,
    database: DatabaseOption = None,
) -> None:
    """Publish rows of a table as they change. Ctrl-C stops it; the next run continues."""
    engine = _engine(ctx, database)
    source = source_of(
        engine,
        table,
        topic=topic,
        key=key,
        updated_at=updated_at,
        delay_ms=parse_duration_ms(delay),
    )
    every_s = parse_duration_ms(every) / 1000
    while True:
        total = 0
        while count := advance(engine, source):
            total += count
        if total or once:
            note(f"{plural(total, 'row')} of {table} published to {topic!r}")
        if once:
            return
        time.sleep(every_s)


def _as_json(dead: DeadMessage) -> dict[str, Any]:
    return {
        "id": dead.id,
        "topic": dead.topic,
        "key": _text(dead.key),
        "partition_key": _text(dead.partition_key),
        "headers": dead.headers,
        "payload": _text(dead.payload),
        "message_id": dead.message_id,
        "attempts": dead.attempts,
        "age_ms": dead.age_ms,
        "reason": dead.reason,
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")
