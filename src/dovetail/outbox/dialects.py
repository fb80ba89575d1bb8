"""What differs between the databases: time, order marks, and consistent reading.

The relay uses only the database's clock, so clocks of relays do not matter.
"""

from dataclasses import dataclass

from dovetail.errors import InvalidInput

_SQLITE_FORMAT = "'%Y-%m-%d %H:%M:%f'"


@dataclass(frozen=True, slots=True)
class Dialect:
    """Fragments of SQL. `{}` in `before` and `after` stands for milliseconds."""

    name: str
    now: str
    before: str
    after: str
    #: Milliseconds since the epoch of a column, and the age of a column in milliseconds; 0 for what
    #: is no time: one such row must not fail the statement that reads all.
    epoch_ms: str
    age_ms: str
    key_column: str
    #: SQLite keeps text, and numbers, in any column: what it gives as the bytes of a column.
    as_stored: str
    #: Whether several relays can share a topic; SQLite has one writer at a time anyway.
    shards: bool
    #: Where to look for topics that have messages.
    pending_table: str

    def time_before(self, milliseconds: str) -> str:
        return self.before.format(milliseconds)

    def time_after(self, milliseconds: str) -> str:
        return self.after.format(milliseconds)


POSTGRESQL = Dialect(
    name="postgresql",
    now="clock_timestamp()",
    before="clock_timestamp() - {} * interval '1 millisecond'",
    after="clock_timestamp() + {} * interval '1 millisecond'",
    epoch_ms="CASE WHEN isfinite({0}) THEN greatest(0, CAST(extract(epoch FROM {0}) * 1000 "
    "AS bigint)) WHEN {0} IS NOT NULL THEN 0 END",
    age_ms="CASE WHEN isfinite({0}) THEN CAST(extract(epoch FROM clock_timestamp() - {0}) * 1000 "
    "AS bigint) WHEN {0} IS NOT NULL THEN 0 END",
    key_column="key",
    as_stored="{}",
    shards=True,
    pending_table="kafka_commits",
)
MYSQL = Dialect(
    name="mysql",
    now="utc_timestamp(3)",
    before="utc_timestamp(3) - INTERVAL ({} * 1000) MICROSECOND",
    after="utc_timestamp(3) + INTERVAL ({} * 1000) MICROSECOND",
    epoch_ms="greatest(0, coalesce(timestampdiff(MICROSECOND, '1970-01-01 00:00:00', {}), 0) "
    "DIV 1000)",
    age_ms="timestampdiff(MICROSECOND, {}, utc_timestamp(3)) DIV 1000",
    key_column="`key`",
    as_stored="{}",
    shards=True,
    pending_table="kafka_messages",
)
SQLITE = Dialect(
    name="sqlite",
    now=f"strftime({_SQLITE_FORMAT}, 'now')",
    before=f"strftime({_SQLITE_FORMAT}, 'now', printf('%+.3f seconds', -{{}} / 1000.0))",
    after=f"strftime({_SQLITE_FORMAT}, 'now', printf('%+.3f seconds', {{}} / 1000.0))",
    epoch_ms="max(0, coalesce(CAST(round((julianday({}) - 2440587.5) * 86400000) AS INTEGER), 0))",
    age_ms="CAST(round((julianday('now') - julianday({})) * 86400000) AS INTEGER)",
    key_column="key",
    as_stored="CAST({} AS BLOB)",
    shards=False,
    pending_table="kafka_messages",
)

_BY_NAME = {"postgresql": POSTGRESQL, "mysql": MYSQL, "mariadb": MYSQL, "sqlite": SQLITE}


def dialect_of(name: str) -> Dialect:
    """By SQLAlchemy's name. Raises `InvalidInput` for a database that is not supported."""
    if name not in _BY_NAME:
        raise InvalidInput(
            f"the outbox does not support the database {name!r}; it works on PostgreSQL, MariaDB, "
            "MySQL and SQLite"
        )
    return _BY_NAME[name]
