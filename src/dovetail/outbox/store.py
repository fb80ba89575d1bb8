"""The relay's side of the tables: locks with a term, reading in order, recording what is done.

Lock of a (topic, shard), all by the clock of the database:

    free ──lock──> held (term + 1) ──finish──> free
     ▲               │    │  ▲
     │               │    └──┘ renew, record        refused for any other owner or term
     └── retry_at ── failed
    held, and not renewed for `lock_ms` ──lock──> held by another (term + 1)

Everything that a holder writes names its owner and term in the same transaction; when another has
taken over, `LockLost` is raised and nothing is written.

Reading: a pass is one snapshot of the database, read in the order of commits (PostgreSQL:
`kafka_commits`; elsewhere: ids; `dovetail.outbox` says why). What commits later is in the next
pass.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, create_engine, event, text
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from dovetail.errors import InvalidInput, InvalidSetting, LeaseLost, Unavailable
from dovetail.outbox.batch import (
    Batch,
    Identity,
    Row,
    decode_batches,
    decode_identity,
    encode_batches,
    encode_identity,
)
from dovetail.outbox.dialects import Dialect, dialect_of
from dovetail.outbox.drain import Record
from dovetail.outbox.schema import WAIT_LOCK

#: Time that SQLite waits for another writer.
SQLITE_BUSY_S = 30.0

#: Longest text of an error that is kept.
ERROR_CHARACTERS_MAX = 2000

#: The relay's statements have one good plan each, by index; fresh or stale statistics must not
#: choose another, which on a queue of changing size they do.
_POSTGRESQL_PLANS = (
    "SET enable_seqscan = off",
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
    "SET enable_bitmapscan = off",
    "SET enable_sort = off",
    "SET enable_material = off",
    "SET jit = off",
)


class LockLost(LeaseLost):
    """Another relay has taken over."""


class DatabaseDown(Unavailable):
    """The database does not answer, or has broken off."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A lock that is held."""

    topic: str
    shard: int
    shards: int
    owner: str
    term: int
    retries: int
    identity: Identity | None
    batches: list[Batch]


def open_engine(url: str) -> Engine:
    """An engine for the relay. Raises `InvalidSetting` for an address that is none."""
    try:
        parsed = make_url(url)
        dialect_of(parsed.get_backend_name())
        engine = create_engine(_with_driver(parsed), poolclass=NullPool, **_arguments(parsed))
    except (ArgumentError, NoSuchModuleError, InvalidInput) as error:
        raise InvalidSetting(
            f"outbox.database is no address of a database: {error}; write for example "
            "postgresql://user@host/name, mysql://user@host/name or sqlite:///file.db"
        ) from error
    except ModuleNotFoundError as error:
        raise InvalidSetting(
            f"the driver {error.name!r} of {parsed.get_backend_name()} is not installed; "
            "pip install 'dovetail[outbox,postgres]' or 'dovetail[outbox,mysql]'"
        ) from error
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", _set_plans)
    return engine


def _with_driver(url: URL) -> URL:
    """Our own choice of driver where the address names none."""
    drivers = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
    return url.set(drivername=drivers.get(url.drivername, url.drivername))


def _arguments(url: URL) -> dict[str, Any]:
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": SQLITE_BUSY_S, "check_same_thread": False}}
    if url.get_backend_name() == "postgresql":
        return {}
    return {"isolation_level": "READ COMMITTED"}


def _set_plans(connection: Any, _: object) -> None:
    was, connection.autocommit = connection.autocommit, True
    with connection.cursor() as cursor:
        for statement in _POSTGRESQL_PLANS:
            cursor.execute(statement)
    connection.autocommit = was


