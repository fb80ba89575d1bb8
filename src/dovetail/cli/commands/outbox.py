"""`dovetail outbox`: tables, status, shards, dead letters, backfill and polling of an outbox."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.commands.relay import DatabaseOption
from dovetail.cli.options import JsonOption, examples, settings_of
from dovetail.cli.outcome import ExitCode
from dovetail.errors import InvalidInput, InvalidSetting

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from dovetail.outbox.dead import DeadMessage

app = typer.Typer(
    no_args_is_help=True,
    help="The outbox: tables, status, dead letters, backfill.",
    epilog=examples(
        "dovetail outbox init --database sqlite:///shop.db",
        "dovetail outbox status --database sqlite:///shop.db",
    ),
)
dead_app = typer.Typer(
    no_args_is_help=True,
    help="Messages that were set aside.",
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


def _engine(ctx: typer.Context, database: str | None, *, check: bool = True) -> "Engine":
    from dovetail.outbox.database import open_engine
    from dovetail.outbox.schema import check_version
    from dovetail.settings import Flag

    flags = [] if database is None else [Flag("outbox.database", database, "--database")]
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


def _reached(engine: "Engine") -> None:
    """Raises `Unreachable` with the driver's words if the database does not answer."""
    from sqlalchemy.exc import DBAPIError

    from dovetail.errors import Unreachable

    try:
        engine.connect().close()
    except DBAPIError as error:
        where = engine.url.render_as_string(hide_password=True)
        raise Unreachable(f"the database {where} does not answer: {error.orig}") from error


@app.command("init", epilog=examples(f"dovetail outbox init --database {_SHOP}"))
def init(ctx: typer.Context, database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Make the tables of the outbox; does nothing if they are there."""
    migrate(ctx, database, as_json)


@app.command("migrate", epilog=examples(f"dovetail outbox migrate --database {_SHOP}"))
def migrate(
    ctx: typer.Context, database: DatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Bring the tables of the outbox up to this version."""
    from dovetail.cli.output import note, print_json
    from dovetail.outbox.schema import migrate as migrate_tables

    engine = _engine(ctx, database, check=False)
    _reached(engine)
    before, after = migrate_tables(engine)
    if as_json:
        print_json({"before": before, "after": after})
    elif before == after:
        note(f"the tables are of version {after} already")
    else:
        note(f"the tables are of version {after} now; they were of version {before}")


@app.command("sql", epilog=examples("dovetail outbox sql postgresql > outbox.sql"))
def sql(
    dialect: Annotated[
        str, typer.Argument(metavar="DIALECT", help="postgresql, mysql, mariadb or sqlite.")
    ],
) -> None:
    """Print the statements that make the tables, for a migration tool of your own."""
    import inspect

    from dovetail.outbox.schema import statements_of

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
        str, typer.Option("--sample", metavar="DURATION", help="How long to look for the rate.")
    ] = "500ms",
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Look again and again; Ctrl-C ends it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what waits, how long, the rate, the locks and the errors."""
    from dovetail.outbox.status import read_status
    from dovetail.settings import parse_duration_ms

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


def _print_status(found: Any, rates: dict[str, float], *, as_json: bool) -> None:
    from dataclasses import asdict

    from dovetail.cli.output import note, print_json, print_table

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


class _NoShard:
    shard = 0
    sent = 0
    locked_by = None
    error = None


_NO_SHARD = _NoShard()


@app.command("shards", epilog=examples("dovetail outbox shards orders 4"))
def shards(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic that is hot.")],
    count: Annotated[int, typer.Argument(metavar="COUNT", min=1, help="Workers at once.")],
    database: DatabaseOption = None,
) -> None:
    """Say how many workers may share a topic. Only while no relay is at work on it."""
    from dovetail.cli.output import note, plural
    from dovetail.outbox.shards import set_shards

    set_shards(_engine(ctx, database), topic, count)
    note(f"topic {topic!r} has {plural(count, 'shard')} now")


@dead_app.command("list", epilog=examples("dovetail outbox dead list --topic orders"))
def dead_list(
    ctx: typer.Context,
    topic: TopicOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many.")] = 100,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """List messages that were set aside, with the reason."""
    from dovetail.cli.output import note, print_json, print_table
    from dovetail.outbox.dead import list_dead

    found = list_dead(_engine(ctx, database), topic=topic, limit=limit)
    if as_json:
        print_json([_as_json(dead) for dead in found])
    elif found:
        print_table(
            ["id", "topic", "key", "bytes", "attempts", "age s", "reason"],
            (
                (
                    dead.id,
                    dead.topic,
                    _text(dead.key),
                    len(dead.payload or b""),
                    dead.attempts,
                    dead.age_ms / 1000,
                    dead.reason,
                )
                for dead in found
            ),
        )
    else:
        note("no dead letters")


@dead_app.command("show", epilog=examples("dovetail outbox dead show 17 --json"))
def dead_show(
    ctx: typer.Context,
    dead_id: Annotated[int, typer.Argument(metavar="ID", help="An id that `dead list` shows.")],
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one message that was set aside, with its payload."""
    from dovetail.cli.output import print_json, print_table
    from dovetail.outbox.dead import show_dead

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
    """Put messages back into the outbox, behind what waits, under their old ids."""
    from dovetail.cli.output import note, plural, print_json
    from dovetail.outbox.dead import replay_dead

    count = replay_dead(_engine(ctx, database), ids=ids or None, topic=topic)
    if as_json:
        print_json({"replayed": count})
    else:
        note(f"{plural(count, 'message')} put back into the outbox")


