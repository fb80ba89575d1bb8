"""Filling and emptying outbox tables for the benchmarks, and the source's own relay, plainly.

The plain relay is the algorithm of the source's design note: select 1000 messages in order of ids,
mark them with the id of this batch, send them and wait, delete by the mark, renew the lock. It has
a table of its own, with the columns and the index that the note implies.
"""

import time
import uuid
from typing import Any

import psycopg
from confluent_kafka import Producer

BATCH = 1000
PAYLOAD_BYTES = 100
KEYS = 1000


def fill(dsn: str, topic: str, messages: int) -> None:
    """Messages of 100 bytes in transactions of 1000, as `publish_list` would leave them.

    Into empty tables: what the last round left behind must not slow the next one.
    """
    with psycopg.connect(dsn) as connection:
        _hurry(connection)
        connection.execute("TRUNCATE kafka_messages, kafka_commits")
        connection.commit()
        for first in range(0, messages, BATCH):
            connection.execute(
                "INSERT INTO kafka_messages (topic, key, payload, message_id, lead) "
                "SELECT %s, ('k' || (n %% %s))::bytea, convert_to(repeat('x', %s), 'UTF8'), "
                "md5(n::text), n = %s FROM generate_series(%s::bigint, %s::bigint) n",
                (topic, KEYS, PAYLOAD_BYTES, first, first, min(messages, first + BATCH) - 1),
            )
            connection.commit()
    vacuum(dsn, "kafka_messages")


def vacuum(dsn: str, table: str) -> None:
    """Dead rows of the last round must not slow the next one."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"VACUUM ANALYZE {table}")
        connection.execute("CHECKPOINT")


def delete_returning(dsn: str, topic: str) -> float:
    """Messages a second that the database alone deletes and hands over, 1000 a transaction."""
    with psycopg.connect(dsn) as connection:
        connection.execute("SET enable_seqscan = off")
        connection.execute("SET enable_sort = off")
        connection.commit()
        count, started = 0, time.perf_counter()
        while True:
            rows = connection.execute(
                "DELETE FROM kafka_messages WHERE ctid = ANY(ARRAY(SELECT ctid FROM "
                "kafka_messages WHERE topic = %s ORDER BY topic, xid, id LIMIT %s)) "
                "RETURNING id, key, partition_key, headers, payload, message_id",
                (topic, BATCH),
            ).fetchall()
            connection.commit()
            if not rows:
                return count / (time.perf_counter() - started)
            count += len(rows)


def make_plain_tables(dsn: str) -> None:
    """The source's two tables."""
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "CREATE TABLE plain_messages (id bigserial PRIMARY KEY, topic varchar(249) NOT NULL, "
            "key bytea, partition_key bytea, message bytea, session_id varchar(36), "
            "created_at timestamptz DEFAULT now())"
        )
        connection.execute("CREATE INDEX plain_messages_topic ON plain_messages (topic, id)")
        connection.execute(
            "CREATE TABLE plain_topic_info (topic varchar(249) PRIMARY KEY, locked_by varchar(36), "
            "locked_at timestamptz, error boolean DEFAULT false, retries int DEFAULT 0)"
        )


def _hurry(connection: "psycopg.Connection[Any]") -> None:
    """Filling is not measured: its thousand commits need not wait for the disk."""
    connection.execute("SET synchronous_commit = off")
    connection.commit()


def fill_plain(dsn: str, topic: str, messages: int) -> None:
    with psycopg.connect(dsn) as connection:
        _hurry(connection)
        for first in range(0, messages, BATCH):
            connection.execute(
                "INSERT INTO plain_messages (topic, key, message) SELECT %s, "
                "('k' || (n %% %s))::bytea, convert_to(repeat('x', %s), 'UTF8') "
                "FROM generate_series(%s::bigint, %s::bigint) n",
                (topic, KEYS, PAYLOAD_BYTES, first, min(messages, first + BATCH) - 1),
            )
            connection.commit()
        connection.execute(
            "INSERT INTO plain_topic_info (topic) VALUES (%s) ON CONFLICT DO NOTHING", (topic,)
        )
    vacuum(dsn, "plain_messages")


def empty_plain(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("TRUNCATE plain_messages")


def drain_plainly(dsn: str, bootstrap: str, topic: str, seconds_max: float) -> float:
    """Messages a second of the source's algorithm, one thread, until empty or for so long."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    me = str(uuid.uuid4())
    with psycopg.connect(dsn) as connection:
        count, started = 0, time.perf_counter()
        _execute(
            connection,
            "UPDATE plain_topic_info SET locked_by = %s, locked_at = now(), error = false "
            "WHERE topic = %s AND ((locked_by IS NULL AND NOT error) OR locked_at < now() - "
            "interval '1 minute')",
            (me, topic),
        )
        while True:
            rows = connection.execute(
                "SELECT id, key, message FROM plain_messages WHERE topic = %s ORDER BY id LIMIT %s",
                (topic, BATCH),
            ).fetchall()
            connection.commit()
            if not rows or time.perf_counter() - started > seconds_max:
                break
            mark = str(uuid.uuid4())
            _execute(
                connection,
                "UPDATE plain_messages SET session_id = %s WHERE id = ANY(%s)",
                (mark, [row[0] for row in rows]),
            )
            for _, key, value in rows:
                producer.produce(topic, value=value, key=key)
            producer.flush()
            _execute(connection, "DELETE FROM plain_messages WHERE session_id = %s", (mark,))
            _execute(
                connection,
                "UPDATE plain_topic_info SET locked_at = now() WHERE topic = %s",
                (topic,),
            )
            count += len(rows)
        return count / (time.perf_counter() - started)


def _execute(
    connection: "psycopg.Connection[Any]", statement: str, values: tuple[Any, ...]
) -> None:
    connection.execute(statement, values)
    connection.commit()
