"""The root of the command line: its nouns and verbs, and the module of each.

A command's module is imported when the command is called (`loading`). Help and completion show the
lines of this table, so they import no command.
"""

from typing import Annotated

import typer

from dovetail import __version__
from dovetail.cli.loading import Entry, LazyGroup
from dovetail.cli.options import ConfigOption, RootOptions, SetOption, examples
from dovetail.cli.outcome import EXIT_CODES_HELP

_RUN = "Run it"
_DATA = "Use it"
_CARE = "Look after it"


COMMANDS = {
    "up": Entry(
        _RUN,
        "commands.up up",
        "Run a single node that needs no other service. Ctrl-C stops it.",
    ),
    "node": Entry(
        _RUN,
        "commands.node node",
        "Run one node of a cluster; the nodes find each other through etcd. Ctrl-C stops it.",
    ),
    "cluster": Entry(
        _RUN,
        "commands.cluster app",
        "A cluster on this machine: start, status, stop; kill, pause, resume, logs of a node.",
    ),
    "relay": Entry(
        _RUN,
        "commands.relay relay",
        "Send what applications publish in their transactions. Ctrl-C or SIGTERM stops it.",
        extra="outbox",
    ),
    "lead": Entry(
        _RUN,
        "lead.command lead",
        "Run a command on one of several machines: the one that leads under NAME.",
    ),
    "pipeline": Entry(
        _RUN,
        "commands.pipeline app",
        "Pipelines of teams: run one on Spark, give it jobs, show status and graph.",
    ),
    "produce": Entry(
        _DATA,
        "commands.produce produce",
        "Write records to a topic, from standard input, a file or the options.",
    ),
    "consume": Entry(
        _DATA, "commands.consume consume", "Print the records of a topic, one per line."
    ),
    "topic": Entry(_DATA, "commands.topic app", "Topics: create, list, describe, alter, delete."),
    "group": Entry(_DATA, "commands.group app", "Consumer groups: list, describe (lag), reset."),
    "transaction": Entry(
        _DATA, "commands.transaction app", "Transactions: list, abort one that hangs."
    ),
    "timeline": Entry(
        _DATA,
        "commands.timeline_operating app",
        "Timelines: messages that are due at a given time.",
    ),
    "outbox": Entry(
        _DATA,
        "commands.outbox app",
        "The outbox: tables, status, dead letters, backfill.",
        extra="outbox",
    ),
    "stream": Entry(_DATA, "commands.stream app", "Shared streams: members, leader, term, lag."),
    "archive": Entry(
        _DATA,
        "commands.archive archive",
        "Append the new records of a topic to Parquet files. Run it as often as you like.",
    ),
    "replay": Entry(
        _DATA,
        "commands.replay replay",
        "Write records again to another topic, with their keys, headers, times and order.",
    ),
    "stats": Entry(
        _DATA,
        "commands.stats stats",
        "Show what a topic received, per window of the records' own timestamps.",
    ),
    "doctor": Entry(
        _CARE,
        "doctor.command doctor",
        "Check this set-up, and say how to fix what is wrong.",
    ),
    "top": Entry(
        _CARE,
        "top.command top",
        "Show the cluster live: nodes, topics, groups, timelines, streams, pipelines.",
    ),
    "user": Entry(
        _CARE, "commands.user app", "Users who can log in: set a password, list, delete."
    ),
    "access": Entry(
        _CARE, "commands.access app", "What users may do: allow, deny, list, remove rules."
    ),
    "certificates": Entry(
        _CARE,
        "commands.certificates app",
        "Certificates for nodes and clients, from a CA of your own.",
        extra="certificates",
    ),
    "storage": Entry(
        _CARE, "commands.storage app", "Storage nodes of a cluster: list, drain, keep, remove."
    ),
    "backup": Entry(
        _CARE, "saving.backup backup", "Write everything that a running node holds to a file."
    ),
    "restore": Entry(
        _CARE, "saving.restore restore", "Restore a backup into an empty data folder."
    ),
    "config": Entry(
        _CARE, "commands.config app", "Settings: their values and where each comes from."
    ),
    "bench": Entry(
        _CARE,
        "commands.bench bench",
        "Measure how fast records are produced and consumed, in a temporary topic.",
    ),
    "completion": Entry(
        _CARE,
        "commands.completion completion",
        "Print the script that makes a shell complete `dovetail`.",
    ),
}


class _Root(LazyGroup):
    entries = COMMANDS


app = typer.Typer(
    cls=_Root,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "dovetail up",
        "dovetail topic create orders --partitions 3",
        "echo 'hello' | dovetail produce orders",
        "dovetail consume orders --follow",
    )
    + f"\n\n{EXIT_CODES_HELP}",
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"dovetail {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    config_file: ConfigOption = None,
    assignments: SetOption = None,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print version."),
    ] = False,
) -> None:
    """Dovetail: a durable log for every Kafka client, and work that is done once."""
    ctx.obj = RootOptions(config_file, tuple(assignments or ()))
