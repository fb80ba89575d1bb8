"""`dovetail pipeline`: run the teams of a pipeline, and look at it."""

import asyncio
import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.options import (
    BootstrapOption,
    JsonOption,
    TimeoutOption,
    examples,
    settings_of,
    target_of,
)
from dovetail.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dovetail.cli.options import Target
    from dovetail.pipeline.engine import Engine
    from dovetail.pipeline.graph import Pipeline
    from dovetail.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Teams: run a pipeline on Spark, show its graph.")

#: Between two looks at the teams.
_LOOK_S = 1.0
#: For `--once`: a pipeline that has not come to rest within a day never will.
_ONCE_S_MAX = 86_400.0

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
    ),
)
def run(
    ctx: typer.Context,
    where: PipelineArgument,
    master: Annotated[
        str, typer.Option("--master", help="Spark's master: local[*], spark://..., yarn, k8s://...")
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
        typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; can be repeated."),
    ] = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the teams of a pipeline until interrupted; this process is their master."""
    from dovetail.cli.client import check_reachable

    if standby and once:
        raise InvalidInput("--standby waits for an election and --once for the end; give one")
    pipeline = load_pipeline(where)
    target = target_of(ctx, bootstrap, timeout)
    check_reachable(target)
    folder = checkpoint or str(Path.cwd() / "dovetail-checkpoint")
    spark = _session(where, pipeline, master, conf)
    try:
        if standby:
            _stand_by(settings_of(ctx), pipeline, spark, target, folder, as_json=as_json)
        else:
            _run_alone(pipeline, spark, target, folder, once=once, as_json=as_json)
    finally:
        spark.stop()


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
    from dovetail.pipeline.picture import as_svg, as_text, label_of

    pipeline = load_pipeline(where)
    if svg is not None:
        svg.write_text(as_svg(pipeline))
        note(f"wrote {svg}")
    if as_json:
        topics = {name: pipeline.topics(name) for name in pipeline.teams}
        print_json(
            {
                "pipeline": pipeline.name,
                "teams": [
                    {
                        "name": name,
                        "workers": team.workers,
                        "input": topics[name].input,
                        "results": topics[name].results,
                        "dead": topics[name].dead,
                    }
                    for name, team in pipeline.teams.items()
                ],
                "edges": [
                    {"from": edge.source, "to": edge.target, "how": label_of(edge)}
                    for edge in pipeline.edges
                ],
            }
        )
    elif svg is None:
        typer.echo(as_text(pipeline), nl=False)


def load_pipeline(where: str) -> "Pipeline":
    """The pipeline at `module:name`. Raises `InvalidInput`, `NotFound`."""
    from dovetail.pipeline.graph import Pipeline

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
    from dovetail.pipeline import spark_session

    given = {}
    for text in conf or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidInput(f"--conf {text!r} is no setting; write --conf key=value")
        given[name] = value
    # Workers on this machine find the module where this process did.
    paths = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    spark = spark_session(f"dovetail {pipeline.name}", master=master, **given)
    if not master.startswith("local"):
        # Workers elsewhere do not have the module; its functions travel with the tasks.
        from pyspark import cloudpickle

        module = sys.modules[where.partition(":")[0]]
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return spark


def _run_alone(
    pipeline: "Pipeline",
    spark: "SparkSession",
    target: "Target",
    checkpoint: str,
    *,
    once: bool,
    as_json: bool,
) -> None:
    from dovetail.pipeline.engine import Engine

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    engine = Engine(pipeline, spark, bootstrap=target.bootstrap, checkpoint=checkpoint)
    with engine:
        if once:
            engine.drain(timeout_s=_ONCE_S_MAX)
            _Display(as_json=as_json).show(engine)
            return
        telling = threading.Thread(
            target=_tell, args=(lambda: engine, stop), kwargs={"as_json": as_json}, daemon=True
        )
        telling.start()
        try:
            engine.watch(until=stop)
        finally:
            stop.set()
            telling.join(_LOOK_S * 2)


def _stand_by(
    settings: "Settings",
    pipeline: "Pipeline",
    spark: "SparkSession",
    target: "Target",
    checkpoint: str,
    *,
    as_json: bool,
) -> None:
    from dovetail.pipeline.master import Master, masters_log, member_of
    from dovetail.stream import StreamSettings

    values = settings.stream.model_dump()
    values["coordination_stream_id"] = values["coordination_stream_id"] or masters_log(pipeline)
    wanted = StreamSettings.of(values)

    async def lead() -> None:
        display = _Display(as_json=as_json)
        async with _coordinator(settings, wanted) as coordinator:
            master = Master(
                pipeline,
                spark,
                member_of(wanted, target.bootstrap, coordinator=coordinator),
                bootstrap=target.bootstrap,
                checkpoint=checkpoint,
                told=display.say,
            )
            stop = threading.Event()
            telling = asyncio.create_task(
                asyncio.to_thread(_tell, lambda: master.engine, stop, as_json=as_json)
            )
            running = asyncio.create_task(master.run())
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
            try:
                await running
            except asyncio.CancelledError:
                return
            finally:
                stop.set()
                await telling

    asyncio.run(lead())


def _coordinator(settings: "Settings", wanted: Any) -> Any:
    """The coordination service where the election needs one, else nothing."""
    from contextlib import asynccontextmanager

    from dovetail.stream import Algorithm

    @asynccontextmanager
    async def opened() -> Any:
        if wanted.algorithm is not Algorithm.COORDINATOR:
            yield None
            return
        from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings

        where = settings.coordination
        etcd = EtcdSettings(tuple(where.endpoints.split(",")), namespace=where.namespace)
        async with await EtcdCoordinator.open(etcd) as coordinator:
            yield coordinator

    return opened()


class _Display:
    """What is told while teams run: a table on a terminal, else a line for each change."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._last = ""

    def say(self, state: str, term: int) -> None:
        if self._json:
            sys.stdout.write(json.dumps({"state": state, "term": term}) + "\n")
            sys.stdout.flush()
        else:
            from dovetail.cli.output import note

            note(f"{state}" + (f", term {term}" if term else ""))

    def show(self, engine: "Engine") -> None:
        from dovetail.cli.output import print_table
        from dovetail.pipeline.progress import COLUMNS

        rows = engine.progress()
        if self._json:
            self._line(rows)
        else:
            print_table(COLUMNS, [row.cells for row in rows])

    def _line(self, rows: Any) -> None:
        from dataclasses import asdict

        line = json.dumps({"teams": [asdict(row) for row in rows]})
        if line != self._last:
            self._last = line
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


def _tell(engine_of: Any, stop: threading.Event, *, as_json: bool) -> None:
    """Shows the progress of the engine, if there is one, until it is stopped."""
    from rich.live import Live

    from dovetail.cli.output import answers

    display = _Display(as_json=as_json)
    if as_json or not sys.stdout.isatty():
        while not stop.wait(_LOOK_S):
            if as_json and (engine := engine_of()) is not None:
                display.show(engine)
        return
    with Live(console=answers(), refresh_per_second=2, transient=True) as live:
        while not stop.wait(_LOOK_S):
            if (engine := engine_of()) is not None:
                live.update(_table(engine))


def _table(engine: "Engine") -> Any:
    from rich.table import Table

    from dovetail.pipeline.progress import COLUMNS

    table = Table(*COLUMNS)
    for row in engine.progress():
        table.add_row(*(str(cell) for cell in row.cells))
    return table
