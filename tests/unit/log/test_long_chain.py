"""A chain has no largest size (L15): pages, and what is asked of the coordination service."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.etcd_server import running_cluster
from tests.unit.log.conftest import Bench, read_all

from dovetail.clock import SystemClock
from dovetail.coordination import (
    VALUE_BYTES_MAX,
    EmbeddedCoordinator,
    Put,
)
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.coordination.protocol import (
    Change,
    Coordinator,
    KeyValue,
    Outcome,
    Snapshot,
    Unchanged,
)
from dovetail.errors import CoordinationDown, InvalidInput, OffsetOutOfRange, Uncertain
from dovetail.log import partition as partition_module
from dovetail.log.catalog import Catalog, partition_key
from dovetail.log.chain_keeper import ChainKeeper
from dovetail.log.owners import Place
from dovetail.log.ownership import claim
from dovetail.log.reading import newest_record, offset_for_time, read_from_storage, term_end
from dovetail.storage import Placement, Quorum, chain
from dovetail.storage.chain import LedgerInfo, PartitionRecord
from dovetail.storage.pages import read_chains
from dovetail.storage.placement import Fragment

KEY = partition_key("t", 0)


def placed(ledger: int, *nodes: int) -> Placement:
    return Placement(ledger, Quorum(3, 3, 2), (Fragment(0, nodes or (1, 2, 3)),))


def closed(number: int) -> LedgerInfo:
    """A ledger of a chain in which each has ten records and takes ten milliseconds."""
    return LedgerInfo(
        placed(1000 + number),
        term=3,
        opened_ms=10 * number,
        first_offset=10 * number,
        closed=True,
        entry_last=12,
        offset_end=10 * number + 10,
        payload_bytes=100,
        timestamp_max=10 * number + 9,
        checkpoint_last=12,
    )


def opened(number: int) -> LedgerInfo:
    return LedgerInfo(placed(1000 + number), term=3, opened_ms=10 * number)


class Counting:
    """A service that notes what it is asked for."""

    def __init__(self, service: EmbeddedCoordinator) -> None:
        self._service = service
        self.reads = 0
        self.bytes_moved = 0

    async def get(self, key: str) -> KeyValue | None:
        found = await self._service.get(key)
        self.reads += 1
        self.bytes_moved += 0 if found is None else len(found.value)
        return found

    async def range(self, prefix: str) -> Snapshot:
        return await self._service.range(prefix)

    async def transact(
        self, changes: Sequence[Change], *, conditions: Sequence[Unchanged] = ()
    ) -> Outcome:
        self.bytes_moved += sum(len(c.value) for c in changes if isinstance(c, Put))
        return await self._service.transact(changes, conditions=conditions)

    def spent(self) -> tuple[int, int]:
        """Reads and bytes since the last time."""
        spent, self.reads, self.bytes_moved = (self.reads, self.bytes_moved), 0, 0
        return spent


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[EmbeddedCoordinator]:
    async with await EmbeddedCoordinator.open(tmp_path / "c.db", clock=SystemClock()) as service:
        yield service


def old_form(topic_id: str, ledgers: Sequence[LedgerInfo]) -> bytes:
    """A record as it was stored before there were pages."""
    fields = {
        "topic_id": topic_id,
        "partition": 0,
        "term": 9,
        "owner": 1,
        "log_start": 0,
        "offset_base": ledgers[-1].offset_end,
        "ledgers": ledgers,
    }
    return msgspec.json.encode(fields)


async def claimed(service: Any, owner: int = 1) -> ChainKeeper:
    return await claim(service, KEY, owner=owner, may_claim=lambda _: True)


async def whole(service: EmbeddedCoordinator) -> PartitionRecord:
    (record,) = await read_chains(service)
    return record


@pytest.mark.parametrize("kind", ["embedded", "etcd"])
async def test_a_full_chain_of_the_old_form_is_taken_over(
    kind: str, service: EmbeddedCoordinator, tmp_path: Path
) -> None:
    """F33, L15: a value of 1 MiB, which no change fitted into any more, moves to pages."""
    ledgers, room = [closed(0)], VALUE_BYTES_MAX - len(old_form("t", [closed(0)])) - 10
    while (room := room - len(msgspec.json.encode(closed(len(ledgers)))) - 1) > 0:
        ledgers.append(closed(len(ledgers)))
    topic_id = "t" * (1 + VALUE_BYTES_MAX - len(old_form("t", ledgers)))
    value, key = old_form(topic_id, ledgers), partition_key(topic_id, 0)
    assert len(value) == VALUE_BYTES_MAX

    async with contextlib.AsyncExitStack() as stack:
        there: Coordinator = service
        if kind == "etcd":
            cluster = stack.enter_context(running_cluster(tmp_path))
            patient = EtcdSettings(
                cluster.endpoints, attempt_timeout_ms=10_000, request_timeout_ms=30_000
            )
            there = await EtcdCoordinator.open(patient)
            stack.push_async_callback(there.close)
        await there.transact([Put(key, value)])

        keeper = await claim(there, key, owner=1, may_claim=lambda _: True)
        assert keeper.record.term == 10
        assert len(keeper.pages()) > 10
        (stored,) = await read_chains(there)
        assert stored.ledgers == tuple(ledgers)
        await keeper.change(lambda record: chain.with_open(record, opened(len(ledgers))))
        found = await there.get(key)
        assert found is not None
        assert len(found.value) < 3 * chain.PAGE_BYTES


async def long_chain(service: Any, count: int) -> None:
    """Stores a chain of so many closed ledgers."""
    await service.transact([Put(KEY, chain.encode(PartitionRecord("t", 0, term=3, owner=1)))])
    keeper, at = await claimed(service), 0
    while at < count:
        more = [closed(number) for number in range(at, min(count, at + 8000))]
        at += len(more)
        await keeper.change(
            lambda record, more=more: msgspec.structs.replace(  # type: ignore[misc]
                record, ledgers=(*record.ledgers, *more), offset_base=more[-1].offset_end
            )
        )


async def costs(service: EmbeddedCoordinator, count: int) -> dict[str, tuple[int, int]]:
    """Reads and bytes of what an owner does with a chain of `count` ledgers."""
    counting, spent = Counting(service), {}
    await long_chain(service, count)
    keeper = await claimed(counting)
    spent["claim"] = counting.spent()
    for number in range(count, count + 3):
        await keeper.change(lambda record, n=number: chain.with_open(record, opened(n)))  # type: ignore[misc]
        await keeper.change(lambda record, n=number: chain.with_closed(record, closed(n)))  # type: ignore[misc]
    spent["rolls"] = counting.spent()
    for _ in range(2):
        info = keeper.record.closed[0] if count < 1000 else await keeper.paged_at(count * 10 // 3)
        assert info is not None
        spent["reads"] = counting.spent()
    since = [i async for i in keeper.paged_since((count - 40) * 10) if i.timestamp_max > 0]
    spent["time"] = counting.spent()
    assert len(since) < 1000
    return spent


async def test_100000_ledgers_cost_what_100_do(service: EmbeddedCoordinator) -> None:
    """L15, F33: claims, rolls and reads ask for a few small values, however long the chain is."""
    few, many = await costs(service, 100), await costs(service, 100_000)
    assert few["claim"][0] == many["claim"][0] == 1
    assert many["claim"][1] <= 5 * chain.PAGE_BYTES
    assert many["rolls"][1] <= 6 * 3 * chain.PAGE_BYTES
    assert many["reads"] == (0, 0), "the page of an offset that was read before is at hand"
    assert many["time"][0] <= 12
    assert len((await whole(service)).ledgers) == 100_003


async def test_an_old_offset_is_found_in_a_few_reads(service: EmbeddedCoordinator) -> None:
    """L15: by halving; each ledger of the chain, and nothing beyond its ends."""
    await long_chain(service, 20_000)
    counting = Counting(service)
    keeper, rng = await claimed(counting), random.Random(7)
    counting.spent()
    newest = keeper.record.closed[0].first_offset
    for offset in [0, newest - 1, *(rng.randrange(newest) for _ in range(100))]:
        info = await keeper.paged_at(offset)
        assert info is not None
        assert info.first_offset <= offset < info.offset_end
        assert counting.spent()[0] <= 8
    assert await keeper.paged_at(-1) is None
    assert await keeper.paged_at(newest) is None


class Unreliable(Counting):
    """Loses answers and requests, and lets requests arrive late; all before the next change."""

    def __init__(self, service: EmbeddedCoordinator, rng: random.Random) -> None:
        super().__init__(service)
        self._rng = rng
        self._late: list[tuple[Sequence[Change], Sequence[Unchanged]]] = []

    async def get(self, key: str) -> KeyValue | None:
        if self._rng.random() < 0.1:
            raise CoordinationDown("no answer")
        await self.deliver()
        return await super().get(key)

    async def deliver(self) -> None:
        while self._late and self._rng.random() < 0.5:
            changes, conditions = self._late.pop(self._rng.randrange(len(self._late)))
            await self._service.transact(changes, conditions=conditions)

    async def transact(
        self, changes: Sequence[Change], *, conditions: Sequence[Unchanged] = ()
    ) -> Outcome:
        await self.deliver()
        fate = self._rng.random()
        if fate < 0.2:
            self._late.append((changes, conditions))
            raise Uncertain("it is on its way")
        outcome = await self._service.transact(changes, conditions=conditions)
        if fate < 0.4:
            raise Uncertain("the answer was lost")
        return outcome


@pytest.mark.parametrize("seed", range(8))
async def test_pages_and_record_are_one_chain(
    service: EmbeddedCoordinator, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """L15: rolls, trims and moved ledgers, with lost and late requests and new owners.

    After each step the pages and the record are a chain that a record without pages could have.
    """
    monkeypatch.setattr(chain, "PAGE_BYTES", 300)
    rng = random.Random(seed)
    await service.transact([Put(KEY, chain.encode(PartitionRecord("t", 0, term=3, owner=1)))])
    unreliable = Unreliable(service, rng)
    keeper, number, nodes, start, pages_most = await claimed(service), 0, 4, 0, 0
    #: Where each ledger may lie: where it was put last, or was to be put with an unknown outcome.
    places: dict[int, set[Placement]] = {}
    for _ in range(150):
        keeper._coordinator = unreliable
        try:
            kind = rng.random()
            if kind < 0.5:
                places[1000 + number] = {placed(1000 + number)}
                await keeper.change(lambda record, n=number: chain.with_open(record, opened(n)))  # type: ignore[misc]
                await keeper.change(lambda record, n=number: chain.with_closed(record, closed(n)))  # type: ignore[misc]
            elif kind < 0.65:
                start = min(10 * number, start + rng.randrange(20))
                await keeper.trim(start)
            elif there := (await whole(service)).closed:
                info, nodes = rng.choice(there), nodes + 1
                after = placed(info.ledger, 1, 2, nodes)
                places[info.ledger].add(after)
                await keeper.move(info, after)
                if info.offset_end > start:
                    places[info.ledger] = {after}
        except (CoordinationDown, AssertionError):
            pass  # What is stored decides.

        keeper._coordinator = service
        if rng.random() < 0.2 or (await whole(service)).open:
            keeper = await claimed(service)
        for left in (await whole(service)).open:  # A new owner closes what the last one left.
            await keeper.change(
                lambda record, n=left.ledger - 1000: chain.with_closed(record, closed(n))  # type: ignore[misc]
            )
        pages_most = max(pages_most, len(keeper.pages()))
        record = await whole(service)
        number = record.closed_end // 10
        assert all(a.offset_end == b.first_offset for a, b in pairwise(record.closed))
        assert all(info.offset_end > record.log_start for info in record.closed)
        assert all(info.placement in places[info.ledger] for info in record.closed)
        assert record.log_start <= start
    assert pages_most > 2
    await keeper.trim(10 * number)
    assert (await whole(service)).ledgers == ()
    assert (await service.range(chain.PAGES)).items == ()


async def test_a_long_chain_is_read_kept_and_deleted_as_a_short_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L15, L11, L8: by offset and time, after a crash; retention, deleted records and topic."""
    monkeypatch.setattr(chain, "PAGE_BYTES", 300)
    partition = await bench.topic(retention_ms="60000")
    for number in range(40):
        await bench.send(partition, str(number).encode())
        bench.clock.advance(1000)
        partition.roll()
        assert partition._rolling is not None
        await asyncio.wait([partition._rolling])
    assert len(partition.chain.pages()) > 5
    assert partition.record.ledger_count == 41

    for crash in (False, True):
        found = await read_all(partition, tail=False)
        assert [r.value for r in found] == [str(n).encode() for n in range(40)]
        for record in found:
            timed = await offset_for_time(partition, record.timestamp)
            assert timed is not None
            assert timed.offset == record.offset
        newest = await newest_record(partition)
        assert newest is not None
        assert newest.offset == 39
        await bench.restart(crash=crash)
        partition = bench.log.partition("t", 0)

    bench.clock.advance(35_000)
    await bench.log.maintain()
    assert partition.log_start == (await read_all(partition))[0].offset == 15
    await partition.trim(25)
    assert [r.offset for r in await read_all(partition, tail=False)] == list(range(25, 40))
    with pytest.raises(OffsetOutOfRange):
        await read_from_storage(partition, 3, 1000)
    assert partition.payload_bytes == sum(
        info.payload_bytes
        for record in await read_chains(bench.coordinator)
        for info in record.closed
    )

    await bench.log.delete_topic("t")
    await bench.log.deletions_done()
    assert await bench.storage.ledgers() == set()
    assert (await bench.coordinator.range("/chain-pages/")).items == ()


