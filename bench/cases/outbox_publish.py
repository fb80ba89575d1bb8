"""Publishing: what 100 messages cost in the application's transaction; and commit to consumer."""

import struct
import threading
import time

import psycopg
from confluent_kafka import Consumer, TopicPartition
from tests.database_servers import running_postgres

from bench import client
from bench.node import Node
from bench.run import Run, percentile
from bench.table import Line
from dovetail.kafka.client.brokers import Brokers
from dovetail.outbox.database import open_engine
from dovetail.outbox.message import Message
from dovetail.outbox.producer import Producer
from dovetail.outbox.relay import Relay
from dovetail.outbox.schema import create_tables
from dovetail.outbox.worker import RelayOptions

_LIST = 100
#: Lists of one stretch; the best stretch counts, for both.
_STRETCH = 25
_RATE = 500
_WARM = 200
_P50_MS = 15.0
_P99_MS = 60.0
_STAMP = struct.Struct(">d")


def measure_publish(run: Run) -> list[Line]:
    rounds = run.sized(40, quick=8)
    with running_postgres(durable=True) as server:
        database = server.create_database()
        create_tables(open_engine(database.url))
        ours, plain = float("inf"), float("inf")
        with psycopg.connect(database.dsn) as connection:
            connection.execute(
                "CREATE TABLE plain_messages (id bigserial PRIMARY KEY, topic varchar(249) NOT "
                "NULL, key bytea, partition_key bytea, headers text, payload bytea, message_id "
                "varchar(64), created_at timestamptz DEFAULT now())"
            )
            connection.execute("CREATE INDEX plain_topic ON plain_messages (topic, id)")
            connection.commit()
            run.step("publishing lists of 100")
            # By turns and in short stretches, so that other work hits both alike.
            for _ in range(rounds):
                ours = min(ours, _published_in(connection, _STRETCH))
                plain = min(plain, _inserted_in(connection, _STRETCH))
    return [
        Line(
            "publish",
            "publish_list of 100 and commit",
            ours * 1000,
            "ms",
            "plain multi-row INSERT of 100 and commit",
            plain * 1000,
            ratio_max=1.3,
        )
    ]


def _published_in(connection: "psycopg.Connection[tuple[object, ...]]", lists: int) -> float:
    producer = Producer("orders", backend="db")
    started = time.perf_counter()
    for _ in range(lists):
        messages = [Message("orders", b"x" * 100, key=b"k%d" % n) for n in range(_LIST)]
        producer.publish_list(messages, on=connection)
        connection.commit()
    return (time.perf_counter() - started) / lists


def _inserted_in(connection: "psycopg.Connection[tuple[object, ...]]", lists: int) -> float:
    values = ", ".join(["(%s, %s, %s, %s, %s, %s)"] * _LIST)
    statement = (
        "INSERT INTO plain_messages (topic, key, partition_key, headers, payload, message_id) "
        f"VALUES {values}"
    )
    started = time.perf_counter()
    for _ in range(lists):
        messages = [Message("orders", b"x" * 100, key=b"k%d" % n) for n in range(_LIST)]
        parameters = [
            value
            for message in messages
            for value in (message.topic, message.key, None, None, message.payload, message.id)
        ]
        connection.execute(statement, parameters)
        connection.commit()
    return (time.perf_counter() - started) / lists


def measure_latency(run: Run) -> list[Line]:
    messages = run.sized(5_000, quick=1_500)
    best = (float("inf"), float("inf"))
    for at in range(run.rounds):
        with running_postgres(durable=True) as server, Node(run.folder / f"late-{at}") as node:
            database = server.create_database()
            create_tables(open_engine(database.url))
            topic = client.create_topic(node.bootstrap, "latency")
            relay = Relay(
                open_engine(database.url), Brokers(node.bootstrap), RelayOptions(workers=1)
            )
            run.step(f"{messages:,} messages at {_RATE} a second")
            with relay:
                found = _latencies(database.dsn, node.bootstrap, topic, messages)[_WARM:]
        best = min(best, (percentile(found, 50), percentile(found, 99)))
    name = f"commit to consume at {_RATE} messages/s"
    return [
        Line("latency", f"{name}, p50", best[0], "ms", "limit", _P50_MS, ratio_max=1.0),
        Line("latency", f"{name}, p99", best[1], "ms", "limit", _P99_MS, ratio_max=1.0),
    ]


def _latencies(dsn: str, bootstrap: str, topic: str, messages: int) -> list[float]:
    """Milliseconds from just before the commit to the consumer's hands."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "latency"})
    reader.assign([TopicPartition(topic, 0, 0)])
    sending = threading.Thread(target=_send, args=(dsn, topic, messages))
    sending.start()
    found: list[float] = []
    deadline = time.monotonic() + messages / _RATE + client.STALL_S_MAX
    while len(found) < messages:
        message = reader.poll(1.0)
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(found)} of {messages} messages arrived")
        if message is not None and message.error() is None:
            found.append((time.perf_counter() - _STAMP.unpack(message.value()[:8])[0]) * 1000)
    sending.join()
    reader.close()
    return found


def _send(dsn: str, topic: str, messages: int) -> None:
    producer = Producer(topic, backend="db")
    started = time.perf_counter()
    with psycopg.connect(dsn) as connection:
        for number in range(messages):
            due = started + number / _RATE
            time.sleep(max(0.0, due - time.perf_counter()))
            payload = _STAMP.pack(time.perf_counter()) + b"x" * 92
            producer.publish(payload, key=f"k{number % 100}", on=connection)
            connection.commit()
