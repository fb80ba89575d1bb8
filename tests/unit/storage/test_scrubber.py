"""A storage node reads what it holds, and says what the disk has changed."""

import asyncio
import random

import pytest
from tests.faulty_disk import FaultyDisk

from dovetail.clock import ManualClock
from dovetail.errors import DovetailError
from dovetail.storage import (
    EntryId,
    LedgerId,
    LedgerStore,
    LocalStorageNode,
    StoreSettings,
    Term,
)
from dovetail.storage.disk.commands import Append
from dovetail.storage.held import Span
from dovetail.storage.repair import scrubber as module
from dovetail.storage.repair.scrubber import Scrubber

SMALL = StoreSettings(segment_bytes=8_000, disk_free_bytes_min=0, reserve_bytes=1_000)


def payload(ledger: int, entry: int) -> bytes:
    return b"<%03d/%03d>" % (ledger, entry) + bytes(700)


async def stored(disk: FaultyDisk, ledgers: int, entries: int) -> LocalStorageNode:
    node = LocalStorageNode(LedgerStore(disk, SMALL, random.Random(2)))
    for entry in range(entries):
        for ledger in range(1, ledgers + 1):
            answered: asyncio.Future[DovetailError | None] = asyncio.Future()
            node.append(
                Append(
                    LedgerId(ledger), EntryId(entry), Term(1), EntryId(-1), payload(ledger, entry)
                ),
                answered.set_result,
            )
            assert await answered is None
    return node


def scrubber_of(node: LocalStorageNode, findings: list[str]) -> Scrubber:
    return Scrubber(
        node,
        bytes_per_second=1 << 40,
        clock=ManualClock(),
        on_damage=lambda: findings.append("found"),
    )


def place_of(disk: FaultyDisk, ledger: int, entry: int) -> tuple[str, int]:
    for name in sorted(disk.names()):
        content = disk.open(name).read(0, 1 << 20)
        at = content.find(payload(ledger, entry)[:9])
        if name.endswith(".segment") and at >= 0:
            return name, at
    raise AssertionError("it is nowhere")


@pytest.mark.parametrize("how", ["flipped", "unreadable"])
async def test_a_byte_that_the_disk_has_changed_is_found(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """L10: once, in a sealed segment that nobody reads; the entries beside it stay."""
    monkeypatch.setattr(module, "STEP_BYTES", 2_000)
    disk, findings = FaultyDisk(random.Random(1)), []  # type: ignore[var-annotated]
    node = await stored(disk, ledgers=3, entries=20)
    scrubber = scrubber_of(node, findings)
    await scrubber.once()
    assert (node.scrub.damaged, node.scrub.passes, node.damaged) == (0, 1, False)
    assert node.scrub.bytes_read == 3 * 20 * len(payload(1, 1))

    name, at = place_of(disk, 2, 5)
    assert name.startswith("0000000002"), "it is sealed"
    disk.flip(name, at) if how == "flipped" else disk.spoil(name, at)
    for _ in range(2):
        await scrubber.once()
    assert findings == ["found"]
    assert node.damaged
    assert node.doubted() == {2}
    assert "0000000002.segment" in node._store.report.damaged[0]
    held = await node.held(LedgerId(2), first=EntryId(0), last=EntryId(99))
    assert held.spans == (Span(0, 4), Span(6, 19))

    # A copy of it comes, and the node is whole again.
    answered: asyncio.Future[DovetailError | None] = asyncio.Future()
    copy = Append(LedgerId(2), EntryId(5), Term(1), EntryId(-1), payload(2, 5))
    node.append(copy, answered.set_result)
    assert await answered is None
    assert node.doubted() == set()
    await scrubber.once()
    assert findings == ["found"]
    await node.close()


async def test_what_is_deleted_while_it_is_read_is_passed_over() -> None:
    """L8: the others are read."""
    disk = FaultyDisk(random.Random(1))
    node = await stored(disk, ledgers=3, entries=4)
    scrubber, ledgers = scrubber_of(node, []), node.ledgers

    async def then_deleted() -> set[LedgerId]:
        found = await ledgers()
        await node.delete(LedgerId(2))
        return found

    node.ledgers = then_deleted  # type: ignore[method-assign]
    await scrubber.once()
    assert node.scrub.bytes_read == 2 * 4 * len(payload(1, 1))
    await node.close()


def clock_that_sleeps(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """A clock at 0, which sleeping sets forward."""
    clock = ManualClock()

    async def sleep(seconds: float) -> None:
        clock.advance(round(seconds * 1000))

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    return clock


async def test_reading_keeps_to_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """L10: small entries count as more than their bytes."""
    node = await stored(FaultyDisk(random.Random(1)), ledgers=1, entries=20)
    clock = clock_that_sleeps(monkeypatch)
    monkeypatch.setattr(module, "STEP_BYTES", 700)
    scrubber = Scrubber(node, bytes_per_second=10_000, clock=clock, on_damage=lambda: None)
    await scrubber.once()
    # What a step costs is waited for before the next one; the ledger itself is the last.
    expected = 20 * (len(payload(1, 1)) + 1024) / 10_000
    assert expected * 0.9 < clock.monotonic_ms() / 1000 < expected * 1.1
    await node.close()


async def test_a_small_ledger_counts_as_more_than_what_is_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L10, F60: ten thousand partitions have as many ledgers, and a pass must not take a core."""
    node = await stored(FaultyDisk(random.Random(1)), ledgers=50, entries=1)
    clock = clock_that_sleeps(monkeypatch)
    scrubber = Scrubber(node, bytes_per_second=4 << 20, clock=clock, on_damage=lambda: None)
    await scrubber.once()
    assert 49 / 250 < clock.monotonic_ms() / 1000 < 50 / 200
    await node.close()
