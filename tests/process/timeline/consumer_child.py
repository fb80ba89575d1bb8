"""A consumer in a process of its own, which writes down what it does, line by line.

python -m tests.process.timeline.consumer_child ADDRESSES TIMELINE PATH RACK
"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path

import dovetail
from dovetail.sdk import Message


async def main(addresses: str, timeline: str, path: str, rack: str) -> None:
    rng = random.Random(path)
    with Path(path).open("a") as book:

        def write(what: str, message: Message) -> None:
            line = {
                "what": what,
                "id": message.id,
                "attempt": message.attempt,
                "start_ms": message.start_ms,
                "until_ms": message.until_ms,
                "now_ms": time.time() * 1000,
            }
            book.write(json.dumps(line) + "\n")
            book.flush()

        async with dovetail.connect(addresses, rack=rack) as d:

            @d.consumer(timeline, lease="3s", concurrency=4)
            async def handle(message: Message) -> None:
                write("begin", message)
                await asyncio.sleep(rng.choice([0, 0.005, 0.02]))
                write("end", message)

            await d.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
