"""How long a node with much data takes to be ready, after kill -9 and after a clean stop.

1000 partitions with 10 MB each, 10 GB together, where the disk has room for it; less data, and the
line says how much, where it has not. The first kill finds a thousand ledgers open with all of
their data, which is the hardest start; so the slowest of the rounds counts here, not the fastest.
Before each start the files are evicted from the system's memory, as after a power cut.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from bench import client, disk
from bench.node import Node
from bench.run import Run
from bench.table import Line

_PARTITIONS = 1000
_TOTAL_BYTES = 10_000_000_000
#: Messages of 10 kB, sent by the hundred, make batches of the usual largest size, 1 MB.
_VALUE_BYTES = 10_000
_BATCH = 100
#: Room for our data, for segments in the making, and for the rest of the machine.
_FREE_TIMES = 2.5
_READY_S_MAX = 5.0
_MEMORY_MB_MAX = 300.0


def measure(run: Run) -> list[Line]:
    partitions = run.sized(_PARTITIONS, quick=100)
    free = shutil.disk_usage(run.folder).free
    total = int(min(run.sized(_TOTAL_BYTES, quick=200_000_000), free / _FREE_TIMES))
    folder = run.folder / "startup"
    found: dict[str, _Started] = {}
    with Node(folder) as node:
        run.step(f"filling {partitions} partitions with {total / 1e9:.1f} GB")
        topic = client.create_topic(node.bootstrap, "filled", partitions=partitions)
        _fill(node.bootstrap, topic, partitions, each=total // partitions // _VALUE_BYTES)
        for _ in range(run.rounds):
            run.step("start after kill -9")
            node.kill()
            _start(node, folder, found, "kill -9")
            run.step("start after a clean stop")
            # A stop closes ledgers, and a kill leaves them open: each has something to close.
            _fill(node.bootstrap, topic, partitions, each=1)
            run.note(f"  a clean stop of {partitions} partitions takes {node.stop():.1f} s")
            _start(node, folder, found, "a clean stop")
            _fill(node.bootstrap, topic, partitions, each=1)
    shutil.rmtree(folder)
    held = f"{total / 1e9:.3g} GB in {partitions} partitions"
    return [
        line for after, started in found.items() for line in _lines(f"{after}, {held}", started)
    ]


@dataclass(frozen=True, slots=True)
class _Started:
    """The slowest start of the rounds, and the most memory that any took."""

    ready_s: float
    memory_mb: float


def _start(node: Node, folder: Path, found: dict[str, _Started], after: str) -> None:
    disk.evict(folder)
    ready_s = node.start()
    known = found.get(after, _Started(ready_s, 0.0))
    found[after] = _Started(max(ready_s, known.ready_s), max(node.memory_mb(), known.memory_mb))


def _lines(after: str, started: _Started) -> list[Line]:
    case = "e start"
    ready = Line(
        case, f"ready after {after}", started.ready_s, "s", "limit", _READY_S_MAX, ratio_max=1.0
    )
    memory = Line(
        case, "memory then", started.memory_mb, "MB", "limit", _MEMORY_MB_MAX, ratio_max=1.0
    )
    return [ready, memory]


def _fill(bootstrap: str, topic: str, partitions: int, *, each: int) -> None:
    """Sends `each` messages to every partition, by turns of one batch. Raises `NotDelivered`."""
    failures: list[str] = []
    sender = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": 200_000,
        }
    )

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    value = b"x" * _VALUE_BYTES
    for begun in range(0, each, _BATCH):
        for partition in range(partitions):
            for _ in range(min(_BATCH, each - begun)):
                _send(sender, topic, value, partition, on_delivery)
    missing = sender.flush(client.STALL_S_MAX)
    if failures or missing:
        raise client.NotDelivered(f"{missing} without an answer, refused: {failures[:3]}")


def _send(
    sender: Producer,
    topic: str,
    value: bytes,
    partition: int,
    on_delivery: Callable[[object, object], None],
) -> None:
    while True:
        try:
            sender.produce(topic, value, partition=partition, on_delivery=on_delivery)
        except BufferError:
            sender.poll(0.01)
        else:
            return
