"""`dovetail stream`: the members of a shared stream, its leader, and its position."""

from typing import Annotated, Any, Literal

import msgspec
import typer

from dovetail.admin.dead.letter import DeadLetter
from dovetail.admin.dead.topics import DeadTopics, topic_ids_of
from dovetail.admin.kafka import Kafka
from dovetail.admin.pipelines import PipelineReports
from dovetail.admin.streams import Streams
from dovetail.cli.client import kafka_of
from dovetail.cli.commands.consume import readable
from dovetail.cli.confirming import confirm
from dovetail.cli.options import (
    BootstrapOption,
    JsonOption,
    TimeoutOption,
    YesOption,
    examples,
    settings_of,
)
from dovetail.cli.outcome import ExitCode
from dovetail.cli.output import note, plural, print_done, print_json, print_rows, print_table
from dovetail.clock import SystemClock
from dovetail.errors import InvalidInput, InvalidSetting, Unavailable

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples("dovetail stream status --log bots", "dovetail stream dead list messages.dead"),
)
dead_app = typer.Typer(
    no_args_is_help=True,
    help="Dead letters: events whose last attempt failed.",
    epilog=examples(
        "dovetail stream dead list messages.dead", "dovetail stream dead replay messages.dead 0:17"
    ),
)
app.add_typer(dead_app, name="dead")

DeadTopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic of dead letters; its name ends in .dead.")
]
IdsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ID...", help="Ids that `dead list` shows.")
]
LimitOption = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=10_000, help="Show at most this many.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All dead letters of the topic.")]
#: Dead letters that `--all` stands for; a second call goes on.
_ALL_MAX = 10_000

#: Elections that are shown to a person; --json shows all that the log remembers.
_ELECTIONS_SHOWN = 5


@app.command(
    "status",
    epilog=examples(
        "dovetail stream status --log bots",
        "dovetail stream status --log bots --environment prod --json",
    ),
)
def status(
    ctx: typer.Context,
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            metavar="TOPIC",
            help="Topic of the shared log; default: stream.coordination_stream_id.",
        ),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            "--environment",
            "-e",
            metavar="NAME",
            help="Name of the cluster; default: stream.environment_identifier.",
        ),
    ] = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show members, leader, term, lag and the last elections, as the shared log has them."""
    section = settings_of(ctx).stream
    topic = log or section.coordination_stream_id
    if not topic:
        raise InvalidSetting(
            "no shared log is named; give --log TOPIC, or set stream.coordination_stream_id"
        )
    found = Streams(SystemClock(), section).one(
        kafka_of(ctx, bootstrap, timeout), topic, environment or section.environment_identifier
    )
    facts = msgspec.to_builtins(found)
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def _print(facts: dict[str, Any]) -> None:
    print_table(
        ["environment", "leader", "term", "heard s ago", "source", "lag"],
        [
            (
                facts["environment"],
                facts["leader"],
                facts["term"],
                facts["leader_heard_s_ago"],
                facts["source"],
                facts["lag"],
            )
        ],
    )
    columns = ["member", "counted", "leads", "heard s ago", "asked to show itself"]
    print_table(columns, [tuple(row.values()) for row in facts["members"]])
    print_table(
        ["partition", "committed", "end", "lag"],
        [tuple(row.values()) for row in facts["positions"]],
    )
    print_table(
        ["election of term", "won by", "at"],
        [(row["term"], row["leader"], row["at"]) for row in facts["elections"][:_ELECTIONS_SHOWN]],
    )
    if facts["leader"] not in [row["member"] for row in facts["members"] if row["counted"]]:
        note("the last leader is gone, and no member has claimed a higher term yet")


@dead_app.command("list", epilog=examples("dovetail stream dead list messages.dead"))
def list_dead(
    ctx: typer.Context,
    topic: DeadTopicArgument,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")
    ] = 20,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show dead letters of a shared stream: the event, the reason and the attempts."""
    kafka = kafka_of(ctx, bootstrap, timeout)
    rows = [
        {
            "id": letter.id,
            "attempts": letter.attempts,
            "key": readable(letter.key),
            "reason": letter.reason,
            "value": readable(letter.body),
        }
        for letter in _letters(kafka, topic, limit)
    ]
    print_rows(as_json, rows, columns=["id", "attempts", "key", "reason", "value"], empty="none")


@dead_app.command("replay", epilog=examples("dovetail stream dead replay messages.dead 0:17"))
def replay_dead(
    ctx: typer.Context,
    topic: DeadTopicArgument,
    ids: IdsArgument = None,
    everything: AllOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write events back to the end of their stream, to be handled again."""
    _deal_with(ctx, "replay", topic, ids, everything, bootstrap, timeout, as_json)


@dead_app.command("drop", epilog=examples("dovetail stream dead drop messages.dead 0:17 --yes"))
def drop_dead(
    ctx: typer.Context,
    topic: DeadTopicArgument,
    ids: IdsArgument = None,
    everything: AllOption = False,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drop dead letters for good. Asks first."""
    confirm("Take these dead letters off the list for good?", yes=yes)
    _deal_with(ctx, "drop", topic, ids, everything, bootstrap, timeout, as_json)


def _letters(kafka: Kafka, topic: str, limit: int) -> list[DeadLetter]:
    found = _dead_topics().look(kafka, topic_ids_of(kafka, topic), topic, limit)
    for source in found.sources:
        if source.trouble is not None:
            raise Unavailable(source.trouble)
    return sorted(found.letters, key=lambda letter: letter.died_ms or 0, reverse=True)


def _dead_topics() -> DeadTopics:
    return DeadTopics(PipelineReports(SystemClock().wall_ms))


def _deal_with(
    ctx: typer.Context,
    action: Literal["replay", "drop"],
    topic: str,
    ids: list[str] | None,
    everything: bool,
    bootstrap: str | None,
    timeout: str | None,
    as_json: bool,
) -> None:
    if bool(ids) == everything:
        raise InvalidInput("give the ids of dead letters, or --all")
    kafka = kafka_of(ctx, bootstrap, timeout)
    wanted = ids or [letter.id for letter in _letters(kafka, topic, _ALL_MAX)]
    dead = _dead_topics()
    do = dead.replay if action == "replay" else dead.drop
    done = do(kafka, topic_ids_of(kafka, topic), topic, wanted, who="command line")

    past = {"replay": "replayed", "drop": "dropped"}[action]
    rest = f"; {len(done.left)} are not there any more" if done.left else ""
    print_done(
        as_json,
        {past: done.done, "left": [left.id for left in done.left]},
        f"{past} {plural(done.done, 'event')}{rest}",
    )
    if done.left:
        raise typer.Exit(ExitCode.FAILED)
