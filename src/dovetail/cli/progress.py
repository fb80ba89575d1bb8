"""The progress bar of a long command."""

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dovetail.cli.output import notes


def progress_bar(*, quiet: bool = False) -> Progress:
    """A progress bar with the time left; silent unless standard error is a terminal."""
    console = notes()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
        transient=True,
    )
