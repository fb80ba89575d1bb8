"""The order of commits, step by step, on each database; and what is said of each in the docs."""

import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import NullPool
from tests.outbox_kit import SECONDS_MAX, drain_all, new_topic, read_all

from dovetail.outbox.message import Message
from dovetail.outbox.producer import Producer
from dovetail.outbox.publishing import insert


@pytest.fixture
def one_partition(kafka: str) -> str:
    return new_topic(kafka, partitions=1)


def _engine(url: str) -> Engine:
    arguments = {"timeout": 60} if url.startswith("sqlite") else {}
    return create_engine(url, poolclass=NullPool, connect_args=arguments)


def _values(kafka: str, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in read_all(kafka, topic)]


def test_the_later_commit_leaves_later_on_postgresql(
    kafka: str, postgres: str, one_partition: str
) -> None:
    """O5: three overlapping transactions of one key; their commits decide, not their ids."""
    producer = Producer(one_partition, backend="db")
    engine = _engine(postgres)
    with engine.connect() as first, engine.connect() as second, engine.connect() as third:
        producer.publish("first a", key="k", on=first)
        producer.publish("second", key="k", on=second)
        producer.publish("third", key="k", on=third)
        producer.publish("first b", key="k", on=first)
        third.commit()
        second.commit()
        first.commit()
    drain_all(postgres, kafka)
    assert _values(kafka, one_partition) == ["third", "second", "first a", "first b"]


def test_what_waited_for_a_lock_leaves_behind_what_it_waited_for(
    kafka: str, postgres: str, one_partition: str
) -> None:
    """O5: published first, but held up by a row that the other had changed: it commits last."""
    producer = Producer(one_partition, backend="db")
    engine = _engine(postgres)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE account (id int PRIMARY KEY, total int)"))
        connection.execute(text("INSERT INTO account VALUES (1, 0)"))
    with engine.connect() as slow, engine.connect() as quick:
        producer.publish("1", key="k", on=slow)
        producer.publish("2", key="k", on=quick)
        quick.execute(text("UPDATE account SET total = 2"))
        waiting = threading.Thread(
            target=lambda: (slow.execute(text("UPDATE account SET total = 1")), slow.commit())
        )
        waiting.start()
        _wait_until(lambda: _waiters(engine) > 0)
        quick.commit()
        waiting.join(SECONDS_MAX)
    drain_all(postgres, kafka)
    assert _values(kafka, one_partition) == ["2", "1"]


def _waiters(engine: Engine) -> int:
    with engine.connect() as connection:
        counted = connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        return int(counted.scalar_one())


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("kind", ["maria", "sqlite"])
def test_publishers_of_one_key_wait_for_each_other(
    kind: str, kafka: str, one_partition: str, new_database_of: Callable[[str], str]
) -> None:
    """O5: where no commit can be numbered, the second publishes only after the first committed."""
    url = new_database_of(kind)
    engine = _engine(url)
    producer = Producer(one_partition, backend="db")
    published = threading.Event()

    def publish_second() -> None:
        with engine.begin() as second:
            producer.publish("second", key="k", on=second)
            published.set()

    with engine.connect() as first:
        producer.publish("first", key="k", on=first)
        thread = threading.Thread(target=publish_second)
        thread.start()
        assert not published.wait(0.3)
        producer.publish("first again", key="k", on=first)
        first.commit()
        thread.join(SECONDS_MAX)
    drain_all(url, kafka)
    assert _values(kafka, one_partition) == ["first", "first again", "second"]


def test_publishers_of_other_keys_do_not_wait_on_mariadb(
    kafka: str, one_partition: str, new_database_of: Callable[[str], str]
) -> None:
    """O5: only the key is serialised; and with `serialise` off not even that."""
    engine = _engine(new_database_of("maria"))
    with engine.connect() as first, engine.connect() as second:
        insert(first, [Message(one_partition, b"1", key=b"a")])
        insert(second, [Message(one_partition, b"2", key=b"b")])
        insert(second, [Message(one_partition, b"3", key=b"a")], serialise=False)
        second.commit()
        first.commit()


@pytest.mark.parametrize("kind", ["postgres", "maria"])
def test_a_late_commit_is_not_passed_over_within_a_pass(
    kind: str, kafka: str, new_database_of: Callable[[str], str]
) -> None:
    """O5: what becomes visible while a pass is read belongs to the next one, in its order."""
    from tests.outbox_kit import LOCK_MS, a_worker

    from dovetail.outbox.worker import RelayOptions

    url, topic = new_database_of(kind), new_topic(kafka, partitions=1)
    engine = _engine(url)
    with engine.connect() as late:
        insert(late, [Message(topic, b"late", key=b"k")])
        with engine.begin() as others:
            insert(others, [Message(topic, str(n).encode(), key=b"other") for n in range(10)])
        seen: list[str] = []

        def on_step(name: str) -> None:
            seen.append(name)
            if seen.count("after submit") == 1 and name == "after submit":
                late.commit()
                _publish_after(engine, topic)

        options = RelayOptions(lock_ms=LOCK_MS, batch_messages_max=2)
        with a_worker(url, kafka, options, on_step=on_step) as worker:
            while worker.work_once():
                pass
    values = _values(kafka, topic)
    assert values.index("late") < values.index("after late")
    assert sorted(values) == sorted([*map(str, range(10)), "late", "after late"])


def _publish_after(engine: Engine, topic: str) -> None:
    with engine.begin() as connection:
        _same_key(connection, topic)


def _same_key(connection: Connection, topic: str) -> None:
    insert(connection, [Message(topic, b"after late", key=b"k")])
