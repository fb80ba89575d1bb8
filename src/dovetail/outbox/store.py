"""The relay's side of the tables: locks with a term, reading in order, recording of results.

Lock of a (topic, shard), all by the clock of the database:

    free ──lock──> held (term + 1) ──finish──> free
     ▲               │    │  ▲
     │               │    └──┘ renew, record        refused for any other owner or term
     └── retry_at ── failed
    held, and not renewed for `lock_ms` ──lock──> held by another (term + 1)

Every write of an owner names the owner and its term in the same transaction. If another relay has
taken over, the write raises `LockLost` and changes nothing.

`reading.py` reads the messages.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, bindparam, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from dovetail.errors import LeaseLost
from dovetail.outbox.batch import (
    Row,
    decode_batches,
    decode_identity,
    encode_batches,
    encode_identity,
)
from dovetail.outbox.claim import Claim
from dovetail.outbox.database import DatabaseDown, reason_of
from dovetail.outbox.dialects import Dialect, dialect_of
from dovetail.outbox.drain import Record
from dovetail.outbox.reading import Pass, columns_of, open_pass, rows_of
from dovetail.outbox.schema import WAIT_LOCK

#: How the connection that passes read on works: PostgreSQL's begin their transactions themselves.
_READING = {
    "postgresql": "AUTOCOMMIT",
    "mysql": "REPEATABLE READ",
    "sqlite": "SERIALIZABLE",
}

#: Longest text of an error that is kept.
ERROR_CHARACTERS_MAX = 2000


class LockLost(LeaseLost):
    """Another relay has taken over."""


class Store:
    """One worker's access to the database; not shared between threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.dialect: Dialect = dialect_of(engine.dialect.name)
        self._connection: Connection | None = None
        #: Passes read here, beside the transactions that record what is done.
        self._reading: Connection | None = None
        #: PostgreSQL: what must be on disk before anything is sent is written here.
        self._writing: Connection | None = None
        #: Counts connections: what was written on an older one may be lost after a failover.
        self.generation = 0

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """One transaction; raises `DatabaseDown` if the database breaks off.

        On PostgreSQL each statement is one by itself, which saves two round trips: whatever must
        hold together there is one statement. And its commit is not waited for: should the server
        lose power, what is lost of these is a lock, an end or a mark, and the batch that was
        written down before, and waited for (`_durably`), is sent again and known to the broker.
        """
        try:
            if self._connection is None or self._connection.invalidated:
                self.close()
                self._connection = self._engine.connect()
                self.generation += 1
                if self.dialect.name == "postgresql":
                    self._connection.execution_options(isolation_level="AUTOCOMMIT")
                    self._connection.exec_driver_sql("SET synchronous_commit = off")
                    self._connection.commit()
            with self._connection.begin():
                yield self._connection
        except DBAPIError as error:
            self.close()
            raise DatabaseDown(reason_of(error)) from error

    def close(self) -> None:
        """Ends the connections."""
        for connection in (self._connection, self._reading, self._writing):
            if connection is not None:
                with suppress(DBAPIError):
                    connection.close()
        self._connection = self._reading = self._writing = None

    def pending(self, *, owner: str, lock_ms: int, shards: int) -> list[tuple[str, int]]:
        """The (topic, shard) that have messages and can be locked now, longest waiting first.

        A topic that is new gets `shards` shards.
        """
        d, table = self.dialect, self.dialect.pending_table
        with self._transaction() as connection:
            # A loose index scan: the number of topics counts, not the number of messages.
            listed = connection.execute(
                text(
                    f"WITH RECURSIVE found (topic) AS (SELECT min(topic) FROM {table} UNION ALL "
                    f"SELECT (SELECT min(topic) FROM {table} WHERE topic > found.topic) FROM found "
                    "WHERE found.topic IS NOT NULL) SELECT found.topic, i.shard, CASE WHEN "
                    "locked_by = :owner OR (locked_by IS NULL AND (retry_at IS NULL OR "
                    f"retry_at <= {d.now})) OR locked_at < {d.time_before(':lock_ms')} "
                    "THEN 1 ELSE 0 END FROM found LEFT JOIN kafka_topic_info i "
                    "ON i.topic = found.topic WHERE found.topic IS NOT NULL "
                    "ORDER BY i.last_processed_at"
                ),
                {"owner": owner, "lock_ms": lock_ms},
            ).all()

        missing = [str(topic) for topic, shard, _ in listed if shard is None]
        for topic in missing:
            self._introduce(topic, shards if d.shards else 1)
        if missing:
            return self.pending(owner=owner, lock_ms=lock_ms, shards=shards)
        return [(str(topic), int(shard)) for topic, shard, free in listed if free]

    def _introduce(self, topic: str, shards: int) -> None:
        ignore = "INSERT IGNORE" if self.dialect.name == "mysql" else "INSERT"
        on_conflict = "" if self.dialect.name == "mysql" else " ON CONFLICT DO NOTHING"
        with self._transaction() as connection:
            connection.execute(
                text(
                    f"{ignore} INTO kafka_topic_info (topic, shard, shards) "
                    f"VALUES (:topic, :shard, :shards){on_conflict}"
                ),
                [{"topic": topic, "shard": n, "shards": shards} for n in range(shards)],
            )

    def lock(self, topic: str, shard: int, *, owner: str, lock_ms: int) -> Claim | None:
        """Takes the lock if it is free, ours, or not renewed for `lock_ms`; else None."""
        d = self.dialect
        with self._transaction() as connection:
            returning = " RETURNING shards, term, retries, producer, batches"
            taken = connection.execute(
                text(
                    f"UPDATE kafka_topic_info SET locked_by = :owner, locked_at = {d.now}, "
                    "term = term + 1, error = false WHERE topic = :topic AND shard = :shard AND "
                    f"(locked_by = :owner OR (locked_by IS NULL AND (retry_at IS NULL OR "
                    f"retry_at <= {d.now})) OR locked_at < {d.time_before(':lock_ms')})"
                    f"{returning if d.name == 'postgresql' else ''}"
                ),
                {"topic": topic, "shard": shard, "owner": owner, "lock_ms": lock_ms},
            )

            if taken.rowcount != 1:
                return None
            if d.name != "postgresql":
                taken = connection.execute(
                    text(
                        "SELECT shards, term, retries, producer, batches FROM kafka_topic_info "
                        "WHERE topic = :topic AND shard = :shard"
                    ),
                    {"topic": topic, "shard": shard},
                )
            row = taken.one()

        return Claim(
            topic,
            shard,
            int(row.shards),
            owner,
            int(row.term),
            int(row.retries),
            decode_identity(row.producer),
            decode_batches(row.batches),
        )

    def renew(self, claim: Claim) -> None:
        """Says that the holder lives. Raises `LockLost`."""
        with self._transaction() as connection:
            self._update(connection, claim, f"locked_at = {self.dialect.now}", {})

    def record(self, claim: Claim, record: Record) -> None:
        """The transaction of `drain.Record`. Raises `LockLost`."""
        now = self.dialect.now
        changes = [
            f"locked_at = {now}, batches = :batches, producer = :producer, sent = sent + :sent"
        ]
        if record.done or record.dead or record.finish:
            changes.append(f"last_processed_at = {now}, retries = 0")
        if record.finish:
            changes.append("locked_by = NULL, error = false, error_text = NULL, retry_at = NULL")

        values = {
            "batches": encode_batches(record.batches),
            "producer": encode_identity(record.identity),
            "sent": record.sent,
        }
        gone = [*record.done, *(dead.id for dead in record.dead)]
        if self.dialect.name == "postgresql" and not record.dead:
            with self._durably() if record.batches else self._transaction() as connection:
                self._update_and_delete(connection, claim, ", ".join(changes), values, gone)
                if record.finish:
                    self._sweep(connection, claim.topic)
            return

        with self._together() as connection:
            self._update(connection, claim, ", ".join(changes), values)
            for dead in record.dead:
                self._bury(connection, claim, dead.id, dead.reason)
            self._delete(connection, gone)
            if record.finish:
                self._sweep(connection, claim.topic)

    @contextmanager
    def _durably(self) -> Iterator[Connection]:
        """PostgreSQL: statements whose commit is on disk before anything is sent."""
        try:
            if self._writing is None or self._writing.invalidated:
                self._writing = self._engine.connect()
                self._writing.execution_options(isolation_level="AUTOCOMMIT")
            with self._writing.begin():
                yield self._writing
        except DBAPIError as error:
            self.close()
            raise DatabaseDown(reason_of(error)) from error

    @contextmanager
    def _together(self) -> Iterator[Connection]:
        """Several statements as one transaction, also on PostgreSQL."""
        if self.dialect.name != "postgresql":
            with self._transaction() as connection:
                yield connection
            return
        try:
            with self._engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            raise DatabaseDown(reason_of(error)) from error

    def fail(self, claim: Claim, reason: str, *, retry_ms: int) -> None:
        """Releases the lock with an error; no relay takes it for `retry_ms`. Raises `LockLost`."""
        with self._transaction() as connection:
            self._update(
                connection,
                claim,
                "locked_by = NULL, error = true, error_text = :reason, retries = retries + 1, "
                f"retry_at = {self.dialect.time_after(':retry_ms')}",
                {"reason": reason[:ERROR_CHARACTERS_MAX], "retry_ms": retry_ms},
            )

    def release(self, claim: Claim) -> None:
        """Gives the lock back as it is, when the work ended without an end. Raises `LockLost`."""
        with self._transaction() as connection:
            self._update(connection, claim, "locked_by = NULL", {})

    def load(self, ids: Sequence[int]) -> list[Row]:
        """Those of the rows that exist, in no order."""
        with self._transaction() as connection:
            found = connection.execute(
                text(
                    f"SELECT {columns_of(self.dialect)} FROM kafka_messages m WHERE m.id IN :ids"
                ).bindparams(bindparam("ids", expanding=True)),
                {"ids": list(ids)},
            )
            return rows_of(found, self.dialect)

    def adopt(self) -> int:
        """PostgreSQL: gives a place to messages that came without one; returns how many lists.

        Rows that were restored or replicated with triggers off have none, and would never be read.
        """
        if self.dialect.name != "postgresql":
            return 0
        with self._transaction() as connection:
            adopted = connection.execute(
                text(
                    "INSERT INTO kafka_commits (topic, xid, position) "
                    "SELECT topic, xid, nextval('kafka_commits_position_seq') FROM "
                    "(SELECT m.topic, m.xid FROM kafka_messages m WHERE NOT EXISTS (SELECT 1 FROM "
                    "kafka_commits c WHERE c.topic = m.topic AND c.xid = m.xid) "
                    "GROUP BY m.topic, m.xid ORDER BY min(m.id)) orphans ON CONFLICT DO NOTHING"
                )
            )
            return adopted.rowcount

    def read(self, claim: Claim) -> Pass:
        """A new pass over the messages of the claim. Raises `DatabaseDown`."""
        try:
            if self._reading is None or self._reading.invalidated:
                self._reading = self._engine.connect()
                self._reading.execution_options(isolation_level=_READING[self.dialect.name])
            return open_pass(self._reading, claim, self.dialect)
        except DBAPIError as error:
            raise DatabaseDown(reason_of(error)) from error

    def try_sleep(self) -> bool:
        """PostgreSQL: asks publishers to notify. False while one is just committing, or elsewhere.

        Whoever gets True must look for messages once more before it sleeps, and end it by `wake`.
        """
        if self.dialect.name != "postgresql":
            return False
        with self._transaction() as connection:
            asked = connection.execute(text(f"SELECT pg_try_advisory_lock({WAIT_LOCK})"))
            return bool(asked.scalar())

    def wake(self) -> None:
        """Takes back `try_sleep`: publishers need not notify while a worker polls anyway."""
        with self._transaction() as connection:
            connection.execute(text(f"SELECT pg_advisory_unlock({WAIT_LOCK})"))

    def _update(
        self, connection: Connection, claim: Claim, changes: str, values: dict[str, Any]
    ) -> None:
        """Changes the row of the claim, if owner and term are still in force."""
        changed = connection.execute(
            text(
                f"UPDATE kafka_topic_info SET {changes} WHERE topic = :topic AND shard = :shard "
                "AND locked_by = :owner AND term = :term"
            ),
            {**_named(claim), **values},
        )
        if changed.rowcount != 1:
            raise _lost(claim)

    def _update_and_delete(
        self,
        connection: Connection,
        claim: Claim,
        changes: str,
        values: dict[str, Any],
        gone: list[int],
    ) -> None:
        """PostgreSQL: both in one statement, which deletes only if the claim is in force."""
        if not gone:
            self._update(connection, claim, changes, values)
            return
        held = connection.execute(
            text(
                f"WITH held AS (UPDATE kafka_topic_info SET {changes} WHERE topic = :topic AND "
                "shard = :shard AND locked_by = :owner AND term = :term RETURNING 1), gone AS "
                "(DELETE FROM kafka_messages WHERE id = ANY(CAST(:gone AS bigint[])) AND "
                "EXISTS (SELECT 1 FROM held)) SELECT count(*) FROM held"
            ),
            {**_named(claim), **values, "gone": _array(gone)},
        )
        if held.scalar_one() != 1:
            raise _lost(claim)

    def _bury(self, connection: Connection, claim: Claim, row_id: int, reason: str) -> None:
        key = self.dialect.key_column
        columns = f"id, topic, {key}, partition_key, headers, payload, message_id, created_at"
        connection.execute(
            text(
                f"INSERT INTO kafka_dead_messages ({columns}, reason, attempts) "
                f"SELECT {columns}, :reason, :attempts FROM kafka_messages WHERE id = :id"
            ),
            {
                "id": row_id,
                "reason": reason[:ERROR_CHARACTERS_MAX],
                "attempts": claim.retries + 1,
            },
        )

    def _delete(self, connection: Connection, ids: list[int]) -> None:
        if not ids:
            return
        if self.dialect.name == "postgresql":
            connection.execute(
                text("DELETE FROM kafka_messages WHERE id = ANY(CAST(:ids AS bigint[]))"),
                {"ids": _array(ids)},
            )
            return
        connection.execute(
            text("DELETE FROM kafka_messages WHERE id IN :ids").bindparams(
                bindparam("ids", expanding=True)
            ),
            {"ids": ids},
        )

    def _sweep(self, connection: Connection, topic: str) -> None:
        """PostgreSQL: forgets the places of transactions whose messages are all gone."""
        if self.dialect.name == "postgresql":
            connection.execute(
                text(
                    "DELETE FROM kafka_commits WHERE (topic, xid) IN (SELECT c.topic, c.xid FROM "
                    "kafka_commits c WHERE c.topic = :topic AND NOT EXISTS (SELECT 1 FROM "
                    "kafka_messages m WHERE m.topic = c.topic AND m.xid = c.xid) "
                    "FOR UPDATE SKIP LOCKED)"
                ),
                {"topic": topic},
            )


def _named(claim: Claim) -> dict[str, Any]:
    return {
        "topic": claim.topic,
        "shard": claim.shard,
        "owner": claim.owner,
        "term": claim.term,
    }


def _array(ids: Sequence[int]) -> str:
    """As text: the driver would take each number in its hands."""
    return "{" + ",".join(map(str, ids)) + "}"


def _lost(claim: Claim) -> LockLost:
    return LockLost(
        f"the lock of {claim.topic!r} shard {claim.shard} under term {claim.term} was taken over "
        "by another relay; nothing was changed"
    )
