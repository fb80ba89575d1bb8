"""A consumer in a process of its own, which writes down what it does, line by line.

python -m tests.process.timeline.consumer_child ADDRESSES TIMELINE PATH RACK ID

SIGTERM: it stops gracefully. One message in fifty takes longer than the lease, so that it lives by
extensions; each that is seen is written down too. A message of poison fails twice, with an error
that cannot be printed.
"""

import asyncio
import json
import random
import signal
import sys
import time
from pathlib import Path

import dovetail
from dovetail.timeline import Message

LEASE_S = 3
_STEP_S = 0.2
#: A body.
POISON = b"poison"
_POISONED_ATTEMPTS = 2


class Unprintable(Exception):
    """An error as foreign code may raise it."""

    def __str__(self) -> str:
        raise ValueError("there is no text")


async def main(addresses: str, timeline: str, path: str, rack: str, name: str) -> None:
    rng = random.Random(path)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with Path(path).open("a") as book:

        def write(what: str, message: Message) -> None:
            line = {
                "what": what,
                "consumer": name,
                "book": path,
                "now_ms": time.time() * 1000,
                "id": message.id,
                "attempt": message.attempt,
                "due_ms": message.due_ms,
                "start_ms": message.start_ms,
                "until_ms": message.until_ms,
            }
            book.write(json.dumps(line) + "\n")
            book.flush()

        async def handle(message: Message) -> None:
            write("begin", message)
            if message.body == POISON and message.attempt <= _POISONED_ATTEMPTS:
                write("failed", message)
                raise Unprintable
            steps = round(1.5 * LEASE_S / _STEP_S) if rng.random() < 0.02 else 0
            known_ms = message.until_ms
            try:
                await asyncio.sleep(rng.choice([0, 0.005, 0.05]))
                for _ in range(steps):
                    await asyncio.sleep(_STEP_S)
                    if message.until_ms != known_ms:
                        known_ms = message.until_ms
                        write("extended", message)
            except asyncio.CancelledError:
                write("lost", message)
                raise
            write("end", message)

        async with dovetail.connect(addresses, rack=rack) as d:
            d.consumer(timeline, lease=f"{LEASE_S}s", concurrency=4, id=name)(handle)
            stopped = asyncio.create_task(stop.wait())
            running = asyncio.create_task(d.run())
            await asyncio.wait({stopped, running}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
