"""A partition's chain of ledgers, as the coordination service keeps it; pure.

    ledger    open → closed → (trimmed, or replaced by a compacted one)

The open ledgers are at the end of the chain, two at most: when an owner rolls, the old ledger is
closed only after its last entry is confirmed. A new owner must therefore expect two open ledgers,
and fences both.

Every change is a compare-and-set on one key. An owner that has lost the partition learns it there
at the latest; the term protects the entries themselves.

A chain has no maximum size (L15). When the key's value has grown, the oldest closed ledgers move
to a *page*, a key of its own, in the same transaction that writes the record. The record keeps a
summary of them:

    /partitions/<topic id>/<number>            the record: owner, term, sum of pages, newest ledgers
    /chain-pages/<topic id>/<number>/<page>    closed ledgers, older than those of the record

Compaction writes the records it keeps of adjacent closed ledgers to a new ledger and replaces them
by it (L17). The partition's record names the new ledger as `rewriting` before any node holds it, as
with every ledger, and stops doing so in the change that puts it into the chain. Before and after,
the chain covers the log's offsets without a gap; inside a compacted ledger they have gaps.

Pages are numbered from the oldest on and cover the offsets below the record's ledgers without a
gap; the record always keeps its newest closed ledger. Only the owner changes a page, on condition
that the record is unchanged since its last write. A ledger moves once, from the record to a page.
So whoever reads the records first and the pages second sees every ledger that was in the chain
throughout.
"""

from collections.abc import Iterable, Sequence

import msgspec

from dovetail.storage import NO_ENTRY, Placement

#: Where the coordination service keeps the chains, one key for each partition.
PARTITIONS = "/partitions/"

#: Where it keeps the pages of long chains.
PAGES = "/chain-pages/"

#: Size of a page, some 300 ledgers. A record is written at every roll and read at every takeover,
#: and holds at most twice as much; a page is read to find one old offset.
PAGE_BYTES = 32 * 1024

#: The first offset of an open ledger whose predecessor is not closed yet.
UNKNOWN_OFFSET = -1


class LedgerInfo(msgspec.Struct, frozen=True, array_like=True):
    """A ledger in the chain. The numbers of an open one are not known yet.

    Stored without names: some 110 bytes each.
    """

    placement: Placement
    term: int
    opened_ms: int
    first_offset: int = UNKNOWN_OFFSET
    closed: bool = False
    entry_last: int = NO_ENTRY
    offset_end: int = UNKNOWN_OFFSET
    payload_bytes: int = 0
    timestamp_max: int = -1
    checkpoint_last: int = NO_ENTRY
    #: Records below this offset were compacted with each other and with all before them.
    compacted_to: int = UNKNOWN_OFFSET

    @property
    def ledger(self) -> int:
        return self.placement.ledger

    @property
    def is_compacted(self) -> bool:
        return self.closed and self.compacted_to >= self.offset_end


class Page(msgspec.Struct, frozen=True):
    """Closed ledgers that follow each other."""

    ledgers: tuple[LedgerInfo, ...]
    #: The highest time of this page and of all before it: it never falls from page to page.
    timestamp_peak: int
    #: When the ledger behind the page was opened.
    ended_ms: int


class Paged(msgspec.Struct, frozen=True):
    """The pages of a chain, in sum: numbers from `first` to `next` - 1."""

    first: int = 0
    next: int = 0
    ledgers: int = 0
    payload_bytes: int = 0
    timestamp_peak: int = -1


