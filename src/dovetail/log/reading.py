"""Reads a partition: the tail from memory, older data from storage (L7).

A sequential reader keeps its place: the end of each read is remembered by offset, so a consumer
that reads a ledger through looks nothing up. A reader that jumps uses the sparse index to get
within 64 KiB of its offset and skips from there.

Compaction leaves gaps: a reader gets the first batch that ends behind its offset, and each ledger
has one that reaches its end, so every reader gets across. That one can be without records; a reader
gets what follows with it, as some clients ask for ever again behind an answer that holds none
(kafkajs). Compaction also replaces ledgers while
they are read (`ChainKeeper.swaps`): a reader whose ledger is gone, or that combined two reads,
reads again.
"""

import asyncio
import threading
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

from dovetail.buffers import Buffer
from dovetail.errors import (
    Damaged,
    EntryUnknown,
    InvalidBatch,
    LedgerUnknown,
    OffsetOutOfRange,
    Unavailable,
)
from dovetail.log.chain_keeper import ChainKeeper
from dovetail.log.checkpoint import INDEX_EVERY_BYTES, LedgerIndex, is_checkpoint
from dovetail.log.ownership import load_index
from dovetail.log.partition import Partition
from dovetail.log.producers import AbortedRange
from dovetail.record_batch import CODEC_MASK, decode_batch, read_header
from dovetail.storage import Entry, EntryId, Placement
from dovetail.storage.chain import LedgerInfo

Found = TypeVar("Found")

#: Places of readers that are remembered for a partition.
_CURSORS_MAX = 64

#: Batches are searched here, one at a time and off the event loop: two kilobytes can hold millions
#: of records, and to look at them takes half a minute.
_SEARCHES = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search-by-time")

#: Plain batches of so few records are searched at once, in a millisecond; after so many, a search
#: lets the event loop go first.
_RECORDS_AT_ONCE = 1000


class _Span(NamedTuple):
    """A ledger, as far as it can be read."""

    placement: Placement
    first_offset: int
    offset_end: int
    entry_last: EntryId
    timestamp_max: int
    #: What the chain says of it; None while it is open.
    closed: LedgerInfo | None

    @property
    def ledger(self) -> int:
        return self.placement.ledger


class TimedOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp: int


def read_from_tail(
    partition: Partition, offset: int, bytes_max: int, *, end: int | None = None
) -> list[Buffer] | None:
    """Batches from memory, [] at the end of the log, None if the storage must be asked.

    With `end`, such as the last stable offset, nothing from there on. Raises `OffsetOutOfRange`.
    """
    if offset == partition.high_watermark:
        return []
    if not partition.log_start <= offset < partition.high_watermark:
        raise OffsetOutOfRange(
            f"{partition.name}: offset {offset} is not in "
            f"[{partition.log_start}, {partition.high_watermark}]"
        )
    if end is None or end == partition.high_watermark:
        return partition.tail.read(offset, bytes_max)
    return [] if offset >= end else _below(partition.tail.read(offset, bytes_max), end)


def _below(batches: list[Buffer] | None, end: int) -> list[Buffer] | None:
    if batches is None:
        return None
    return [batch for batch in batches if read_header(batch).base_offset < end]


async def read_from_storage(
    partition: Partition, offset: int, bytes_max: int, *, end: int | None = None
) -> list[Buffer]:
    """Batches of one ledger from the one with `offset` on, at least one; none from `end` on.

    Of more than one if those of the first hold no record. Raises `Damaged` or `StorageOut` if they
    cannot be read, `OffsetOutOfRange` if they were trimmed meanwhile.
    """

    async def read(offset: int) -> list[Buffer]:
        span = await _span_of(partition, offset)
        try:
            found = await _read_span(partition, span, offset, bytes_max)
        except (LedgerUnknown, EntryUnknown) as error:
            if offset < partition.log_start:
                raise OffsetOutOfRange(f"{partition.name}: offset {offset} was trimmed") from error
            raise Damaged(f"{partition.name}: offset {offset} is missing on the disk") from error
        return found if end is None else _below(found, end) or []

    found = await _on_one_chain(partition, partial(read, offset))
    headers = [read_header(batch) for batch in found]
    while headers and not any(header.record_count for header in headers):
        behind = headers[-1].offset_end
        if behind >= (partition.high_watermark if end is None else end):
            break
        more = await _on_one_chain(partition, partial(read, behind))
        headers = [read_header(batch) for batch in more]
        found += more
    return found


async def read_committed(
    partition: Partition, offset: int, bytes_max: int, *, end: int
) -> tuple[list[Buffer], list[AbortedRange]]:
    """The same, and the aborted transactions that are in it, both by the same ledgers.

    What compaction takes away of an aborted transaction is told no more, and what it has not taken
    away must be: a reader of old batches and of news about the new ones would see aborted records.
    """
    while True:
        before = _version(partition)
        found = await read_from_storage(partition, offset, bytes_max, end=end)
        behind = read_header(found[-1]).offset_end if found else offset
        aborted = await aborted_between(partition, offset, behind) if found else []
        if _version(partition) == before:
            return found, aborted


