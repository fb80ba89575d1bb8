"""Which timelines there are: created, deleted, and finished by somebody else after a death."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dovetail.clock import SystemClock
from dovetail.coordination import Coordinator, EmbeddedCoordinator, LeaseId, LeaseKeeper
from dovetail.errors import InvalidInput, InvalidSetting, TopicExists, TopicUnknown, Unavailable
from dovetail.timeline.catalog import Catalog
from dovetail.timeline.config import TimelineConfig
from dovetail.timeline.message import TimelineId
from dovetail.timeline.stores.memory import MemoryStores

CONFIG = TimelineConfig(buckets=16)


class FlakyStores(MemoryStores):
    """Stores that fail when told to."""

    failing = False

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock)
        self.labels: dict[TimelineId, bytes] = {}
        #: What an operator gave to this cluster.
        self.given: dict[TimelineId, bytes] = {}

    async def adopted(self) -> dict[TimelineId, bytes]:
        return self.given

    async def adoption_done(self) -> None:
        self.given = {}

    async def provision(self, timeline: TimelineId, label: bytes = b"") -> None:
        if self.failing:
            raise Unavailable("no storage")
        await super().provision(timeline, label)
        self.labels[timeline] = label

    async def drop(self, timeline: TimelineId) -> None:
        if self.failing:
            raise Unavailable("no storage")
        await super().drop(timeline)


@pytest.fixture
def stores() -> FlakyStores:
    return FlakyStores(lambda: 0)


class KeptLease:
    """A `LeaseSource` of one lease."""

    def __init__(self, keeper: LeaseKeeper) -> None:
        self.on_lease: list[Callable[[], None]] = []
        self._keeper = keeper

    @property
    def lease_id(self) -> LeaseId:
        return self._keeper.id

    def holds_lease(self) -> bool:
        return not self._keeper.lost.is_set()


def catalog(coordinator: Coordinator, stores: FlakyStores, node: str = "one") -> Catalog:
    return Catalog(coordinator, stores, node=node, leases=None)


async def states(found: Catalog) -> dict[str, str]:
    return {name: record.state for name, record in (await found.records()).items()}


async def test_a_timeline_is_ready_when_its_storage_is_there(
    coordinator: Coordinator, stores: FlakyStores
) -> None:
    """B3: creating, storage, ready; a second one of the name is refused."""
    here = catalog(coordinator, stores)
    record = await here.create("t", CONFIG)
    assert await states(here) == {"t": "ready"}
    assert await stores.existing() == {record.id}
    assert (await here.records())["t"].config == CONFIG
    with pytest.raises(TopicExists):
        await here.create("t", CONFIG)
    for name in ("", "a b", "../x", "x" * 101, "-x"):
        with pytest.raises(InvalidInput, match="cannot name a timeline"):
            await here.create(name, CONFIG)


async def test_a_creation_that_was_cut_short_is_finished_by_another(
    coordinator: Coordinator, stores: FlakyStores
) -> None:
    """B3: the entry says so, and nobody can use it before."""
    stores.failing = True
    with pytest.raises(Unavailable):
        await catalog(coordinator, stores).create("t", CONFIG)
    other = catalog(coordinator, stores, "two")
    assert await states(other) == {"t": "creating"}
    assert await other.finish() == []
    stores.failing = False
    assert await other.finish() == ["t"]
    assert await states(other) == {"t": "ready"}


async def test_a_deletion_takes_the_name_until_the_storage_is_gone(
    coordinator: Coordinator, stores: FlakyStores
) -> None:
    """B4: one step for everybody; refused meanwhile; free, with another id, right after."""
    here = catalog(coordinator, stores)
    first = await here.create("t", CONFIG)
    await here.delete("t")
    assert await states(here) == {"t": "deleting"}
    with pytest.raises(TopicExists, match="still being deleted"):
        await here.create("t", CONFIG)
    with pytest.raises(TopicUnknown):
        await here.delete("t")
    stores.failing = True
    assert await here.finish() == []
    assert await states(here) == {"t": "deleting"}
    stores.failing = False
    other = catalog(coordinator, stores, "two")
    assert await other.finish() == ["t"]
    assert await stores.existing() == set()
    assert (await here.create("t", CONFIG)).id > first.id


async def test_one_master_finishes_and_its_death_makes_another(
    coordinator: Coordinator, stores: FlakyStores
) -> None:
    """B4: who holds the mastership under a lease is alone with it, until the lease ends."""
    here = catalog(coordinator, stores)
    await here.create("t", CONFIG)
    await here.delete("t")
    master = LeaseKeeper(coordinator, ttl_ms=2_000, clock=SystemClock())
    async with master:
        first = Catalog(coordinator, stores, node="one", leases=KeptLease(master))
        assert await first._claim("t")
        # It dies here: the mastership stays until its lease is gone.
        second = Catalog(coordinator, stores, node="two", leases=None)
        assert await second.finish() == []
        assert await states(second) == {"t": "deleting"}
    assert await second.finish() == ["t"]


async def test_many_who_create_at_once(coordinator: Coordinator, stores: FlakyStores) -> None:
    """B3: of one name one succeeds; different names get different ids."""
    nodes = [catalog(coordinator, stores, f"n{at}") for at in range(5)]
    same = await asyncio.gather(
        *(node.create("t", CONFIG) for node in nodes), return_exceptions=True
    )
    assert sum(not isinstance(outcome, Exception) for outcome in same) == 1
    records = await asyncio.gather(
        *(node.create(f"t{at}", CONFIG) for at, node in enumerate(nodes))
    )
    assert len({record.id for record in records}) == 5


async def test_changes_are_noticed(coordinator: Coordinator, stores: FlakyStores) -> None:
    """B4: by whoever has read the catalog, without a gap in between."""
    here = catalog(coordinator, stores)
    await here.records()
    await catalog(coordinator, stores, "two").create("t", CONFIG)
    async with asyncio.timeout(60):
        await here.changed()
    assert await states(here) == {"t": "ready"}


async def test_a_rebuilt_cluster_finds_the_timelines_that_it_adopts(
    coordinator: Coordinator, stores: FlakyStores, tmp_path: Path
) -> None:
    """F5: with names and settings, by several nodes at once; what has no label gets a name, numbers
    go on behind the highest, and a number that is in use is refused instead of shared."""
    lost = Catalog(coordinator, stores, node="old", leases=None)
    await lost.create("work", CONFIG)
    await lost.create("mail", CONFIG)
    stores.given = {**stores.labels, TimelineId(9): b""}

    async with AsyncExitStack() as stack:
        rebuilt = await EmbeddedCoordinator.open(tmp_path / "new.sqlite", clock=SystemClock())
        stack.push_async_callback(rebuilt.close)
        nodes = [Catalog(rebuilt, stores, node=name, leases=None) for name in "ab"]
        await asyncio.gather(*(node.adopt() for node in nodes))
        records = await nodes[0].records()
        assert {name: (record.id, record.state) for name, record in records.items()} == {
            "work": (1, "ready"),
            "mail": (2, "ready"),
            "adopted-9": (9, "ready"),
        }
        assert records["work"].config == CONFIG
        assert await nodes[1].adopt() == [], "it is done"
        assert (await nodes[1].create("more", CONFIG)).id == 10

    other = await EmbeddedCoordinator.open(tmp_path / "other.sqlite", clock=SystemClock())
    catalog = Catalog(other, stores, node="c", leases=None)
    await catalog.create("mine", CONFIG)
    stores.given = {TimelineId(1): stores.labels[TimelineId(1)] or b""}
    stores.given[TimelineId(1)] = stores.given[TimelineId(1)].replace(b"mine", b"work")
    with pytest.raises(InvalidSetting, match="has the number of this cluster's 'mine'"):
        await catalog.adopt()
    await other.close()
