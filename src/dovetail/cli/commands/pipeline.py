"""`dovetail pipeline`: run the teams of a pipeline, and look at it."""

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.options import (
    BootstrapOption,
    JsonOption,
    MetricsHostOption,
    MetricsPortOption,
    TimeoutOption,
    examples,
    metrics_flags,
    settings_of,
    target_of,
)
from dovetail.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dovetail.teams.graph import Pipeline

app = typer.Typer(
    no_args_is_help=True,
    help="Teams: run a pipeline on Spark, show its graph.",
    epilog=examples("dovetail pipeline show shop:orders", "dovetail pipeline run shop:orders"),
)

#: With --watch: between two looks at the reports, which come once a second at most.
_WATCH_S = 1.0

PipelineArgument = Annotated[
    str, typer.Argument(metavar="MODULE:PIPELINE", help="Where it is, such as shop:orders.")
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
            help="Where Spark keeps its journal; all masters share it. Default: a folder here.",
        ),
    ] = None,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby", help="One of several masters: stand by until elected ([stream])."
        ),
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Do what is there, then end.")] = False,
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
    from dovetail import tracing
    from dovetail.cli.client import check_reachable
    from dovetail.cli.commands.pipeline_run import reporting, run_alone, stand_by

    if standby and once:
        raise InvalidInput("--standby waits for an election and --once for the end; give one")
    pipeline = load_pipeline(where)
    target = target_of(ctx, bootstrap, timeout)
    check_reachable(target)
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
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again and again, until interrupted.")
    ] = False,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the drivers of pipelines report: state, lag, rates, failures of every team."""
    from dovetail.cli.output import print_json
    from dovetail.cli.pipeline_status import Reports

    with Reports(target_of(ctx, bootstrap, timeout), name) as reports:
        documents = reports.newest()
        if name is not None and not documents:
            raise NotFound(
                f"no driver has reported of a pipeline {name!r} within a day; is it running? "
                "(dovetail pipeline run MODULE:PIPELINE)"
            )
        if watch:
            reports.watch(_WATCH_S, as_json=as_json)
        elif as_json:
            print_json(documents)
        else:
            reports.print()


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
    from dovetail.cli.output import note, print_json
    from dovetail.teams.picture import as_svg, as_text
    from dovetail.teams.report import edges_of, parts_of

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


def load_pipeline(where: str) -> "Pipeline":
    """The pipeline at `module:name`. Raises `InvalidInput`, `NotFound`."""
    from dovetail.teams.graph import Pipeline

    module_name, colon, name = where.partition(":")
    if not colon or not module_name or not name:
        raise InvalidInput(f"{where!r} is no place of a pipeline; write module:name")
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


def _session(
    where: str, pipeline: "Pipeline", master: str, conf: list[str] | None
) -> "SparkSession":
    from dovetail.spark import session

    given = {}
    for text in conf or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidInput(f"--conf {text!r} is no setting; write --conf key=value")
        given[name] = value
    # Workers on this machine find the module where this process did.
    paths = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    spark = session(f"dovetail {pipeline.name}", master=master, **given)
    if not master.startswith("local"):
        # Workers elsewhere do not have the module; its functions travel with the tasks.
        from pyspark import cloudpickle

        module = sys.modules[where.partition(":")[0]]
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return spark
