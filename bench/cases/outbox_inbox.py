"""The inbox: a consumer's effect in its database, in batches, with and without it."""

import time
from dataclasses import dataclass

import psycopg
from tests.database_servers import running_postgres

from bench.run import Run
from bench.table import Line
from dovetail.outbox import MESSAGE_ID_HEADER, Inbox
from dovetail.outbox.database import open_engine
from dovetail.outbox.schema import create_tables

_BATCH = 100
#: Batches of one stretch; the best stretch counts, for both.
_STRETCH = 25
_RATIO_MIN = 0.7

Connection = psycopg.Connection[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class _Record:
    """A record as clients give it, sent by an outbox."""

    offset: int
    headers: tuple[tuple[str, bytes], ...]
    topic: str = "orders"
    partition: int = 0
    timestamp: int = 1_700_000_000_000
    key: bytes = b"k"
    value: bytes = b"x" * 100


def measure(run: Run) -> list[Line]:
    rounds = run.sized(40, quick=8)
    with running_postgres(durable=True) as server:
        database = server.create_database()
        create_tables(open_engine(database.url))
        once, plain, at = float("inf"), float("inf"), 0
        with psycopg.connect(database.dsn) as connection:
            connection.execute(
                "CREATE TABLE effects (id bigserial PRIMARY KEY, message_id varchar(64) NOT NULL, "
                "payload bytea, at timestamptz DEFAULT now())"
            )
            connection.execute("CREATE INDEX effects_message ON effects (message_id)")
            connection.commit()
            run.step("effects in batches of 100")
            # By turns and in short stretches, so that other work hits both alike.
            for _ in range(rounds):
                once = min(once, _handled_in(connection, at, Inbox("bench")))
                plain = min(plain, _handled_in(connection, at + _STRETCH * _BATCH, None))
                at += 2 * _STRETCH * _BATCH
    return [
        Line(
            "inbox",
            "effects in batches of 100, once",
            _BATCH / once,
            "messages/s",
            "the same effects without the inbox",
            _BATCH / plain,
            _RATIO_MIN,
        )
    ]


def _handled_in(connection: Connection, first: int, inbox: Inbox | None) -> float:
    """Seconds of a batch: its effects, and their commit."""
    started = time.perf_counter()
    for number in range(_STRETCH):
        start = first + number * _BATCH
        records = [
            _Record(offset, ((MESSAGE_ID_HEADER, b"%032d" % offset),))
            for offset in range(start, start + _BATCH)
        ]
        new = records if inbox is None else inbox.new(connection, records)
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO effects (message_id, payload) VALUES (%s, %s)",
                [(record.headers[0][1].decode(), record.value) for record in new],
            )
        connection.commit()
    return (time.perf_counter() - started) / _STRETCH
