"""Shards of a topic: how many workers can drain it at once (O8).

A message's slot is a hash of its partition key, so all messages of a key are in one shard, and a
shard has one holder at a time. The number can be changed only while no worker holds a shard and no
batch is open: then two workers can never have the same key under different numbers.
"""

from sqlalchemy import text
from sqlalchemy.engine import Engine

from dovetail.errors import InvalidInput, Unavailable
from dovetail.outbox.dialects import dialect_of
from dovetail.outbox.schema import SLOTS


def set_shards(engine: Engine, topic: str, shards: int) -> None:
    """Changes the number of shards. Raises `InvalidInput`, or `Unavailable` while it is in use."""
    dialect = dialect_of(engine.dialect.name)
    if not 1 <= shards <= SLOTS:
        raise InvalidInput(f"a topic can have 1 to {SLOTS} shards, not {shards}")
    if shards > 1 and not dialect.shards:
        raise InvalidInput(
            "SQLite has one writer at a time, so shards gain nothing there; leave them at 1"
        )

    lock = "" if dialect.name == "sqlite" else " FOR UPDATE"
    with engine.begin() as connection:
        # A write first: on SQLite it takes the lock that FOR UPDATE takes elsewhere.
        connection.execute(
            text("UPDATE kafka_topic_info SET topic = topic WHERE topic = :topic"),
            {"topic": topic},
        )

        rows = connection.execute(
            text(
                "SELECT shard, locked_by, batches, term FROM kafka_topic_info "
                f"WHERE topic = :topic{lock}"
            ),
            {"topic": topic},
        ).all()
        for row in rows:
            if row.locked_by is not None or row.batches is not None:
                busy = f"locked by {row.locked_by}" if row.locked_by else "in the middle of a batch"
                raise Unavailable(
                    f"shard {row.shard} of {topic!r} is {busy}; try again when its messages are "
                    "sent, or stop the relays first"
                )

        term = max((int(row.term) for row in rows), default=0)
        connection.execute(
            text("DELETE FROM kafka_topic_info WHERE topic = :topic"), {"topic": topic}
        )
        connection.execute(
            text(
                "INSERT INTO kafka_topic_info (topic, shard, shards, term) "
                "VALUES (:topic, :shard, :shards, :term)"
            ),
            [
                {"topic": topic, "shard": number, "shards": shards, "term": term + 1}
                for number in range(shards)
            ],
        )
