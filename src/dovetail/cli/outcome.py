"""How a command ends: exit codes, and errors as one message on standard error."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer

from dovetail.cli.printable import printable
from dovetail.errors import DovetailError, Exists, InvalidInput, NotFound, Unreachable


class ExitCode(IntEnum):
    """What the exit code of `dovetail` means."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    EXISTS = 4
    UNREACHABLE = 5
    #: What shells give a program that ended on Ctrl-C: 128 and the number of the signal.
    INTERRUPTED = 130


EXIT_CODES_HELP = (
    "Exit codes: 0 done; 1 failed; 2 wrong usage or setting; 3 not found; 4 exists already; "
    "5 node unreachable; 130 interrupted."
)


def exit_code_of(error: DovetailError) -> ExitCode:
    """The exit code for an error that a command did not expect to handle."""
    if isinstance(error, Unreachable):
        return ExitCode.UNREACHABLE
    if isinstance(error, NotFound):
        return ExitCode.NOT_FOUND
    if isinstance(error, Exists):
        return ExitCode.EXISTS
    if isinstance(error, InvalidInput):
        return ExitCode.USAGE
    return ExitCode.FAILED


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Ends every expected error of a command with a message and an exit code."""
    try:
        yield
    except DovetailError as error:
        _say(f"error: {error}")
        raise typer.Exit(exit_code_of(error)) from error
    except KeyboardInterrupt as error:
        _say("interrupted")
        raise typer.Exit(ExitCode.INTERRUPTED) from error
    except typer.Abort as error:
        # Ctrl-C or the end of the input at a question.
        _say("\ninterrupted")
        raise typer.Exit(ExitCode.INTERRUPTED) from error
    except BrokenPipeError as error:
        # The reader of our output has had enough, as in `dovetail consume orders | head`.
        # Standard output must not fail once more when Python flushes it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(ExitCode.OK) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        _say(f"error: {where}{error.strerror or error}")
        raise typer.Exit(ExitCode.FAILED) from error


def _say(text: str) -> None:
    typer.secho(printable(text, keep="\n"), err=True, fg="red" if sys.stderr.isatty() else None)
