"""The owner's copy of its partition's chain: every change is a compare-and-set.

Pages of a long chain (`storage/chain.py`) are read when they are needed. Their offsets rise, and so
does the highest time so far, so a binary search finds either; the first offset of each page read is
remembered. Thus a takeover reads no page, one roll in some hundred writes one, and a read of old
data asks the coordination service a few times at first and for one page later.

Survives: a crash between any two steps, and lost answers. The record and the ledgers that move to
or from a page change in one transaction; after a refusal the stored state decides.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from dovetail.coordination.protocol import Change, Coordinator, Delete, Put, Revision, Unchanged
from dovetail.errors import Damaged, NotOwner, Uncertain
from dovetail.storage import Placement, chain
from dovetail.storage.chain import LedgerInfo, Page, PartitionRecord

#: Pages that are kept in memory for a partition, some 200 KB each.
_PAGES_MAX = 4


def writes(key: str, record: PartitionRecord) -> tuple[PartitionRecord, list[Change]]:
    """The record as it can be stored, and the changes that store it with its new pages."""
    record, pages = chain.folded(record)
    changes: list[Change] = [
        Put(record.page_key(number), chain.encode_page(page)) for number, page in pages.items()
    ]
    return record, [Put(key, chain.encode(record)), *changes]


class _Bounds(NamedTuple):
    """Of a page; none of these falls from one page to the next."""

    first_offset: int
    timestamp_peak: int
    term_last: int


class ChainKeeper:
    """A partition's chain, under one term."""

    def __init__(
        self, coordinator: Coordinator, key: str, record: PartitionRecord, revision: Revision
    ) -> None:
        self._coordinator = coordinator
        self._key = key
        self._revision = revision
        #: Held by changes and by reads of pages, so that no page is remembered as it was before.
        self._lock = asyncio.Lock()
        self._pages: OrderedDict[int, Page] = OrderedDict()
        #: What the pages that were ever read rise by.
        self._bounds: dict[int, _Bounds] = {}
        self.record = record
        #: How often ledgers were, or may have been, replaced under the eyes of readers.
        self.swaps = 0

    # Changes

    async def change(self, decide: Callable[[PartitionRecord], PartitionRecord]) -> None:
        """Replaces the record by what `decide` makes of it. Raises `NotOwner` if it is not ours."""
        async with self._lock:
            while True:
                record, changes = writes(self._key, decide(self.record))
                if record == self.record or await self._applied(record, changes):
                    return

    async def look_again(self) -> None:
        """Reads what is stored: a change of ours may be, and its answer did not come."""
        async with self._lock:
            await self._adopt()

    async def trim(self, log_start: int) -> list[LedgerInfo]:
        """Moves the start of the log; the ledgers below it that have left the chain."""
        gone: list[LedgerInfo] = []
        async with self._lock:
            while self.pages():
                number = self.record.paged.first
                page = await self._page(number)
                if page is None:
                    continue  # A trim of ours, whose answer did not come, came late.
                record, left, below = chain.page_trimmed(self.record, page, log_start=log_start)
                if not below:
                    break
                key = record.page_key(number)
                change = Delete(key) if left is None else Put(key, chain.encode_page(left))
                if await self._applied(record, [Put(self._key, chain.encode(record)), change]):
                    gone += below
                    self._forget(number)

        below_newest: tuple[LedgerInfo, ...] = ()

        def decide(record: PartitionRecord) -> PartitionRecord:
            nonlocal below_newest
            record, below_newest = chain.trimmed(record, log_start=log_start)
            return record

        await self.change(decide)
        return [*gone, *below_newest]

    async def move(self, info: LedgerInfo, after: Placement) -> None:
        """Puts a closed ledger onto other nodes; nothing happens if it lies elsewhere by now."""
        async with self._lock:
            while True:
                record, number = self.record, await self._number_at(info.first_offset)
                page = None if number is None else await self._page(number)
                if number is None or page is None:
                    ledgers = chain.moved(record.ledgers, info.placement, after)
                    record, changes = writes(self._key, replace(record, ledgers=ledgers))
                    if record == self.record or await self._applied(record, changes):
                        return
                    continue

                changed = replace(page, ledgers=chain.moved(page.ledgers, info.placement, after))
                put = Put(record.page_key(number), chain.encode_page(changed))
                if changed == page:
                    return
                if await self._applied(record, [Put(self._key, chain.encode(record)), put]):
                    self._forget(number)
                    return

    async def swap(self, sources: Sequence[int], info: LedgerInfo) -> bool:
        """Puts a rewritten ledger in the place of its sources; False if they are not there."""
        async with self._lock:
            while True:
                number = await self._number_at(info.first_offset)
                page = None if number is None else await self._page(number)
                record = replace(self.record, rewriting=None)
                before = record.ledgers if page is None else page.ledgers
                if any(known.ledger == info.ledger for known in before):
                    return True  # The answer did not come.
                ledgers = chain.replaced(before, sources, info)
                if ledgers is None:
                    return False

                if number is None or page is None:
                    record, changes = writes(self._key, replace(record, ledgers=ledgers))
                else:
                    record = chain.repaged(record, page.ledgers, ledgers)
                    put = Put(
                        record.page_key(number), chain.encode_page(replace(page, ledgers=ledgers))
                    )
                    changes = [Put(self._key, chain.encode(record)), put]
                if await self._applied(record, changes):
                    self.swaps += 1
                    if number is not None:
                        self._forget(number)
                    return True

    async def _applied(self, record: PartitionRecord, changes: Sequence[Change]) -> bool:
        """Whether it is done; if not, the record is as it is stored, and to be decided anew.

        Every change writes the record, also if it is the same: one whose answer was lost, and that
        comes late, is refused then.
        """
        try:
            outcome = await self._coordinator.transact(
                changes, conditions=[Unchanged(self._key, self._revision)]
            )
        except Uncertain:
            pass  # What is stored decides; a decision makes nothing new of its own work.
        else:
            if outcome.applied:
                self.record, self._revision = record, outcome.revision
                return True
        await self._adopt()
        return False

    async def _adopt(self) -> None:
        """After a refusal or no answer: under our own term it was our own change, if it was one."""
        found = await self._coordinator.get(self._key)
        stored = None if found is None else chain.decode(found.value)
        mine = (self.record.term, self.record.owner)
        if found is None or stored is None or (stored.term, stored.owner) != mine:
            raise NotOwner(f"{self._key} was changed by another owner")
        self.swaps += stored != self.record
        self.record, self._revision = stored, found.revision
        self._pages.clear()

    # Pages

    def pages(self) -> range:
        """The numbers of the pages that there are."""
        return range(self.record.paged.first, self.record.paged.next)

    async def page(self, number: int) -> Page | None:
        """A page; None if it was trimmed meanwhile. Raises `CoordinationDown`."""
        async with self._lock:
            return await self._page(number)

    async def paged_at(self, offset: int) -> LedgerInfo | None:
        """The ledger in a page that has the offset; None if none has."""
        async with self._lock:
            number = await self._number_at(offset)
            page = None if number is None else await self._page(number)
        infos = () if page is None else page.ledgers
        return next((i for i in infos if i.first_offset <= offset < i.offset_end), None)

    async def paged_since(self, timestamp: int) -> AsyncIterator[LedgerInfo]:
        """The ledgers in pages, from a page on before which no record is so young."""
        async with self._lock:
            number = await self._search(lambda bounds: bounds.timestamp_peak >= timestamp)
        while number < self.record.paged.next:  # It can grow meanwhile.
            page = await self.page(number)
            for info in () if page is None else page.ledgers:
                yield info
            number += 1

    async def until_term(self, term: int) -> tuple[int | None, int | None]:
        """Of the ledgers in pages: the last term up to `term`, and where a later one begins."""
        async with self._lock:
            number = await self._search(lambda bounds: bounds.term_last > term)
            pages = [await self._page(at) for at in (number - 1, number) if at in self.pages()]
        infos = [info for page in pages if page is not None for info in page.ledgers]
        until = [info.term for info in infos if info.term <= term]
        later = [info.first_offset for info in infos if info.term > term]
        return until[-1] if until else None, later[0] if later else None

    async def oldest(self) -> tuple[Sequence[LedgerInfo], int | None]:
        """The first closed ledgers, and when the one behind them was opened."""
        async with self._lock:
            while self.pages():
                page = await self._page(self.record.paged.first)
                if page is not None:
                    return page.ledgers, page.ended_ms
        opened = self.record.open
        return self.record.closed, opened[0].opened_ms if opened else None

    async def _number_at(self, offset: int) -> int | None:
        """The page that has the offset, if one has: the last that begins at or below it."""
        newest = self.record.closed[:1]
        if newest and offset >= newest[0].first_offset:
            return None
        number = await self._search(lambda bounds: bounds.first_offset > offset) - 1
        return number if number in self.pages() else None

    async def _search(self, is_at: Callable[[_Bounds], bool]) -> int:
        """The first page whose bounds fulfil a condition that those behind it fulfil too."""
        low, high = self.record.paged.first, self.record.paged.next
        while low < high:
            middle = (low + high) // 2
            if middle not in self._bounds:
                await self._page(middle)
            bounds = self._bounds.get(middle)
            if bounds is not None and is_at(bounds):
                high = middle
            else:  # Without bounds it was trimmed meanwhile, and all before it.
                low = middle + 1
        return low

    async def _page(self, number: int) -> Page | None:
        page = self._pages.get(number)
        if page is None:
            if number not in self.pages():
                return None
            found = await self._coordinator.get(self.record.page_key(number))
            if found is None:  # Another owner trimmed it, or we did and had no answer.
                await self._adopt()
                if number in self.pages():
                    raise Damaged(f"{self.record.page_key(number)} is missing")
                return None
            page = self._pages[number] = chain.decode_page(found.value)
            first, last = page.ledgers[0], page.ledgers[-1]
            self._bounds[number] = _Bounds(first.first_offset, page.timestamp_peak, last.term)
        self._pages.move_to_end(number)
        while len(self._pages) > _PAGES_MAX:
            self._pages.popitem(last=False)
        return page

    def _forget(self, number: int) -> None:
        """The page has changed, or is gone."""
        self._pages.pop(number, None)
        self._bounds.pop(number, None)
