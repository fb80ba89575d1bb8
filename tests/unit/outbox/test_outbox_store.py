"""The lock table and what is refused under an old term, on each database."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import ProgrammingError
from tests.outbox_kit import new_database

from dovetail.errors import InvalidSetting
from dovetail.outbox.batch import Batch, Identity
from dovetail.outbox.claim import Claim
from dovetail.outbox.database import open_engine
from dovetail.outbox.drain import Dead, Record
from dovetail.outbox.inbox import Inbox
from dovetail.outbox.inbox.naming import name_of
from dovetail.outbox.message import Message
from dovetail.outbox.publishing import insert
from dovetail.outbox.schema import (
    DROP_INBOX_STATEMENTS,
    SCHEMA_VERSION,
    WIDEN_INBOX_STATEMENTS,
    check_version,
    create_tables,
    migrate,
)
from dovetail.outbox.status import ShardStatus, read_status
from dovetail.outbox.store import LockLost, Store
from dovetail.outbox.worker import Memory

LOCK_MS = 60_000
IDENTITY = Identity(7, 0, {0: 3})


@pytest.fixture(params=["postgres", "maria", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return open_engine(new_database(request.param, request.getfixturevalue, tmp_path))


@pytest.fixture
def store(engine: Engine) -> Iterator[Store]:
    opened = Store(engine)
    with engine.begin() as connection:
        insert(connection, [Message("t", str(n).encode(), key=b"k") for n in range(4)])
    yield opened
    opened.close()


def _pending(store: Store, owner: str = "a", lock_ms: int = LOCK_MS) -> list[tuple[str, int]]:
    return store.pending(owner=owner, lock_ms=lock_ms, shards=1)


def _locked(store: Store, owner: str, lock_ms: int = LOCK_MS) -> Claim:
    assert _pending(store, owner, lock_ms) == [("t", 0)]
    claim = store.lock("t", 0, owner=owner, lock_ms=lock_ms)
    assert claim is not None
    return claim


def _rows(store: Store, claim: Claim) -> list[int]:
    reading = store.read(claim)
    rows = reading.fetch(10)
    assert reading.fetch(10) == []
    reading.close()
    return [row.id for row in rows]


def _shard(engine: Engine) -> ShardStatus:
    return read_status(engine).topics[0].shards[0]


def test_a_lock_has_one_holder_and_a_term(store: Store, engine: Engine) -> None:
    """O3: held it is not given; its own holder gets it again, under a higher term."""
    first = _locked(store, "a")
    assert first.term == 1
    assert _pending(store, "b") == []
    assert store.lock("t", 0, owner="b", lock_ms=LOCK_MS) is None
    again = store.lock("t", 0, owner="a", lock_ms=LOCK_MS)
    assert again is not None
    assert again.term == 2
    assert _shard(engine).locked_by == "a"


def test_a_lock_that_is_not_renewed_is_taken_over(store: Store, engine: Engine) -> None:
    """O3: by the database's clock; the old holder can then write nothing at all."""
    old = _locked(store, "a")
    ids = _rows(store, old)
    _outlive(store, engine, 50)
    new = _locked(store, "b", lock_ms=50)
    assert new.term == old.term + 1
    record = Record(ids, [], [], IDENTITY, 4, finish=True)
    for write in (
        lambda: store.record(old, record),
        lambda: store.record(old, Record([], [Dead(ids[0], "x")], [], IDENTITY, 0)),
        lambda: store.renew(old),
        lambda: store.fail(old, "x", retry_ms=1),
        lambda: store.release(old),
    ):
        with pytest.raises(LockLost, match="term 1 was taken over"):
            write()
    assert _rows(store, new) == ids
    assert read_status(engine).topics[0].dead == 0
    assert _shard(engine).locked_by == "b"


