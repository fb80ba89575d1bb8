"""Processor time a million messages with one, two and three brokers of one machine.

`dovetail up --brokers n`; the figure is that of all its processes, the one with the disk included.
If it stays the same, throughput grows with the cores, until the one with the disk is the limit.
"""

from pathlib import Path

import psutil  # type: ignore[import-untyped]

from bench import client
from bench.node import Node
from bench.run import Run
from bench.table import Line

_BROKERS = (1, 2, 3)
#: Each broker has its part of them.
_PARTITIONS = 12
_BYTES = 100
_WARM = 100_000
#: What is required.
_GROWTH_MAX = 1.2

_NOTE = (
    "user and system time of all processes, to produce 100-byte messages to 12 partitions with "
    "acks=all; all brokers and the client share these cores, so the rate says little here"
)


def measure(run: Run) -> list[Line]:
    best: dict[int, float] = {}
    rates: dict[int, float] = {}
    disk: dict[int, float] = {}
    messages = run.sized(2_000_000, quick=200_000)
    for at in range(run.rounds):
        for brokers in _BROKERS:
            run.step(f"{brokers} brokers")
            cpu_s, disk_s, seconds = _produce(
                run.folder / f"brokers-{brokers}-{at}", brokers, messages
            )
            best[brokers] = min(best.get(brokers, cpu_s), cpu_s)
            disk[brokers] = min(disk.get(brokers, disk_s), disk_s)
            rates[brokers] = max(rates.get(brokers, 0.0), messages / seconds)
            run.note(
                f"  {brokers} brokers, round {at + 1}: {cpu_s:.3f} s/million, of it "
                f"{disk_s:.3f} the process with the disk; {messages / seconds:,.0f} messages/s"
            )

    def line(brokers: int) -> Line:
        first = brokers == _BROKERS[0]
        return Line(
            "s brokers of a machine",
            f"processor, produce, {brokers} broker{'' if first else 's'}",
            best[brokers],
            "s/million",
            "" if first else "one broker",
            None if first else best[_BROKERS[0]],
            ratio_max=None if first else _GROWTH_MAX,
            note=_NOTE,
        )

    return [
        *map(line, _BROKERS),
        *(
            Line(
                "s brokers of a machine",
                f"of it with the disk, {brokers}",
                disk[brokers],
                "s/million",
            )
            for brokers in _BROKERS
        ),
    ]


def _produce(folder: Path, brokers: int, messages: int) -> tuple[float, float, float]:
    """Processor seconds a million of all processes, and of the one with the disk; seconds."""
    with Node(folder, options=("--brokers", str(brokers))) as node:
        topic = client.create_topic(node.bootstrap, "spread", partitions=_PARTITIONS)
        client.produce(node.bootstrap, topic, messages=_WARM, message_bytes=_BYTES, by_batch=True)
        all_before, disk_before = _spent(node), node.cpu_s()
        span = client.produce(
            node.bootstrap, topic, messages=messages, message_bytes=_BYTES, by_batch=True
        )
        scale = 1e6 / messages
        return (
            (_spent(node) - all_before) * scale,
            (node.cpu_s() - disk_before) * scale,
            span.seconds,
        )


def _spent(node: Node) -> float:
    children = psutil.Process(node.pid).children()
    times = [child.cpu_times() for child in children]
    return node.cpu_s() + sum(float(one.user + one.system) for one in times)
