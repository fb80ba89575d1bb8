"""Commands that share one sync: what was decided about them, and their bytes."""

from collections.abc import Callable, Sequence

from dovetail.buffers import Buffer
from dovetail.storage.disk.frame import RECORD_BYTES, Kind, Record, encode_record
from dovetail.storage.disk.run import Row
from dovetail.storage.disk.segment import Segment


class Group:
    """Commands that share one sync, while they are decided."""

    def __init__(self) -> None:
        self.records: list[tuple[Record, Buffer]] = []
        self.entries: dict[tuple[int, int], Buffer] = {}
        self.fences: dict[int, int] = {}
        self.deleted: set[int] = set()


def encode_group(
    records: Sequence[tuple[Record, Buffer]],
    *,
    segment: Segment,
    group: int,
    newest_of: Callable[[int], int | None],
) -> tuple[list[Buffer], list[tuple[Record, Row]]]:
    """The bytes of a group that is written to the end of `segment`, and the rows of its entries.

    `newest_of` is the newest entry of a ledger so far; the record of an entry says whether it is
    newer.
    """
    buffers: list[Buffer] = []
    rows: list[tuple[Record, Row]] = []
    newest: dict[int, int] = {}
    position, last = segment.position, len(records) - 1
    for at, (plain, payload) in enumerate(records):
        record = plain
        if plain.kind is Kind.ENTRY:
            known = newest.get(plain.ledger)
            known = newest_of(plain.ledger) if known is None else known
            again = known is not None and plain.entry <= known
            if not again:
                newest[plain.ledger] = plain.entry
            if again is not plain.again:
                record = plain._replace(again=again)
            rows.append((record, Row(record.entry, position, len(payload))))

        buffers.append(
            encode_record(record, payload, salt=segment.salt, group=group, group_last=at == last)
        )
        buffers.append(payload)
        position += RECORD_BYTES + len(payload)
    return buffers, rows
