"""Dead letters of a timeline to a topic, on a real node that stops between the two writes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from dovetail import dead_letter
from dovetail.errors import TopicUnknown, Unavailable
from dovetail.log.partition import Partition
from dovetail.node import Node
from dovetail.record_batch import BatchHeader
from dovetail.settings import load_settings
from dovetail.settings.given import Flag
from dovetail.timeline import Draft, Message, Reject, TimelineConfig, connect, forwarding
from dovetail.timeline.stores.sqlite import SqliteStore

WAIT_S = 60.0


@asynccontextmanager
async def lone_node(folder: Path, **more: object) -> AsyncIterator[Node]:
    given = {"node.data_dir": folder, "kafka.port": 0, "http.enabled": False}
    given |= {name.replace("__", "."): value for name, value in more.items()}
    flags = [Flag(name, value, name) for name, value in given.items()]
    async with Node(load_settings(flags=flags, environment={}, folder=folder)) as node:
        yield node


def repeated(bootstrap: str, bodies: set[bytes]) -> list[dict[str, bytes]]:
    """The headers of the letters, with key and value, once all are there and one is twice."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "r", "fetch.wait.max.ms": 50})
    consumer.assign([TopicPartition("orders.dead", 0, 0)])
    found: list[dict[str, bytes]] = []
    while {each["value"] for each in found} != bodies or len(found) == len(bodies):
        (message,) = consumer.consume(1, WAIT_S)
        assert message.error() is None
        headers = dict(message.headers() or [])
        found.append({**headers, "key": message.key(), "value": message.value()})
    consumer.close()
    return found


async def test_a_node_that_stops_between_the_two_writes_repeats_letters_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B25, R5: the letters are in the topic again, under the same ids, and then nowhere else."""
    reached = asyncio.Event()

    async def hang(_: SqliteStore, ids: Sequence[int]) -> None:
        reached.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "drop_dead", hang)
        async with lone_node(tmp_path) as node, connect(node.endpoints.kafka) as client:
            timeline = client.timeline("orders")
            await timeline.create(TimelineConfig(dead_to="orders.dead"))

            @client.consumer("orders")
            async def handle(message: Message) -> None:
                raise Reject("no such customer\N{BELL}")

            for number in range(3):
                await timeline.schedule(b"%d" % number, key=f"k{number}" if number else None)
            await asyncio.wait_for(reached.wait(), WAIT_S)

    async with lone_node(tmp_path) as node, connect(node.endpoints.kafka) as client:
        async with asyncio.timeout(WAIT_S):
            while await client.timeline("orders").dead():
                await asyncio.sleep(0.02)
        found = await asyncio.to_thread(repeated, node.endpoints.kafka, {b"0", b"1", b"2"})
        assert found[0][dead_letter.SOURCE] == b"timeline:orders"
        assert b"no such customer" in found[0][dead_letter.REASON]
        by_id = {each[dead_letter.ID]: (each["key"], each["value"]) for each in found}
        assert len(by_id) == 3
        keys = {value: key for key, value in by_id.values()}
        assert keys[b"1"] == b"k1"
        assert keys[b"0"] in by_id


async def test_a_topic_that_is_not_there_and_is_not_made_is_refused(tmp_path: Path) -> None:
    """B25, R6: at the entry, where topics are not made by themselves."""
    async with (
        lone_node(tmp_path, log__topic_auto_create=False) as node,
        connect(node.endpoints.kafka) as client,
    ):
        with pytest.raises(TopicUnknown, match=r"orders\.dead"):
            await client.timeline("t").create(TimelineConfig(dead_to="orders.dead"))
        assert await client.timelines() == []


async def test_a_partition_that_is_away_holds_no_other_letters_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B25: they are stored once, and not again with every attempt at those that have to wait."""
    append, refused, away = Partition.append, set[str](), [True]

    def refuse(self: Partition, batch: memoryview, header: BatchHeader) -> Any:
        if self.name == "d-0" and away:
            refused.add(self.name)
            raise Unavailable("the partition is away")
        return append(self, batch, header)

    monkeypatch.setattr(forwarding, "AGAIN_MS", 50)
    monkeypatch.setattr(Partition, "append", refuse)
    async with lone_node(tmp_path) as node, connect(node.endpoints.kafka) as client:
        admin = AdminClient({"bootstrap.servers": node.endpoints.kafka, "log_level": 0})
        await asyncio.to_thread(admin.create_topics([NewTopic("d", 2)])["d"].result, WAIT_S)
        timeline = client.timeline("orders")
        await timeline.create(TimelineConfig(dead_to="d"))

        @client.consumer("orders")
        async def handle(message: Message) -> None:
            raise Reject("no")

        await timeline.schedule_many([Draft(b"%d" % n, key=f"k{n}") for n in range(20)])
        partitions = [f"d-{crc32(b'k%d' % n) % 2}" for n in range(20)]
        waiting = partitions.count("d-0")
        async with asyncio.timeout(WAIT_S):
            while len(await timeline.dead()) != waiting or not refused:
                await asyncio.sleep(0.02)
        away.clear()
        async with asyncio.timeout(WAIT_S):
            while await timeline.dead():
                await asyncio.sleep(0.02)
        for number, count in ((0, waiting), (1, 20 - waiting)):
            partition = node._broker.log.partition("d", number)  # type: ignore[union-attr]
            assert partition.high_watermark == count
