"""FastStream: an application of two steps, by one of its two Kafka clients.

faststream_app.py CLIENT BOOTSTRAP NAME; it doubles NAME-in into NAME-out, and prints what it
read there.
"""

import asyncio
import sys
from importlib import import_module

from faststream import FastStream

RECORDS = 20
client, bootstrap, name = sys.argv[1:]
broker = import_module(f"faststream.{client}").KafkaBroker(bootstrap)
application = FastStream(broker)
found: list[int] = []


@broker.subscriber(f"{name}-in", group_id=f"{name}-one", auto_offset_reset="earliest")
@broker.publisher(f"{name}-out")
async def double(number: int) -> int:
    return 2 * number


@broker.subscriber(f"{name}-out", group_id=f"{name}-two", auto_offset_reset="earliest")
async def take(number: int) -> None:
    found.append(number)
    if len(found) == RECORDS:
        application.exit()


@application.after_startup
async def fill() -> None:
    for number in range(RECORDS):
        await broker.publish(number, f"{name}-in")


asyncio.run(asyncio.wait_for(application.run(), 90))
print(*sorted(found))