class Store:
    """One worker's access to the database; not shared between threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.dialect: Dialect = dialect_of(engine.dialect.name)
        self._connection: Connection | None = None
        #: Passes read here, beside the transactions that record what is done.
        self._reading: Connection | None = None
        #: Counts connections: what was written on an older one may be lost after a failover.
        self.generation = 0

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """One transaction; raises `DatabaseDown` if the database breaks off."""
        try:
            if self._connection is None or self._connection.invalidated:
                self.close()
                self._connection = self._engine.connect()
                self.generation += 1
            with self._connection.begin():
                yield self._connection
        except DBAPIError as error:
            self.close()
            raise DatabaseDown(_told(error)) from error

    def close(self) -> None:
        """Ends the connections."""
        for connection in (self._connection, self._reading):
            if connection is not None:
                with suppress(DBAPIError):
                    connection.close()
        self._connection = self._reading = None

    def pending(self, *, owner: str, lock_ms: int, shards: int) -> list[tuple[str, int]]:
        """The (topic, shard) that have messages and can be locked now, longest waiting first.

        A topic that is new gets `shards` shards.
        """
        d, table = self.dialect, self.dialect.pending_table
        with self._transaction() as connection:
            # A loose index scan: the number of topics counts, not the number of messages.
            found = connection.execute(
                text(
                    f"WITH RECURSIVE found (topic) AS (SELECT min(topic) FROM {table} UNION ALL "
                    f"SELECT (SELECT min(topic) FROM {table} WHERE topic > found.topic) FROM found "
                    "WHERE found.topic IS NOT NULL) SELECT topic FROM found WHERE topic IS NOT NULL"
                )
            )
            topics = [str(row[0]) for row in found]
            if not topics:
                return []
            listed = connection.execute(
                text(
                    "SELECT topic, shard, CASE WHEN locked_by = :owner OR (locked_by IS NULL AND "
                    f"(retry_at IS NULL OR retry_at <= {d.now})) OR locked_at < "
                    f"{d.time_before(':lock_ms')} THEN 1 ELSE 0 END FROM kafka_topic_info "
                    "WHERE topic IN :topics ORDER BY last_processed_at"
                ).bindparams(bindparam("topics", expanding=True)),
                {"topics": topics, "owner": owner, "lock_ms": lock_ms},
            ).all()
        missing = set(topics) - {str(row[0]) for row in listed}
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
            taken = connection.execute(
                text(
                    f"UPDATE kafka_topic_info SET locked_by = :owner, locked_at = {d.now}, "
                    "term = term + 1, error = false WHERE topic = :topic AND shard = :shard AND "
                    f"(locked_by = :owner OR (locked_by IS NULL AND (retry_at IS NULL OR "
                    f"retry_at <= {d.now})) OR locked_at < {d.time_before(':lock_ms')})"
                ),
                {"topic": topic, "shard": shard, "owner": owner, "lock_ms": lock_ms},
            )
            if taken.rowcount != 1:
                return None
            row = connection.execute(
                text(
                    "SELECT shards, term, retries, producer, batches FROM kafka_topic_info "
                    "WHERE topic = :topic AND shard = :shard"
                ),
                {"topic": topic, "shard": shard},
            ).one()
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
        with self._transaction() as connection:
            self._update(connection, claim, ", ".join(changes), values)
            for dead in record.dead:
                self._bury(connection, claim, dead.id, dead.reason)
            self._delete(connection, [*record.done, *(dead.id for dead in record.dead)])
            if record.finish:
                self._sweep(connection, claim.topic)

    def fail(self, claim: Claim, reason: str, *, retry_ms: int) -> None:
        """Gives the lock back with an error; nobody takes it for `retry_ms`. Raises `LockLost`."""
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
                    f"SELECT {self._columns()} FROM kafka_messages m WHERE m.id IN :ids"
                ).bindparams(bindparam("ids", expanding=True)),
                {"ids": list(ids)},
            )
            return [Row(*row) for row in found]

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

    def read(self, claim: Claim) -> "Pass":
        """A new pass over the messages of the claim."""
        try:
            if self._reading is None or self._reading.invalidated:
                self._reading = self._engine.connect()
                if self.dialect.name == "mysql":
                    self._reading.execution_options(isolation_level="REPEATABLE READ")
        except DBAPIError as error:
            raise DatabaseDown(_told(error)) from error
        return Pass(self._reading, claim, self.dialect, self._columns())

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
        """Takes back `try_sleep`: publishers need not notify while somebody looks anyway."""
        with self._transaction() as connection:
            connection.execute(text(f"SELECT pg_advisory_unlock({WAIT_LOCK})"))

    def _columns(self) -> str:
        created = self.dialect.epoch_ms.format("m.created_at")
        return (
            f"m.id, m.{self.dialect.key_column}, m.partition_key, m.headers, m.payload, "
            f"m.message_id, {created}"
        )

    def _update(
        self, connection: Connection, claim: Claim, changes: str, values: dict[str, Any]
    ) -> None:
        """Changes the row of the claim, if owner and term are still in force."""
        changed = connection.execute(
            text(
                f"UPDATE kafka_topic_info SET {changes} WHERE topic = :topic AND shard = :shard "
                "AND locked_by = :owner AND term = :term"
            ),
            {
                "topic": claim.topic,
                "shard": claim.shard,
                "owner": claim.owner,
                "term": claim.term,
                **values,
            },
        )
        if changed.rowcount != 1:
            raise LockLost(
                f"the lock of {claim.topic!r} shard {claim.shard} under term {claim.term} was "
                "taken over by another relay; nothing was changed"
            )

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
                {"ids": ids},
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


class Pass:
    """The messages of a claim as one snapshot shows them, in order, a few at a time."""

    def __init__(
        self, connection: Connection, claim: Claim, dialect: Dialect, columns: str
    ) -> None:
        self._connection = connection
        self._claim = claim
        self._dialect = dialect
        self._columns = columns
        self._mine = "" if claim.shards == 1 else "AND m.slot % :shards = :shard "
        self._result: Any = None
        self._reached = 0

    def fetch(self, count: int) -> list[Row]:
        """The next rows, at most `count`; none at the end. Raises `DatabaseDown`."""
        try:
            if self._dialect.name == "postgresql":
                return self._stream(count)
            return self._page(count)
        except DBAPIError as error:
            self._connection.invalidate()
            raise DatabaseDown(_told(error)) from error

    def close(self) -> None:
        """Ends the snapshot."""
        try:
            if self._result is not None:
                self._result.close()
            self._connection.rollback()
        except DBAPIError:
            self._connection.invalidate()

    def _stream(self, count: int) -> list[Row]:
        """From a cursor on the server: each row is visited once, however many dead ones lie about.

        Reading anew for each batch would step over all that were deleted before, which an old open
        transaction keeps from being cleaned away.
        """
        if self._result is None:
            self._result = self._connection.execute(
                text(
                    f"SELECT {self._columns} FROM kafka_commits c JOIN kafka_messages m "
                    f"ON m.topic = c.topic AND m.xid = c.xid WHERE c.topic = :topic {self._mine}"
                    "ORDER BY c.position, m.id"
                ),
                self._values(),
                execution_options={"stream_results": True, "max_row_buffer": count},
            )
        return [Row(*row) for row in self._result.fetchmany(count)]

    def _page(self, count: int) -> list[Row]:
        """On MariaDB all pages are of one snapshot: the transaction stays open until `close`."""
        found = self._connection.execute(
            text(
                f"SELECT {self._columns} FROM kafka_messages m WHERE m.topic = :topic "
                f"AND m.id > :reached {self._mine}ORDER BY m.id LIMIT :count"
            ),
            {**self._values(), "reached": self._reached, "count": count},
        )
        rows = [Row(*row) for row in found]
        if self._dialect.name == "sqlite":
            # Ids come in the order of commits, so no snapshot has to be held against writers.
            self._connection.rollback()
        if rows:
            self._reached = rows[-1].id
        return rows

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = {"topic": self._claim.topic}
        if self._claim.shards != 1:
            values |= {"shards": self._claim.shards, "shard": self._claim.shard}
        return values


def _told(error: DBAPIError) -> str:
    return f"the database refused or broke off: {str(error.orig or error).strip()}"
