"""The inbox: an effect in the consumer's database happens once for each message."""

import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from tests.outbox_kit import SECONDS_MAX, new_database
from tests.unit.outbox.test_outbox_publishing import raw_connection

from dovetail.errors import InvalidInput
from dovetail.outbox import MESSAGE_ID_HEADER, Producer
from dovetail.outbox.inbox import Inbox
from dovetail.outbox.inbox import inbox as module
from dovetail.outbox.inbox.naming import name_of
from dovetail.stream import Event
from dovetail.timeline.client.message import Message as TimelineMessage
from dovetail.timeline.message import Handle, MessageId, Version


@pytest.fixture(params=["postgres", "maria", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, request.getfixturevalue, tmp_path)


def _names(url: str) -> int:
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM kafka_inbox")).scalar_one())


def _connections(url: str) -> list[Callable[[], Any]]:
    engine = create_engine(url, poolclass=NullPool)
    return [
        lambda: Session(engine),
        engine.connect,
        engine.raw_connection,
        lambda: raw_connection(url),
    ]


def test_committed_once_rolled_back_never(url: str) -> None:
    """O13: with a session, a connection and a driver; other consumers have names of their own."""
    for number, connect in enumerate(_connections(url)):
        inbox, other = Inbox("billing"), Inbox("mail")
        for end, first_expected in (("rollback", True), ("commit", True), ("commit", False)):
            connection = connect()
            with inbox.once(connection, f"m{number}") as first:
                assert first is first_expected, (number, end)
            getattr(connection, end)()
            connection.close()
        connection = connect()
        with other.once(connection, f"m{number}") as first:
            assert first
        connection.commit()
        connection.close()


def test_a_block_that_raises_has_not_handled_its_message(url: str) -> None:
    """O13: even if the caller goes on with the transaction and commits it."""
    inbox, engine = Inbox("billing"), create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        with pytest.raises(RuntimeError), inbox.once(connection, "bad"):
            raise RuntimeError("handler")
        with inbox.once(connection, "good") as first:
            assert first
    with engine.begin() as connection:
        for message, expected in (("bad", True), ("good", False)):
            with inbox.once(connection, message) as first:
                assert first is expected


def test_of_a_batch_the_new_ones(url: str) -> None:
    """O13: in their order, each once, also if it is there twice; none, one and many."""
    inbox, engine = Inbox("billing"), create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        assert inbox.new(connection, []) == []
        assert inbox.new(connection, ["b", "a", "b"]) == ["b", "a"]
    many = [str(number) for number in range(module.ROWS_MAX + 7)]
    with engine.begin() as connection:
        assert inbox.new(connection, ["a", "c", "b", "d"]) == ["c", "d"]
        assert inbox.new(connection, many) == many
        assert inbox.new(connection, [*many, "e"]) == ["e"]


def test_two_at_once_are_one(url: str) -> None:
    """O13: the second waits for the first, and is the first if that one rolls back."""
    if url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    engine = create_engine(url, poolclass=NullPool)
    for end, others in (("commit", 1), ("rollback", 1), ("commit", 50), ("rollback", 50)):
        mine = f"{end} {others}"
        batch = [f"{mine} {number}" for number in range(others)] + [mine]
        found: list[list[str]] = []

        def second(batch: list[str] = batch, found: list[list[str]] = found) -> None:
            with engine.begin() as connection:
                found.append(Inbox("billing").new(connection, batch))

        with engine.connect() as holder:
            assert Inbox("billing").new(holder, [mine]) == [mine]
            thread = threading.Thread(target=second)
            thread.start()
            # It cannot have ended: it waits for the name that is written and not committed.
            thread.join(0.2)
            assert thread.is_alive()
            getattr(holder, end)()
            thread.join(SECONDS_MAX)
        assert found == [batch[:-1] if end == "commit" else batch]
        with engine.begin() as connection:
            assert Inbox("billing").new(connection, batch) == []


def test_the_table_is_trimmed_by_itself(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """O13: names older than `keep` go with new ones; those of others and younger ones stay."""
    monkeypatch.setattr(module, "TRIM_S", 0.0)
    monkeypatch.setattr(module, "TRIM_ROWS", 40)
    engine = create_engine(url, poolclass=NullPool)
    inbox, other = Inbox("billing", keep="1h"), Inbox("mail", keep="1h")
    # Looks go round from any place, and past the last name to the first.
    inbox._trim_from = b"\x80" + bytes(15)
    with engine.begin() as connection:
        inbox.new(connection, [f"old {number}" for number in range(100)])
        other.new(connection, ["old"])
        past = {"mysql": "utc_timestamp(3) - INTERVAL 2 HOUR"}.get(
            engine.dialect.name, "'2020-01-01 00:00:00.000'"
        )
        connection.execute(text(f"UPDATE kafka_inbox SET at = {past}"))
        inbox.new(connection, ["young"])
    assert _names(url) < 102
    for number in range(5):
        with engine.begin() as connection:
            inbox.new(connection, [f"new {number}"])
    assert _names(url) == 1 + 1 + 5
    with engine.begin() as connection:
        assert inbox.new(connection, ["young", "old 3"]) == ["old 3"]


def _other_driver(name: str, url: URL) -> Any:
    """A connection. The drivers of MariaDB, which PyPI has no wheels of, are tested where they are
    installed."""
    driver = importlib.import_module(name) if name == "psycopg2" else pytest.importorskip(name)
    where = {"host": url.host, "port": url.port, "user": url.username}
    if name == "psycopg2":
        return driver.connect(**where, dbname=url.database)
    return driver.connect(**where, database=url.database)


def _commit_alone(name: str, connection: Any) -> None:
    if name == "MySQLdb":
        connection.autocommit(True)
    else:
        connection.autocommit = True


@pytest.mark.parametrize("name", ["psycopg2", "MySQLdb", "mariadb"])
def test_other_drivers(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """O13, O14: psycopg2, mysqlclient and mariadb publish and take once; autocommit is refused."""
    kind = "postgres" if name == "psycopg2" else "maria"
    url = make_url(new_database(kind, request.getfixturevalue, tmp_path))
    connection, producer = _other_driver(name, url), Producer("t", backend="db")
    key, payload = b"k\xff", b"\x00%s?:x"
    for end, left in (("rollback", 0), ("commit", 2)):
        assert Inbox("billing").new(connection, ["a", "b"]) == ["a", "b"]
        with Inbox("billing").once(connection, "a") as first:
            assert not first
        producer.publish(payload, key=key, headers={"n": None}, on=connection)
        getattr(connection, end)()
        assert _names(url.render_as_string(hide_password=False)) == left
    assert Inbox("billing").new(connection, ["c", "a"]) == ["c"]
    connection.rollback()

    _commit_alone(name, connection)
    with pytest.raises(InvalidInput, match="autocommit"):
        producer.publish("x", on=connection)
    connection.close()
    with create_engine(url, poolclass=NullPool).connect() as other:
        quoted = "`key`" if kind == "maria" else "key"
        found = other.execute(text(f"SELECT {quoted}, payload FROM kafka_messages")).all()
    assert [tuple(row) for row in found] == [(key, payload)]


@pytest.mark.parametrize("kind", ["postgres", "asyncpg", "sqlite"])
async def test_async_sessions(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """O13: the async twins, with psycopg, asyncpg and aiosqlite."""
    made = new_database(
        "sqlite" if kind == "sqlite" else "postgres", request.getfixturevalue, tmp_path
    )
    url = made.replace("sqlite:", "sqlite+aiosqlite:")
    if kind == "asyncpg":
        url = url.replace("+psycopg", "+asyncpg")
    engine = create_async_engine(url, poolclass=NullPool)
    inbox = Inbox("billing")
    for expected in (True, False):
        async with AsyncSession(engine) as session:
            async with inbox.once_async(session, "m") as first:
                assert first is expected
            with pytest.raises(RuntimeError):
                async with inbox.once_async(session, "bad"):
                    raise RuntimeError
            await session.commit()
    async with engine.begin() as connection:
        assert await inbox.new_async(connection, ["m", "n", "bad"]) == ["n", "bad"]
    await engine.dispose()


async def test_plain_async_connections(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """O13, O14: of psycopg and asyncpg, which must be in a transaction."""
    import asyncpg
    import psycopg

    url = new_database("postgres", request.getfixturevalue, tmp_path)
    dsn = url.replace("postgresql+psycopg", "postgresql")
    inbox = Inbox("billing")
    async with (
        await psycopg.AsyncConnection.connect(dsn) as connection,
        inbox.once_async(connection, "m") as first,
    ):
        assert first
    plain = await asyncpg.connect(dsn)
    async with plain.transaction():
        assert await inbox.new_async(plain, ["m", "n"]) == ["n"]
    with pytest.raises(InvalidInput, match="autocommit"):
        await inbox.new_async(plain, ["o"])
    await plain.close()


@dataclass(frozen=True)
class Record:
    """As aiokafka and kafka-python give them."""

    topic: str = "t"
    partition: int = 0
    offset: int = 7
    timestamp: int = 1_000
    key: bytes | None = None
    value: bytes | None = b"v"
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Confluent:
    """As confluent-kafka gives them: by calls."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def error(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, self._record.timestamp

    def __getattr__(self, name: str) -> Any:
        if name not in Record.__dataclass_fields__:
            raise AttributeError(name)
        return lambda: getattr(self._record, name)


def test_the_name_of_a_message() -> None:
    """O13: the same whoever gives it, another for every other; ids of the outbox go before."""
    record = Record()
    assert name_of(Confluent(record)) == name_of(record)
    others = [
        replace(record, offset=8),
        replace(record, partition=1),
        replace(record, topic="u"),
        replace(record, timestamp=2_000),
        replace(record, value=None),
        replace(record, value=b""),
        replace(record, key=b""),
    ]
    assert len({name_of(each) for each in (record, *others)}) == 1 + len(others)

    sent = replace(record, headers=((MESSAGE_ID_HEADER, b"m-1"),))
    again = replace(sent, partition=2, offset=99, timestamp=5)
    assert name_of(sent) == name_of(again) != name_of(record)
    # Somebody made two records of one and kept its headers.
    assert name_of(sent) != name_of(replace(sent, value=b"w"))

    # An application's own id may be that of two messages, in two topics.
    assert name_of(sent) != name_of(replace(sent, topic="u"))

    event = Event(0, 7, b"v", None, 1_000, ((MESSAGE_ID_HEADER, b"m-1"),), stream=record.topic)
    assert name_of(event) == name_of(sent)
    assert name_of(replace(event, headers=())) != name_of(replace(event, headers=(), offset=8))
    assert name_of(replace(event, headers=())) != name_of(replace(event, headers=(), stream="u"))

    due = TimelineMessage(
        MessageId(7), b"v", (), None, 9_000, 1, 0, "t", 0, 0, Handle(MessageId(7), Version(1))
    )
    assert name_of(due) == name_of(replace(due, attempt=2, until_ms=5))
    assert name_of(due) != name_of(replace(due, due_ms=9_001))
    assert name_of(replace(due, headers=sent.headers)) == name_of(
        replace(due, headers=sent.headers, due_ms=1)
    )


def test_names_are_those_of_every_version() -> None:
    """O13: a name that was written before an upgrade is found after it."""
    sent = Record(key=b"k", headers=((MESSAGE_ID_HEADER, b"m-1"),))
    known = {
        "a-1": "ac4300501964491275b23f629ed772d1",
        Record(): "3acb99e81f2ad2a0902f4b8a75c69f84",
        Record(key="\ud800", value=None): "9b0591d62c97861f61d5bbce09b961d8",  # type: ignore[arg-type]
        sent: "ba0c2b9dd2f3c7cfe7aaa1b5d3f82e5e",
        replace(sent, value=b"v" * 300): "477a5f80bf06875833d520fb930b07f8",
    }
    assert {message: name_of(message).hex() for message in known} == known


def test_what_a_client_has_made_of_a_record_does_not_change_its_name() -> None:
    """O13, R6: an object shows another address each time; text may hold half a character."""
    one, other = (replace(Record(), value=object()) for _ in range(2))  # type: ignore[arg-type]
    assert name_of(one) == name_of(other)
    assert name_of(one) != name_of(replace(one, offset=8))
    assert name_of(replace(one, value=memoryview(b"v"))) == name_of(Record())  # type: ignore[arg-type]
    assert name_of(replace(one, key="\ud800")) != name_of(replace(one, key="?"))  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", ["", "\ud800", None, 7, b"x", object(), []])
def test_what_has_no_name_is_refused(bad: Any) -> None:
    """O13, R6: before anything is written."""
    with pytest.raises(InvalidInput):
        name_of(bad)


def test_names_can_be_kept_for_ever(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """O13, R6: the database could not tell what is older, and failed the caller's transaction."""
    monkeypatch.setattr(module, "TRIM_S", 0.0)
    engine = create_engine(url, poolclass=NullPool)
    for keep in (timedelta.max, "9999999d", "99999999999999d"):
        inbox = Inbox("billing", keep=keep)
        with engine.begin() as connection:
            assert inbox.new(connection, [f"first {keep}", f"second {keep}"])
        with engine.begin() as connection:
            assert inbox.new(connection, [f"first {keep}", f"third {keep}"]) == [f"third {keep}"]
    assert _names(url) == 3 * 3


@pytest.mark.parametrize(
    "given",
    [
        {"consumer": ""},
        {"consumer": "a b"},
        {"consumer": "a\0"},
        {"consumer": "ä"},
        {"consumer": "x" * 101},
        {"consumer": None},
        {"keep": "0s"},
        {"keep": "soon"},
        {"keep": timedelta(-1)},
    ],
)
def test_an_inbox_that_cannot_be_is_refused(given: dict[str, Any]) -> None:
    """O13, R6: at once, with what can."""
    with pytest.raises(InvalidInput):
        Inbox(**{"consumer": "billing", **given})


def test_a_name_of_any_text_is_kept_apart(url: str) -> None:
    """O13, R6: NUL, spaces at the end and letters of any size make other names."""
    names = ["a", "a ", "A", "a\0", "\0", "ä", "a" * 10_000, "%s", "?", "'"]
    with create_engine(url, poolclass=NullPool).begin() as connection:
        assert Inbox("billing").new(connection, names) == names
        assert Inbox("billing").new(connection, names) == []
