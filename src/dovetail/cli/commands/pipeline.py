"""`dovetail pipeline`: run the teams of a pipeline, and look at it."""

import importlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Group
from rich.live import Live

from dovetail import tracing
from dovetail.admin import pipelines as admin
from dovetail.admin.kafka import Kafka
from dovetail.cli.client import kafka_of
from dovetail.cli.commands.pipeline_run import live_table, reporting, run_alone, stand_by, title_of
from dovetail.cli.options import (
    BootstrapOption,
    JsonOption,
    MetricsHostOption,
    MetricsPortOption,
    TimeoutOption,
    WatchOption,
    examples,
    metrics_flags,
    named_values,
    settings_of,
    target_of,
)
from dovetail.cli.output import answers, note, print_json, print_json_line, print_table
from dovetail.errors import InvalidInput, NotFound
from dovetail.spark import session
from dovetail.teams.graph import Pipeline
from dovetail.teams.picture import as_svg, as_text
from dovetail.teams.report import COLUMNS, edges_of, parts_of, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples("dovetail pipeline show shop:orders", "dovetail pipeline run shop:orders"),
)

#: Time between two looks with --watch; reports come once a second at most.
_WATCH_S = 1.0

PipelineArgument = Annotated[
    str,
    typer.Argument(metavar="MODULE:PIPELINE", help="Module and name, such as shop:orders."),
]


@app.command(
    "run",
    epilog=examples(
        "dovetail pipeline run shop:orders",
        "dovetail pipeline run shop:orders --master 'local[4]' --checkpoint /var/lib/shop",
        "dovetail pipeline run shop:orders --standby --checkpoint hdfs://name/shop",
        "dovetail pipeline run shop:orders --once",
        "dovetail pipeline run shop:orders --metrics-port 9101",
    ),
)
def run(
    ctx: typer.Context,
    where: PipelineArgument,
    master: Annotated[
        str,
        typer.Option(
            "--master", metavar="URL", help="Spark's master: local[*], spark://..., yarn, k8s://..."
        ),
    ] = "local[*]",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="PATH",
            help="Where Spark keeps its journal, shared by all masters; default: a folder here.",
        ),
    ] = None,
    standby: Annotated[
        bool,
        typer.Option("--standby", help="One of several masters: wait until elected ([stream])."),
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="End when no job is left.")] = False,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; repeatable."),
    ] = None,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the teams of a pipeline until interrupted; this process is their master."""
    if standby and once:
        raise InvalidInput("--standby waits for an election and --once ends; give one of them")
    pipeline = load_pipeline(where)
    target = target_of(ctx, bootstrap, timeout)
    target.kafka().check()
    folder = checkpoint or str(Path.cwd() / "dovetail-checkpoint")
    settings = settings_of(ctx, flags=metrics_flags(metrics_port, metrics_host))
    tracing.use(settings.tracing, service=f"dovetail-{pipeline.name}")

    spark = _session(where, pipeline, master, conf)
    given: dict[str, Any] = {"target": target, "checkpoint": folder}
    try:
        with reporting(settings, pipeline, target) as reporter:
            if standby:
                stand_by(settings, pipeline, spark, reporter, **given, as_json=as_json)
            else:
                run_alone(pipeline, spark, reporter, **given, once=once, as_json=as_json)
    finally:
        spark.stop()
        tracing.end()


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


def load_pipeline(where: str) -> Pipeline:
    """The pipeline at `module:name`. Raises `InvalidInput`, `NotFound`."""
    parts = where.split(":")
    if len(parts) != 2 or not all(parts):
        raise InvalidInput(f"{where!r} does not name a pipeline; write module:name")

    module_name, name = parts
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise NotFound(
            f"module {module_name!r} cannot be imported from {Path.cwd()}: {error}"
        ) from error

    found = getattr(module, name, None)
    if not isinstance(found, Pipeline):
        there = [key for key, value in vars(module).items() if isinstance(value, Pipeline)]
        hint = f"it has {', '.join(there)}" if there else "it has no pipeline at all"
        raise NotFound(f"module {module_name!r} has no pipeline {name!r}; {hint}")
    return found


def _session(where: str, pipeline: Pipeline, master: str, conf: list[str] | None) -> "SparkSession":

    given = dict(named_values("--conf", conf))
    # Workers on this machine find the module where this process did.
    paths = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    spark = session(f"dovetail {pipeline.name}", master=master, **given)
    if not master.startswith("local"):
        # Workers elsewhere do not have the module; its functions travel with the tasks.
        from pyspark import cloudpickle

        module = sys.modules[where.split(":", maxsplit=1)[0]]
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return spark
