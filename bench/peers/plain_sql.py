"""What one would write by hand on PostgreSQL: leases by `SKIP LOCKED`, batches of 100, psycopg."""

import time

import psycopg

BATCH = 100
_DDL = """
CREATE TABLE jobs (id bigserial PRIMARY KEY, due timestamptz NOT NULL, body bytea NOT NULL,
                   leased_until timestamptz);
CREATE INDEX jobs_due ON jobs (due);
"""
_LEASE = """
UPDATE jobs SET leased_until = now() + interval '30 s' WHERE id IN (
    SELECT id FROM jobs WHERE due <= now() AND (leased_until IS NULL OR leased_until < now())
    ORDER BY due LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING id, body
"""


def measure(dsn: str, *, messages: int, body: bytes) -> tuple[float, float]:
    """Messages a second inserted, and leased and deleted."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_DDL)
        cursor = connection.cursor()
        started = time.perf_counter()
        for _ in range(messages // BATCH):
            with connection.transaction():
                cursor.executemany(
                    "INSERT INTO jobs (due, body) VALUES (now(), %s)", [(body,)] * BATCH
                )
        inserted = messages / (time.perf_counter() - started)
        started = time.perf_counter()
        done = 0
        while done < messages:
            rows = cursor.execute(_LEASE, (BATCH,)).fetchall()
            ids = [row[0] for row in rows]
            cursor.execute("DELETE FROM jobs WHERE id = ANY (%s)", (ids,))
            done += len(ids)
        return inserted, messages / (time.perf_counter() - started)
