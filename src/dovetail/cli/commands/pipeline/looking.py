"""`dovetail pipeline status` and `show`: the state of a pipeline, and its graph."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group
from rich.live import Live

from dovetail.admin import pipelines as admin
from dovetail.admin.kafka import Kafka
from dovetail.cli.client import kafka_of
from dovetail.cli.commands.pipeline.masters import live_table, title_of
from dovetail.cli.commands.pipeline.root import PipelineArgument, app, load_pipeline
from dovetail.cli.options import (
    BootstrapOption,
    JsonOption,
    TimeoutOption,
    WatchOption,
    examples,
)
from dovetail.cli.output import answers, note, print_json, print_json_line, print_table
from dovetail.teams.picture import as_svg, as_text
from dovetail.teams.report import COLUMNS, edges_of, parts_of, rows_of

#: Time between two looks with --watch; reports come once a second at most.
_WATCH_S = 1.0


@app.command(
    "status",
    epilog=examples(
        "dovetail pipeline status",
        "dovetail pipeline status orders --watch",
        "dovetail pipeline status orders --json",
    ),
)
def status(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One pipeline; default: all.")
    ] = None,
    watch: WatchOption = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the drivers of pipelines report: state, lag, rates, failures of every team."""
    kafka = kafka_of(ctx, bootstrap, timeout)
    reports = admin.PipelineReports(lambda: time.time_ns() // 1_000_000)
    if watch:
        _watch(reports, kafka, name, as_json=as_json)
        return
    found = _documents(reports, kafka, name)
    if as_json:
        print_json(found)
        return
    if not found:
        note("no driver has reported within a day (dovetail pipeline run MODULE:PIPELINE)")
    for document in found:
        if document["teams"]:
            print_table(COLUMNS, rows_of(document), title=title_of(document))
        else:
            note(title_of(document))


def _documents(
    reports: admin.PipelineReports, kafka: Kafka, name: str | None
) -> list[dict[str, Any]]:
    """The pipelines now, or the one of this name. Raises `NotFound`."""
    found = reports.list(kafka) if name is None else [reports.one(kafka, name)]
    documents: list[dict[str, Any]] = msgspec.to_builtins(found)
    return documents


def _watch(
    reports: admin.PipelineReports, kafka: Kafka, name: str | None, *, as_json: bool
) -> None:
    """Shows the newest reports until it is interrupted."""
    if as_json or not sys.stdout.isatty():
        while True:
            print_json_line(_documents(reports, kafka, name))
            time.sleep(_WATCH_S)

    with Live(console=answers(), refresh_per_second=2) as shown:
        while True:
            shown.update(Group(*map(live_table, _documents(reports, kafka, name))))
            time.sleep(_WATCH_S)


@app.command(
    "show",
    epilog=examples(
        "dovetail pipeline show shop:orders",
        "dovetail pipeline show shop:orders --svg orders.svg",
    ),
)
def show(
    where: PipelineArgument,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Write the graph as SVG.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the graph of a pipeline: teams, connectors, topics."""
    pipeline = load_pipeline(where)
    if svg is not None:
        svg.write_text(as_svg(pipeline))
        note(f"wrote {svg}")
    if as_json:
        teams = [{"name": name, **facts} for name, facts in parts_of(pipeline).items()]
        edges = [dict(edge) for edge in edges_of(pipeline)]
        print_json({"pipeline": pipeline.name, "teams": teams, "edges": edges})
    elif svg is None:
        typer.echo(as_text(pipeline), nl=False)
