"""What there is at the end: the shop's database, the topics and the timeline, read completely.

Nothing here is reported by the programs under test or counted by the demo: any user can read it
with a database client, a Kafka client and `dovetail timeline describe`.
"""

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from examples.shop.database import connect
from examples.shop.reminders import TIMELINE
from examples.shop.results import DONE
from examples.shop.shop import ORDERS, PAYMENTS
from examples.shop.teams import shop

import dovetail

TEAMS = tuple(shop.teams)
TOPICS = (
    ORDERS,
    PAYMENTS,
    DONE,
    *(shop.topics(team).results for team in TEAMS),
    *(shop.topics(team).dead for team in TEAMS),
)
#: Reading a whole topic; minutes would mean that the node hangs.
READ_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class OrderRow:
    """An order, as the shop's database has it."""

    lines: tuple[str, ...]
    placed_ms: int
    paid_ms: int | None
    state: str
    items: int | None
    total_cents: int | None
    settled_ms: int | None


@dataclass(frozen=True, slots=True)
class ReminderRow:
    due_ms: int
    fired_ms: int
    sent: bool


@dataclass(frozen=True, slots=True)
class MailRow:
    written_ms: int
    replica: str
    term: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the verdict rests on."""

    orders: dict[str, OrderRow]
    declined: frozenset[str]
    #: Fate by the id of the item.
    items: dict[str, str]
    reminders: dict[str, ReminderRow]
    mails: dict[str, MailRow]
    outbox_left: int
    outbox_dead: int
    #: The keys of all records, by topic; as often as they are there.
    topics: dict[str, tuple[str, ...]]
    timeline_left: int
    timeline_dead: int


def read_evidence(database: Path, bootstrap: str) -> Evidence:
    """Reads everything. Raises `KafkaException`, `DovetailError` or `TimeoutError`."""
    with dovetail.connect_blocking(bootstrap) as d:
        counts = d.timeline(TIMELINE).describe().counts
    topics = {topic: read_keys(bootstrap, topic) for topic in TOPICS}
    with closing(connect(database, read_only=True)) as db:
        return Evidence(
            orders=_orders(db),
            declined=frozenset(row[0] for row in db.execute("SELECT id FROM declined")),
            items=dict(db.execute("SELECT id, fate FROM items")),
            reminders={
                order_id: ReminderRow(due_ms, fired_ms, bool(sent))
                for order_id, due_ms, fired_ms, sent in db.execute(
                    "SELECT order_id, due_ms, fired_ms, sent FROM reminders"
                )
            },
            mails={
                order_id: MailRow(*rest)
                for order_id, *rest in db.execute(
                    "SELECT order_id, written_ms, replica, term FROM mails"
                )
            },
            outbox_left=_count(db, "kafka_messages"),
            outbox_dead=_count(db, "kafka_dead_messages"),
            topics=topics,
            timeline_left=counts.waiting + counts.due + counts.leased,
            timeline_dead=counts.dead,
        )


def read_keys(bootstrap: str, topic: str) -> tuple[str, ...]:
    """The key of every record of a topic. Raises `KafkaException`, `TimeoutError`."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "shop-evidence",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    keys: list[str] = []
    with closing(consumer):
        known = consumer.list_topics(topic, timeout=READ_S_MAX).topics[topic]
        if known.error is not None:
            raise KafkaException(known.error)
        left = set(known.partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in left])
        deadline = time.monotonic() + READ_S_MAX
        while left:
            if time.monotonic() > deadline:
                raise TimeoutError(f"topic {topic!r} could not be read within {READ_S_MAX:g} s")
            for message in consumer.consume(10_000, timeout=0.1):
                error = message.error()
                if error is None:
                    keys.append((message.key() or b"").decode(errors="replace"))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
    return tuple(keys)


def _orders(db: sqlite3.Connection) -> dict[str, OrderRow]:
    rows = db.execute(
        "SELECT id, lines, placed_ms, paid_ms, state, items, total_cents, settled_ms FROM orders"
    )
    return {order_id: OrderRow(tuple(json.loads(lines)), *rest) for order_id, lines, *rest in rows}


def _count(db: sqlite3.Connection, table: str) -> int:
    [(count,)] = db.execute(f"SELECT count(*) FROM {table}")
    return int(count)
