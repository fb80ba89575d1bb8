"""Asks for confirmation before something is deleted for good."""

import sys

import typer

from dovetail.cli.outcome import ExitCode
from dovetail.cli.output import note
from dovetail.errors import InvalidInput


def confirm(question: str, *, yes: bool) -> None:
    """Returns if the answer is yes; otherwise the command ends.

    Raises `InvalidInput` where there is no terminal to ask on.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(f"{question} There is no terminal to ask on; give --yes")
    if not typer.confirm(question, err=True):
        note("nothing was deleted")
        raise typer.Exit(ExitCode.FAILED)
