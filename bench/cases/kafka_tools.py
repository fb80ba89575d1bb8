"""Kafka's own load generator on both servers: `kafka-producer-perf-test`, in turns.

The program of Apache Kafka drives Dovetail as it drives Kafka, with the same options. So neither
the client nor the way of counting is ours.
"""

import re
import subprocess
from collections.abc import Sequence

from bench import client
from bench.cases.kafka_one import OURS, SYNCED, UNSYNCED, started
from bench.peers import kafka
from bench.peers.server import PeerMissing
from bench.run import Run
from bench.table import Line

_SIZES = (100, 1024)
_RUN_S_MAX = 600
_SUMMARY = re.compile(
    r"records sent, ([\d.,]+) records/sec .*? ([\d.,]+) ms avg latency, .*? ([\d.,]+) ms 99th"
)


def measure(run: Run) -> list[Line]:
    best: dict[tuple[str, int], tuple[float, float]] = {}
    missing = ""
    for at in range(run.rounds):
        for name in (OURS, UNSYNCED, SYNCED):
            try:
                with started(name, run.folder / f"perf-{name.replace(', ', '-')}-{at}") as found:
                    for size in _SIZES:
                        run.step(f"{name}: kafka-producer-perf-test, {size} B")
                        rate, p99_ms = _perf_test(found[0].bootstrap, size, run)
                        known = best.get((name, size), (0.0, p99_ms))
                        best[name, size] = max(rate, known[0]), min(p99_ms, known[1])
            except PeerMissing as error:
                missing = str(error)
    return [line for peer in (SYNCED, UNSYNCED) for line in _lines(best, peer, missing)]


def _lines(best: dict[tuple[str, int], tuple[float, float]], peer: str, missing: str) -> list[Line]:
    lines, ruled = [], 1.0 if peer == SYNCED else None
    for size in _SIZES:
        mine, others = best.get((OURS, size)), best.get((peer, size))
        lines.append(
            Line(
                "l producer-perf-test",
                f"{size} B, acks=all",
                mine and mine[0],
                "msg/s",
                peer,
                others and others[0],
                ratio_min=ruled,
                note=missing,
            )
        )
        lines.append(
            Line(
                "l producer-perf-test",
                f"{size} B, p99",
                mine and mine[1],
                "ms",
                peer,
                others and others[1],
            )
        )
    return lines


def _perf_test(bootstrap: str, size: int, run: Run) -> tuple[float, float]:
    """Records a second, and the p99 of their latency in milliseconds."""
    topic = client.create_topic(bootstrap, "perf")
    records = run.sized(2_000_000, quick=50_000) * 100 // size
    said = _tool(
        "org.apache.kafka.tools.ProducerPerformance",
        ["--topic", topic, "--num-records", str(records), "--record-size", str(size)],
        ["--throughput", "-1", "--producer-props", f"bootstrap.servers={bootstrap}", "acks=all"],
    )
    found = _SUMMARY.findall(said)
    if not found:
        raise RuntimeError(f"kafka-producer-perf-test said: {said[-500:]}")
    rate, _, p99_ms = (float(part.replace(",", "")) for part in found[-1])
    return rate, p99_ms


def _tool(name: str, *options: Sequence[str]) -> str:
    command = [kafka.java(), "-Xmx512m", "-cp", f"{kafka.jars()}/*", name]
    done = subprocess.run(
        [*command, *(option for some in options for option in some)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_RUN_S_MAX,
    )
    return done.stdout + done.stderr
