"""How long a node with much data takes to be ready, after kill -9 and after a clean stop.

1000 partitions with 10 MB each, 10 GB together, where the disk has room for it; less data, and the
line says how much, where it has not.
"""

import shutil
import time

from confluent_kafka import Producer

from bench import client
from bench.node import Node
from bench.run import Run
from bench.table import Line

_PARTITIONS = 1000
_TOTAL_BYTES = 10_000_000_000
_VALUE_BYTES = 10_000
#: Room for our data, for segments in the making, and for the rest of the machine.
_FREE_TIMES = 2.5
_READY_S_MAX = 5.0
_MEMORY_MB_MAX = 300.0


def measure(run: Run) -> list[Line]:
    partitions = run.sized(_PARTITIONS, quick=100)
    total = run.sized(_TOTAL_BYTES, quick=200_000_000)
    free = shutil.disk_usage(run.folder).free
    total = int(min(total, free / _FREE_TIMES))
    folder = run.folder / "startup"
    ready: dict[str, float] = {}
    memory: dict[str, float] = {}
    node = Node(folder)
    with node:
        filled_s = _fill(run, node.bootstrap, partitions, total)
        run.told(f"  filled {total / 1e9:.1f} GB in {filled_s:.0f} s")
        for _ in range(run.rounds):
            run.step("start after kill -9")
            node.kill()
            _note(ready, memory, "kill -9", node)
            run.step("start after a clean stop")
            run.told(f"  a clean stop takes {node.stop():.1f} s")
            _note(ready, memory, "a clean stop", node)
            # The next kill must find ledgers open, as a crash does.
            _touch(node.bootstrap, partitions)
    shutil.rmtree(folder)
    lines = []
    held = f"{total / 1e9:.3g} GB in {partitions} partitions"
    for after in ready:
        lines.append(
            Line(
                "e start",
                f"ready after {after}, {held}",
                ready[after],
                "s",
                "limit",
                _READY_S_MAX,
                ratio_max=1.0,
            )
        )
        lines.append(
            Line(
                "e start",
                f"memory when ready after {after}",
                memory[after],
                "MB",
                "limit",
                _MEMORY_MB_MAX,
                ratio_max=1.0,
            )
        )
    return lines


def _note(ready: dict[str, float], memory: dict[str, float], after: str, node: Node) -> None:
    seconds = node.start()
    ready[after] = min(ready.get(after, seconds), seconds)
    memory[after] = max(memory.get(after, 0.0), node.memory_mb())


_TOPIC = "filled"


def _fill(run: Run, bootstrap: str, partitions: int, total: int) -> float:
    """Spreads `total` bytes over a new topic; returns the seconds."""
    run.step(f"filling {partitions} partitions with {total / 1e9:.1f} GB")
    started = time.perf_counter()
    topic = client.create_topic(bootstrap, _TOPIC, partitions=partitions)
    _send_to_all(bootstrap, topic, partitions, messages_each=total // partitions // _VALUE_BYTES)
    return time.perf_counter() - started
