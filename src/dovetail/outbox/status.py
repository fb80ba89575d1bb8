"""What waits, which relay has the locks, what went wrong: read from the tables."""

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.engine import Engine

from dovetail.outbox.dialects import dialect_of


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One lock."""

    shard: int
    locked_by: str | None
    locked_ms: int | None
    term: int
    error: str | None
    retries: int
    retry_ms: int | None
    sent: int


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """One topic: what waits and its locks."""

    topic: str
    pending: int
    oldest_ms: int
    dead: int
    sent: int
    shards: tuple[ShardStatus, ...]


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """Everything, by topic."""

    topics: tuple[TopicStatus, ...]


def read_status(engine: Engine) -> OutboxStatus:
    """Reads the state of the outbox; counts every waiting message."""
    d = dialect_of(engine.dialect.name)
    with engine.connect() as connection:
        waiting = {
            str(row[0]): (int(row[1]), max(0, int(row[2] or 0)))
            for row in connection.execute(
                text(
                    f"SELECT topic, count(*), max({d.age_ms.format('created_at')}) "
                    "FROM kafka_messages GROUP BY topic"
                )
            )
        }

        dead = {
            str(row[0]): int(row[1])
            for row in connection.execute(
                text("SELECT topic, count(*) FROM kafka_dead_messages GROUP BY topic")
            )
        }

        locks: dict[str, list[ShardStatus]] = {}
        for row in connection.execute(
            text(
                f"SELECT topic, shard, locked_by, {d.age_ms.format('locked_at')}, term, "
                f"error_text, retries, {d.age_ms.format('retry_at')}, sent FROM kafka_topic_info "
                "ORDER BY topic, shard"
            )
        ):
            locks.setdefault(str(row[0]), []).append(
                ShardStatus(
                    shard=int(row[1]),
                    locked_by=row[2],
                    locked_ms=int(row[3]) if row[2] is not None and row[3] is not None else None,
                    term=int(row[4]),
                    error=row[5],
                    retries=int(row[6]),
                    retry_ms=max(0, -int(row[7])) if row[7] is not None else None,
                    sent=int(row[8]),
                )
            )

    return OutboxStatus(
        tuple(
            TopicStatus(
                topic,
                *waiting.get(topic, (0, 0)),
                dead.get(topic, 0),
                sum(shard.sent for shard in locks.get(topic, [])),
                tuple(locks.get(topic, ())),
            )
            for topic in sorted({*waiting, *dead, *locks})
        )
    )
