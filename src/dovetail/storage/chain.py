"""A partition's chain of ledgers, as it lies in the coordination service.

    ledger    open → closed → (trimmed)

Open ledgers are at the end of the chain, two at most: while an owner goes on in a new ledger, the
old one is closed only when its last entry is confirmed. A new owner must therefore expect two
open ledgers, and fences both.

All changes are compare-and-set on one key. Whoever lost the partition learns it there, at the
latest; the entries themselves are protected by the term.
"""

import msgspec

from dovetail.storage import NO_ENTRY, Placement

#: Where the coordination service keeps the chains, one key for each partition.
PARTITIONS = "/partitions/"

#: The first offset of an open ledger whose predecessor is not closed yet.
UNKNOWN_OFFSET = -1


class LedgerInfo(msgspec.Struct, frozen=True, array_like=True):
    """A ledger in the chain. The numbers of an open one are not known yet.

    Stored without names: some 110 bytes each, so that a value of 1 MiB holds 9,000 of them.
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

    @property
    def ledger(self) -> int:
        return self.placement.ledger


class PartitionRecord(msgspec.Struct, frozen=True):
    """What the coordination service holds of a partition."""

    topic_id: str
    partition: int
    term: int = 0
    owner: int = -1
    log_start: int = 0
    #: The end of the closed part when the chain is empty, so that offsets never go back.
    offset_base: int = 0
    ledgers: tuple[LedgerInfo, ...] = ()

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
    """The chain with one of its open ledgers on other nodes."""
    ledgers = tuple(
        msgspec.structs.replace(info, placement=placement)
        if info.ledger == placement.ledger and not info.closed
        else info
        for info in record.ledgers
    )
    return msgspec.structs.replace(record, ledgers=ledgers)


def with_closed_placement(
    record: PartitionRecord, before: Placement, after: Placement
) -> PartitionRecord:
    """The chain with a closed ledger on other nodes; unchanged if it lies elsewhere by now."""
    ledgers = tuple(
        msgspec.structs.replace(info, placement=after)
        if info.closed and info.placement == before
        else info
        for info in record.ledgers
    )
    return msgspec.structs.replace(record, ledgers=ledgers)


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


def expired_before(
    record: PartitionRecord,
    *,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
    open_bytes: int,
) -> int:
    """Retention (L11): the offset below which whole closed ledgers are past their time or room.

    A negative limit is none. A ledger whose records claim to be of the future is as old as the
    moment at which the next one was opened: nothing was written to it after that.
    """
    log_start = record.log_start
    ended = [later.opened_ms for later in record.ledgers[1:]]
    total = open_bytes + sum(info.payload_bytes for info in record.closed)
    for at, info in enumerate(record.closed):
        youngest = info.timestamp_max if info.timestamp_max >= 0 else info.opened_ms
        if youngest > now_ms and at < len(ended):
            youngest = ended[at]
        too_old = 0 <= retention_ms < now_ms - youngest
        too_much = 0 <= retention_bytes <= total - info.payload_bytes
        if not (too_old or too_much):
            break
        total -= info.payload_bytes
        log_start = max(log_start, info.offset_end)
    return log_start


def encode(record: PartitionRecord) -> bytes:
    """The value of the partition's key."""
    return msgspec.json.encode(record)


def decode(value: bytes) -> PartitionRecord:
    """The record in a key's value."""
    return msgspec.json.decode(value, type=PartitionRecord)