class PartitionRecord(msgspec.Struct, frozen=True):
    """What the coordination service holds of a partition; `ledgers` are those behind the pages."""

    topic_id: str
    partition: int
    term: int = 0
    owner: int = -1
    log_start: int = 0
    #: The end of the closed part when the chain is empty, so that offsets never go back.
    offset_base: int = 0
    ledgers: tuple[LedgerInfo, ...] = ()
    paged: Paged = Paged()
    #: The ledger that compaction is writing, or was when its owner died.
    rewriting: LedgerInfo | None = None

    def page_key(self, number: int) -> str:
        """Where a page is kept; padded, so that a range is in order."""
        return f"{pages_prefix(self)}{number:010d}"

    @property
    def ledger_count(self) -> int:
        return self.paged.ledgers + len(self.ledgers)

    @property
    def closed_bytes(self) -> int:
        """Bytes of all batches in closed ledgers."""
        return self.paged.payload_bytes + sum(info.payload_bytes for info in self.closed)

    @property
    def closed(self) -> tuple[LedgerInfo, ...]:
        return tuple(info for info in self.ledgers if info.closed)

    @property
    def open(self) -> tuple[LedgerInfo, ...]:
        return tuple(info for info in self.ledgers if not info.closed)

    @property
    def closed_end(self) -> int:
        """The offset behind the last closed ledger."""
        closed = self.closed
        return closed[-1].offset_end if closed else self.offset_base


def pages_prefix(record: PartitionRecord) -> str:
    """What the keys of a partition's pages begin with."""
    return f"{PAGES}{record.topic_id}/{record.partition:06d}/"


def with_open(record: PartitionRecord, info: LedgerInfo) -> PartitionRecord:
    """The chain with a new open ledger at its end; unchanged if it is there already."""
    if any(known.ledger == info.ledger for known in record.ledgers):
        return record
    if len(record.open) > 1:
        raise AssertionError(f"partition {record.partition} has two open ledgers already")
    return msgspec.structs.replace(record, ledgers=(*record.ledgers, info))


def with_closed(record: PartitionRecord, info: LedgerInfo) -> PartitionRecord:
    """The chain with its first open ledger closed as `info`; an empty one is left out.

    Unchanged if it is not open any more: a change whose answer was lost is decided again.
    """
    if all(known.ledger != info.ledger for known in record.open):
        return record
    first_open = record.open[0]
    if not info.closed or info.ledger != first_open.ledger:
        raise AssertionError(f"ledger {info.ledger} is not the first open one")
    if info.first_offset != record.closed_end:
        raise AssertionError(
            f"ledger {info.ledger} starts at {info.first_offset}, chain ends {record.closed_end}"
        )
    closed = record.closed if info.offset_end == info.first_offset else (*record.closed, info)
    rest = tuple(
        msgspec.structs.replace(later, first_offset=info.offset_end) for later in record.open[1:]
    )
    return msgspec.structs.replace(record, ledgers=(*closed, *rest), offset_base=info.offset_end)


def with_placement(record: PartitionRecord, placement: Placement) -> PartitionRecord:
    """The chain with a ledger that is being written, or rewritten, on other nodes."""

    def placed(info: LedgerInfo) -> LedgerInfo:
        if info.ledger != placement.ledger or info.closed:
            return info
        return msgspec.structs.replace(info, placement=placement)

    return msgspec.structs.replace(
        record,
        ledgers=tuple(map(placed, record.ledgers)),
        rewriting=None if record.rewriting is None else placed(record.rewriting),
    )


def replaced(
    ledgers: Sequence[LedgerInfo], sources: Sequence[int], info: LedgerInfo
) -> tuple[LedgerInfo, ...] | None:
    """The same with one ledger in the place of neighbours; None if they are not there any more."""
    here = [known.ledger for known in ledgers]
    at = here.index(sources[0]) if sources[0] in here else len(here)
    end = at + len(sources)
    if here[at:end] != list(sources):
        return None
    if (ledgers[at].first_offset, ledgers[end - 1].offset_end) != (
        info.first_offset,
        info.offset_end,
    ):
        raise AssertionError(f"ledger {info.ledger} does not cover those that it replaces")
    return (*ledgers[:at], info, *ledgers[end:])


