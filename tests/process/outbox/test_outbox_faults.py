"""The relay under faults: killed at each step, paused, without broker, without database."""

import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool
from tests.conftest import NodeFactory
from tests.database_servers import running_maria, running_postgres
from tests.outbox_kit import SECONDS_MAX, Record, drain_all, new_topic, pending, read_all
from tests.process.outbox.relay_process import LOCK_MS, relay_processes

from dovetail.kafka.client.brokers import Brokers
from dovetail.outbox.database import open_engine
from dovetail.outbox.dead import drop_dead, list_dead, replay_dead, show_dead
from dovetail.outbox.metrics import RelayMetrics
from dovetail.outbox.producer import Producer
from dovetail.outbox.relay import Relay
from dovetail.outbox.schema import create_tables
from dovetail.outbox.sender import KafkaSender
from dovetail.outbox.status import ShardStatus, TopicStatus, read_status
from dovetail.outbox.worker import STEP_NAMES, RelayOptions

MESSAGES = 45
KEYS = 5
OPTIONS = RelayOptions(lock_ms=LOCK_MS, batch_messages_max=10, retry_ms=50, retry_ms_max=200)


def _publish(url: str, topic: str, count: int = MESSAGES, *, first: int = 0) -> list[str]:
    producer = Producer(topic, backend="db")
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        return producer.publish_list(
            [
                producer.message(str(number), key=f"k{number % KEYS}")
                for number in range(first, first + count)
            ],
            on=connection,
        )


def _check(records: list[Record], ids: list[str], what: str = "") -> None:
    """Each once, and in order per key."""
    assert sorted(record.message_id for record in records) == sorted(ids), what
    by_key: dict[bytes | None, list[int]] = {}
    for record in records:
        by_key.setdefault(record.key, []).append(int(record.value or b""))
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), what


STEPS = [f"{when} {step}" for step in STEP_NAMES if step != "load" for when in ("before", "after")]


def test_kill_minus_nine_at_each_step(kafka: str, new_database_of: Callable[[str], str]) -> None:
    """O7: whatever was sent or written when the relay died, each message is stored once."""
    places = [(step, new_database_of("postgres"), new_topic(kafka)) for step in STEPS]
    ids = [_publish(url, topic) for _, url, topic in places]
    jobs = [
        (url, kafka, "KILL", step, 1 if step.split()[1] in {"lock", "finish"} else 2)
        for step, url, _ in places
    ]
    with relay_processes(jobs) as (_, ends):
        assert ends() == [-signal.SIGKILL] * len(places)
    for (step, url, topic), published in zip(places, ids, strict=True):
        drain_all(url, kafka, OPTIONS)
        _check(read_all(kafka, topic), published, step)


@pytest.mark.parametrize("kind", ["maria", "sqlite"])
def test_kill_minus_nine_on_other_databases(
    kind: str, kafka: str, new_database_of: Callable[[str], str]
) -> None:
    """O7, O10: the same where the answer of the broker, and the deletion, are on their way."""
    places = [
        (step, new_database_of(kind), new_topic(kafka))
        for step in ("after submit", "before record", "after record")
    ]
    ids = [_publish(url, topic) for _, url, topic in places]
    with relay_processes([(url, kafka, "KILL", step, 2) for step, url, _ in places]) as (_, ends):
        assert ends() == [-signal.SIGKILL] * len(places)
    for (step, url, topic), published in zip(places, ids, strict=True):
        drain_all(url, kafka, OPTIONS)
        _check(read_all(kafka, topic), published, step)


def test_kill_minus_nine_while_cleaning_up_after_one_who_died(kafka: str, postgres: str) -> None:
    """O7: dying while the batch of one who died is sent again is no different."""
    topic = new_topic(kafka)
    ids = _publish(postgres, topic)
    for step in ("after submit", "before load", "before collect"):
        with relay_processes([(postgres, kafka, "KILL", step, 1)]) as (_, ends):
            assert ends() == [-signal.SIGKILL]
        _wait_until(lambda: (_shard(postgres).locked_ms or LOCK_MS + 1) > LOCK_MS)
    drain_all(postgres, kafka, OPTIONS)
    _check(read_all(kafka, topic), ids)


def test_a_holder_that_was_paused_can_change_nothing(
    kafka: str, new_database_of: Callable[[str], str]
) -> None:
    """O3, O7: paused for longer than its lock and woken, it stores and deletes nothing."""
    steps = ("before submit", "after submit", "before record", "before finish")
    places = [(step, new_database_of("postgres"), new_topic(kafka)) for step in steps]
    ids = [_publish(url, topic) for _, url, topic in places]
    jobs = [
        (url, kafka, "STOP", step, 1 if step == "before finish" else 2) for step, url, _ in places
    ]
    with relay_processes(jobs) as (pids, ends):
        for pid, (_, url, topic), published in zip(pids, places, ids, strict=True):
            process = psutil.Process(pid)
            _wait_until(lambda process=process: process.status() == psutil.STATUS_STOPPED)
            drain_all(url, kafka, OPTIONS)
            published += _publish(url, topic, first=MESSAGES)
            os.kill(pid, signal.SIGCONT)
        assert ends() == [0] * len(places)
    for (step, url, topic), published in zip(places, ids, strict=True):
        drain_all(url, kafka, OPTIONS)
        _check(read_all(kafka, topic), published, step)


def _shard(url: str) -> ShardStatus:
    return read_status(open_engine(url)).topics[0].shards[0]


