"""The simulation of brokers can fail: each planted bug makes it red within a few seeds."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.sim.test_broker_scenes import delete_behind_the_owner
from tests.sim.test_brokers_sim import run

from dovetail.coordination.protocol import ABSENT, KeyValue, Put, Unchanged
from dovetail.errors import NotOwner, TopicUnknown, Uncertain
from dovetail.log import owned as owned
from dovetail.log import ownership, partition, topic_work
from dovetail.log.catalog import Catalog, IdBlocks, partition_key
from dovetail.log.chain_keeper import ChainKeeper
from dovetail.log.owned import OwnedPartitions
from dovetail.log.owners import NOBODY
from dovetail.log.partition import Partition
from dovetail.log.service import Log
from dovetail.storage import chain
from dovetail.storage.chain import PartitionRecord

SEEDS_MAX = 60

Plant = Callable[[pytest.MonkeyPatch], None]


def replace_claim(monkeypatch: pytest.MonkeyPatch, claim: Any) -> None:
    monkeypatch.setattr(ownership, "claim", claim)
    monkeypatch.setattr(topic_work, "claim", claim)


async def stored(coordinator: Any, key: str) -> KeyValue:
    found: KeyValue | None = await coordinator.get(key)
    if found is None:
        raise TopicUnknown(key)
    return found


def claim_without_compare_and_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who claims overwrites what is there, whatever happened since it was read."""

    async def claim(
        coordinator: Any, key: str, *, owner: int, may_claim: Any, only_if: Any = None
    ) -> ChainKeeper:
        before = chain.decode((await stored(coordinator, key)).value)
        if not may_claim(before):
            raise NotOwner(key)
        claimed = msgspec.structs.replace(before, term=before.term + 1, owner=owner)
        outcome = await coordinator.transact([Put(key, chain.encode(claimed))])
        return ChainKeeper(coordinator, key, claimed, outcome.revision)

    replace_claim(monkeypatch, claim)


def living_owner_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that is not open here is claimed, whoever has it."""
    original = owned.Claims.decide

    def greedy(self: Any, known: Any, brokers: Any, held: Any, *, now_ms: float) -> Any:
        decision = original(self, known, brokers, held, now_ms=now_ms)
        if self._node_id in brokers.willing:
            decision.claim += [p for p in known if p not in held and p not in decision.claim]
        return decision

    monkeypatch.setattr(owned.Claims, "decide", greedy)
    monkeypatch.setattr(OwnedPartitions, "_may_claim", lambda self, record: True)
    owner_may_be_back(monkeypatch)


def owner_may_be_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who saw an owner go claims what it has, also if it is announced again by then."""
    monkeypatch.setattr(OwnedPartitions, "_owner_is_gone", lambda self, record: ())


def lease_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is announced again serves what it had, until its watch tells."""

    async def catch_up(self: Any) -> None:
        pass

    monkeypatch.setattr(Log, "_catch_up", catch_up)


def mending_steals_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed append a former owner claims what another has by now."""
    original = partition.take_over

    async def take_over(*args: Any, may_claim: Any, **named: Any) -> Any:
        return await original(*args, may_claim=lambda record: True, **named)

    async def mend(self: Any, cause: Any) -> None:
        monkeypatch.setattr(partition, "take_over", take_over)
        try:
            await original_mend(self, cause)
        finally:
            monkeypatch.setattr(partition, "take_over", original)

    original_mend = Partition._mend
    monkeypatch.setattr(Partition, "_mend", mend)


def registered_without_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition's key is written also where there is one."""

    async def register(self: Any, record: Any, owners: Any) -> None:
        places = [owned.Place(record.id, number) for number in range(record.partitions)]
        assigned = owners(places)
        for place in places:
            fresh = PartitionRecord(*place, owner=assigned.get(place, NOBODY))
            key, value = partition_key(*place), chain.encode(fresh)
            outcome = await self._coordinator.transact([Put(key, value)])
            self._partition_mirror.note(key, value, outcome.revision)

    monkeypatch.setattr(Catalog, "register_partitions", register)