def moved(
    ledgers: Iterable[LedgerInfo], before: Placement, after: Placement
) -> tuple[LedgerInfo, ...]:
    """The same with a closed ledger on other nodes; unchanged if it lies elsewhere by now."""
    return tuple(
        msgspec.structs.replace(info, placement=after)
        if info.closed and info.placement == before
        else info
        for info in ledgers
    )


def has_left(record: PartitionRecord, info: LedgerInfo) -> bool:
    """Whether a closed ledger was trimmed or replaced, as far as the record tells without pages."""
    if info.offset_end <= record.log_start:
        return True
    newest = record.closed
    if not newest or info.first_offset < newest[0].first_offset:
        return False
    return all(known.ledger != info.ledger for known in newest)


def repaged(
    record: PartitionRecord, before: Sequence[LedgerInfo], after: Sequence[LedgerInfo]
) -> PartitionRecord:
    """The record with the sum of its pages, one of which has other ledgers now."""
    freed = sum(i.payload_bytes for i in before) - sum(i.payload_bytes for i in after)
    paged = msgspec.structs.replace(
        record.paged,
        ledgers=record.paged.ledgers - len(before) + len(after),
        payload_bytes=record.paged.payload_bytes - freed,
    )
    return msgspec.structs.replace(record, paged=paged)


def trimmed(
    record: PartitionRecord, *, log_start: int
) -> tuple[PartitionRecord, tuple[LedgerInfo, ...]]:
    """The chain without the ledgers that lie wholly below `log_start`, and those ledgers."""
    gone = tuple(info for info in record.closed if info.offset_end <= log_start)
    kept = record.ledgers[len(gone) :]
    return (
        msgspec.structs.replace(record, ledgers=kept, log_start=max(record.log_start, log_start)),
        gone,
    )


def page_trimmed(
    record: PartitionRecord, page: Page, *, log_start: int
) -> tuple[PartitionRecord, Page | None, tuple[LedgerInfo, ...]]:
    """The chain without the ledgers of its first page that lie wholly below `log_start`.

    With it what is left of the page, None if nothing is, and the ledgers that go. The start of the
    log moves with them, so that a chain that is trimmed page by page is whole after each step.
    """
    gone = tuple(info for info in page.ledgers if info.offset_end <= log_start)
    if not gone:
        return record, page, ()
    kept = page.ledgers[len(gone) :]
    record = repaged(record, page.ledgers, kept)
    paged = msgspec.structs.replace(record.paged, first=record.paged.first + (not kept))
    log_start = max(record.log_start, gone[-1].offset_end)
    record = msgspec.structs.replace(record, log_start=log_start, paged=paged)
    return record, msgspec.structs.replace(page, ledgers=kept) if kept else None, gone


def expired_before(
    ledgers: Sequence[LedgerInfo],
    *,
    ended_ms: int | None,
    log_start: int,
    total_bytes: int,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
) -> int:
    """Retention (L11): the offset below which the oldest ledgers are past their time or room.

    `ledgers` are closed, the oldest first; `ended_ms` is when the one behind them was opened, None
    if there is none. A negative limit is none. A ledger whose records claim to be of the future is
    as old as the moment at which the next one was opened: nothing was written to it after that.
    """
    ended = [*(later.opened_ms for later in ledgers[1:]), ended_ms]
    for info, next_opened_ms in zip(ledgers, ended, strict=False):
        youngest = info.timestamp_max if info.timestamp_max >= 0 else info.opened_ms
        if youngest > now_ms and next_opened_ms is not None:
            youngest = next_opened_ms
        too_old = 0 <= retention_ms < now_ms - youngest
        too_much = 0 <= retention_bytes <= total_bytes - info.payload_bytes
        if not (too_old or too_much):
            break
        total_bytes -= info.payload_bytes
        log_start = max(log_start, info.offset_end)
    return log_start


