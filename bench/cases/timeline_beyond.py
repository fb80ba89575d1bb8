"""Timelines for everybody: order keys, due records of Kafka clients, receiving by HTTP, and an open
snapshot.

Each is held against the plain way on a node of the same run. Batches of 1,000 with 100-byte bodies,
every commit synced; HTTP in batches of 100, over four connections.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.cases.timeline import BODY, consume, insert, node, ours, round_of
from bench.node import Node
from bench.run import Run, percentile
from bench.table import Line
from dovetail.timeline import Dovetail

ORDER_KEYS = 1_000
HTTP_BATCH = 100
HTTP_CONNECTIONS = 4
_JSON = {"Content-Type": "application/json"}


def ordered(run: Run) -> Sequence[Line]:
    """With order keys, a thousand of them, against the same without."""
    messages = run.sized(100_000, quick=10_000)
    run.step(f"{ORDER_KEYS} order keys")
    with node(run.folder / "ordered", {}) as bootstrap:

        async def work(d: Dovetail) -> dict[str, tuple[float, float]]:
            found: dict[str, list[tuple[float, float]]] = {"plain": [], "ordered": []}
            for name in found:
                await d.timeline(name).create()
            for _ in range(run.rounds):
                found["plain"].append(await round_of(d, "plain", messages=messages))
                d._consumers.clear()
                put = await insert(d, "ordered", messages=messages, order_keys=ORDER_KEYS)
                found["ordered"].append((put, await consume(d, "ordered", messages=messages)))
            return {
                name: (max(r[0] for r in rates), max(r[1] for r in rates))
                for name, rates in found.items()
            }

        found = ours(bootstrap, work)
    return [
        Line("ordered", name, found["ordered"][at], "msg/s", "without", found["plain"][at], 0.6)
        for at, name in enumerate(("insert", "to delete"))
    ]


def snapshot(run: Run) -> Sequence[Line]:
    """Leases on PostgreSQL while another session sits idle in a transaction, against without (F66).

    Messages come and go in lots, so that most leases are not full: those begin at the front."""
    from tests.database_servers import running_postgres

    lots, lot = run.sized(60, quick=6), 5_000
    rates: dict[bool, float] = {}
    for is_open in (False, True):
        run.step(f"a snapshot is open: {is_open}")
        with running_postgres(durable=True) as server:
            dsn = server.create_database().dsn
            settings = {"TIMELINE_STORE": "postgres", "TIMELINE_DSN": dsn}
            with node(run.folder / f"snapshot-{is_open}", settings) as bootstrap:
                rates[is_open] = ours(bootstrap, partial(_lots, dsn, is_open, lots, lot))
    return [Line("snapshot", "to delete", rates[True], "msg/s", "without", rates[False], 0.8)]


async def _lots(dsn: str, is_open: bool, lots: int, lot: int, d: Dovetail) -> float:
    """Messages a second of the last third."""
    import asyncpg

    await d.timeline("lots").create()
    reader = await asyncpg.connect(dsn)
    sitting = reader.transaction(isolation="repeatable_read")
    await sitting.start()
    if is_open:
        await reader.fetch("SELECT count(*) FROM pg_class")
    took_s: list[float] = []
    for _ in range(lots):
        d._consumers.clear()
        await insert(d, "lots", messages=lot)
        took_s.append(lot / await consume(d, "lots", messages=lot))
    await sitting.rollback()
    await reader.close()
    last = took_s[-max(1, lots // 3) :]
    return lot * len(last) / sum(last)


def due(run: Run) -> Sequence[Line]:
    """Due records: produced by librdkafka against a timeline's insert, and how late they appear."""
    records = run.sized(100_000, quick=10_000)
    run.step("due records")
    with node(run.folder / "due", {}) as bootstrap:

        async def work(d: Dovetail) -> float:
            await d.timeline("plain").create()
            later_ms = int(time.time() * 1000) + 10**9
            rates = [
                await insert(d, "plain", messages=records, due_ms=later_ms)
                for _ in range(run.rounds)
            ]
            return max(rates)

        plain = ours(bootstrap, work)
        _make_topic(bootstrap, "due")
        put = max(_produce(bootstrap, "due", records, "1h") for _ in range(run.rounds))
        _make_topic(bootstrap, "late")
        late_ms = _lateness(bootstrap, "late", per_second=200, seconds=run.sized(10, quick=2))
    early = sum(each < 0 for each in late_ms)
    return [
        Line("due", "produce", put, "msg/s", "timeline's insert", plain, 0.5),
        Line("due", "early", float(early), "records", "allowed", 1, None, 0),
        Line("due", "200 a second: p50", percentile(late_ms, 50), "ms", "limit", 3.0, None, 1),
        Line("due", "200 a second: p99", percentile(late_ms, 99), "ms", "limit", 10.0, None, 1),
    ]


