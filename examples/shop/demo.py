"""`make demo`: the whole shop as processes, watched, hit by faults, and counted at the end.

    python -m examples.shop.demo                       a minute of orders, one kill
    python -m examples.shop.demo --chaos --minutes 3   kill -9 and SIGSTOP all the time

It uses free ports and a folder of its own. It exits with 0 if every count holds, with 1 if one does
not (then data and logs stay), and with 130 after Ctrl-C.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from examples.shop import chaos
from examples.shop.evidence import read_evidence
from examples.shop.run import REST_S_MAX, Run, Wishes
from examples.shop.sight import Watcher
from examples.shop.verdict import Check, figures, verdict
from examples.shop.view import LiveView, PlainView, View, print_proof, proof_console
from rich.console import Console

from dovetail.errors import Unavailable
from dovetail.spark.runtime import find_java


def judge(console: Console, run: Run, wishes: Wishes, *, rested: bool) -> bool:
    """Reads what there is, prints the proof; whether everything holds."""
    evidence = read_evidence(run.database, run.bootstrap)
    measured = figures(evidence)
    wanted = min(1, run.leaders_hit)
    lacking = ("another leader",) if measured.takeovers < wanted else ()
    surprises = tuple(run.surprises)
    checks = [
        *verdict(evidence, remind_after_s=wishes.remind_after_s),
        Check("takeovers, one at least", wanted, measured.takeovers, lost=lacking),
        Check("programs that broke down", 0, len(surprises), foreign=surprises),
    ]
    print_proof(console, checks, measured)
    if not rested:
        console.print(f"it did not come to rest within {REST_S_MAX:g} s", style="bold red")
    return rested and all(check.holds for check in checks)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="how long orders come (1)")
    parser.add_argument("--rate", type=float, default=30.0, help="orders a second (30)")
    parser.add_argument(
        "--chaos",
        nargs="?",
        const=",".join(chaos.FAULTS),
        default="",
        metavar="WHAT,WHAT",
        help=f"kill and pause programs while it runs; all of {', '.join(chaos.FAULTS)}, or some",
    )
    parser.add_argument("--seed", type=int, default=None, help="what customers and chaos do")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave data and logs in a folder")
    parser.add_argument("--plain", action="store_true", help="lines instead of a live view")
    parsed = parser.parse_args(given)
    parsed.targets = tuple(filter(None, parsed.chaos.split(",")))
    unknown = [name for name in parsed.targets if name not in chaos.FAULTS]
    if unknown:
        parser.error(f"--chaos {unknown[0]!r} is not one of {', '.join(chaos.FAULTS)}")
    if not 0 < parsed.minutes <= 24 * 60 or not 0 < parsed.rate <= 1_000:
        parser.error("--minutes must be above 0 and at most a day, --rate above 0 and at most 1000")
    if parsed.keep is not None and parsed.keep.exists() and any(parsed.keep.iterdir()):
        parser.error(f"--keep {parsed.keep}: the folder is not empty")
    parsed.seed = random.SystemRandom().randrange(10_000) if parsed.seed is None else parsed.seed
    return parsed


def wishes_of(given: argparse.Namespace) -> Wishes:
    seconds = given.minutes * 60
    faults = (
        chaos.plan(given.seed, seconds, given.targets) if given.targets else chaos.story(seconds)
    )
    # Short runs must see reminders too.
    remind_after_s = min(10.0, max(2.0, seconds / 4))
    return Wishes(seconds, given.rate, given.seed, remind_after_s, faults)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    given = arguments()
    console = proof_console()
    try:
        find_java(os.environ)
    except Unavailable as error:
        console.print(str(error), style="bold red", markup=False)
        return 1
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    folder = given.keep or Path(tempfile.mkdtemp(prefix="dovetail-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    code = 1
    try:
        code = play(console, folder.resolve(), given)
    finally:
        if given.keep is None and code != 1:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            console.print(f"data and logs are in {folder}", markup=False, soft_wrap=True)
    return code


def play(console: Console, folder: Path, given: argparse.Namespace) -> int:
    """One run, from the first process to the last."""
    wishes = wishes_of(given)
    plain = given.plain or not console.is_terminal
    title = f"Dovetail: a small shop, seed {given.seed}"
    console.print(f"[bold]{title}[/bold]", soft_wrap=True)
    view: View = PlainView(console)
    run = Run(folder, wishes, view)
    try:
        run.start()
        console.print(f"the node's web page: {run.web}   Kafka: {run.bootstrap}", soft_wrap=True)
        if not plain:
            view = LiveView(console, f"{title} at {run.web}")
            run.show_on(view)
        with Watcher(run.database, run.bootstrap) as watcher:
            rested = run.run(watcher)
        view.close()
        holds = judge(console, run, wishes, rested=rested)
    except Unavailable as error:
        view.close()
        console.print(str(error), style="bold red", markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        view.close()
        console.print("interrupted; everything is being stopped")
        return 130
    finally:
        view.close()
        # A second Ctrl-C must not leave processes behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        run.stop()
    if holds:
        console.print("[bold green]Everything that went in came out, once.[/bold green]")
        return 0
    console.print(
        f"[bold red]This does not hold.[/bold red] Repeat it with --seed {given.seed}",
        soft_wrap=True,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