def test_the_broker_is_down_for_a_while(node_factory: NodeFactory, postgres: str) -> None:
    """O4: the topic is marked and tried again with backoff; everything arrives once."""
    node = node_factory()
    topic = new_topic(node.bootstrap)
    options = RelayOptions(delivery_ms=300, retry_ms=50, retry_ms_max=400, lock_ms=5_000)
    relay = Relay(open_engine(postgres), Brokers(node.bootstrap), options)
    with relay:
        ids = _publish(postgres, topic)
        _wait_until(lambda: pending(open_engine(postgres)) == 0)
        node.kill()
        ids += _publish(postgres, topic, first=MESSAGES)
        _wait_until(lambda: _shard(postgres).retries >= 2)
        assert _shard(postgres).error
        node.start()
        _wait_until(lambda: pending(open_engine(postgres)) == 0)
        _wait_until(lambda: _shard(postgres).error is None)
    _check(read_all(node.bootstrap, topic), ids)


@pytest.mark.parametrize("running", [running_postgres, running_maria], ids=["postgres", "maria"])
def test_the_database_is_killed_and_restarted(kafka: str, running: object) -> None:
    """O4, O7: the relay waits for it, and goes on where it was."""
    with running() as server:  # type: ignore[operator]
        url = server.create_database().url
        create_tables(open_engine(url))
        topic = new_topic(kafka)
        with Relay(open_engine(url), Brokers(kafka), OPTIONS):
            ids = _publish(url, topic)
            server.kill()
            server.start()
            ids += _publish(url, topic, first=MESSAGES)
            _wait_until(lambda: pending(open_engine(url)) == 0)
        _check(read_all(kafka, topic), ids)


def _wait_until(holds: object) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_bad_messages_are_set_aside_and_their_neighbours_go(kafka: str, database: str) -> None:
    """O6: one too large, one that cannot be encoded; replayed when the cause is gone."""
    topic = new_topic(kafka, partitions=2, **{"max.message.bytes": "20000"})
    producer = Producer(topic, backend="db")
    engine = create_engine(database, poolclass=NullPool)
    good = [producer.message(str(number), key=f"k{number % KEYS}") for number in range(100)]
    large = producer.message(b"x" * 30_000, key="k1")
    with engine.begin() as connection:
        producer.publish_list([*good[:40], large, *good[40:]], on=connection)
        connection.execute(
            text("UPDATE kafka_messages SET headers = '{broken' WHERE message_id = :id"),
            {"id": good[60].id},
        )
    metrics = RelayMetrics()
    drain_all(database, kafka, OPTIONS, metrics=metrics)
    sent = [message.id for message in good if message is not good[60]]
    _check(read_all(kafka, topic), sent)
    assert metrics.registry.get_sample_value(
        "dovetail_outbox_dead_total", {"topic": topic}
    ) == pytest.approx(2)

    dead = {found.message_id: found for found in list_dead(engine)}
    assert dead.keys() == {large.id, good[60].id}
    assert "MESSAGE_TOO_LARGE" in dead[large.id].reason
    assert "headers" in dead[good[60].id].reason
    assert show_dead(engine, dead[large.id].id).payload == large.payload
    assert dead[large.id].attempts == 1

    other = new_topic(kafka, partitions=2)
    with engine.begin() as connection:
        connection.execute(text("UPDATE kafka_dead_messages SET topic = :t"), {"t": other})
    assert replay_dead(engine, ids=[dead[large.id].id]) == 1
    assert drop_dead(engine, topic=other) == 1
    drain_all(database, kafka, OPTIONS)
    assert [record.message_id for record in read_all(kafka, other)] == [large.id]
    assert list_dead(engine) == []


def test_a_transaction_that_stays_open_holds_nobody_up(kafka: str, postgres: str) -> None:
    """O5: a writer that is open for hours neither delays others nor is lost."""
    topic = new_topic(kafka)
    engine = create_engine(postgres, poolclass=NullPool)
    producer = Producer(topic, backend="db")
    with engine.connect() as slow:
        slow_id = producer.publish("slow", key="k0", on=slow)
        ids = _publish(postgres, topic)
        drain_all(postgres, kafka, OPTIONS)
        assert len(read_all(kafka, topic)) == MESSAGES
        slow.commit()
    drain_all(postgres, kafka, OPTIONS)
    records = read_all(kafka, topic)
    assert sorted(record.message_id for record in records) == sorted([*ids, slow_id])
    last_of_key = [record for record in records if record.key == b"k0"][-1]
    assert last_of_key.message_id == slow_id


def test_a_fault_in_one_topic_leaves_the_others_alone(
    kafka: str, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O4, B18: a defect that nobody foresaw marks its topic; the next topic is served."""
    bad, good = sorted([new_topic(kafka), new_topic(kafka)])
    real = KafkaSender.partitions

    def partitions(self: KafkaSender, topic: str) -> int:
        if topic == bad:
            raise ZeroDivisionError("a defect")
        return real(self, topic)

    monkeypatch.setattr(KafkaSender, "partitions", partitions)
    _publish(postgres, bad)
    ids = _publish(postgres, good)
    with Relay(open_engine(postgres), Brokers(kafka), OPTIONS):
        _wait_until(lambda: len(read_all(kafka, good)) == len(ids))
        _wait_until(lambda: _topic(postgres, bad).shards[0].retries >= 2)
    assert "ZeroDivisionError: a defect" in (_topic(postgres, bad).shards[0].error or "")
    assert _topic(postgres, bad).pending == MESSAGES


def _topic(url: str, name: str) -> TopicStatus:
    return next(topic for topic in read_status(open_engine(url)).topics if topic.topic == name)
