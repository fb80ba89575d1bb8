"""Loads commands when they are called, so that the command line starts fast.

The root group shows a table of entries. Help and completion of names do not reach
`resolve_command`, which loads the command behind an entry.
"""

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from dovetail.cli.outcome import errors_as_messages
from dovetail.errors import InvalidSetting


class Entry(NamedTuple):
    """A noun (a Typer app) or a verb (a function, whose docstring begins with the same line)."""

    panel: str
    #: The module below this package, and the name in it.
    where: str
    help: str
    #: The extra of the installation that it needs.
    extra: str = ""


def load_command(name: str, entry: Entry) -> Any:
    """The command with its options and verbs; imports its module.

    Raises `InvalidSetting` if that needs an extra which is not installed.
    """
    module_name, attribute = entry.where.split()
    try:
        module: Any = importlib.import_module(f"dovetail.cli.{module_name}")
    except ModuleNotFoundError as error:
        if not entry.extra:
            raise
        raise InvalidSetting(
            f"`dovetail {name}` needs {error.name}, which is not installed; "
            f"pip install 'dovetailmq[{entry.extra}]'"
        ) from error
    found = getattr(module, attribute)
    if isinstance(found, typer.Typer):
        noun: Any = typer.main.get_group(found)
        noun.name, noun.help = name, entry.help
        return noun
    verb = typer.Typer(add_completion=False)
    verb.command(name, epilog=module.EPILOG)(found)
    return typer.main.get_command(verb)


class LazyGroup(TyperGroup):
    """Shows its entries, loads what is called, and ends an expected error with a message."""

    entries: ClassVar[Mapping[str, Entry]]

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = {
            name: TyperCommand(name, help=entry.help, rich_help_panel=entry.panel)
            for name, entry in self.entries.items()
        }

    def get_params(self, ctx: Any) -> Any:
        params: Any = super().get_params(ctx)
        for param in params:
            _lighten(param)
            # `dovetail completion SHELL` is what people find; these are how it works inside.
            if param.name in {"install_completion", "show_completion"}:
                param.hidden = True
        return params

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            command = load_command(name, self.entries[name])
            _lighten_all(ctx, command)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        with errors_as_messages():
            return super().invoke(ctx)


def _lighten_all(ctx: Any, command: Any) -> None:
    for param in command.get_params(ctx):
        _lighten(param)
    for below in getattr(command, "commands", {}).values():
        _lighten_all(ctx, below)


def _lighten(param: Any) -> None:
    if getattr(param, "is_flag", False):
        # Help must not show a flag as if it took a value, which is what its type would say.
        param.metavar = ""
    param._runtime_param = _AsGiven()


class _AsGiven:
    """Stands in for typer's conversion of a parameter until a value needs one.

    Typer converts by pydantic, whose import takes a third of the processor time of a short command,
    even for what is not given. ASCII text and what is not given stay as they are; everything else
    goes to typer's own conversion. A typer without this hook only starts more slowly.
    """

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        texts = value if several else (value,)
        is_text = param.type_descriptor.annotation in (str, list[str])
        if is_text and all(isinstance(text, str) and text.isascii() for text in texts):
            return value
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
