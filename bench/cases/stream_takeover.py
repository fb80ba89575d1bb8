"""How long nobody leads after kill -9 on the leader, in units of the configured timeout.

Three replicas as processes (the example's bot) on a node, MAJORITY over HTTP. Measured from the
signal to the moment at which another replica says that it leads: election, vote on disk, claim in
the shared log. The killed one is started again before the next round.
"""

import statistics
from collections.abc import Sequence

from examples.bot.processes import Bots

from bench.run import Run, percentile
from bench.table import Line

#: Timeout in milliseconds, rounds, and rounds of a quick run.
CASES = ((5_000, 10, 2), (1_000, 30, 3), (200, 60, 3))
MEDIAN_MAX, P99_MAX = 2.0, 4.0
NOTE = "from kill -9 to another replica that leads, over the timeout; every vote is synced"


def measure(run: Run) -> Sequence[Line]:
    lines: list[Line] = []
    for timeout_ms, full, quick in CASES:
        rounds = run.sized(full, quick=quick)
        took = _takeovers(run, timeout_ms, rounds)
        figures = (("median", statistics.median(took), MEDIAN_MAX), ("p99", _p99(took), P99_MAX))
        for name, value, limit in figures:
            lines.append(
                Line(
                    "takeover",
                    f"timeout {timeout_ms} ms, {rounds} kills, {name}",
                    value,
                    "timeouts",
                    "limit",
                    limit,
                    ratio_max=1.0,
                    note=NOTE,
                )
            )
    return lines


def _p99(took: list[float]) -> float:
    return percentile(took, 99) if len(took) > 1 else took[0]


def _takeovers(run: Run, timeout_ms: int, rounds: int) -> list[float]:
    took = []
    with Bots(run.folder / f"takeover-{timeout_ms}", timeout_ms=timeout_ms) as bots:
        for number in range(rounds):
            run.step(f"timeout {timeout_ms} ms, kill {number + 1} of {rounds}")
            leader = bots.leader()
            killed_at = bots.replicas[leader].kill()
            took_s = bots.led_after(killed_at, other_than=leader) - killed_at
            took.append(took_s * 1000 / timeout_ms)
            bots.start_replica(leader)
    shown = " ".join(f"{value:.2f}" for value in sorted(took))
    run.note(f"takeovers at {timeout_ms} ms, in timeouts: {shown}")
    return took
