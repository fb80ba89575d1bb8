"""Claiming a partition and handing it on, when answers are lost and others are faster."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.log.conftest import Bench, read_all

from dovetail.clock import SystemClock
from dovetail.coordination import EmbeddedCoordinator, Put
from dovetail.coordination.protocol import ABSENT, Change, Delete, KeyValue, Outcome, Unchanged
from dovetail.errors import NotOwner, TopicUnknown, Uncertain
from dovetail.log.catalog import partition_key
from dovetail.log.chain_keeper import ChainKeeper
from dovetail.log.ownership import claim, hand_on
from dovetail.log.partition import Partition
from dovetail.storage import LedgerId, LocalStorageNode, chain
from dovetail.storage.chain import PartitionRecord

KEY = partition_key("t", 0)


class Lossy:
    """A service that does what it is asked, and whose answers to transactions are lost."""

    def __init__(self, service: EmbeddedCoordinator) -> None:
        self._service = service

    async def get(self, key: str) -> KeyValue | None:
        return await self._service.get(key)

    async def transact(
        self, changes: Sequence[Change], *, conditions: Sequence[Unchanged] = ()
    ) -> Outcome:
        await self._service.transact(changes, conditions=conditions)
        raise Uncertain("the answer was lost")


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[EmbeddedCoordinator]:
    async with await EmbeddedCoordinator.open(tmp_path / "c.db", clock=SystemClock()) as opened:
        await opened.transact([Put(KEY, chain.encode(PartitionRecord("t", 0, term=4, owner=9)))])
        yield opened


async def stored(service: EmbeddedCoordinator) -> PartitionRecord:
    found = await service.get(KEY)
    assert found is not None
    return chain.decode(found.value)


def anybodys(record: PartitionRecord) -> bool:
    return True


async def test_a_claim_without_an_answer_is_not_believed(service: EmbeddedCoordinator) -> None:
    """L9: the record may be another process's under the same number; only an answer is proof."""
    lossy = Lossy(service)
    with pytest.raises(Uncertain):
        await claim(lossy, KEY, owner=1, may_claim=anybodys)  # type: ignore[arg-type]
    assert ((await stored(service)).term, (await stored(service)).owner) == (5, 1)
    mine = await claim(service, KEY, owner=1, may_claim=lambda record: record.owner == 1)
    assert mine.record.term == 6


async def test_a_claim_is_refused_by_what_is_stored(service: EmbeddedCoordinator) -> None:
    """L9: whoever decided on an old view is told, and nothing has changed."""
    before = await stored(service)
    with pytest.raises(NotOwner, match="node 9 under term 4"):
        await claim(service, KEY, owner=1, may_claim=lambda record: record.owner == 1)
    with pytest.raises(TopicUnknown):
        await claim(service, partition_key("t", 1), owner=1, may_claim=anybodys)
    assert await stored(service) == before


async def test_a_claim_holds_only_if_the_owner_is_gone(service: EmbeddedCoordinator) -> None:
    """L9: at the moment of the transaction, whatever the claimer saw before."""
    before = await stored(service)
    asked: list[int] = []

    def gone(record: PartitionRecord) -> list[Unchanged]:
        asked.append(record.owner)
        return [Unchanged("/nodes/9", ABSENT)]

    await service.transact([Put("/nodes/9", b"back")])
    with pytest.raises(NotOwner, match="node 9 is registered again"):
        await claim(service, KEY, owner=1, may_claim=anybodys, only_if=gone)
    assert await stored(service) == before
    await service.transact([Delete("/nodes/9")])
    taken = await claim(service, KEY, owner=1, may_claim=anybodys, only_if=gone)
    assert (taken.record.term, taken.record.owner) == (5, 1)
    assert asked == [9, 9]


async def test_of_two_claims_at_once_one_wins(service: EmbeddedCoordinator) -> None:
    """L9: compare-and-set; the other learns it."""

    class Slow(Lossy):
        async def transact(
            self, changes: Sequence[Change], *, conditions: Sequence[Unchanged] = ()
        ) -> Outcome:
            await claim(service, KEY, owner=2, may_claim=anybodys)
            return await self._service.transact(changes, conditions=conditions)

    with pytest.raises(NotOwner, match="another broker claimed"):
        await claim(Slow(service), KEY, owner=1, may_claim=anybodys)  # type: ignore[arg-type]
    assert ((await stored(service)).term, (await stored(service)).owner) == (5, 2)


