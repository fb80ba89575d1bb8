"""Due records on a real node that is killed at any moment, and operated as a timeline.

`DUE_RECORDS` sets how many records are sent (default 200), `DUE_KILLS` how often the node is
killed meanwhile (default 3).
"""

import asyncio
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests import warm_python
from tests.conftest import NodeFactory, RunningNode

from dovetail.node import Node
from dovetail.node.due import topics
from dovetail.node.due.pump import Pump
from dovetail.node.due.records import split
from dovetail.settings import load_settings
from dovetail.settings.given import Flag
from dovetail.timeline import TimelineConfig, connect

RECORDS = int(os.environ.get("DUE_RECORDS", "200"))
KILLS = int(os.environ.get("DUE_KILLS", "3"))
WAIT_S = 60.0


def make_topic(bootstrap: str, name: str, partitions: int = 1, **config: str) -> None:
    settings = {"dovetail.due": "true"} | {k.replace("_", "."): v for k, v in config.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, config=settings)])[name].result(WAIT_S)


def send(bootstrap: str, topic: str, values: dict[bytes, str], **settings: object) -> None:
    """Sends each value with its delay; acknowledged when this returns."""
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for value, delay in values.items():
        producer.produce(topic, value, key=b"k", headers={"dovetail-delay": delay})
    assert producer.flush(WAIT_S) == 0