async def test_the_end_of_a_term_is_found_in_pages(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L15, K1: as a chain without pages tells it, for every term and those between."""
    partition = await bench.topic()
    begins: list[tuple[int, int]] = []
    for number in range(30):
        begins.append((partition.term, number))
        await bench.send(partition, str(number).encode())
        if number % 3 == 2:
            await bench.restart(crash=number % 2 == 0)
            partition = bench.log.partition("t", 0)
        else:
            partition.roll()
            assert partition._rolling is not None
            await asyncio.wait([partition._rolling])

    before = [await term_end(partition, term) for term in range(partition.term + 1)]
    monkeypatch.setattr(chain, "PAGE_BYTES", 200)
    await bench.restart()
    partition = bench.log.partition("t", 0)
    assert len(partition.chain.pages()) > 5
    for term, told in enumerate(before):
        assert await term_end(partition, term) == told
        ends = [offset for begun, offset in begins if begun > term]
        assert told[1] == (ends[0] if ends else 30)


async def test_a_roll_that_fails_is_seen_and_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F33: it has a log line, is counted, says why, and succeeds when it can."""
    monkeypatch.setattr(partition_module, "ROLL_AGAIN_MS", 1)
    partition = await bench.topic()
    await bench.send(partition, b"a")
    transact, failing = bench.coordinator.transact, True

    async def refuse(changes: Any, *, conditions: Any = ()) -> Outcome:
        if failing:
            raise InvalidInput("a value has at most 1048576 bytes")
        return await transact(changes, conditions=conditions)

    monkeypatch.setattr(bench.coordinator, "transact", refuse)
    partition.roll()
    while bench.log.rolls_failed < 3:
        await asyncio.sleep(0.001)
    assert (
        "partition t-0 cannot go on in a new ledger: a value has at most"
        in (bench.log.problems()[0])
    )
    lines = [r for r in caplog.records if "cannot roll to a new ledger" in r.getMessage()]
    assert len(lines) == 1, "the same again and again is said once"
    failing = False
    while bench.log.problems():
        await asyncio.sleep(0.001)
    assert (await bench.send(partition, b"b")).base_offset == 1
    assert len(partition.record.closed) == 1


async def test_everybody_follows_the_owner_of_a_chain_with_pages(tmp_path: Path) -> None:
    """L15: a broker reads who owns a partition, and where it lies, however long its chain is."""
    service = await EmbeddedCoordinator.open(tmp_path / "c.sqlite", clock=SystemClock())
    paged = chain.Paged(next=1, ledgers=1)
    record = PartitionRecord("t", 0, 3, 7, ledgers=(opened(1),), paged=paged)
    await service.transact([Put(KEY, chain.encode(record))])
    catalog = Catalog(service, on_change=lambda: None)
    await catalog.start()
    try:
        assert catalog.ownership(Place("t", 0)).owner == 7
        assert catalog.holders(Place("t", 0)) == (1, 2, 3)
    finally:
        await catalog.stop()
        await service.close()
