"""Payment reminders: they wait on a timeline, and those of paid orders are cancelled.

    python -m examples.shop.reminders --database shop.db --bootstrap 127.0.0.1:9092

Promise: an order that is not paid in time gets one reminder, never early; one that is paid gets
none. Events may come twice after a crash: a waiting reminder is found by its key, and one that has
fired by its row in the database. The event of a payment may overtake that of its order: then the
reminder fires, finds the order paid, and is not sent.
"""

import argparse
import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import Message as Record
from examples.shop.database import connect, now_ms, transaction
from examples.shop.shop import ORDERS, PAYMENTS

import dovetail
from dovetail.errors import DovetailError, TopicExists
from dovetail.timeline.client import Draft, Message, Timeline

TIMELINE = "shop-reminders"
#: Pause before a node that does not answer is asked again.
RETRY_S = 0.2


def remind(database: Path, message: Message) -> None:
    """The reminder is due: it is sent, unless the order was paid or a reminder was sent before."""
    fired_ms, body = now_ms(), json.loads(message.body)
    order_id, due_ms = body["order"], body["due_ms"]
    with closing(connect(database)) as db, transaction(db):
        [(paid_ms,)] = db.execute("SELECT paid_ms FROM orders WHERE id = ?", (order_id,))
        db.execute(
            "INSERT INTO reminders VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (order_id, due_ms, fired_ms, paid_ms is None, message.attempt),
        )


async def follow(timeline: Timeline, records: list[Record], remind_after_s: float) -> None:
    """Schedules a reminder for each order, and cancels those of the paid ones."""
    drafts, paid = [], []
    for record in records:
        order_id = (record.key() or b"").decode()
        if record.topic() == PAYMENTS:
            paid.append(order_id)
            continue
        placed_ms = json.loads(record.value() or b"")["placed_ms"]
        due_ms = placed_ms + round(remind_after_s * 1000)
        # It says itself when it was wanted: an event that comes late makes it due at once.
        body = json.dumps({"order": order_id, "due_ms": due_ms}).encode()
        drafts.append(Draft(body, at=due_ms / 1000, key=order_id))
    if drafts:
        await patiently(lambda: timeline.schedule_many(drafts))
    await asyncio.gather(*(patiently(partial(timeline.cancel_key, name)) for name in paid))


async def patiently(work: Callable[[], Awaitable[object]]) -> None:
    """Does it again while the node cannot. Both calls above are safe to repeat."""
    while True:
        try:
            await work()
        except DovetailError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(RETRY_S)
        else:
            return


async def create(timeline: Timeline) -> None:
    """Makes the timeline, if it is not there."""
    with suppress(TopicExists):
        await timeline.create()


async def run(given: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    consumer = Consumer(
        {
            "bootstrap.servers": given.bootstrap,
            "group.id": "shop-reminders",
            "group.instance.id": "shop-reminders-1",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([ORDERS, PAYMENTS])
    async with dovetail.connect(given.bootstrap, client_id="shop-reminders") as d:
        timeline = d.timeline(TIMELINE)
        await patiently(lambda: create(timeline))

        @d.consumer(TIMELINE, lease="5s", concurrency=4, id="shop-reminders-1")
        def handle(message: Message) -> None:
            remind(given.database, message)

        with closing(consumer):
            while not stopping.is_set():
                read = await asyncio.to_thread(consumer.consume, 500, 0.1)
                records = [record for record in read if record.error() is None]
                if records:
                    await follow(timeline, records, given.remind_after)
                    # The node is away: the next commit says as much, and nothing is lost.
                    with suppress(KafkaException):
                        await asyncio.to_thread(consumer.commit, asynchronous=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", type=Path, default=Path("shop.db"))
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--remind-after", type=float, default=10.0, help="seconds to pay in")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
