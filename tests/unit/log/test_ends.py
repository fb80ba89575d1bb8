"""What partitions hold, told by what has changed."""

from dataclasses import dataclass, field

import pytest

from dovetail.clock import ManualClock
from dovetail.errors import Unavailable
from dovetail.log.ends import calls
from dovetail.log.ends.calls import EndsChanged, LookEnds
from dovetail.log.ends.held import Ends, HeldEnds
from dovetail.log.ends.seen import SILENT_MS, SeenEnds, TopicEnds
from dovetail.log.owners import Ownership, Place
from dovetail.log.topic import TopicRecord
from dovetail.storage.chain import PartitionRecord

HERE, THERE = 1, 2


@dataclass(eq=False)
class APartition:
    record: PartitionRecord
    high_watermark: int = 0
    #: How often its size was computed.
    measured: int = 0

    @property
    def payload_bytes(self) -> int:
        self.measured += 1
        return 10 * self.high_watermark


@dataclass
class ABroker:
    """A broker with its partitions, in one of its lives."""

    partitions: dict[Place, APartition] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.held = HeldEnds(lambda: list(self.partitions.values()))

    def own(self, *places: Place) -> None:
        for place in places:
            self.partitions[place] = APartition(PartitionRecord(*place))

    @property
    def measured(self) -> int:
        return sum(partition.measured for partition in self.partitions.values())


class ACatalog:
    """Who owns what."""

    def __init__(self) -> None:
        self.owners: dict[Place, int] = {}
        self.topics: dict[str, TopicRecord] = {}

    def give(self, place: Place, owner: int) -> None:
        self.owners[place] = owner

    def all(self) -> list[TopicRecord]:
        return list(self.topics.values())

    def ownership(self, place: Place) -> Ownership:
        return Ownership(1, self.owners.get(place, -1))

    def version(self, topic_id: str) -> int:
        return hash(tuple(sorted((p, o) for p, o in self.owners.items() if p[0] == topic_id)))


@dataclass
class Others:
    """The other broker; counts the partitions that it told of."""

    broker: ABroker
    told: int = 0
    asked: int = 0
    silent: bool = False

    async def look(self, node: int, request: LookEnds) -> EndsChanged:
        assert node == THERE
        self.asked += 1
        if self.silent:
            raise Unavailable("silent")
        answer = calls.changed(self.broker.held, request)
        self.told += len(answer.partitions)
        return answer

    async def close(self) -> None: ...


class World:
    """Two brokers, a hundred partitions of one topic each."""

    def __init__(self) -> None:
        self.catalog, self.clock = ACatalog(), ManualClock()
        self.here, self.there = ABroker(), ABroker()
        for broker, node, topic_id in ((self.here, HERE, "a"), (self.there, THERE, "b")):
            record = TopicRecord(id=topic_id, name=topic_id, partitions=100, created_ms=0)
            self.catalog.topics[topic_id] = record
            for number in range(100):
                broker.own(Place(topic_id, number))
                self.catalog.give(Place(topic_id, number), node)
        self.others = Others(self.there)
        self.seen = SeenEnds(HERE, self.here.held, self.others, self.catalog, self.clock)  # type: ignore[arg-type]

    async def look(self) -> tuple[TopicEnds, TopicEnds]:
        await self.seen.look({HERE, THERE})
        topics = self.catalog.topics
        return self.seen.topic(topics["a"]), self.seen.topic(topics["b"])


async def test_a_look_costs_what_has_changed() -> None:
    """F6a: of two hundred partitions those are computed and told that have changed."""
    world = World()
    assert await world.look() == (TopicEnds(100, 0, 0, 0), TopicEnds(100, 0, 0, 0))
    assert (world.seen.taken, world.others.told) == (200, 100)

    await world.look()
    assert (world.seen.taken, world.others.told) == (200, 100), "nothing has changed"
    world.here.partitions[Place("a", 7)].high_watermark = 5
    world.there.partitions[Place("b", 9)].high_watermark = 3
    assert await world.look() == (TopicEnds(100, 5, 5, 50), TopicEnds(100, 3, 3, 30))
    assert (world.seen.taken, world.others.told) == (202, 101)
    assert world.here.measured + world.there.measured == 202

    # What was trimmed is a change of the record.
    partition = world.here.partitions[Place("a", 7)]
    partition.record = PartitionRecord("a", 7, log_start=4)
    assert (await world.look())[0] == TopicEnds(100, 1, 5, 50)


async def test_a_broker_that_began_anew_tells_all_again() -> None:
    """F6a: numbers of another life mean nothing; nothing is taken for known that was not told."""
    world = World()
    await world.look()
    again = ABroker(world.there.partitions)
    world.others.broker = again
    again.partitions[Place("b", 1)].high_watermark = 8
    assert (await world.look())[1] == TopicEnds(100, 8, 8, 80)
    assert world.others.told == 200


async def test_a_silent_broker_is_unknown_and_not_asked_all_the_time() -> None:
    """F6a, U5: unknown is not zero, and one that is stuck does not hold up every look."""
    world = World()
    await world.look()
    world.others.silent = True
    assert await world.look() == (TopicEnds(100, 0, 0, 0), TopicEnds(0, 0, 0, 0))
    assert world.seen.partition(Place("b", 1)) is None
    await world.look()
    assert world.others.asked == 2
    world.others.silent = False
    world.clock.advance(SILENT_MS)
    assert (await world.look())[1].known == 100


async def test_the_owner_of_now_counts() -> None:
    """F6a: what a former owner told is void, and back when it owns the partition again."""
    world = World()
    await world.look()
    place = Place("a", 3)
    moved = world.here.partitions.pop(place)
    world.catalog.give(place, THERE)
    assert (await world.look())[0].known == 99, "its new owner has not opened it"
    world.there.own(place)
    world.there.partitions[place].high_watermark = 6
    assert (await world.look())[0] == TopicEnds(100, 6, 6, 60)
    assert world.seen.partition(place) == Ends(0, 6, 60)

    del world.there.partitions[place]
    moved.high_watermark = 9
    world.here.partitions[place] = moved
    world.catalog.give(place, HERE)
    assert (await world.look())[0] == TopicEnds(100, 9, 9, 90)


async def test_a_broker_that_left_is_forgotten() -> None:
    """F6a: its number may be another machine's tomorrow."""
    world = World()
    await world.look()
    await world.seen.look({HERE})
    assert world.seen.partition(Place("b", 0)) is None


async def test_deleted_topics_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """F6a: what is remembered is bounded by what exists."""
    monkeypatch.setattr("dovetail.log.ends.seen._SPARE", 50)
    world = World()
    for generation in range(30):
        topic_id = f"g{generation}"
        record = TopicRecord(id=topic_id, name=topic_id, partitions=20, created_ms=0)
        world.catalog.topics = {topic_id: record}
        world.here.partitions.clear()
        world.here.own(*(Place(topic_id, number) for number in range(20)))
        await world.seen.look({HERE})
        world.catalog.owners = {Place(topic_id, n): HERE for n in range(20)}
        assert world.seen.topic(record).known == 20
    assert len(world.seen._told[HERE].ends) < 200
    assert len(world.seen._sums) < 60
