"""The root of the command line: which nouns and verbs there are."""

from typing import Annotated

import typer

from dovetail.cli import (
    archive,
    bench,
    cluster,
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
)
from dovetail.cli.doctor import command as doctor
from dovetail.cli.options import ConfigOption, RootOptions, SetOption, examples
from dovetail.cli.outcome import EXIT_CODES_HELP, RootGroup

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


app.command("up", epilog=up.EPILOG)(up.up)
app.command("node", epilog=node.EPILOG)(node.node)
app.command("produce", epilog=produce.EPILOG)(produce.produce)
app.command("consume", epilog=consume.EPILOG)(consume.consume)
app.command("bench", epilog=bench.EPILOG)(bench.bench)
app.command("doctor", epilog=doctor.EPILOG)(doctor.doctor)
app.add_typer(cluster.app, name="cluster")
app.command("relay", epilog=relay.EPILOG)(relay.relay)
app.add_typer(topic.app, name="topic")
app.command("archive", epilog=archive.EPILOG)(archive.archive)
app.command("replay", epilog=replay.EPILOG)(replay.replay)
app.command("stats", epilog=stats.EPILOG)(stats.stats)
app.add_typer(timeline_messages.app, name="timeline")
app.add_typer(group.app, name="group")
app.add_typer(outbox.app, name="outbox")
app.add_typer(stream.app, name="stream")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(storage.app, name="storage")
app.add_typer(config.app, name="config")