def folded(record: PartitionRecord) -> tuple[PartitionRecord, dict[int, Page]]:
    """The chain small enough for one key, and the new pages that its oldest ledgers move to.

    The same record gives the same pages, so that a change without an answer can be decided again.
    """
    pages: dict[int, Page] = {}
    if len(encode(record)) <= 2 * PAGE_BYTES:
        return record, pages

    sizes = [len(msgspec.json.encode(info)) + 1 for info in record.ledgers]
    left, at, movable = sum(sizes), 0, len(record.closed) - 1
    paged = record.paged
    while left > 2 * PAGE_BYTES and at < movable:
        end, room = at, PAGE_BYTES
        while end < movable and (end == at or sizes[end] <= room):
            room -= sizes[end]
            end += 1

        infos = record.ledgers[at:end]
        peak = max(paged.timestamp_peak, *(info.timestamp_max for info in infos))
        pages[paged.next] = Page(infos, peak, record.ledgers[end].opened_ms)
        paged = Paged(
            paged.first,
            paged.next + 1,
            paged.ledgers + len(infos),
            paged.payload_bytes + sum(info.payload_bytes for info in infos),
            peak,
        )
        left -= sum(sizes[at:end])
        at = end
    return msgspec.structs.replace(record, ledgers=record.ledgers[at:], paged=paged), pages


def unfolded(record: PartitionRecord, pages: Iterable[Page]) -> PartitionRecord:
    """The whole chain in one record, for those who look at everything; it cannot be stored.

    A ledger that moved to a page between the two reads is taken from the page, which is newer. One
    that is being rewritten comes last: it has its nodes, and stands for no offsets yet.
    """
    infos: dict[int, LedgerInfo] = {info.ledger: info for page in pages for info in page.ledgers}
    for info in (*record.ledgers, *([] if record.rewriting is None else [record.rewriting])):
        infos.setdefault(info.ledger, info)
    return msgspec.structs.replace(
        record, ledgers=tuple(infos.values()), paged=Paged(), rewriting=None
    )


class _Long(msgspec.Struct, frozen=True):
    """The ledgers of a chain that has pages."""

    paged: Paged
    newest: tuple[LedgerInfo, ...]


class _Stored(msgspec.Struct, frozen=True):
    """A record as it is stored.

    A chain with pages has an object for `ledgers`: a node that knows nothing of pages fails to read
    it, where it would else take the pages' ledgers for those of nobody, and delete them.
    """

    topic_id: str
    partition: int
    term: int = 0
    owner: int = -1
    log_start: int = 0
    offset_base: int = 0
    ledgers: tuple[LedgerInfo, ...] | _Long = ()
    rewriting: LedgerInfo | msgspec.UnsetType = msgspec.UNSET


def encode(record: PartitionRecord) -> bytes:
    """The value of the partition's key."""
    ledgers = _Long(record.paged, record.ledgers) if record.paged.next else record.ledgers
    return msgspec.json.encode(
        _Stored(
            record.topic_id,
            record.partition,
            record.term,
            record.owner,
            record.log_start,
            record.offset_base,
            ledgers,
            msgspec.UNSET if record.rewriting is None else record.rewriting,
        )
    )


def decode(value: bytes) -> PartitionRecord:
    """The record in a key's value."""
    stored = msgspec.json.decode(value, type=_Stored)
    long = stored.ledgers if isinstance(stored.ledgers, _Long) else _Long(Paged(), stored.ledgers)
    return PartitionRecord(
        stored.topic_id,
        stored.partition,
        stored.term,
        stored.owner,
        stored.log_start,
        stored.offset_base,
        long.newest,
        long.paged,
        None if stored.rewriting is msgspec.UNSET else stored.rewriting,
    )


def encode_page(page: Page) -> bytes:
    """The value of a page's key."""
    return msgspec.json.encode(page)


def decode_page(value: bytes) -> Page:
    """The page in a key's value."""
    return msgspec.json.decode(value, type=Page)