def read(bootstrap: str, topic: str, count: int, partitions: int = 1) -> list[tuple[bytes, int]]:
    """Values with their times, when there are so many; and a moment longer, for too many."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "r", "fetch.wait.max.ms": 50})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[tuple[bytes, int]] = []
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        for message in consumer.consume(1_000, 0.2):
            if message.error() is None:
                found.append((message.value() or b"", message.timestamp()[1]))
        if len(found) >= count:
            until = min(until, time.monotonic() + 1.0)
    consumer.close()
    return found


def test_once_and_never_early_though_the_node_is_killed(node_factory: NodeFactory) -> None:
    """K11: kill -9 at any moment; every acknowledged record is there once, at its time or later,
    and in order of due times where nothing interrupted it."""
    node: RunningNode = node_factory()
    make_topic(node.bootstrap, "due", 3, message_timestamp_type="LogAppendTime")
    rng = random.Random(5)
    due: dict[bytes, int] = {}
    acknowledged: set[bytes] = set()
    settings = {
        "bootstrap.servers": node.bootstrap,
        "enable.idempotence": True,
        "linger.ms": 5,
        "message.timeout.ms": int(WAIT_S * 1000),
    }
    producer = Producer(settings)

    def delivered(error: KafkaException | None, message: object) -> None:
        assert error is None, error
        acknowledged.add(message.value())  # type: ignore[attr-defined]

    kills = sorted(rng.sample(range(RECORDS), KILLS))
    for number in range(RECORDS):
        value = b"%d" % number
        due[value] = time.time_ns() // 1_000_000 + rng.choice([0, 300, 1_500, 4_000])
        headers = {"dovetail-due": str(due[value])}
        producer.produce("due", value, headers=headers, on_delivery=delivered, partition=number % 3)
        producer.poll(0.01)
        if number in kills:
            time.sleep(rng.random() / 2)
            node.kill()
            node.start()
    assert producer.flush(WAIT_S) == 0
    node.kill()
    node.start()

    assert len(acknowledged) == RECORDS
    found = read(node.bootstrap, "due", RECORDS, 3)
    counted = Counter(value for value, _ in found)
    assert counted == Counter(due.keys())
    assert not [value for value, at_ms in found if at_ms < due[value]]


@asynccontextmanager
async def lone_node(folder: Path) -> AsyncIterator[Node]:
    given = {"node.data_dir": folder, "kafka.port": 0, "http.enabled": False}
    flags = [Flag(name, value, name) for name, value in given.items()]
    async with Node(load_settings(flags=flags, environment={}, folder=folder)) as node:
        yield node


@pytest.mark.parametrize("step", ["_record", "_append", "_delete"])
async def test_once_whichever_step_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """K11: an owner that ends before, between or after append and deletion doubles nothing."""
    reached = asyncio.Event()

    async def hang(_: Pump, given: object, *__: object) -> None:
        if given == []:
            return  # Nothing to delete yet.
        reached.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(Pump, step, hang)
        async with lone_node(tmp_path) as node:
            address = node.endpoints.kafka
            await asyncio.to_thread(make_topic, address, "due")
            values = {b"%d" % number: "300" for number in range(5)}
            await asyncio.to_thread(send, address, "due", values)
            await asyncio.wait_for(reached.wait(), WAIT_S)
    async with lone_node(tmp_path) as node:
        address = node.endpoints.kafka
        found = await asyncio.to_thread(read, address, "due", 5)
        assert sorted(value for value, _ in found) == sorted(values)
        async with connect(address) as client:
            counts = (await client.timeline("due.due").describe()).counts
            assert (counts.waiting, counts.due, counts.leased, counts.dead) == (0, 0, 0, 0)


def send_keyed(bootstrap: str, topic: str, value: bytes, delay: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value, headers={"dovetail-delay": delay, "dovetail-key": "ada"})
    assert producer.flush(WAIT_S) == 0


async def test_a_key_of_one_that_is_being_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K11: the next record with the key is stored when that is done, and not dropped."""
    reached, go_on = asyncio.Event(), asyncio.Event()
    append = Pump._append

    async def slow(*given: object) -> None:
        reached.set()
        await go_on.wait()
        await append(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(Pump, "_append", slow)
    async with lone_node(tmp_path) as node:
        address = node.endpoints.kafka
        await asyncio.to_thread(make_topic, address, "due")
        await asyncio.to_thread(send_keyed, address, "due", b"first", "1")
        await asyncio.wait_for(reached.wait(), WAIT_S)
        second = asyncio.create_task(
            asyncio.to_thread(send_keyed, address, "due", b"second", "100")
        )
        await asyncio.wait([second], timeout=0.2)
        go_on.set()
        await second
        found = await asyncio.to_thread(read, address, "due", 2)
        assert [value for value, _ in found] == [b"first", b"second"]


async def test_a_timeline_that_is_made_anew(tmp_path: Path) -> None:
    """K11: its ids are counted from the first on again, and say nothing of what was appended."""
    async with lone_node(tmp_path) as node:
        address = node.endpoints.kafka
        await asyncio.to_thread(make_topic, address, "due")
        await asyncio.to_thread(send, address, "due", {b"first": "1"})
        await asyncio.to_thread(read, address, "due", 1)
        async with connect(address) as client:
            await client.timeline("due.due").delete()
        await asyncio.to_thread(send, address, "due", {b"second": "1"})
        found = await asyncio.to_thread(read, address, "due", 2)
        assert [value for value, _ in found] == [b"first", b"second"]


async def test_somebodys_own_timeline_of_that_name(tmp_path: Path) -> None:
    """K11: it is not the topic's: its messages stay, and due records are refused."""
    async with lone_node(tmp_path) as node:
        address = node.endpoints.kafka
        await asyncio.to_thread(make_topic, address, "mine", dovetail_due="false")
        async with connect(address) as client:
            await client.timeline("due.mine").create(TimelineConfig(buckets=1))
            await client.timeline("due.mine").schedule(b"x", delay="1ms")
    async with lone_node(tmp_path) as node:
        address = node.endpoints.kafka
        await asyncio.to_thread(make_topic, address, "other")
        await asyncio.to_thread(send, address, "other", {b"pumps are here": "1"})
        await asyncio.to_thread(read, address, "other", 1)
        async with connect(address) as client:
            counts = (await client.timeline("due.mine").describe()).counts
            assert (counts.due, counts.leased, counts.dead) == (1, 0, 0)


async def test_large_batches_are_split_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K11, R7: a compressed batch of a megabyte held everybody up for seconds."""
    threads: dict[bytes, bool] = {}

    def noting(batch: memoryview, *given: object, **more: object) -> object:
        beside = threading.current_thread() is not threading.main_thread()
        threads[b"small" if len(batch) < 1_000 else b"large"] = beside
        return split(batch, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(topics, "split", noting)
    async with lone_node(tmp_path) as node:
        address = node.endpoints.kafka
        await asyncio.to_thread(make_topic, address, "due")
        for value in (bytes(100_000), b"small"):
            await asyncio.to_thread(send, address, "due", {value: "0"})
        assert threads == {b"large": True, b"small": False}


async def test_records_are_listed_moved_cancelled_and_replaced(node_factory: NodeFactory) -> None:
    """K11, B23: as a timeline's messages; nobody else stores or takes any there."""
    node = node_factory()
    await asyncio.to_thread(make_topic, node.bootstrap, "shop", message_timestamp_type="CreateTime")
    await asyncio.to_thread(send, node.bootstrap, "shop", {b"a": "1h", b"b": "2h", b"c": "3h"})
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for value in (b"first", b"second"):
        headers = {"dovetail-delay": "1h", "dovetail-key": "ada"}
        producer.produce("shop", value, headers=headers)
        assert producer.flush(WAIT_S) == 0

    async with connect(node.bootstrap) as client:
        t = client.timeline("due.shop")
        assert (await t.describe()).config.topic == "shop"
        shown = {message.body: message for message in await t.peek()}
        assert set(shown) == {b"a", b"b", b"c", b"second"}
        assert await t.cancel_key("ada")
        await t.cancel(shown[b"b"].id)
        await t.move(shown[b"c"].id, delay="100ms")
        found = await asyncio.to_thread(read, node.bootstrap, "shop", 1)
        assert [value for value, _ in found] == [b"c"]

        with pytest.raises(Exception, match="topic 'shop'"):
            await t.schedule(b"x")
        with pytest.raises(Exception, match="topic 'shop'"):
            await t.put_schedule("s", b"x", every="1s")
        client.consumer("due.shop")(lambda message: None)
        with pytest.raises(Exception, match="topic 'shop'"):
            await asyncio.wait_for(client.run(), WAIT_S)
    command = [sys.executable, "-m", "dovetail", "timeline", "peek", "due.shop"]
    command += ["--bootstrap", node.bootstrap]
    shown_by = await asyncio.to_thread(
        warm_python.run, command, capture_output=True, text=True, check=True
    )
    assert "1" in shown_by.stdout


def in_transaction(
    bootstrap: str, name: str, values: dict[bytes, dict[str, str]], *, commit: bool
) -> None:
    """Sends records with their headers in a transaction of their own."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for value, headers in values.items():
        producer.produce("tx", value, key=b"k", headers=headers)
    assert producer.flush(WAIT_S) == 0
    if commit:
        producer.commit_transaction(WAIT_S)
    else:
        producer.abort_transaction(WAIT_S)


def test_a_due_record_of_a_transaction_appears_once_if_it_is_committed(
    node_factory: NodeFactory,
) -> None:
    """K11, K5: never if it is aborted, not before it is committed, also across kills; with its key
    it takes the place of one that waits only then."""
    node = node_factory()
    make_topic(node.bootstrap, "tx", message_timestamp_type="LogAppendTime")
    began_ms = time.time_ns() // 1_000_000
    soon, later = {"dovetail-delay": "100ms"}, {"dovetail-delay": "4s"}
    keyed = {"dovetail-delay": "3s", "dovetail-key": "ada"}
    send_keyed(node.bootstrap, "tx", b"replaced", "1h")
    in_transaction(
        node.bootstrap, "a", {b"aborted": soon, b"dead": later, b"no": keyed}, commit=False
    )
    in_transaction(
        node.bootstrap,
        "b",
        {
            b"plain": {},
            b"soon": soon,
            b"later": later,
            b"keyed": keyed,
            b"past": {"dovetail-due": "1"},
        },
        commit=True,
    )
    committed_ms = time.time_ns() // 1_000_000

    # One that is open when the node dies: it is aborted by its successor, and never appears.
    left = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "c"})
    left.init_transactions(WAIT_S)
    left.begin_transaction()
    left.produce("tx", b"left", headers=soon)
    assert left.flush(WAIT_S) == 0
    node.kill()
    node.start()
    in_transaction(node.bootstrap, "c", {b"last": soon}, commit=True)
    node.kill()
    node.start()

    wanted = {b"plain", b"soon", b"later", b"keyed", b"past", b"last"}
    found = read(node.bootstrap, "tx", len(wanted))
    assert Counter(value for value, _ in found) == Counter(wanted)
    times = dict(found)
    assert times[b"later"] >= began_ms + 4_000
    assert times[b"keyed"] >= began_ms + 3_000
    assert committed_ms > began_ms


async def test_an_open_transaction_holds_its_due_record_back(tmp_path: Path) -> None:
    """K11, K5: however long ago it was due; and others of the partition are not held up."""
    async with lone_node(tmp_path) as node:
        address = node.endpoints.kafka
        await asyncio.to_thread(make_topic, address, "tx")
        aborted = {b"aborted": {"dovetail-delay": "1ms"}}
        await asyncio.to_thread(in_transaction, address, "a", aborted, commit=False)
        producer = Producer({"bootstrap.servers": address, "transactional.id": "open"})
        await asyncio.to_thread(producer.init_transactions, WAIT_S)
        producer.begin_transaction()
        producer.produce("tx", b"held", headers={"dovetail-delay": "1ms"})
        assert await asyncio.to_thread(producer.flush, WAIT_S) == 0
        await asyncio.to_thread(send, address, "tx", {b"free": "300ms"})
        async with asyncio.timeout(WAIT_S):
            async with connect(address) as client:
                while [m.body for m in await client.timeline("due.tx").peek()] != [b"held"]:
                    await asyncio.sleep(0.02)
        await asyncio.to_thread(producer.commit_transaction, WAIT_S)
        found = await asyncio.to_thread(read, address, "tx", 2)
        assert [value for value, _ in found] == [b"free", b"held"]
