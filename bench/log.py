"""`make bench`: the log's figures, each beside its peer or limit measured in the same run.

    python -m bench.log [--quick] [--only throughput] [--json PATH] [--folder FOLDER]

Exit code 0 if no line misses its rule, else 1. A peer that is not installed is skipped, loudly.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench.cases import bandwidth, latency, startup, throughput
from bench.run import Run
from bench.table import Line, Verdict, machine, print_table, write_json

#: Best of so many rounds: the first one warms caches, and a shared machine has its moods.
ROUNDS = 3
ROUNDS_QUICK = 1

#: Width of the table where there is no terminal to fit.
WIDTH_PIPED = 170

CASES: dict[str, Callable[[Run], Sequence[Line]]] = {
    "throughput": throughput.measure,
    "bandwidth": bandwidth.measure,
    "latency": latency.measure,
    "startup": startup.measure,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.log", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, one round: does it run at all")
    parser.add_argument("--only", choices=CASES, action="append", help="this case; may be repeated")
    parser.add_argument("--json", type=Path, default=Path("bench/results/log.json"), metavar="PATH")
    parser.add_argument("--rounds", type=int, help=f"best of so many rounds ({ROUNDS})")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(),
        help="where data goes, ours and the peers': the disk that is measured (here)",
    )
    return parser.parse_args()


def main() -> int:
    """Measures, prints, writes; returns the exit code."""
    given = _arguments()
    on_terminal = sys.stdout.isatty()
    console = Console(width=None if on_terminal else WIDTH_PIPED, highlight=False)
    names = given.only or list(CASES)
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
        ) as progress,
    ):
        for at, name in enumerate(names):
            console.print(f"{name} ({at + 1} of {len(names)})")
            task = progress.add_task(name, total=None)
            run = Run(Path(folder), given.quick, rounds, console, progress, task)
            lines += CASES[name](run)
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


if __name__ == "__main__":
    sys.exit(main())