def _make_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"dovetail.due": "true", "message.timestamp.type": "LogAppendTime"}
    admin.create_topics([NewTopic(name, 1, config=config)])[name].result(30)


def _produce(bootstrap: str, topic: str, records: int, delay: str) -> float:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})
    headers = [("dovetail-delay", delay.encode())]
    started = time.perf_counter()
    for _ in range(records):
        while True:
            try:
                producer.produce(topic, BODY, headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(300) == 0
    return records / (time.perf_counter() - started)


def _lateness(bootstrap: str, topic: str, *, per_second: int, seconds: float) -> list[float]:
    """Milliseconds from the due time to the append, as the broker stamped it."""
    count = int(per_second * seconds)
    first_ms = int(time.time() * 1000) + 3_000
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})
    for at in range(count):
        due_ms = str(first_ms + at * 1000 // per_second)
        producer.produce(topic, due_ms.encode(), headers=[("dovetail-due", due_ms.encode())])
    assert producer.flush(60) == 0

    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    reader.assign([TopicPartition(topic, 0, 0)])
    late_ms: list[float] = []
    until = time.monotonic() + seconds + 60
    while len(late_ms) < count and time.monotonic() < until:
        for message in reader.consume(1_000, 0.2):
            if message.error() is None:
                late_ms.append(message.timestamp()[1] - int(message.value() or b"0"))
    reader.close()
    if len(late_ms) < count:
        raise RuntimeError(f"{len(late_ms)} of {count} due records came")
    return late_ms


def http(run: Run) -> Sequence[Line]:
    """Receive and done by HTTP, in batches of 100."""
    messages = run.sized(100_000, quick=10_000)
    run.step("receive and done by HTTP")
    made = Node(run.folder / "http", {})
    with made:

        async def work(d: Dovetail) -> None:
            await d.timeline("http").create()
            await insert(d, "http", messages=messages)

        ours(made.bootstrap, work)
        rate = _work_off(made.http, messages)
    return [Line("http", "receive and done", rate, "msg/s", "limit", 20_000.0, 1.0)]


def _work_off(url: str, messages: int) -> float:
    left, turn, ended = messages, threading.Lock(), 0.0

    def work(name: str) -> None:
        nonlocal left, ended
        wanted = msgspec.json.encode({"limit": HTTP_BATCH, "wait_ms": 2_000, "consumer": name})
        where = urlsplit(url)
        client = HTTPConnection(where.hostname or "", where.port, timeout=60)

        def ask(verb: str, body: bytes) -> Any:
            client.request("POST", f"/v1/timelines/http/{verb}", body, _JSON)
            return msgspec.json.decode(client.getresponse().read())

        while left > 0:
            found = ask("receive", wanted)["messages"]
            leases = [{"id": each["id"], "version": each["version"]} for each in found]
            if leases:
                outcomes = ask("done", msgspec.json.encode({"leases": leases}))["outcomes"]
                with turn:
                    left -= outcomes.count("ok")
                    ended = time.perf_counter()
        client.close()

    started = time.perf_counter()
    with ThreadPoolExecutor() as threads:
        list(threads.map(work, [f"bench-{number}" for number in range(HTTP_CONNECTIONS)]))
    return messages / (ended - started)
