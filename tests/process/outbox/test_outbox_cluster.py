"""The outbox, the inbox and leadership on three brokers, of which one after the other is killed."""

import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool
from tests.cluster_processes import ClusterProcesses, running_timelines
from tests.database_servers import PostgresServer

from dovetail import connect_blocking
from dovetail.kafka.client.brokers import Brokers
from dovetail.outbox import Inbox, Producer
from dovetail.outbox.database import open_engine
from dovetail.outbox.relay import Relay
from dovetail.outbox.schema import create_tables
from dovetail.outbox.worker import RelayOptions
from dovetail.timeline import TimelineConfig

SECONDS_MAX = 90.0
MESSAGES = 240
BATCH = 20


class _Effects:
    """Rows in the consumers' database, written once for each message."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url, poolclass=NullPool)
        with self._engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (source text, value text)"))

    def write(self, source: str, messages: list[Any], value: Any) -> None:
        with self._engine.begin() as connection:
            for message in Inbox(source).new(connection, messages):
                connection.execute(
                    text("INSERT INTO effects VALUES (:source, :value)"),
                    {"source": source, "value": value(message).decode()},
                )

    def of(self, source: str) -> Counter[str]:
        with self._engine.connect() as connection:
            found = connection.execute(
                text("SELECT value FROM effects WHERE source = :source"), {"source": source}
            )
            return Counter(found.scalars())


def _publish(url: str, topic: str, timeline: str, cluster: ClusterProcesses) -> None:
    """Publishes and schedules in one transaction each; kills a broker now and then."""
    producer = Producer(topic, backend="db")
    engine = create_engine(url, poolclass=NullPool)
    for start in range(0, MESSAGES, BATCH):
        values = [str(number) for number in range(start, start + BATCH)]
        messages = [
            *(producer.message(value, key=value) for value in values),
            *(producer.timed(timeline, value, due="200ms") for value in values),
        ]
        with engine.begin() as connection:
            producer.publish_list(messages, on=connection)
        if start in (60, 140):
            name = f"broker-{1 if start == 60 else 2}"
            cluster.kill(name)
            time.sleep(1.0)
            cluster.launch(name)
        time.sleep(0.05)


def _consume(bootstrap: str, topic: str, effects: _Effects, stopped: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    while not stopped.is_set():
        records = [each for each in consumer.consume(100, 0.2) if each.error() is None]
        # Positions are never committed: whoever comes next gets everything again.
        effects.write("topic", records, lambda record: record.value())
    consumer.close()


def test_brokers_die_while_transactions_publish_and_schedule(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """O12, O13: every effect once, whichever broker dies."""
    url, topic = postgres_server.create_database().url, f"orders-{uuid.uuid4().hex[:8]}"
    create_tables(open_engine(url))
    effects, stopped = _Effects(url), threading.Event()
    dsn = postgres_server.create_database().dsn
    with running_timelines(tmp_path / "cluster", dsn) as cluster:
        options = RelayOptions(workers=2, retry_ms=50, retry_ms_max=500, batch_messages_max=50)
        relay = Relay(open_engine(url), Brokers(cluster.bootstrap), options)
        readers = [
            threading.Thread(target=_consume, args=(cluster.bootstrap, topic, effects, stopped))
            for _ in range(2)
        ]
        with connect_blocking(cluster.bootstrap) as client:
            client.timeline("reminders").create(TimelineConfig(window_ms=200, attempts_max=100))

            @client.consumer("reminders", lease="3s", batch=50)
            def handle(messages: list[Any]) -> None:
                effects.write("timeline", messages, lambda message: message.body)

            with relay:
                for thread in readers:
                    thread.start()
                try:
                    _publish(url, topic, "reminders", cluster)
                    _wait_for(effects)
                finally:
                    stopped.set()
                    for thread in readers:
                        thread.join()
    expected = Counter(str(number) for number in range(MESSAGES))
    assert effects.of("timeline") == expected
    assert effects.of("topic") == expected


def _wait_for(effects: _Effects) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while min(len(effects.of("topic")), len(effects.of("timeline"))) < MESSAGES:
        found = [len(effects.of(name)) for name in ("topic", "timeline")]
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
