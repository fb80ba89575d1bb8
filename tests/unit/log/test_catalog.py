"""Topics as the coordination service holds them, seen by brokers whose views are old."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from dovetail.clock import SystemClock
from dovetail.coordination import EmbeddedCoordinator, Put
from dovetail.coordination.protocol import Outcome
from dovetail.errors import TopicExists, TopicUnknown, Uncertain
from dovetail.log.catalog import Catalog, partition_key, topic_key
from dovetail.log.owners import DELETED, Ownership, Place
from dovetail.log.topic import TopicRecord, TopicState
from dovetail.storage import chain
from dovetail.storage.chain import PartitionRecord

DEADLINE_S = 60.0


class View:
    """A broker's catalog; `blind` stops its watches, so that it grows old."""

    def __init__(self, service: EmbeddedCoordinator) -> None:
        self._changed = asyncio.Event()
        self.catalog = Catalog(service, on_change=self._changed.set)

    async def blind(self) -> None:
        await self.catalog.stop()

    async def until_ready(self, name: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while name not in {record.name for record in self.catalog.ready()}:
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[EmbeddedCoordinator]:
    async with await EmbeddedCoordinator.open(tmp_path / "c.db", clock=SystemClock()) as opened:
        yield opened


@pytest.fixture
async def views(service: EmbeddedCoordinator) -> AsyncIterator[tuple[View, View]]:
    """Two brokers' views."""
    both = View(service), View(service)
    for view in both:
        await view.catalog.start()
    yield both
    for view in both:
        await view.catalog.stop()


def record(topic_id: str, partitions: int = 2) -> TopicRecord:
    return TopicRecord("t", topic_id, partitions, 0)


def nobody(places: list[Place]) -> dict[Place, int]:
    return {}


async def make(view: View, topic: TopicRecord) -> TopicRecord:
    await view.catalog.register(topic)
    await view.catalog.register_partitions(topic, nobody)
    return await view.catalog.change(topic, lambda r: with_state(r, TopicState.READY))


def with_state(topic: TopicRecord, state: TopicState) -> TopicRecord:
    return msgspec.structs.replace(topic, state=state)


async def test_a_dying_topic_gets_no_partitions(views: tuple[View, View]) -> None:
    """L3, L8: who comes late with a creation leaves no keys behind that nobody would remove."""
    one, two = views
    topic = await make(one, record("first"))
    await two.until_ready("t")
    grown = await one.catalog.change(topic, lambda r: msgspec.structs.replace(r, partitions=4))
    await two.blind()
    await one.catalog.change(grown, lambda r: with_state(r, TopicState.DELETING))
    for view in (one, two):
        with pytest.raises(TopicUnknown):
            await view.catalog.register_partitions(grown, nobody)
    assert len(await one.catalog.partitions("first")) == 2


async def test_an_old_view_does_not_refuse_a_name(views: tuple[View, View]) -> None:
    """L8, B4: the name is free right after the deletion, on every broker."""
    one, two = views
    topic = await make(one, record("first"))
    await two.until_ready("t")
    await two.blind()
    dying = await one.catalog.change(topic, lambda r: with_state(r, TopicState.DELETING))
    with pytest.raises(TopicExists):
        await two.catalog.check_free("t")
    await one.catalog.remove(dying)
    await two.catalog.check_free("t")


async def test_a_new_topic_of_the_same_name_is_another(views: tuple[View, View]) -> None:
    """L8, B4: what is known of the old one ends with it, however its end was heard of."""
    one, two = views
    topic = await make(one, record("first"))
    await two.until_ready("t")
    await two.blind()
    dying = await one.catalog.change(topic, lambda r: with_state(r, TopicState.DELETING))
    await one.catalog.remove(dying)
    await two.catalog.check_free("t")
    await make(two, record("second"))
    assert two.catalog.living("first") is None
    with pytest.raises(TopicUnknown):
        two.catalog.topic_by_id("first")
    assert two.catalog.topic_by_id("second").id == "second"


async def test_partitions_of_a_dying_topic_are_nobodys(
    service: EmbeddedCoordinator, views: tuple[View, View]
) -> None:
    """L8: a broker that has not heard of the deletion yet sees nothing to claim."""
    one, two = views
    await make(one, record("first"))
    gone = PartitionRecord("first", 0, term=3, owner=DELETED)
    key = partition_key("first", 0)
    outcome = await service.transact([Put(key, chain.encode(gone))])
    two.catalog._partition_mirror.note(key, chain.encode(gone), outcome.revision)
    await two.until_ready("t")
    assert two.catalog.ownership(Place("first", 0)) == Ownership(3, DELETED)
    assert Place("first", 0) not in two.catalog.owners
    assert Place("first", 1) in two.catalog.owners


async def test_a_creation_without_an_answer_says_so(
    service: EmbeddedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B3: it may come into being yet; "exists" would be a guess."""
    view = View(service)

    async def lost(changes: object, *, conditions: object = ()) -> Outcome:
        raise Uncertain("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(service, "transact", lost)
        with pytest.raises(Uncertain):
            await view.catalog.register(record("first"))
    assert await service.get(topic_key("t")) is None
