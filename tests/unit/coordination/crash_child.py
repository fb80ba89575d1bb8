"""A process that writes to a coordination file until it is killed.

Run with the path of the file and a run number. Sixteen tasks write keys of their own and count
one common number by compare-and-set. Each acknowledgement is one line on the standard output,
written after `transact` has returned: `put <key> <revision>` or `count <number> <revision>`.
"""

import asyncio
import os
import sys
from pathlib import Path

from dovetail.clock import SystemClock
from dovetail.coordination import ABSENT, EmbeddedCoordinator, Put, Unchanged


def acknowledge(line: str) -> None:
    """Out of this process at once, so that the kill does not take it along."""
    os.write(1, f"{line}\n".encode())


async def write(coordinator: EmbeddedCoordinator, run: int, writer: int) -> None:
    number = 0
    while True:
        key = f"put/{run}/{writer}/{number}"
        outcome = await coordinator.transact([Put(key, key.encode()), Put(f"twin/{key}", b"")])
        acknowledge(f"put {key} {outcome.revision}")
        number += 1


async def count(coordinator: EmbeddedCoordinator) -> None:
    while True:
        item = await coordinator.get("count")
        number = 1 if item is None else int(item.value) + 1
        seen = ABSENT if item is None else item.revision
        outcome = await coordinator.transact(
            [Put("count", b"%d" % number)], conditions=[Unchanged("count", seen)]
        )
        if outcome.applied:
            acknowledge(f"count {number} {outcome.revision}")


async def main(path: Path, run: int) -> None:
    async with await EmbeddedCoordinator.open(path, clock=SystemClock()) as coordinator:
        lease = await coordinator.grant(ttl_ms=60_000)
        await coordinator.transact([Put("alive", b"", lease)])
        writers = [write(coordinator, run, writer) for writer in range(12)]
        await asyncio.gather(*writers, *(count(coordinator) for _ in range(4)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
