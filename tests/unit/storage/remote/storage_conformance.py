"""What every storage node must do: one suite, run on each implementation.

A module for one implementation subclasses `StorageNodeConformance` and gives the fixture `node`.
"""

import asyncio

import pytest
from tests.unit.storage.remote.storage_door import append, begin, outcomes_of

from dovetail.errors import (
    EntryConflict,
    EntryUnknown,
    Fenced,
    InvalidInput,
    LedgerUnknown,
)
from dovetail.storage import NO_ENTRY, Entry, EntryId, LedgerId, LedgerState, StorageNode, Term
from dovetail.storage.held import HELD_SPANS_MAX

ONE, TWO = LedgerId(1), LedgerId(2)


def plain(entries: list[Entry]) -> list[tuple[int, int, int, bytes]]:
    return [(e.entry, e.term, e.confirmed, bytes(e.payload)) for e in entries]


class StorageNodeConformance:
    """The suite."""

    async def test_an_entry_is_read_as_it_was_appended(self, node: StorageNode) -> None:
        """L5: id, term, confirmed and bytes come back."""
        assert await begin(node, 1, 0, b"zero", term=3) is None
        assert await begin(node, 1, 1, b"one", term=4, confirmed=0) is None
        found = await node.read(ONE, EntryId(0), last=EntryId(1), bytes_max=1000)
        assert plain(found) == [(0, 3, -1, b"zero"), (1, 4, 0, b"one")]

    async def test_the_same_entry_again_is_a_success(self, node: StorageNode) -> None:
        """L5: append is idempotent, also at once in one group."""
        outcomes = await outcomes_of([begin(node, 1, 0, b"a") for _ in range(3)])
        assert outcomes == [None, None, None]
        assert await append(node, 1, 0, b"a", term=2) is None
        assert len(await node.read(ONE, EntryId(0), last=EntryId(9), bytes_max=1000)) == 1

    async def test_another_entry_under_the_same_id_is_refused(self, node: StorageNode) -> None:
        """L5: the first stays, and its neighbours in the group are stored."""
        assert await append(node, 1, 0, b"a") is None
        conflict, stored = await outcomes_of([begin(node, 1, 0, b"b"), begin(node, 1, 1, b"c")])
        assert isinstance(conflict, EntryConflict)
        assert "entry 0" in str(conflict)
        assert stored is None
        found = await node.read(ONE, EntryId(0), last=EntryId(1), bytes_max=1000)
        assert [bytes(e.payload) for e in found] == [b"a", b"c"]

    async def test_an_entry_that_can_not_be_is_refused(self, node: StorageNode) -> None:
        """L5: neither an empty one nor a negative id; the node goes on."""
        assert isinstance(await append(node, 1, 0, b""), InvalidInput)
        assert isinstance(await append(node, 1, -1, b"a"), InvalidInput)
        assert await append(node, 1, 0, b"a") is None

    async def test_a_fence_refuses_lower_terms_from_then_on(self, node: StorageNode) -> None:
        """L9: lower terms are refused, this and higher ones are not; the state is told."""
        assert await begin(node, 1, 0, b"a", term=1) is None
        assert await begin(node, 1, 1, b"b", term=1, confirmed=0) is None
        assert await node.fence(ONE, Term(3)) == LedgerState(EntryId(1), EntryId(0), Term(3))
        assert isinstance(await append(node, 1, 2, b"late", term=2), Fenced)
        assert await append(node, 1, 2, b"c", term=3) is None
        assert await append(node, 2, 0, b"elsewhere", term=1) is None
        with pytest.raises(Fenced, match="3"):
            await node.fence(ONE, Term(2))
        assert (await node.fence(ONE, Term(3))).fenced == 3
        assert await node.fence(LedgerId(9), Term(1)) == LedgerState(NO_ENTRY, NO_ENTRY, Term(1))

    async def test_answers_come_in_the_order_of_the_appends(self, node: StorageNode) -> None:
        """L4: of 5,000 appends in several turns of the loop, refused ones among them."""
        told: list[int] = []
        begun = []
        await node.fence(TWO, Term(9))
        for number in range(5000):
            ledger = 2 if number % 7 == 3 else 1
            begun.append(begin(node, ledger, number, b"%d" % number, told=told.append))
            if number % 900 == 0:
                await asyncio.sleep(0)
        outcomes = await outcomes_of(begun)
        assert told == list(range(5000))
        for number, outcome in enumerate(outcomes):
            assert isinstance(outcome, Fenced) == (number % 7 == 3)

    async def test_reads_are_bounded_by_entries_and_bytes(self, node: StorageNode) -> None:
        """L7: without a gap, at least one entry, about as many bytes as asked for."""
        await outcomes_of([begin(node, 1, n, bytes([n]) * 100) for n in (0, 1, 2, 3, 5)])

        async def ids(first: int, last: int, bytes_max: int) -> list[int]:
            found = await node.read(ONE, EntryId(first), last=EntryId(last), bytes_max=bytes_max)
            return [entry.entry for entry in found]

        assert await ids(0, 9, 10_000) == [0, 1, 2, 3]
        assert await ids(1, 2, 10_000) == [1, 2]
        assert await ids(1, 9, 1) == [1]
        assert await ids(0, 9, 150) == [0, 1]
        assert await ids(0, 9, 0) == [0]
        assert await ids(5, 5, 10_000) == [5]
        with pytest.raises(EntryUnknown, match="4"):
            await ids(4, 9, 10_000)
        with pytest.raises(EntryUnknown):
            await ids(2, 1, 10_000)
        with pytest.raises(LedgerUnknown, match="7"):
            await node.read(LedgerId(7), EntryId(0), last=EntryId(0), bytes_max=1)

    async def test_large_entries_come_back_whole(self, node: StorageNode) -> None:
        """L7: entries larger than a buffer, a frame of appends or an answer."""
        sizes = (70_000, 1_500_000, 3_000_000, 9_000_000, 10)
        payloads = [bytes([n]) * size for n, size in enumerate(sizes)]
        assert not any(await outcomes_of([begin(node, 1, n, p) for n, p in enumerate(payloads)]))
        found: list[Entry] = []
        while len(found) < len(sizes):
            at = EntryId(len(found))
            found += await node.read(ONE, at, last=EntryId(9), bytes_max=2_000_000)
        assert [bytes(entry.payload) for entry in found] == payloads

    async def test_a_recovery_read_also_fences(self, node: StorageNode) -> None:
        """L9: after "no such entry" the old writer cannot store that entry any more."""
        assert await append(node, 1, 0, b"a", term=1) is None
        found = await node.read_for_recovery(ONE, EntryId(0), Term(2))
        assert found is not None
        assert plain([found]) == [(0, 1, -1, b"a")]
        assert await node.read_for_recovery(ONE, EntryId(1), Term(2)) is None
        assert isinstance(await append(node, 1, 1, b"late", term=1), Fenced)
        assert await node.read_for_recovery(LedgerId(5), EntryId(0), Term(2)) is None
        assert isinstance(await append(node, 5, 0, b"late", term=1), Fenced)
        with pytest.raises(Fenced):
            await node.read_for_recovery(ONE, EntryId(0), Term(1))

    async def test_a_deleted_ledger_is_gone(self, node: StorageNode) -> None:
        """L8: its entries are, it takes no new ones, and deleting again is no error."""
        assert await append(node, 1, 0, b"a") is None
        await node.delete(ONE)
        await node.delete(ONE)
        await node.delete(LedgerId(77))
        with pytest.raises(LedgerUnknown):
            await node.read(ONE, EntryId(0), last=EntryId(0), bytes_max=1)
        assert isinstance(await append(node, 1, 1, b"b"), LedgerUnknown)

    async def test_ledgers_are_listed(self, node: StorageNode) -> None:
        """L8: those with entries and those that are only fenced; not the deleted ones."""
        assert await node.ledgers() == set()
        await outcomes_of([begin(node, ledger, 0, b"a") for ledger in range(300)])
        await node.fence(LedgerId(2**63 - 1), Term(1))
        await node.delete(LedgerId(0))
        assert await node.ledgers() == {*range(1, 300), 2**63 - 1}

    async def test_what_is_held_is_told(self, node: StorageNode) -> None:
        """L10: by spans, within what was asked; an unknown ledger holds nothing."""
        await outcomes_of([begin(node, 1, n, b"x") for n in (0, 1, 2, 5, 7, 8, 6, 20)])

        async def held(ledger: int, first: int, last: int) -> list[tuple[int, int]]:
            found = await node.held(LedgerId(ledger), first=EntryId(first), last=EntryId(last))
            assert found.next is None
            return [tuple(span) for span in found.spans]

        assert await held(1, 0, 100) == [(0, 2), (5, 8), (20, 20)]
        assert await held(1, 1, 7) == [(1, 2), (5, 7)]
        assert await held(1, 3, 4) == []
        assert await held(1, 21, 20) == []
        assert await held(9, 0, 100) == []
        await node.delete(ONE)
        assert await held(1, 0, 100) == []

    async def test_what_is_held_of_a_striped_ledger_comes_in_pages(self, node: StorageNode) -> None:
        """L10: each answer is bounded, however many gaps there are."""
        entries = range(0, 3 * HELD_SPANS_MAX, 2)
        for at in range(0, len(entries), 2000):
            await outcomes_of([begin(node, 1, n, b"x") for n in entries[at : at + 2000]])
        told: list[int] = []
        pages, first = 0, EntryId(0)
        while True:
            found = await node.held(ONE, first=first, last=EntryId(entries[-1]))
            assert len(found.spans) <= HELD_SPANS_MAX
            told += [span.first for span in found.spans]
            pages += 1
            if found.next is None:
                break
            first = found.next
        assert told == list(entries)
        assert pages == 2

    async def test_many_calls_at_once_are_all_answered(self, node: StorageNode) -> None:
        """L4, L7: fences, reads and appends of many callers do not wait for each other."""
        assert await append(node, 1, 0, b"a") is None
        states, entries, outcomes = await asyncio.gather(
            asyncio.gather(*(node.fence(LedgerId(n), Term(1)) for n in range(10, 310))),
            asyncio.gather(
                *(node.read(ONE, EntryId(0), last=EntryId(0), bytes_max=1) for _ in range(300))
            ),
            outcomes_of([begin(node, 2, n, b"x") for n in range(300)]),
        )
        assert all(state.fenced == 1 for state in states)
        assert all(bytes(found[0].payload) == b"a" for found in entries)
        assert outcomes == [None] * 300
