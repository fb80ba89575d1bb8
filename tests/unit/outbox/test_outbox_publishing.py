"""Publishing on every kind of connection: kept with the commit, gone with the roll-back."""

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from tests.outbox_kit import new_database

from dovetail.errors import InvalidInput, InvalidSetting
from dovetail.outbox import Message, Producer
from dovetail.outbox.backends import TestBackend
from dovetail.outbox.database import open_engine
from dovetail.outbox.publishing import ROWS_MAX, STATEMENT_BYTES_MAX, insert, statements


@pytest.fixture(params=["postgres", "maria", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, request.getfixturevalue, tmp_path)


def _stored(url: str) -> list[tuple[Any, ...]]:
    engine = open_engine(url)
    name = "`key`" if engine.dialect.name == "mysql" else "key"
    columns = f"topic, {name}, partition_key, headers, payload, message_id"
    with engine.connect() as connection:
        found = connection.execute(text(f"SELECT {columns} FROM kafka_messages ORDER BY id"))
        return [tuple(row) for row in found]


def raw_connection(url: str) -> Any:
    parsed = make_url(url)
    if url.startswith("postgresql"):
        import psycopg

        return psycopg.connect(
            host=parsed.host, port=parsed.port, user=parsed.username, dbname=parsed.database
        )
    if url.startswith("mysql"):
        import pymysql

        return pymysql.connect(
            host=parsed.host, port=parsed.port, user=parsed.username, database=parsed.database
        )
    assert parsed.database is not None
    return sqlite3.connect(parsed.database)


_ROW = ("t", b"k\xff", b"p", '[["a", "b"], ["n", null]]', b"\x00%s?:x", "id-1")


def _publish(producer: Producer, on: Any) -> None:
    producer.publish(
        b"\x00%s?:x",
        key=b"k\xff",
        partition_key="p",
        headers={"a": "b", "n": None},
        message_id="id-1",
        on=on,
    )


def test_a_session_a_connection_and_a_driver_do_the_same(url: str) -> None:
    """O2: committed it is there with all its parts, rolled back it is not."""
    producer = Producer("t", backend="db")
    engine = create_engine(url, poolclass=NullPool)

    def in_session() -> Any:
        return Session(engine)

    makers: list[Callable[[], Any]] = [in_session, engine.connect, lambda: raw_connection(url)]
    makers.append(engine.raw_connection)
    for make in makers:
        target = make()
        _publish(producer, target)
        target.rollback()
        assert _stored(url) == []
        _publish(producer, target)
        target.commit()
        target.close()
        assert _stored(url) == [_ROW]
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM kafka_messages"))


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_async_sessions_and_connections(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """O2: the async twins."""
    url = new_database(kind, request.getfixturevalue, tmp_path)
    engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"), poolclass=NullPool)
    producer = Producer("t", backend="db")
    async with AsyncSession(engine) as session:
        await producer.publish_async("rolled back", on=session)
        await session.rollback()
        await producer.publish_async("kept", key="k", on=session)
        await session.commit()
    async with engine.begin() as connection:
        await producer.publish_list_async([producer.message("too")], on=connection)
    await engine.dispose()
    assert [row[4] for row in _stored(url)] == [b"kept", b"too"]
    with pytest.raises(InvalidInput, match="AsyncSession"):
        producer.publish("x", on=AsyncSession(engine))


async def test_an_async_connection_of_psycopg(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """O2: without SQLAlchemy."""
    import psycopg

    url = new_database("postgres", request.getfixturevalue, tmp_path)
    dsn = url.replace("postgresql+psycopg", "postgresql")
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await Producer("t", backend="db").publish_async("x", on=connection)
    assert [row[4] for row in _stored(url)] == [b"x"]


def test_what_can_not_be_written_through_is_refused() -> None:
    """O2, U7: with what can."""
    producer = Producer("t", backend="db")
    with pytest.raises(InvalidInput, match="give the session or connection"):
        producer.publish("x")
    with pytest.raises(InvalidInput, match="not a connection for the outbox"):
        producer.publish("x", on=object())
    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(InvalidInput, match="Cursor is not a connection"),
    ):
        producer.publish("x", on=connection.cursor())
    with pytest.raises(InvalidInput, match="no topic"):
        Producer(backend="db").publish("x")
    with pytest.raises(InvalidInput, match="not a Message"):
        producer.publish_list(["x"], on=object())  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="unknown backend 'kafak'"):
        producer.publish("x", backend="kafak")
    with pytest.raises(InvalidInput, match="JSON"):
        producer.publish(object())


async def test_async_ones_are_for_the_methods_of_their_own() -> None:
    """O2, U7: with what to use, and no coroutine is left behind."""
    producer, engine = Producer("t", backend="db"), create_async_engine("sqlite+aiosqlite://")
    async with engine.connect() as connection, AsyncSession(engine) as session:
        scoped = async_scoped_session(lambda: session, scopefunc=int)
        for on in (connection, session, scoped, engine):
            with pytest.raises(InvalidInput, match="methods that end in _async"):
                producer.publish("x", on=on)
    await engine.dispose()


def test_a_list_is_one_statement() -> None:
    """O2: however long on PostgreSQL; elsewhere as long as the database takes it."""
    messages = [Message("t", b"x", key=b"k") for _ in range(ROWS_MAX)]
    assert len(list(statements("postgresql", "format", messages * 3))) == 1
    assert len(list(statements("sqlite", "qmark", messages))) == 1
    assert len(list(statements("sqlite", "qmark", messages * 2))) == 2
    large = [Message("t", b"x" * (STATEMENT_BYTES_MAX // 2)) for _ in range(4)]
    assert len(list(statements("mysql", "format", large))) == 2
    assert list(statements("postgresql", "format", [])) == []
    locking = next(iter(statements("mysql", "format", messages)))
    assert "FOR UPDATE" in locking.text


def test_a_long_list_keeps_its_order(url: str) -> None:
    """O2, O5: also over several statements."""
    messages = [Message("t", str(number).encode()) for number in range(ROWS_MAX + 10)]
    with create_engine(url, poolclass=NullPool).begin() as connection:
        insert(connection, messages)
    assert [row[4] for row in _stored(url)] == [message.payload for message in messages]


def test_backends_are_chosen_by_settings_by_producer_and_by_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """O1: and `test` keeps what an application published."""
    monkeypatch.setenv("DOVETAIL_OUTBOX_BACKEND", "test")
    producer = Producer("orders")
    first = producer.publish({"id": 1}, key="1")
    assert [message.id for message in producer.published.on("orders")] == [first]
    assert producer.published.messages[0].payload == b'{"id":1}'
    producer.published.clear()
    assert producer.published.messages == []
    other = TestBackend()
    producer.publish(None, topic="elsewhere", backend=other)
    assert other.messages[0].topic == "elsewhere"
    assert producer.published.messages == []
    with pytest.raises(InvalidInput, match="not 'test'"):
        _ = Producer("t", backend="db").published


def test_a_connection_that_commits_by_itself_is_refused(url: str) -> None:
    """O14: a roll-back would come too late; within a transaction it is taken all the same."""
    producer = Producer("t", backend="db")
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with (
        engine.connect() as connection,
        pytest.raises(InvalidInput, match="autocommit"),
    ):
        producer.publish("x", on=connection)

    raw = raw_connection(url)
    if url.startswith("postgresql"):
        raw.autocommit = True
    elif url.startswith("mysql"):
        raw.autocommit(True)
    else:
        raw.isolation_level = None
    with pytest.raises(InvalidInput, match="autocommit"):
        producer.publish("x", on=raw)
    assert _stored(url) == []

    raw.cursor().execute("BEGIN")
    producer.publish("y", on=raw)
    raw.cursor().execute("COMMIT")
    raw.close()
    assert [row[4] for row in _stored(url)] == [b"y"]


def test_a_missing_table_is_explained(url: str) -> None:
    """U7: the driver's error keeps its class, and says which command makes the tables."""
    with open_engine(url).begin() as connection:
        connection.execute(text("DROP TABLE kafka_messages"))
    with Session(open_engine(url)) as session, pytest.raises(Exception) as refused:
        Producer("t").publish(b"x", on=session)
    assert "dovetail outbox migrate" in "".join(refused.value.__notes__)

    raw = raw_connection(url)
    with pytest.raises(Exception) as refused:
        Producer("t").publish(b"x", on=raw)
    raw.close()
    assert "dovetail outbox migrate" in "".join(refused.value.__notes__)


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_a_missing_table_is_explained_asynchronously(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """U7: the same on an asynchronous session."""
    url = new_database(kind, request.getfixturevalue, tmp_path)
    with open_engine(url).begin() as connection:
        connection.execute(text("DROP TABLE kafka_messages"))
    engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"), poolclass=NullPool)
    async with AsyncSession(engine) as session:
        with pytest.raises(Exception) as refused:
            await Producer("t").publish_async(b"x", on=session)
    await engine.dispose()
    assert "dovetail outbox migrate" in "".join(refused.value.__notes__)


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("postgresql://app@localhost/shop", "psycopg", "[outbox,postgres]"),
        ("mysql://app@localhost/shop", "pymysql", "[outbox,mysql]"),
    ],
)
def test_a_missing_driver_names_its_own_extra(
    url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U7: who uses MySQL is not told to install PostgreSQL's driver."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidSetting) as refused:
        open_engine(url)
    assert str(refused.value).endswith(f"pip install 'dovetailmq{extra}'")
