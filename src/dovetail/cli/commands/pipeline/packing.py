"""`dovetail pipeline package`: packs what a pipeline needs on other machines into one file."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dovetail.cli.commands.pipeline.root import PipelineArgument, app, load_pipeline
from dovetail.cli.options import JsonOption, examples
from dovetail.cli.output import note, print_json
from dovetail.teams.travel.packing import ENDING, package


@app.command(
    "package",
    epilog=examples(
        "dovetail pipeline package shop:orders",
        "dovetail pipeline package shop:orders --to orders.tar.gz --with requests",
    ),
)
def pack(
    where: PipelineArgument,
    target: Annotated[
        Path | None,
        typer.Option("--to", metavar="PATH", help=f"Default: the pipeline's name and {ENDING}."),
    ] = None,
    libraries: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="LIBRARY",
            help="A library that importing the pipeline does not load; repeatable.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write an archive with the pipeline's modules and libraries, for Spark's executors."""
    pipeline = load_pipeline(where)
    chosen = target or Path(f"{pipeline.name}{ENDING}")
    module = where.split(":", maxsplit=1)[0]
    found = package(module, chosen, folder=Path.cwd(), libraries=libraries or ())
    if not found.compiled:
        note(
            "the compiled decoder is not in it, because this installation has none: executors will "
            "read records about 40 times slower. Install Dovetail with a C compiler"
        )
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    note(
        f"wrote {found.path}: {found.bytes:,} bytes for Python {found.python} on {found.machine}, "
        f"with {', '.join([*found.modules, *found.libraries])}"
    )