def _outlive(store: Store, engine: Engine, lock_ms: int) -> None:
    deadline = time.monotonic() + 30
    while (_shard(engine).locked_ms or 0) <= lock_ms:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_is_written_down_is_found_by_the_next(store: Store) -> None:
    """O7: batches and numbers come back with the lock; what is done is gone."""
    claim = _locked(store, "a")
    ids = _rows(store, claim)
    batch = Batch(ids[1:3], 2, 7, 0, {1: 5}, [ids[3]])
    store.record(claim, Record(ids[:1], [], [batch], IDENTITY, 1))
    store.release(claim)
    again = _locked(store, "b")
    assert (again.batches, again.identity) == ([batch], IDENTITY)
    assert sorted(row.id for row in store.load(ids)) == ids[1:]
    assert _rows(store, again) == ids[1:]
    memory = Memory()
    memory.wrote(claim, IDENTITY)
    assert memory.continues(again)
    memory.reconnected()
    assert not memory.continues(again)


def test_a_failed_topic_waits_for_its_next_attempt(store: Store, engine: Engine) -> None:
    """O3, O4: marked with the reason; nobody takes it before its time; success clears it."""
    claim = _locked(store, "a")
    store.fail(claim, "the broker is down", retry_ms=60_000)
    shard = _shard(engine)
    assert (shard.error, shard.retries, shard.locked_by) == ("the broker is down", 1, None)
    assert shard.retry_ms is not None
    assert 50_000 < shard.retry_ms <= 60_000
    assert _pending(store) == []
    with engine.begin() as connection:
        connection.execute(text("UPDATE kafka_topic_info SET retry_at = locked_at"))
    claim = _locked(store, "a")
    ids = _rows(store, claim)
    store.record(claim, Record(ids, [], [], IDENTITY, 4, finish=True))
    shard = _shard(engine)
    assert (shard.error, shard.retries, shard.locked_by, shard.sent) == (None, 0, None, 4)
    assert _pending(store) == []


def test_the_dead_are_buried_in_the_same_transaction(store: Store, engine: Engine) -> None:
    """O6: copied and deleted together, with reason and attempts."""
    claim = _locked(store, "a")
    ids = _rows(store, claim)
    store.record(claim, Record([], [Dead(ids[1], "why")], [], IDENTITY, 0))
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT id, payload, reason, attempts FROM kafka_dead_messages")
        ).one()
    assert tuple(found) == (ids[1], b"1", "why", 1)
    assert _rows(store, claim) == [ids[0], *ids[2:]]


def test_tables_are_made_once(engine: Engine) -> None:
    """O10: a second run changes nothing."""
    create_tables(engine)
    assert migrate(engine) == (SCHEMA_VERSION, SCHEMA_VERSION)


def test_tables_of_version_one_get_the_inbox(engine: Engine) -> None:
    """O13, R9: a relay works on either version, and migrating adds what is missing."""
    with engine.begin() as connection:
        for statement in DROP_INBOX_STATEMENTS:
            connection.exec_driver_sql(statement)
    check_version(engine)
    assert migrate(engine) == (1, SCHEMA_VERSION)
    with engine.begin() as connection:
        assert Inbox("billing").new(connection, ["m"]) == ["m"]


def test_names_of_inbox_version_two_are_known_in_version_three(engine: Engine) -> None:
    """O13, R9: there and back; a program of now names what an older table lacks."""
    dialect = engine.dialect.name
    with engine.begin() as connection:
        for statement in WIDEN_INBOX_STATEMENTS[dialect]:
            connection.exec_driver_sql(statement)
        marked = dialect in {"mysql", "mariadb"}
        columns, mark = ("consumer, id, taken_by", ", 7") if marked else ("consumer, id", "")
        connection.execute(
            text(f"INSERT INTO kafka_inbox ({columns}) VALUES ('billing', :id{mark})"),
            {"id": name_of("m")},
        )
    if dialect == "postgresql":
        with pytest.raises(ProgrammingError) as found, engine.begin() as connection:
            Inbox("billing").new(connection, ["m"])
        assert "dovetail outbox migrate" in found.value.__notes__[0]

    assert migrate(engine) == (2, SCHEMA_VERSION)
    with engine.begin() as connection:
        assert Inbox("billing").new(connection, ["m", "n"]) == ["n"]


@pytest.mark.parametrize("url", ["", "nonsense", "oracle://x/y", "postgresql+nodriver://x/y"])
def test_an_address_that_is_none_is_told(url: str) -> None:
    """U7: with examples of what is one."""
    with pytest.raises(InvalidSetting, match=r"outbox\.database is not the address"):
        open_engine(url)
