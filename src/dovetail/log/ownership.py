"""Owning a partition: the claim and the takeover.

Takeover (L9): claim the partition with term + 1 → fence its open ledgers → find their last entries
→ close them in the chain → serve. The storage nodes refuse the old owner's appends from the fence
on; the compare-and-set refuses its changes of the chain from the claim on.

Survives: a crash between any two steps. The next owner finds the open ledgers still open and does
the same with a higher term; closing twice gives the same end, because fenced ledgers do not grow.

Reads need no fence: another owner's partition is claimed in a transaction that holds only while
that owner is not registered (`only_if`). So an owner that has certainly been registered since
before it last read the record has no successor, and its end is the end (docs/decisions/0017).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from dovetail.clock import Clock
from dovetail.coordination.protocol import Coordinator, Put, Unchanged
from dovetail.errors import (
    Damaged,
    EntryUnknown,
    LedgerUnknown,
    NotOwner,
    TopicUnknown,
)
from dovetail.log.chain_keeper import ChainKeeper, writes
from dovetail.log.checkpoint import Checkpoint, LedgerIndex, decode_checkpoint, is_checkpoint
from dovetail.log.producers import AbortedRange, ProducerTable
from dovetail.record_batch import BatchHeader, Marker, read_header, read_marker
from dovetail.storage import NO_ENTRY, Ensembles, Entry, EntryId, Placement, Term, chain
from dovetail.storage.chain import UNKNOWN_OFFSET, LedgerInfo, PartitionRecord

#: Entries that are read at once on the way back to a checkpoint, at most. The first step takes one
#: and each further one twice as many, and none is read twice: with 10 MB in each of 1000 partitions
#: a start after kill -9 takes 2.4 s, where steps of 64 and a second pass forward took 3.8 s.
_BLOCK_ENTRIES_MAX = 64

#: A ledger of so few bytes, and few entries, is read at once.
_SMALL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Taken:
    """A partition that is ours, all its ledgers closed."""

    keeper: ChainKeeper
    producers: ProducerTable


#: What must be true beside the record when it is claimed.
OnlyIf = Callable[[PartitionRecord], Sequence[Unchanged]]


async def claim(
    coordinator: Coordinator,
    key: str,
    *,
    owner: int,
    may_claim: Callable[[PartitionRecord], bool],
    only_if: OnlyIf = lambda _: (),
) -> ChainKeeper:
    """Makes the partition `owner`'s, with the next term.

    `may_claim` sees the record as it is now, which is newer than what the caller decided on; what
    it decides by can be old itself, and `only_if` names what must be true at the very moment.
    Raises `TopicUnknown` if it is gone, `NotOwner` if it is another's or another was faster, and
    `Uncertain` if the answer was lost: then claim again, with the next term. That the record names
    this node and that term proves nothing, because another process under the same number may have
    written it (a former life whose request came late, or one that was replaced and does not know
    it), and two processes under one term would both write.
    """
    found = await coordinator.get(key)
    if found is None:
        raise TopicUnknown(f"{key} does not exist")
    before = chain.decode(found.value)
    if not may_claim(before):
        raise NotOwner(f"{key} belongs to node {before.owner} under term {before.term}")

    claimed, changes = writes(
        key, msgspec.structs.replace(before, term=before.term + 1, owner=owner)
    )
    outcome = await coordinator.transact(
        changes,
        conditions=[Unchanged(key, found.revision), *only_if(before)],
    )
    if not outcome.applied:
        raise NotOwner(f"another broker claimed {key}, or node {before.owner} is registered again")
    return ChainKeeper(coordinator, key, claimed, outcome.revision)


async def hand_on(coordinator: Coordinator, key: str, *, owner: int, successor: int) -> None:
    """Names the node that is to claim the partition next, as long as `owner` has it.

    Under the next term, which nobody writes with: clients know the newer of two leaders by the term
    alone. Answers about leaders come out of order from three brokers, and a client that heard of
    two under one term went back and forth, and could stay with the wrong one for good.
    """
    while True:
        found = await coordinator.get(key)
        record = None if found is None else chain.decode(found.value)
        if found is None or record is None or record.owner != owner:
            return
        named = msgspec.structs.replace(record, term=record.term + 1, owner=successor)
        outcome = await coordinator.transact(
            [Put(key, chain.encode(named))], conditions=[Unchanged(key, found.revision)]
        )
        if outcome.applied:
            return


async def take_over(
    coordinator: Coordinator,
    ensembles: Ensembles,
    key: str,
    *,
    owner: int,
    may_claim: Callable[[PartitionRecord], bool],
    only_if: OnlyIf = lambda _: (),
    clock: Clock,
) -> Taken:
    """Claims the partition and closes what its last owner left open.

    Raises what `claim` raises, `Unavailable` if too few storage nodes answer, and `Damaged` if its
    newest ledger cannot be read.
    """
    keeper = await claim(coordinator, key, owner=owner, may_claim=may_claim, only_if=only_if)
    term = Term(keeper.record.term)
    try:
        record, producers = await _close_all(ensembles, keeper.record, term, clock.wall_ms())
    except (EntryUnknown, LedgerUnknown) as error:
        raise Damaged(f"{key}: an entry is missing on the disk: {error}") from error
    await keeper.change(lambda _: record)
    producers.begin_term(now_ms=clock.monotonic_ms())
    return Taken(keeper, producers)


async def _close_all(
    ensembles: Ensembles, record: PartitionRecord, term: Term, now_ms: int
) -> tuple[PartitionRecord, ProducerTable]:
    """The chain with every ledger closed, and the producers as of its end."""
    producers: ProducerTable | None = None
    # Two at most, in order: what is found of one says where the next must begin.
    for info in record.open:
        closed, producers_then = await _close(ensembles, info, term, record.closed_end, now_ms)
        producers = producers_then or producers
        record = chain.with_closed(record, closed)
    if producers is None:
        producers = await _producers_of_last(ensembles, record, now_ms)
    return record, producers


def _empty(info: LedgerInfo, first_offset: int) -> LedgerInfo:
    return msgspec.structs.replace(
        info, closed=True, first_offset=first_offset, offset_end=first_offset
    )


async def _close(
    ensembles: Ensembles, info: LedgerInfo, term: Term, first_offset: int, now_ms: int
) -> tuple[LedgerInfo, ProducerTable | None]:
    """Fences an open ledger and finds its end."""
    ledger = info.ledger
    placement, entry_last = await ensembles.recover(info.placement, term)
    info = msgspec.structs.replace(info, placement=placement)
    if entry_last == NO_ENTRY:
        return _empty(info, first_offset), None

    # A small ledger whole: one read instead of three is much where ten thousand are taken over.
    small = entry_last < _BLOCK_ENTRIES_MAX
    bytes_max, wanted = (_SMALL_BYTES, entry_last) if small else (1, EntryId(0))
    first = await ensembles.read(placement, EntryId(0), last=wanted, bytes_max=bytes_max)
    if decode_checkpoint(first[0].payload).offset_next > first_offset:
        # Entries of the ledger before it failed, so nothing in this one was ever confirmed.
        return _empty(info, first_offset), None

    newest = await _last_checkpoint(ensembles, placement, entry_last, known=first)
    at, checkpoint = newest.entry, newest.checkpoint
    index = LedgerIndex()
    producers = ProducerTable(checkpoint.producers, checkpoint.open_transactions)
    index.adopt(at, checkpoint, [], [])
    offset_end = checkpoint.offset_next
    for entry, header, marker in newest.behind:
        if header.base_offset != offset_end:
            raise Damaged(
                f"ledger {ledger}: entry {entry} has offset {header.base_offset}, "
                f"expected {offset_end}"
            )
        index.note_batch(entry, header, header.size)
        producers.note(header, now_ms=now_ms, marker=marker)
        offset_end = header.offset_end

    if info.first_offset not in (UNKNOWN_OFFSET, first_offset):
        raise Damaged(f"ledger {ledger} starts at {info.first_offset}, not at {first_offset}")
    closed = msgspec.structs.replace(
        info,
        closed=True,
        first_offset=first_offset,
        entry_last=entry_last,
        offset_end=offset_end,
        payload_bytes=index.payload_bytes,
        timestamp_max=index.timestamp_max,
        checkpoint_last=at,
    )
    return closed, producers


class _Newest(NamedTuple):
    """The newest checkpoint of a ledger, and what the batches behind it say of themselves."""

    entry: EntryId
    checkpoint: Checkpoint
    behind: list[tuple[EntryId, BatchHeader, Marker | None]]


class _Block:
    """Entries that follow each other: the last checkpoint among them, and what is behind it."""

    def __init__(self) -> None:
        self.found: tuple[EntryId, Checkpoint] | None = None
        self.behind: list[tuple[EntryId, BatchHeader, Marker | None]] = []

    def add(self, entry: Entry) -> None:
        if is_checkpoint(entry.payload):
            self.found = entry.entry, decode_checkpoint(entry.payload)
            self.behind.clear()
        else:
            header = read_header(memoryview(entry.payload))
            self.behind.append((entry.entry, header, read_marker(entry.payload, header)))


async def _last_checkpoint(
    ensembles: Ensembles, placement: Placement, entry_last: EntryId, *, known: Sequence[Entry]
) -> _Newest:
    """Reads back from `entry_last` to the newest checkpoint, each entry once.

    `known` are the first entries; nothing is read if these are all, or there is the checkpoint.
    """
    behind: list[tuple[EntryId, BatchHeader, Marker | None]] = []
    end, step = entry_last, 1
    while end > known[-1].entry:
        start, block = EntryId(max(known[-1].entry + 1, end - step + 1)), _Block()
        async for entry in ensembles.read_forward(placement, start, last=end):
            block.add(entry)
        behind[:0] = block.behind
        if block.found is not None:
            return _Newest(*block.found, behind)
        end, step = EntryId(start - 1), min(2 * step, _BLOCK_ENTRIES_MAX)

    block = _Block()
    for entry in known:
        block.add(entry)
    if block.found is None:
        raise Damaged(f"ledger {placement.ledger} has no checkpoint")
    return _Newest(*block.found, [*block.behind, *behind])


async def _producers_of_last(
    ensembles: Ensembles, record: PartitionRecord, now_ms: int
) -> ProducerTable:
    """The producers as of the end of the last closed ledger."""
    if not record.closed:
        return ProducerTable()
    return await producers_behind(ensembles, record.closed[-1], now_ms=now_ms)


async def producers_behind(ensembles: Ensembles, info: LedgerInfo, *, now_ms: int) -> ProducerTable:
    """The producers as of the end of a closed ledger."""
    entries = ensembles.read_forward(
        info.placement, EntryId(info.checkpoint_last), last=EntryId(info.entry_last)
    )
    producers = ProducerTable()
    async for entry in entries:
        if is_checkpoint(entry.payload):
            checkpoint = decode_checkpoint(entry.payload)
            producers = ProducerTable(checkpoint.producers, checkpoint.open_transactions)
        else:
            header = read_header(memoryview(entry.payload))
            producers.note(header, now_ms=now_ms, marker=read_marker(entry.payload, header))
    return producers


async def load_index(ensembles: Ensembles, info: LedgerInfo) -> LedgerIndex:
    """The index of a closed ledger, from its checkpoints and what came behind the last one."""
    rows: list[tuple[int, int, int]] = []
    aborted: list[AbortedRange] = []
    newest: Checkpoint | None = None
    at = info.checkpoint_last
    while at != NO_ENTRY:
        found = await ensembles.read(info.placement, EntryId(at), last=EntryId(at), bytes_max=1)
        checkpoint = decode_checkpoint(found[0].payload)
        newest = newest or checkpoint
        rows[:0] = checkpoint.rows
        aborted[:0] = checkpoint.aborted
        at = checkpoint.previous
    if newest is None:
        raise Damaged(f"ledger {info.ledger} has no checkpoint")

    index = LedgerIndex()
    index.adopt(EntryId(info.checkpoint_last), newest, rows, aborted)
    producers = ProducerTable(newest.producers, newest.open_transactions)
    behind = EntryId(info.checkpoint_last + 1)
    last = EntryId(info.entry_last)
    async for entry in ensembles.read_forward(info.placement, behind, last=last):
        header = read_header(memoryview(entry.payload))
        index.note_batch(entry.entry, header, len(entry.payload))
        marker = read_marker(entry.payload, header)
        index.note_aborted(producers.note(header, now_ms=0, marker=marker))
    index.open_behind = producers.lowest_open
    return index
