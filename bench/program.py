"""What every benchmark program does: options, cases one after the other, table, JSON, exit code."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench.run import Run
from bench.table import Line, Verdict, machine, print_table, write_json

#: Best of so many rounds: the first one warms caches, and a shared machine has its moods.
ROUNDS = 3
ROUNDS_QUICK = 1

#: Width of the table where there is no terminal to fit.
WIDTH_PIPED = 170

Cases = Mapping[str, Callable[[Run], Sequence[Line]]]


def _arguments(name: str, about: str, cases: Cases) -> argparse.Namespace:
    results = Path(f"bench/results/{name}.json")
    parser = argparse.ArgumentParser(prog=f"bench.{name}", description=about.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, one round: does it run at all")
    parser.add_argument("--only", choices=cases, action="append", help="this case; may be repeated")
    parser.add_argument("--json", type=Path, default=results, metavar="PATH")
    parser.add_argument("--rounds", type=int, help=f"best of so many rounds ({ROUNDS})")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(),
        help="where data goes, ours and the peers': the disk that is measured (here)",
    )
    return parser.parse_args()


def main(name: str, about: str, cases: Cases) -> int:
    """Measures, prints, writes; returns the exit code: 1 if a line misses its rule."""
    given = _arguments(name, about, cases)
    on_terminal = sys.stdout.isatty()
    console = Console(width=None if on_terminal else WIDTH_PIPED, highlight=False)
    names = given.only or list(cases)
    rounds = given.rounds or (ROUNDS_QUICK if given.quick else ROUNDS)
    lines: list[Line] = []
    started, load_before = time.perf_counter(), os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="dovetail-bench-", dir=given.folder) as folder,
        Progress(
            SpinnerColumn(),
            BarColumn(bar_width=20),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            auto_refresh=False,
        ) as progress,
    ):
        for at, case in enumerate(names):
            console.print(f"{case} ({at + 1} of {len(names)})")
            task = progress.add_task(case, total=None)
            run = Run(Path(folder).resolve(), given.quick, rounds, console, progress, task)
            lines += cases[case](run)
            progress.remove_task(task)
    print_table(console, lines)
    facts = ", ".join(f"{key} {value}" for key, value in machine().items())
    console.print(f"{facts}; best of {rounds}; {time.perf_counter() - started:.0f} s in all")
    # The run itself brings it to about 2; what was there before it is other work.
    console.print(
        f"load average before the run {load_before:.1f}, after it {os.getloadavg()[0]:.1f}"
    )
    options = {"quick": given.quick, "rounds": rounds, "cases": names, "load_before": load_before}
    write_json(given.json, lines, options=options)
    missed = [line for line in lines if line.verdict is Verdict.MISS]
    skipped = [line for line in lines if line.verdict is Verdict.SKIPPED]
    if skipped:
        console.print(f"{len(skipped)} comparisons were SKIPPED; see the notes", style="yellow")
    return 1 if missed else 0
