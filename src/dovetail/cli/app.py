"""The root of the command line: which nouns and verbs there are."""

from typing import Annotated

import typer

from dovetail.cli.commands import (
    access,
    archive,
    bench,
    cluster,
    completion,
    config,
    consume,
    group,
    node,
    outbox,
    pipeline,
    produce,
    relay,
    replay,
    stats,
    storage,
    stream,
    timeline_messages,
    topic,
    up,
    user,
)
from dovetail.cli.doctor import command as doctor
from dovetail.cli.options import ConfigOption, RootOptions, SetOption, examples
from dovetail.cli.outcome import EXIT_CODES_HELP, RootGroup
from dovetail.cli.top import command as top

_RUN = "Run it"
_DATA = "Use it"
_CARE = "Look after it"

app = typer.Typer(
    cls=RootGroup,
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
        from dovetail import __version__

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


app.command("up", epilog=up.EPILOG, rich_help_panel=_RUN)(up.up)
app.command("node", epilog=node.EPILOG, rich_help_panel=_RUN)(node.node)
app.add_typer(cluster.app, name="cluster", rich_help_panel=_RUN)
app.command("relay", epilog=relay.EPILOG, rich_help_panel=_RUN)(relay.relay)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel=_RUN)
app.command("produce", epilog=produce.EPILOG, rich_help_panel=_DATA)(produce.produce)
app.command("consume", epilog=consume.EPILOG, rich_help_panel=_DATA)(consume.consume)
app.add_typer(topic.app, name="topic", rich_help_panel=_DATA)
app.add_typer(group.app, name="group", rich_help_panel=_DATA)
app.add_typer(timeline_messages.app, name="timeline", rich_help_panel=_DATA)
app.add_typer(outbox.app, name="outbox", rich_help_panel=_DATA)
app.add_typer(stream.app, name="stream", rich_help_panel=_DATA)
app.command("archive", epilog=archive.EPILOG, rich_help_panel=_DATA)(archive.archive)
app.command("replay", epilog=replay.EPILOG, rich_help_panel=_DATA)(replay.replay)
app.command("stats", epilog=stats.EPILOG, rich_help_panel=_DATA)(stats.stats)
app.command("doctor", epilog=doctor.EPILOG, rich_help_panel=_CARE)(doctor.doctor)
app.command("top", epilog=top.EPILOG, rich_help_panel=_CARE)(top.top)
app.add_typer(user.app, name="user", rich_help_panel=_CARE)
app.add_typer(access.app, name="access", rich_help_panel=_CARE)
app.add_typer(storage.app, name="storage", rich_help_panel=_CARE)
app.add_typer(config.app, name="config", rich_help_panel=_CARE)
app.command("bench", epilog=bench.EPILOG, rich_help_panel=_CARE)(bench.bench)
app.command("completion", epilog=completion.EPILOG, rich_help_panel=_CARE)(completion.completion)