def given_before_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The successor is named first, and takes the chain as it is, without fencing."""
    original = Partition.close

    async def close(self: Any, *, successor: int | None = None) -> None:
        if successor is not None and self.serving:
            await ownership.hand_on(
                self.context.coordinator,
                self._key,
                owner=self.context.node_id,
                successor=successor,
            )
        await original(self)

    async def trusting(ensembles: Any, record: Any, term: Any, now_ms: int) -> Any:
        for info in record.open:
            record = chain.with_closed(record, ownership._empty(info, record.closed_end))
        return record, await ownership._producers_of_last(ensembles, record, now_ms)

    monkeypatch.setattr(Partition, "close", close)
    monkeypatch.setattr(ownership, "_close_all", trusting)


def deleted_without_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master of a deletion removes the ledgers that it sees; the owner goes on."""

    async def claim(
        coordinator: Any, key: str, *, owner: int, may_claim: Any, only_if: Any = None
    ) -> ChainKeeper:
        found = await stored(coordinator, key)
        return ChainKeeper(coordinator, key, chain.decode(found.value), found.revision)

    monkeypatch.setattr(topic_work, "claim", claim)


def uncertain_change_of_the_chain_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the chain without an answer counts as not made."""

    async def change(self: Any, decide: Any) -> None:
        async with self._lock:
            record = decide(self.record)
            if record == self.record:
                return
            try:
                outcome = await self._coordinator.transact(
                    [Put(self._key, chain.encode(record))],
                    conditions=[Unchanged(self._key, self._revision)],
                )
            except Uncertain:
                return
            if not outcome.applied:
                raise NotOwner(self._key)
            self.record, self._revision = record, outcome.revision

    monkeypatch.setattr(ChainKeeper, "change", change)


def uncertain_block_of_ids_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of ids is used although nobody said that it was given."""

    async def take(self: Any) -> None:
        found = await self._coordinator.get(self._key)
        start = 1 if found is None else int(found.value)
        revision = ABSENT if found is None else found.revision
        self._next, self._end = start, start + self._block
        try:
            await self._coordinator.transact(
                [Put(self._key, str(start + self._block).encode())],
                conditions=[Unchanged(self._key, revision)],
            )
        except Uncertain:
            return

    monkeypatch.setattr(IdBlocks, "_take_block", take)


def successor_named_under_the_same_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that hears of both leaders cannot tell which one is newer."""

    async def hand_on(coordinator: Any, key: str, *, owner: int, successor: int) -> None:
        found = await coordinator.get(key)
        record = None if found is None else chain.decode(found.value)
        if record is not None and record.owner == owner:
            named = chain.encode(msgspec.structs.replace(record, owner=successor))
            condition = Unchanged(key, found.revision)
            await coordinator.transact([Put(key, named)], conditions=[condition])

    monkeypatch.setattr("dovetail.log.partition.hand_on", hand_on)
    monkeypatch.setattr("dovetail.log.owned.hand_on", hand_on)


#: A bug, what finds it, and the seed to begin with: near one that finds it, to save time.
PLANTS: list[tuple[Plant, Callable[[int], object], int]] = [
    (claim_without_compare_and_set, run, 5),
    (living_owner_is_ignored, run, 0),
    (owner_may_be_back, run, 2),
    (lease_without_a_look, run, 10),
    (mending_steals_back, run, 535),
    (registered_without_looking, run, 1),
    (given_before_it_is_closed, run, 0),
    (deleted_without_a_claim, delete_behind_the_owner, 0),
    (uncertain_change_of_the_chain_is_none, run, 7),
    (uncertain_block_of_ids_is_taken, run, 0),
    (successor_named_under_the_same_term, run, 0),
]


@pytest.mark.parametrize(("plant", "play", "first"), PLANTS)
def test_a_planted_bug_of_brokers_is_found(
    plant: Plant, play: Callable[[int], object], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: the simulation goes red."""
    plant(monkeypatch)
    for seed in range(first, first + SEEDS_MAX):
        try:
            play(seed)
        except Exception as error:
            print(f"{plant.__name__} was found by seed {seed}: {error!r}"[:300])
            return
    pytest.fail(f"{plant.__name__} was not found in {SEEDS_MAX} seeds")