def _version(partition: Partition) -> tuple[ChainKeeper, int]:
    """Another one when ledgers that could be read have given their place to others."""
    return partition.chain, partition.chain.swaps


async def _on_one_chain(partition: Partition, read: Callable[[], Awaitable[Found]]) -> Found:
    """Reads again if a ledger is missing because compaction has replaced it."""
    while True:
        before = _version(partition)
        try:
            return await read()
        except (Damaged, LedgerUnknown, EntryUnknown):
            if partition.record.rewriting is not None:  # A swap may be stored, and not known here.
                await partition.chain.look_again()
            if _version(partition) == before:
                raise


async def _read_span(
    partition: Partition, span: _Span, offset: int, bytes_max: int
) -> list[Buffer]:
    known = partition.cursors.get(offset)
    if known is not None and known[0] == span.ledger:
        entry = EntryId(known[1])
    else:
        entry = (await _index_of(partition, span)).entry_for_offset(offset)

    batches: list[Buffer] = []
    size, offset_end = 0, offset
    while not batches and entry <= span.entry_last:
        entries = await partition.context.ensembles.read(
            span.placement, entry, last=span.entry_last, bytes_max=bytes_max + INDEX_EVERY_BYTES
        )
        for found in entries:
            entry = EntryId(found.entry + 1)
            if is_checkpoint(found.payload):
                continue
            header = read_header(memoryview(found.payload))
            if header.offset_end <= offset:
                continue
            if batches and size + len(found.payload) > bytes_max:
                entry = found.entry
                break
            batches.append(found.payload)
            size += len(found.payload)
            offset_end = header.offset_end

    if not batches:
        raise OffsetOutOfRange(f"{partition.name}: offset {offset} is gone")
    partition.cursors[offset_end] = (span.ledger, entry)
    while len(partition.cursors) > _CURSORS_MAX:
        partition.cursors.popitem(last=False)
    return batches


def known_aborted(partition: Partition, first: int, last: Buffer) -> list[AbortedRange] | None:
    """Aborted transactions from an offset to the end of a batch, all confirmed and stable; None if
    the storage must be asked."""
    ledgers = partition.open_ledgers
    if not ledgers or first < ledgers[0].first_offset:
        return None
    if not any(ledger.index.has_aborted for ledger in ledgers):
        return []
    end = read_header(last).offset_end
    return [found for ledger in ledgers for found in ledger.index.aborted_within(first, end)[0]]


async def aborted_between(partition: Partition, first: int, end: int) -> list[AbortedRange]:
    """Aborted transactions between two offsets, from the indexes of the ledgers with their markers.

    Raises what `read_from_storage` raises.
    """

    async def read() -> list[AbortedRange]:
        found: list[AbortedRange] = []
        offset = first
        while True:
            span = await _span_of(partition, offset)
            more, complete = (await _index_of(partition, span)).aborted_within(first, end)
            found += more
            known = complete and span.offset_end >= end
            if known or span.offset_end >= partition.high_watermark:
                return found
            offset = span.offset_end

    return await _on_one_chain(partition, read)


async def offset_for_time(partition: Partition, timestamp: int) -> TimedOffset | None:
    """The first record that is at least so young, or None if there is none."""
    return await _on_one_chain(partition, lambda: _offset_for_time(partition, timestamp))


async def _offset_for_time(partition: Partition, timestamp: int) -> TimedOffset | None:
    async for span in _spans_since(partition, timestamp):
        if span.timestamp_max < timestamp or span.offset_end <= partition.log_start:
            continue
        index = await _index_of(partition, span)
        entry = index.entry_for_time(timestamp)
        while entry is not None and entry <= span.entry_last:
            try:
                entries = await partition.context.ensembles.read(
                    span.placement, entry, last=span.entry_last, bytes_max=INDEX_EVERY_BYTES
                )
            except (LedgerUnknown, EntryUnknown):
                if span.offset_end > partition.log_start:
                    raise Damaged(f"{partition.name}: an entry is missing on the disk") from None
                break  # It was trimmed meanwhile; the next ledger has the answer.

            for found in entries:
                hit = await _search(found, timestamp, partition.log_start)
                if hit is not None:
                    return hit
            entry = EntryId(entries[-1].entry + 1)
    return None


