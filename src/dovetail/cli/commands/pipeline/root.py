"""The root of `dovetail pipeline`, and how a pipeline is found."""

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.options import examples
from dovetail.errors import InvalidInput, NotFound
from dovetail.foreign import described
from dovetail.teams.graph import Pipeline

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples("dovetail pipeline show shop:orders", "dovetail pipeline run shop:orders"),
)

PipelineArgument = Annotated[
    str,
    typer.Argument(metavar="MODULE:PIPELINE", help="Module and name, such as shop:orders."),
]
TeamOption = Annotated[
    str | None,
    typer.Option("--team", metavar="NAME", help="Team; default: the first of the pipeline."),
]


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
    except Exception as error:  # the user's code can raise anything
        raise InvalidInput(
            f"module {module_name!r} raises when it is imported: {described(error)}"
        ) from error

    found = getattr(module, name, None)
    if not isinstance(found, Pipeline):
        there = [key for key, value in vars(module).items() if isinstance(value, Pipeline)]
        hint = f"it has {', '.join(there)}" if there else "it has no pipeline at all"
        raise NotFound(f"module {module_name!r} has no pipeline {name!r}; {hint}")
    return found
