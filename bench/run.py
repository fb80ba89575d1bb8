"""What a case is given: how much to do, where to put files, and how to report."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the program."""

    folder: Path
    quick: bool
    rounds: int
    console: Console
    progress: Progress
    task: TaskID

    def step(self, text: str) -> None:
        """Says what is being done now.

        Only then is anything drawn: a display that moves by itself is a thread that takes turns
        with the client that is measured.
        """
        self.progress.update(self.task, description=text, refresh=True)

    def note(self, text: str) -> None:
        """Leaves a line behind, so that a long run shows what it found so far."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def sized(self, full: int, *, quick: int) -> int:
        return quick if self.quick else full


def percentile(values: Sequence[float], percent: int) -> float:
    """The value below which `percent` of 100 lie."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
