"""`dovetail stream`: the members of a shared stream, who leads, and how far it is."""

from typing import Annotated, Any

import msgspec
import typer

from dovetail.admin.streams import Streams
from dovetail.cli.client import kafka_of
from dovetail.cli.options import (
    BootstrapOption,
    JsonOption,
    TimeoutOption,
    examples,
    settings_of,
)
from dovetail.cli.output import note, print_json, print_table
from dovetail.clock import SystemClock
from dovetail.errors import InvalidSetting

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples("dovetail stream status --log bots"),
)

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