@dead_app.command("drop", epilog=examples("dovetail outbox dead drop 17 --yes"))
def dead_drop(
    ctx: typer.Context,
    ids: IdsArgument = None,
    topic: TopicOption = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask; needed without a terminal.")
    ] = False,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete messages that were set aside, for good. Asks first."""
    import sys

    from dovetail.cli.output import note, plural, print_json
    from dovetail.outbox.dead import drop_dead

    engine = _engine(ctx, database)
    if not yes and not sys.stdin.isatty():
        raise InvalidInput(
            "dropping dead letters needs a yes, and there is no terminal; give --yes"
        )
    if not yes and not typer.confirm("Delete these dead letters for good?", err=True):
        note("nothing was deleted")
        raise typer.Exit(ExitCode.FAILED)
    count = drop_dead(engine, ids=ids or None, topic=topic)
    if as_json:
        print_json({"dropped": count})
    else:
        note(f"{plural(count, 'message')} dropped")


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
        bool, typer.Option("--anew", help="From the beginning, not where the last run ended.")
    ] = False,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish every row of a table, as JSON, once. Stopped, it goes on where it was."""
    from dovetail.cli.output import note, plural, print_json, progress_bar
    from dovetail.outbox.poller import advance, reset, source_of

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
    if as_json:
        print_json({"table": table, "topic": topic, "published": total})
    else:
        note(f"{plural(total, 'row')} of {table} published to {topic!r}")


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
        str, typer.Option("--every", metavar="DURATION", help="Between looks.")
    ] = "1s",
    delay: Annotated[
        str,
        typer.Option(
            "--delay", metavar="DURATION", help="Longer than any transaction that writes the table."
        ),
    ] = "2s",
    once: Annotated[bool, typer.Option("--once", help="Up to now, then end.")] = False,
    database: DatabaseOption = None,
) -> None:
    """Publish rows of a table as they change. Ctrl-C stops it; the next run goes on."""
    from dovetail.cli.output import note, plural
    from dovetail.outbox.poller import advance, source_of
    from dovetail.settings import parse_duration_ms

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


def _as_json(dead: "DeadMessage") -> dict[str, Any]:
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