async def _search(found: Entry, timestamp: int, log_start: int) -> TimedOffset | None:
    """The first record of one batch that is at least so young; ends with its caller."""
    if is_checkpoint(found.payload):
        return None
    header = read_header(memoryview(found.payload))
    if header.timestamp_max < timestamp or header.offset_end <= log_start:
        return None

    ended = threading.Event()
    if header.record_count <= _RECORDS_AT_ONCE and not header.attributes & CODEC_MASK:
        return _first_in_batch(found.payload, timestamp, log_start, ended)
    try:
        return await asyncio.get_running_loop().run_in_executor(
            _SEARCHES, _first_in_batch, found.payload, timestamp, log_start, ended
        )
    finally:
        ended.set()


def _first_in_batch(
    batch: Buffer, timestamp: int, log_start: int, ended: threading.Event
) -> TimedOffset | None:
    header = read_header(memoryview(batch))
    try:
        for number, record in enumerate(decode_batch(batch), start=1):
            if record.timestamp >= timestamp and record.offset >= log_start:
                return TimedOffset(record.offset, record.timestamp)
            if number % _RECORDS_AT_ONCE == 0:
                if ended.is_set():
                    return None
                time.sleep(0)  # Lets go of the interpreter.
    except InvalidBatch:  # The producer's own defect: its first record is the nearest answer.
        return TimedOffset(max(header.base_offset, log_start), header.timestamp_max)
    return None


async def newest_record(partition: Partition) -> TimedOffset | None:
    """The record with the highest timestamp, or None if the log is empty."""
    newest = [span.timestamp_max for span in _newest_spans(partition)]
    highest = max(newest, default=-1)
    if partition.chain.pages():
        highest = max(highest, partition.record.paged.timestamp_peak)
    found = None if highest < 0 else await offset_for_time(partition, highest)
    if found is not None or highest < 0:
        return found

    # The highest time is of a batch that is not confirmed yet, or of a record that was deleted:
    # halve the way to the highest of those that can be read.
    low = -1
    while low < highest:
        middle = (low + highest + 1) // 2
        nearer = await offset_for_time(partition, middle)
        if nearer is None:
            highest = middle - 1
        else:
            found, low = nearer, nearer.timestamp
    return found


async def term_end(partition: Partition, term: int) -> tuple[int, int]:
    """The last term with records that is not above `term`, itself if there is none; and its end."""
    until, end = await partition.chain.until_term(term)
    epoch = term if until is None else until
    if end is not None:
        return epoch, end
    newest = [(info.term, info.first_offset) for info in partition.record.closed]
    newest += [(ledger.info.term, ledger.first_offset) for ledger in partition.open_ledgers]
    for later, first_offset in newest:
        if later > term:
            return epoch, first_offset
        epoch = later
    return epoch, partition.high_watermark


def _newest_spans(partition: Partition) -> list[_Span]:
    """The ledgers behind the pages of the chain, in order; open ones as far as confirmed."""
    spans = [_span(info) for info in partition.record.closed]
    end = spans[-1].offset_end if spans else -1
    for ledger in partition.open_ledgers:
        if ledger.first_offset >= end:
            spans.append(
                _Span(
                    ledger.writer.placement,
                    ledger.first_offset,
                    ledger.offset_confirmed,
                    EntryId(ledger.entry_confirmed),
                    ledger.index.timestamp_max,
                    None,
                )
            )
    return spans


def _span(info: LedgerInfo) -> _Span:
    return _Span(
        info.placement,
        info.first_offset,
        info.offset_end,
        EntryId(info.entry_last),
        info.timestamp_max,
        info,
    )


async def _spans_since(partition: Partition, timestamp: int) -> AsyncIterator[_Span]:
    """The ledgers in order, without the first of those that hold nothing so young."""
    behind = -1
    async for info in partition.chain.paged_since(timestamp):
        yield _span(info)
        behind = info.offset_end
    for span in _newest_spans(partition):
        if span.first_offset >= behind:  # Else it has moved to a page meanwhile.
            yield span


async def _span_of(partition: Partition, offset: int) -> _Span:
    spans = _newest_spans(partition)
    at = bisect_right(spans, offset, key=lambda span: span.first_offset) - 1
    if at >= 0 and offset < spans[at].offset_end:
        return spans[at]
    info = await partition.chain.paged_at(offset) if at < 0 else None
    if info is None:
        raise OffsetOutOfRange(f"{partition.name}: offset {offset} is gone")
    return _span(info)


async def _index_of(partition: Partition, span: _Span) -> LedgerIndex:
    for ledger in partition.open_ledgers:
        if ledger.writer.ledger == span.ledger:
            return ledger.index
    known = partition.indexes.get(span.ledger)
    if known is not None:
        return known
    closed = (i for i in partition.record.closed if i.ledger == span.ledger)
    info = span.closed or next(closed, None)
    if info is None:
        raise Unavailable(f"{partition.name}: ledger {span.ledger} was closed meanwhile")
    index = await load_index(partition.context.ensembles, info)
    partition.indexes.keep(span.ledger, index)
    return index
