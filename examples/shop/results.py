"""Writes the outcomes of orders into the shop's database.

    python -m examples.shop.results --database shop.db --bootstrap 127.0.0.1:9092

Promise: every outcome on the topics is in the database once, although this program may be killed at
any line. It writes records in one transaction and commits their positions afterwards, so a record
may come twice but is never missed; a second one changes nothing, because the job id is the key of
its row. When the last item of an order has come, the order is complete, and an event in the same
transaction says so through the outbox.
"""

import argparse
import json
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Message
from examples.shop.database import connect, now_ms, transaction
from examples.shop.stopping import stop_event
from examples.shop.teams import shop

from dovetail.outbox import Producer

DONE = "shop.done"
FATES = {shop.topics("ship").results: "shipped", shop.topics("backorder").results: "ordered again"}
TOPICS = [shop.topics("parse").results, shop.topics("price").results, *FATES]

done = Producer(DONE, backend="db")


def take(db: sqlite3.Connection, messages: Iterable[Message]) -> None:
    """Writes outcomes down, and settles the orders that are through with them."""
    touched = set()
    with transaction(db):
        for message in messages:
            job_id = (message.key() or b"").decode()
            order_id = job_id.partition("/")[0]
            touched.add(order_id)
            failure = dict(message.headers() or ()).get("dovetail-reason")
            if failure is not None:
                _reject(db, order_id, bytes(failure).decode())
            elif message.topic() == shop.topics("price").results:
                _price(db, order_id, json.loads(message.value() or b"[]"))
            elif message.topic() in FATES:
                db.execute(
                    "INSERT INTO items VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    (job_id, order_id, FATES[message.topic() or ""], _text(message)),
                )
        for order_id in touched:
            _settle(db, order_id)


def _text(message: Message) -> str:
    text: str = json.loads(message.value() or b'""')
    return text


def _price(db: sqlite3.Connection, order_id: str, items: list[dict[str, int]]) -> None:
    total = sum(item["cents"] for item in items)
    db.execute(
        "UPDATE orders SET items = ?, total_cents = ? WHERE id = ?", (len(items), total, order_id)
    )


def _reject(db: sqlite3.Connection, order_id: str, reason: str) -> None:
    changed = db.execute(
        "UPDATE orders SET state = 'rejected', reason = ?, settled_ms = ? "
        "WHERE id = ? AND state = 'placed'",
        (reason, now_ms(), order_id),
    )
    if changed.rowcount:
        done.publish({"state": "rejected", "reason": reason}, key=order_id, on=db)


def _settle(db: sqlite3.Connection, order_id: str) -> None:
    changed = db.execute(
        "UPDATE orders SET state = 'complete', settled_ms = ? WHERE id = ? AND state = 'placed' "
        "AND items = (SELECT count(*) FROM items WHERE order_id = orders.id)",
        (now_ms(), order_id),
    )
    if changed.rowcount:
        done.publish({"state": "complete"}, key=order_id, on=db)


def run(given: argparse.Namespace, stopping: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": given.bootstrap,
            "group.id": "shop-results",
            # A name of its own: started again, it goes on at once with the partitions it had.
            "group.instance.id": "shop-results-1",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(TOPICS)
    with closing(connect(given.database)) as db, closing(consumer):
        while not stopping.is_set():
            messages = [m for m in consumer.consume(500, timeout=0.1) if m.error() is None]
            if messages:
                take(db, messages)
                # The node is away: the next commit says as much, and until then nothing is lost.
                with suppress(KafkaException):
                    consumer.commit(asynchronous=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", type=Path, default=Path("shop.db"))
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    given = parser.parse_args()
    run(given, stop_event())


if __name__ == "__main__":
    main()
