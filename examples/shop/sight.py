"""What the demo sees while it runs: counts of the database, ends of the topics, the timeline.

A thread looks twice a second, so that a dead or paused node delays nobody; while the node does not
answer, the last counts stay.
"""

import sqlite3
import threading
import time
from collections import deque
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from examples.shop.database import connect
from examples.shop.evidence import TOPICS
from examples.shop.reminders import TIMELINE

import dovetail
from dovetail.errors import DovetailError
from dovetail.timeline.client.blocking import BlockingDovetail

LOOK_S = 0.5
#: Rates are taken over so many looks.
RATE_LOOKS = 10
#: A node that does not answer within this is shown as silent.
ANSWER_S_MAX = 3.0
#: Lateness is shown of so many reminders.
LATE_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Sight:
    """One look."""

    at: float = 0.0
    orders: int = 0
    declined: int = 0
    paid: int = 0
    settled: int = 0
    unpaid_unreminded: int = 0
    reminders: int = 0
    late_ms: tuple[int, ...] = ()
    mails: int = 0
    #: Replica and term of the last mail.
    leader: str = ""
    term: int = 0
    outbox: int = 0
    #: Where each topic ends.
    ends: dict[str, int] = field(default_factory=dict)
    timeline: int = 0
    node_answers: bool = False

    @property
    def at_rest(self) -> bool:
        """Whether everything that was ordered is through, as far as counts can tell."""
        return (
            self.node_answers
            and self.settled == self.orders == self.mails
            and self.outbox == self.unpaid_unreminded == self.timeline == 0
        )


class Watcher:
    """Looks again and again; a context manager."""

    def __init__(self, database: Path, bootstrap: str) -> None:
        self._database, self._bootstrap = database, bootstrap
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._seen: deque[Sight] = deque([Sight()], maxlen=RATE_LOOKS)

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join(2 * ANSWER_S_MAX)

    @property
    def last(self) -> Sight:
        return self._seen[-1]

    def rate(self, count: "str | tuple[str, ...]") -> float:
        """How much a count of `Sight`, or the ends of topics, grew a second."""
        seen = [sight for sight in self._seen if sight.at]
        if len(seen) < 2:
            return 0.0
        first, last = seen[0], seen[-1]
        return (_value(last, count) - _value(first, count)) / (last.at - first.at)

    def _run(self) -> None:
        config = {"bootstrap.servers": self._bootstrap, "group.id": "shop-watch", "log_level": 0}
        places: list[TopicPartition] = []
        with (
            closing(Consumer(config)) as consumer,
            dovetail.connect_blocking(self._bootstrap, client_id="shop-watch") as d,
        ):
            while not self._stopped.wait(LOOK_S):
                # The database is shown at once: the node may take its time to answer.
                with suppress(sqlite3.Error):
                    self._seen.append(self._database_of(self.last))
                try:
                    places = places or _places(consumer)
                    self._seen[-1] = _node_of(self.last, consumer, places, d)
                except (KafkaException, DovetailError, TimeoutError):
                    self._seen[-1] = replace(self.last, node_answers=False)

    def _database_of(self, sight: Sight) -> Sight:
        with closing(connect(self._database, read_only=True)) as db:
            [(orders, paid, settled)] = db.execute(
                "SELECT count(*), count(paid_ms), count(settled_ms) FROM orders"
            )
            [(unpaid,)] = db.execute(
                "SELECT count(*) FROM orders LEFT JOIN reminders ON order_id = id "
                "WHERE paid_ms IS NULL AND order_id IS NULL"
            )
            late = db.execute(
                "SELECT fired_ms - due_ms FROM reminders ORDER BY fired_ms DESC LIMIT ?",
                (LATE_SHOWN,),
            )
            last = db.execute(
                "SELECT replica, term FROM mails ORDER BY written_ms DESC LIMIT 1"
            ).fetchone()
            return replace(
                sight,
                at=time.monotonic(),
                orders=orders,
                paid=paid,
                settled=settled,
                unpaid_unreminded=unpaid,
                declined=_count(db, "declined"),
                reminders=_count(db, "reminders"),
                late_ms=tuple(sorted(row[0] for row in late)),
                mails=_count(db, "mails"),
                leader=last[0] if last else "",
                term=last[1] if last else 0,
                outbox=_count(db, "kafka_messages"),
            )


def _node_of(
    sight: Sight, consumer: Consumer, places: list[TopicPartition], d: BlockingDovetail
) -> Sight:
    ends = dict.fromkeys(TOPICS, 0)
    for place in places:
        _, end = consumer.get_watermark_offsets(place, timeout=ANSWER_S_MAX)
        ends[place.topic] += end
    counts = d.timeline(TIMELINE).describe().counts
    left = counts.waiting + counts.due + counts.leased
    return replace(sight, ends=ends, timeline=left, node_answers=True)


def _places(consumer: Consumer) -> list[TopicPartition]:
    known = consumer.list_topics(timeout=ANSWER_S_MAX).topics
    missing = [topic for topic in TOPICS if topic not in known]
    if missing:
        raise TimeoutError(f"not there yet: {', '.join(missing)}")
    return [TopicPartition(topic, n) for topic in TOPICS for n in known[topic].partitions]


def _value(sight: Sight, count: "str | tuple[str, ...]") -> int:
    if isinstance(count, tuple):
        return sum(sight.ends.get(topic, 0) for topic in count)
    value: int = getattr(sight, count)
    return value


def _count(db: sqlite3.Connection, table: str) -> int:
    [(count,)] = db.execute(f"SELECT count(*) FROM {table}")
    return int(count)
