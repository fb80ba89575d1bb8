"""Compacts the partitions of one broker, one after another (L17): the doing part.

A pass reads the keys of the dirty part, then everything up to where the keys reached, and writes
what remains (`cleaning.py`). A thread processes the batches, a megabyte at a time; reading and
writing are limited to a rate; the map of keys is bounded.

Steps of a replacement, and what a crash after each leaves:

    1. the record names the new ledger (`rewriting`)    a name; the next look drops it
    2. its entries are written, the last one confirmed  the same, and entries that nothing reads
    3. one compare-and-set puts it into the chain in    the new chain; the sources remain until
       the place of its sources, and ends 1             sweeping finds that no chain names them
    4. the sources are deleted

Ledgers are replaced from the oldest on, and a pass ends with the first that fails: a tombstone must
not go before what it deletes. The term of a replaced owner is refused at 1 or 3.

The new ledger has the term of its first source: a client that asks where a term ends gets an offset
at or behind the true one, and so sees no truncation where there was none.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import msgspec

from dovetail.buffers import Buffer
from dovetail.clock import Clock, UnhurriedTime
from dovetail.errors import DovetailError, InvalidBatch, NotOwner, Unavailable
from dovetail.log.checkpoint import LedgerIndex, encode_checkpoint, is_checkpoint
from dovetail.log.compaction import plan
from dovetail.log.compaction.cleaning import AbortedTransactions, Cleaning, note_keys
from dovetail.log.compaction.key_map import KEY_BYTES, PlainKeyMap, new_map
from dovetail.log.compaction.plan import Survey
from dovetail.log.ownership import producers_behind
from dovetail.log.partition import Partition
from dovetail.log.producers import AbortedRange, ProducerTable
from dovetail.log.reading import aborted_between
from dovetail.logging import get_logger
from dovetail.record_batch import empty_batch, read_header
from dovetail.storage import EnsembleWriter, Entry, EntryId, Placement, Term, chain
from dovetail.storage.chain import LedgerInfo, PartitionRecord
from dovetail.storage.quorum.ensembles import READ_AHEAD_BYTES
from dovetail.storage.repair.rate import ByteRate

_log = get_logger("log")

#: Bytes of a new ledger that are on their way at the same time: what producers write shares syncs
#: with them.
_IN_FLIGHT_BYTES = 1024 * 1024

#: Fewest keys that a map has room for: a pass must get on, whatever memory it may use.
_KEYS_MIN = 1000


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """How often it is looked what is due, and what a pass may use."""

    check_ms: int = 15_000
    memory_bytes: int = 64 * 1024 * 1024
    bytes_per_second: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Pass:
    """The last pass over a partition: when it ended, and the bytes that it read a second."""

    ended_ms: int
    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class CompactionState:
    """The state of a compacted partition at the last check."""

    survey: Survey
    #: None if there was none since this broker owns the partition.
    last: Pass | None


@dataclass(slots=True)
class CompactionReport:
    """What compaction has done, for metrics and descriptions of a topic."""

    passes: int = 0
    passes_failed: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_removed: int = 0
    #: By the name of each partition of this broker that is compacted.
    partitions: dict[str, CompactionState] = field(default_factory=dict)


class Compactor:
    """Compacts what is due, the dirtiest first."""

    def __init__(self, *, clock: Clock, settings: CompactionSettings) -> None:
        self._clock = clock
        self._time = UnhurriedTime(clock)
        self._settings = settings
        self._rate = ByteRate(settings.bytes_per_second)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="log/compaction")
        self.report = CompactionReport()

    async def run(self, partitions: Callable[[], Sequence[Partition]]) -> None:
        """Looks for something to do for ever; cancel it to end."""
        while True:
            failed: set[str] = set()
            while (found := await self._dirtiest(partitions(), failed)) is not None:
                partition, survey = found
                if not await self._try(partition, survey):
                    failed.add(partition.name)
            await asyncio.sleep(self._settings.check_ms / 1000)

    async def close(self) -> None:
        """Ends its thread; nothing runs any more."""
        await asyncio.to_thread(self._thread.shutdown)

    async def _dirtiest(
        self, partitions: Sequence[Partition], failed: set[str]
    ) -> tuple[Partition, Survey] | None:
        due: list[tuple[Partition, Survey]] = []
        states: dict[str, CompactionState] = {}
        for partition in partitions:
            try:
                if partition.record.rewriting is not None:
                    await _abandon(partition, partition.record.rewriting)
                if not partition.config.compacts or not partition.serving:
                    continue
                survey = await self.survey(partition)
            except DovetailError as error:
                _log.warning(
                    "cannot compact a partition", partition=partition.name, error=str(error)
                )
                continue
            known = self.report.partitions.get(partition.name)
            states[partition.name] = CompactionState(survey, None if known is None else known.last)
            if survey.due and partition.name not in failed:
                due.append((partition, survey))

        self.report.partitions = states
        return max(due, key=lambda one: (one[1].overdue, one[1].dirty_ratio), default=None)

    async def survey(self, partition: Partition) -> Survey:
        """What can be compacted of a partition."""
        return plan.survey(
            [info for part in await _parts(partition) for info in part],
            partition.config.compaction,
            last_stable=partition.producers.held_from(partition.last_stable),
            now_ms=self._time.now_ms(),
        )

    async def _try(self, partition: Partition, survey: Survey) -> bool:
        try:
            await self.compact(partition, survey)
        except NotOwner:
            return False  # Its next owner goes on.
        except DovetailError as error:
            self.report.passes_failed += 1
            _log.warning("compaction failed", partition=partition.name, error=str(error))
            return False
        except Exception as error:  # noqa: BLE001 - the others must be compacted still
            self.report.passes_failed += 1
            _log.exception("compaction failed: internal error", error, partition=partition.name)
            return False
        return True

    async def compact(self, partition: Partition, survey: Survey) -> None:
        """One pass. Raises what keeps it from being done; what was replaced by then stays so."""
        began_ms, read_before = self._clock.monotonic_ms(), self.report.bytes_read
        parts = await _parts(partition)
        first = parts[0][0].first_offset if parts[0] else survey.first_dirty
        aborted = await aborted_between(partition, max(first, partition.log_start), survey.end)
        transactions = AbortedTransactions(aborted)

        keys = new_map(self._keys_max(survey))
        end = await self._map_keys(partition, parts, keys, transactions, survey)
        rules = partition.config.compaction
        now_ms = self._time.now_ms()
        cleaning = Cleaning(
            keys, transactions, end=end, now_ms=now_ms, tombstones_ms=rules.tombstones_ms
        )

        bytes_before = partition.payload_bytes
        for part in parts:
            for group in plan.groups(part, end=end, bytes_max=rules.ledger_bytes_max):
                await self._replace(partition, group, cleaning, end=end, aborted=aborted)
        self.report.passes += 1
        self.report.records_removed += cleaning.removed
        took_s = max(self._clock.monotonic_ms() - began_ms, 1.0) / 1000
        rate = int((self.report.bytes_read - read_before) / took_s)
        self.report.partitions[partition.name] = CompactionState(
            survey, Pass(self._time.now_ms(), rate)
        )
        _log.info(
            "partition compacted",
            partition=partition.name,
            up_to=end,
            bytes_before=bytes_before,
            bytes_after=partition.payload_bytes,
        )

    def _keys_max(self, survey: Survey) -> int:
        """A map has room for all offsets of the dirty part, or for what memory there is."""
        fits = max(self._settings.memory_bytes // KEY_BYTES, _KEYS_MIN)
        return max(min(survey.end - survey.first_dirty, fits), 1)

    # Keys

    async def _map_keys(
        self,
        partition: Partition,
        parts: Sequence[Sequence[LedgerInfo]],
        keys: PlainKeyMap,
        aborted: AbortedTransactions,
        survey: Survey,
    ) -> int:
        """Fills the map from the dirty part; the offset that it reached."""
        first, end = survey.first_dirty, survey.end
        for info in (info for part in parts for info in part):
            if info.offset_end <= first or info.offset_end > end:
                continue
            entry = EntryId(0)
            while entry <= info.entry_last:
                entries = await self._read(partition, info, entry)
                entry = EntryId(entries[-1].entry + 1)
                note = partial(_note_all, keys, entries, aborted, first)
                full_at = await asyncio.get_running_loop().run_in_executor(self._thread, note)
                if full_at is not None:
                    return full_at
        return end

    async def _read(self, partition: Partition, info: LedgerInfo, first: EntryId) -> list[Entry]:
        if not partition.serving:
            raise NotOwner(f"this broker no longer serves {partition.name}")
        entries = await partition.context.ensembles.read(
            info.placement, first, last=EntryId(info.entry_last), bytes_max=READ_AHEAD_BYTES
        )
        size = sum(len(entry.payload) for entry in entries)
        self.report.bytes_read += size
        await self._wait(size)
        return entries

    async def _wait(self, size: int) -> None:
        wait_ms = self._rate.take(size, now_ms=self._clock.monotonic_ms())
        if wait_ms > 0:
            await asyncio.sleep(wait_ms / 1000)

    # Ledgers

    async def _replace(
        self,
        partition: Partition,
        sources: Sequence[LedgerInfo],
        cleaning: Cleaning,
        *,
        end: int,
        aborted: Sequence[AbortedRange],
    ) -> None:
        """Writes what stays of some neighbours to a new ledger and puts it in their place."""
        context, keeper = partition.context, partition.chain
        producers = await producers_behind(
            context.ensembles, sources[-1], now_ms=context.clock.wall_ms()
        )
        ledger_id, quorum = await context.next_ledger_id(), partition.config.quorum
        placement = context.ensembles.place(ledger_id, quorum, on=partition.assigned)
        info = LedgerInfo(placement, sources[0].term, sources[0].opened_ms)
        await keeper.change(lambda record: msgspec.structs.replace(record, rewriting=info))

        async def move(placement: Placement) -> None:
            await keeper.change(lambda record: chain.with_placement(record, placement))

        writer = context.ensembles.writer(placement, term=Term(keeper.record.term), change=move)
        output = _Output(writer, sources[0].first_offset)
        for source in sources:
            await self._clean(partition, source, cleaning, output)
        output.finish(
            sources[-1].offset_end,
            producers,
            [a for a in aborted if end <= a.last_offset < sources[-1].offset_end],
            now_ms=context.time.now_ms(),
        )
        await output.room(0)

        made = output.closed_info(info, sources, compacted_to=end)
        if not await keeper.swap([source.ledger for source in sources], made):
            await _abandon(partition, info)
            raise Unavailable("the ledgers of the partition changed during compaction")

        partition.tail.forget_below(made.offset_end)  # Else a small topic never looked compacted.
        for source in sources:
            partition.indexes.forget(source.ledger)
        await context.ensembles.let_go([source.placement for source in sources])

    async def _clean(
        self, partition: Partition, source: LedgerInfo, cleaning: Cleaning, output: "_Output"
    ) -> None:
        entry = EntryId(0)
        while entry <= source.entry_last:
            entries = await self._read(partition, source, entry)
            entry = EntryId(entries[-1].entry + 1)
            clean = partial(_clean_all, cleaning, entries)
            batches = await asyncio.get_running_loop().run_in_executor(self._thread, clean)
            size = 0
            for batch in batches:
                size += output.append(batch)
            self.report.bytes_written += size
            await self._wait(size)
            await output.room(_IN_FLIGHT_BYTES)


async def _parts(partition: Partition) -> list[Sequence[LedgerInfo]]:
    """The closed ledgers of a partition, page by page; a replacement does not cross pages."""
    keeper = partition.chain
    pages = [await keeper.page(number) for number in keeper.pages()]
    parts = [page.ledgers for page in pages if page is not None]
    return [*parts, keeper.record.closed]


async def _abandon(partition: Partition, info: LedgerInfo) -> None:
    """Lets a ledger go that was being written when its pass ended.

    Only if it is this change that ends its name: else it is in the chain, by a swap of which no
    answer came, and whoever looks last must not delete it.
    """
    named = False

    def decide(record: PartitionRecord) -> PartitionRecord:
        nonlocal named
        named = record.rewriting is not None and record.rewriting.ledger == info.ledger
        return msgspec.structs.replace(record, rewriting=None) if named else record

    await partition.chain.change(decide)
    if named:
        await partition.context.ensembles.let_go([info.placement])


def _note_all(
    keys: PlainKeyMap, entries: Sequence[Entry], aborted: AbortedTransactions, first: int
) -> int | None:
    for entry in entries:
        if is_checkpoint(entry.payload):
            continue
        try:
            full_at = note_keys(keys, entry.payload, aborted, first=first)
        except InvalidBatch as error:  # It stays, and what has its keys does too.
            _log.error("a batch cannot be compacted", error=str(error))
            continue
        if full_at is not None:
            return full_at
    return None


def _clean_all(cleaning: Cleaning, entries: Sequence[Entry]) -> list[Buffer | tuple[int, int]]:
    """What stays of each batch; of one that goes, its offsets."""
    made: list[Buffer | tuple[int, int]] = []
    for entry in entries:
        if is_checkpoint(entry.payload):
            continue
        try:
            left = cleaning.clean(entry.payload)
        except InvalidBatch as error:
            _log.error("a batch cannot be compacted", error=str(error))
            left = entry.payload
        header = read_header(entry.payload)
        made.append((header.base_offset, header.offset_end) if left is None else left)
    return made


class _Output:
    """A compacted ledger that is being written."""

    def __init__(self, writer: EnsembleWriter, first_offset: int) -> None:
        self._writer = writer
        self._index = LedgerIndex()
        self._offset_next = first_offset
        self._bytes = 0
        self._error: DovetailError | None = None
        self._answered = asyncio.Event()
        #: The offsets of the last batch, if nothing of it stays.
        self._gone: tuple[int, int] | None = None
        self._checkpoint(ProducerTable(), now_ms=0)

    def append(self, batch: Buffer | tuple[int, int]) -> int:
        """Adds a batch, or the offsets of one that went; the bytes that are written."""
        if isinstance(batch, tuple):
            self._gone, self._offset_next = batch, batch[1]
            return 0
        self._gone = None
        header = read_header(batch)
        self._index.note_batch(self._writer.entry_next, header, len(batch))
        self._offset_next = header.offset_end
        self._send(batch)
        if self._index.wants_checkpoint:
            self._checkpoint(ProducerTable(), now_ms=0)
        return len(batch)

    def finish(
        self,
        offset_end: int,
        producers: ProducerTable,
        aborted: Sequence[AbortedRange],
        *,
        now_ms: int,
    ) -> None:
        """The end: readers find a batch that reaches it, and a takeover finds the producers."""
        if self._gone is not None:
            self.append(empty_batch(*self._gone, leader_epoch=-1))
        if self._offset_next != offset_end:
            raise AssertionError(f"the sources end at {self._offset_next}, not at {offset_end}")
        for found in aborted:
            self._index.note_aborted(found)
        self._checkpoint(producers, now_ms=now_ms)

    async def room(self, bytes_max: int) -> None:
        """Waits until no more than this is on its way. Raises what an append met."""
        while self._bytes > bytes_max and self._error is None:
            self._answered.clear()
            await self._answered.wait()
        if self._error is not None:
            raise self._error

    def closed_info(
        self, info: LedgerInfo, sources: Sequence[LedgerInfo], *, compacted_to: int
    ) -> LedgerInfo:
        """What the chain says of it."""
        offset_end = sources[-1].offset_end
        return msgspec.structs.replace(
            info,
            placement=self._writer.placement,
            closed=True,
            first_offset=sources[0].first_offset,
            entry_last=EntryId(self._writer.entry_next - 1),
            offset_end=offset_end,
            payload_bytes=self._index.payload_bytes,
            timestamp_max=self._index.timestamp_max,
            checkpoint_last=self._index.checkpoint_last,
            compacted_to=min(compacted_to, offset_end),
        )

    def _checkpoint(self, producers: ProducerTable, *, now_ms: int) -> None:
        checkpoint = self._index.take_checkpoint(
            self._writer.entry_next, producers, offset_next=self._offset_next, now_ms=now_ms
        )
        self._send(encode_checkpoint(checkpoint))

    def _send(self, payload: Buffer) -> None:
        self._bytes += len(payload)

        def answer(error: DovetailError | None) -> None:
            self._bytes -= len(payload)
            self._error = self._error or error
            self._answered.set()

        self._writer.append(payload, answer)