async def test_a_chain_changes_under_its_term_only(service: EmbeddedCoordinator) -> None:
    """L9: a change whose answer was lost is found again; a former owner's is refused."""
    mine = await claim(service, KEY, owner=1, may_claim=anybodys)
    found = await service.get(KEY)
    assert found is not None
    lossy = ChainKeeper(Lossy(service), KEY, mine.record, found.revision)  # type: ignore[arg-type]

    def trimmed(record: PartitionRecord) -> PartitionRecord:
        return chain.trimmed(record, log_start=7)[0]

    await lossy.change(trimmed)
    assert (await stored(service)).log_start == lossy.record.log_start == 7
    await claim(service, KEY, owner=2, may_claim=anybodys)
    with pytest.raises(NotOwner):
        await mine.change(lambda record: chain.trimmed(record, log_start=9)[0])
    assert (await stored(service)).log_start == 7


async def test_only_the_owner_names_a_successor(service: EmbeddedCoordinator) -> None:
    """L9: under the next term, by which clients tell the newer of two leaders."""
    await hand_on(service, KEY, owner=1, successor=2)
    assert (await stored(service)).owner == 9
    await hand_on(service, KEY, owner=9, successor=2)
    assert ((await stored(service)).term, (await stored(service)).owner) == (5, 2)
    await hand_on(service, partition_key("t", 1), owner=9, successor=2)
    assert await service.get(partition_key("t", 1)) is None


@pytest.mark.parametrize("size", [1, 3000])
@pytest.mark.parametrize("batches", [1, 2, 62, 63, 64, 65, 100])
async def test_a_takeover_finds_all_of_a_small_ledger(
    bench: Bench, batches: int, size: int
) -> None:
    """L9: read at once or, behind what one read brings, back to it; producers and offsets too."""
    partition = await bench.topic()
    for at in range(batches):
        await bench.send_numbered(partition, b"%d " % at + b"x" * size, sequence=at)
    await bench.restart(crash=True)
    partition = bench.log.partition("t", 0)
    found = [int((record.value or b"").split()[0]) for record in await read_all(partition)]
    assert found == list(range(batches))
    again = await bench.send_numbered(
        partition, b"%d " % (batches - 1) + b"x" * size, sequence=batches - 1
    )
    assert again.base_offset == batches - 1
    assert (await bench.send_numbered(partition, b"new", sequence=batches)).base_offset == batches


async def test_a_takeover_of_a_small_ledger_takes_three_reads(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L9: one behind the last confirmed entry, one behind that, and the ledger. It was five."""
    await bench.send(await bench.topic(), b"one")
    reads: list[int] = []
    read = LocalStorageNode.read

    async def counted(self: LocalStorageNode, ledger: LedgerId, *args: Any, **more: Any) -> Any:
        reads.append(ledger)
        return await read(self, ledger, *args, **more)

    monkeypatch.setattr(LocalStorageNode, "read", counted)
    await bench.restart(crash=True)
    assert len(reads) == 3


async def test_partitions_of_a_kind_share_their_settings(bench: Bench) -> None:
    """F60: ten thousand partitions have one object for what their topics set, which is nothing."""
    first, second = await bench.topic("a"), await bench.topic("b")
    other = await bench.topic("c", retention_ms="7")
    assert first.config is second.config
    assert other.config.retention_ms == 7

    await bench.log.alter_config("b", {"retention.ms": "7"})
    async with asyncio.timeout(30):
        while second.config is not other.config:
            await asyncio.sleep(0.001)
    assert first.config.retention_ms == -1


async def test_a_claim_that_is_refused_again_and_again_is_logged_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried every 100 ms, and an operator reads why once."""
    caplog.set_level("INFO")
    opened, attempts = Partition.open, asyncio.Queue[str]()

    async def refused(*given: Any, **more: Any) -> Partition:
        await attempts.put("tried")
        raise NotOwner("node 9 is registered again")

    monkeypatch.setattr(Partition, "open", refused)
    creating = asyncio.ensure_future(bench.log.create_topic("t", partitions=1))
    for _ in range(3):
        await asyncio.wait_for(attempts.get(), 30)
    lines = [line for line in caplog.records if "partition not taken" in line.getMessage()]
    assert len(lines) == 1

    monkeypatch.setattr(Partition, "open", opened)
    await creating
    assert await bench.log.owned.settled(lambda: bool(bench.log.partitions()), timeout_ms=30_000)
    assert bench.log.owned._refusals == {}
