"""`dovetail pipeline run`: Spark, and the archive that goes with it to other machines."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail import tracing
from dovetail.cli.commands.pipeline.masters import reporting, run_alone, stand_by
from dovetail.cli.commands.pipeline.root import PipelineArgument, app, load_pipeline
from dovetail.cli.options import (
    BootstrapOption,
    JsonOption,
    MetricsHostOption,
    MetricsPortOption,
    TimeoutOption,
    examples,
    metrics_flags,
    named_values,
    settings_of,
    target_of,
)
from dovetail.cli.output import note
from dovetail.cli.spark_options import MasterOption
from dovetail.errors import InvalidInput, NotFound
from dovetail.spark import java_process
from dovetail.spark.sessions import is_local, plain_session, submitted_settings
from dovetail.teams.graph import Pipeline
from dovetail.teams.travel import packing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Jobs run in Python and Java only hands out tasks, so its second compiler would not pay.
#: An option of the user, such as `spark.driver.extraJavaOptions`, comes behind it and counts.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"

#: Settings by which a user ships code; then nothing is added.
_SHIPS = ("spark.archives", "spark.submit.pyFiles")


@app.command(
    "run",
    epilog=examples(
        "dovetail pipeline run shop:orders",
        "dovetail pipeline run shop:orders --master 'local[4]' --checkpoint /var/lib/shop",
        "dovetail pipeline run shop:orders --standby --checkpoint hdfs://name/shop",
        "dovetail pipeline run shop:orders --master spark://host:7077",
        "dovetail pipeline run shop:orders --once",
        "dovetail pipeline run shop:orders --metrics-port 9101",
    ),
)
def run(
    ctx: typer.Context,
    where: PipelineArgument,
    master: MasterOption = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            "--archive",
            metavar="PATH",
            help="What `package` wrote, for executors elsewhere; default: packed now.",
        ),
    ] = None,
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
    once: Annotated[bool, typer.Option("--once", help="Exit when no job is left.")] = False,
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

    given: dict[str, Any] = {"target": target, "checkpoint": folder}
    shipping = _Shipping(where.split(":")[0], archive)
    try:
        with (
            _started(pipeline, shipping, master, dict(named_values("--conf", conf))) as spark,
            reporting(settings, pipeline, target) as reporter,
        ):
            if standby:
                stand_by(settings, pipeline, spark, reporter, **given, as_json=as_json)
            else:
                run_alone(pipeline, spark, reporter, **given, once=once, as_json=as_json)
    finally:
        tracing.end()


class _Shipping:
    """How the code of a pipeline comes to executors."""

    def __init__(self, module: str, archive: Path | None) -> None:
        """Raises `NotFound`."""
        if archive is not None and not archive.is_file():
            raise NotFound(f"no archive {archive}; write it with `dovetail pipeline package`")
        self._module, self._archive = module, archive

    def settings(self, there: dict[str, str], folder: Path) -> dict[str, str]:
        """Settings for a Spark that has these; a new archive is written to `folder`."""
        if self._archive is None:
            if is_local(there["spark.master"]) or any(there.get(name) for name in _SHIPS):
                return {}
            self._archive = folder / f"pipeline{packing.ENDING}"
            found = packing.package(self._module, self._archive, folder=Path.cwd())
            note(f"packed {', '.join(found.modules)} for the executors ({found.bytes:,} bytes)")
        return packing.spark_settings(self._archive.resolve())


@contextmanager
def _output_kept() -> Iterator[None]:
    """What is started meanwhile writes to standard error; Java's words would break our lines."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _started(
    pipeline: Pipeline, shipping: _Shipping, master: str | None, conf: dict[str, str]
) -> "Iterator[SparkSession]":
    # Workers on this machine find the module where this process did.
    paths = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", _JAVA_OPTIONS)
    with _output_kept():
        there = submitted_settings(conf if master is None else conf | {"spark.master": master})
    with tempfile.TemporaryDirectory(prefix="dovetail-package-") as folder:
        given = shipping.settings(there | conf, Path(folder)) | conf
        spark = plain_session(f"dovetail {pipeline.name}", master=master, **given)
        try:
            yield spark
        finally:
            java_process.stop(spark)
