"""Rows that others wrote by SQL: whatever the columns take is sent or set aside."""

import json
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Engine
from tests.outbox_kit import new_database

from dovetail.errors import InvalidInput
from dovetail.outbox.batch import Batch, Identity, Row
from dovetail.outbox.database import open_engine
from dovetail.outbox.dead import list_dead
from dovetail.outbox.drain import Fate, Outcome
from dovetail.outbox.metrics import RelayMetrics
from dovetail.outbox.poller import ROWS_MAX, advance, source_of
from dovetail.outbox.sender import encode
from dovetail.outbox.status import read_status
from dovetail.outbox.store import Store
from dovetail.outbox.worker import Memory, RelayOptions, Worker
from dovetail.record_batch import decode_batch


@pytest.fixture(params=["postgres", "maria", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return open_engine(new_database(request.param, request.getfixturevalue, tmp_path))


class Taken:
    """A sender that encodes as the real one does, and keeps what it gets."""

    def __init__(self) -> None:
        self.values: dict[str, list[bytes | None]] = {}

    def partitions(self, topic: str) -> int:
        return 2

    def new_identity(self) -> Identity:
        return Identity(1, 0, {})

    def send(
        self, topic: str, batch: Batch, sets: dict[int, list[Row]], after: "Future[Any] | None"
    ) -> "Future[dict[int, Outcome]]":
        for rows in sets.values():
            made = encode(rows, producer_id=1, epoch=0, sequence=0)
            records = decode_batch(memoryview(made.data))
            self.values.setdefault(topic, []).extend(record.value for record in records)
        sent: Future[dict[int, Outcome]] = Future()
        sent.set_result(dict.fromkeys(sets, Outcome(Fate.ACKNOWLEDGED)))
        return sent


def drained(engine: Engine, rounds: int = 3) -> Taken:
    """What a relay sends of what is there."""
    sender, store = Taken(), Store(engine)
    worker = Worker(
        "w",
        store,
        sender,
        RelayOptions(lock_ms=60_000),
        memory=Memory(),
        metrics=RelayMetrics(),
        stopping=threading.Event(),
        woken=threading.Event(),
    )
    try:
        for _ in range(rounds):
            worker.work_once()
    finally:
        worker.close()
    return sender


#: Of each database: values of columns, as SQL, that it takes.
ODD = {
    "postgresql": [
        {"created_at": "'infinity'"},
        {"created_at": "'-infinity'"},
        {"created_at": "'4713-01-01 BC'"},
        {"created_at": "'294276-12-31'"},
        {"message_id": "''"},
        {"message_id": "'\u00e9'"},
        {"headers": "repeat('[', 100000)"},
        {"headers": """'[["\\ud800", "x"]]'"""},
        {"id": "-7"},
        {"id": "0"},
        {"id": "-1"},
    ],
    "mysql": [
        {"created_at": "'1000-01-01'"},
        {"created_at": "'9999-12-31'"},
        {"message_id": "''"},
        {"headers": "repeat('[', 100000)"},
        {"id": "-7"},
        {"id": "-1"},
    ],
    "sqlite": [
        {"payload": "'text'"},
        {"payload": "7"},
        {"payload": "1.5"},
        {"key": "'text'"},
        {"key": "7"},
        {"partition_key": "'text'"},
        {"message_id": "7"},
        {"message_id": "x'ff'"},
        {"message_id": "CAST(x'ff' AS TEXT)"},
        {"headers": "7"},
        {"headers": """'[["\\ud800", "x"]]'"""},
        {"headers": """'[["a", "\\ud800"]]'"""},
        {"headers": "x'ff'"},
        {"headers": "CAST(x'ff' AS TEXT)"},
        {"headers": "replace(hex(zeroblob(50000)), '0', '[')"},
        {"created_at": "'tomorrow'"},
        {"created_at": "''"},
        {"created_at": "7"},
        {"created_at": "1e300"},
        {"created_at": "'9999-12-31'"},
        {"id": "-7"},
        {"id": "-1"},
        {"id": "0"},
    ],
}


def test_what_others_write_by_sql_is_sent_or_set_aside(engine: Engine) -> None:
    """O6, R6: one odd row stopped its topic, or all topics of a relay, for good."""
    odd = ODD["mysql" if engine.dialect.name == "mariadb" else engine.dialect.name]
    key = "`key`" if engine.dialect.name in {"mysql", "mariadb"} else "key"
    with engine.begin() as connection:
        for number, columns in enumerate(odd):
            topic = f"t{number:02}"
            if number % 3 == 0:
                _insert(connection, topic, {}, key)
            _insert(connection, topic, columns, key)
            _insert(connection, topic, {}, key)
        _insert(connection, "timely", {}, key)

    sender = drained(engine)
    stuck = {
        status.topic: (odd[int(status.topic[1:])], status.shards[0].error)
        for status in read_status(engine).topics
        if status.pending
    }
    assert stuck == {}
    dead = {found.topic: found.reason for found in list_dead(engine)}
    for number, columns in enumerate(odd):
        topic, good = f"t{number:02}", 2 if number % 3 == 0 else 1
        assert len(sender.values[topic]) + (topic in dead) == good + 1, (columns, dead.get(topic))
    assert sender.values["timely"] == [b"p"]


def _insert(connection: Any, topic: str, columns: dict[str, str], key: str) -> None:
    values = {"topic": f"'{topic}'", "key": "NULL", "payload": "'p'", **columns}
    if connection.dialect.name == "sqlite" and "payload" not in columns:
        values["payload"] = "x'70'"
    names = ", ".join(key if name == "key" else name for name in values)
    statement = f"INSERT INTO kafka_messages ({names}) VALUES ({', '.join(values.values())})"
    connection.execute(text(statement.replace(":", "\\:")))


#: Of each database: types of columns, and values that Python or JSON does not have.
TIMES = {
    "postgresql": [
        ("timestamptz", "'infinity'", "infinity"),
        ("timestamp", "'-infinity'", "-infinity"),
        ("date", "'5000000-01-01'", "5000000-01-01"),
        ("timestamptz", "'2026-01-02 03:04:05+00'", None),
        ("double precision", "'NaN'", "NaN"),
        ("double precision", "'-Infinity'", "-Infinity"),
        ("numeric", "'NaN'", "NaN"),
    ],
    "mysql": [("datetime", "'9999-12-31 23:59:59'", "9999-12-31T23:59:59"), ("date", "NULL", None)],
    "sqlite": [
        ("datetime", "'tomorrow'", "tomorrow"),
        ("datetime", "'2026-01-02 03:04:05'", "2026-01-02T03:04:05"),
        ("date", "'0000-00-00'", "0000-00-00"),
        ("float", "9e999", "Infinity"),
    ],
}


def test_a_table_with_values_that_python_does_not_have_is_read_to_its_end(engine: Engine) -> None:
    """O11, F15: PostgreSQL's infinity is an ordinary value of `valid_until`; one kept a table from
    being read for good."""
    odd = TIMES["mysql" if engine.dialect.name == "mariadb" else engine.dialect.name]
    columns = ", ".join(f"c{n} {kind}" for n, (kind, _, _) in enumerate(odd))
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE odd (id int PRIMARY KEY, {columns})"))
        values = ", ".join(value for _, value, _ in odd).replace(":", "\\:")
        connection.execute(text(f"INSERT INTO odd VALUES (1, {values})"))
        connection.execute(text("INSERT INTO odd (id) VALUES (2)"))

    source = source_of(engine, "odd", topic="o" * 249)
    assert advance(engine, source) == 2
    assert advance(engine, source) == 0
    first, second = (json.loads(value or b"", parse_constant=pytest.fail) for value in sent(engine))
    for number, (_, _, expected) in enumerate(odd):
        assert expected is None or first[f"c{number}"] == expected
        assert second[f"c{number}"] is None


def sent(engine: Engine) -> list[bytes | None]:
    return [value for values in drained(engine).values.values() for value in values]


def test_a_key_that_is_null_is_not_the_end(tmp_path: Path) -> None:
    """O11: nothing is greater than NULL, so all rows behind a thousand of them were left out."""
    engine = open_engine(new_database("sqlite", str, tmp_path))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE odd (name text UNIQUE)"))
        connection.execute(text("INSERT INTO odd VALUES (NULL)"), [{} for _ in range(ROWS_MAX)])
        connection.execute(text("INSERT INTO odd VALUES ('left out')"))
    with pytest.raises(InvalidInput, match="is NULL in rows"):
        advance(engine, source_of(engine, "odd", topic="t", key="name"))
