"""The gap in numbers behind which a restored node begins; pure.

Between the backup and the loss of the node, numbers were issued that the backup does not know, and
surviving clients remember them. Nothing may be issued under them again:

    term of a partition       a client ignores the news of a leader of an older term, and would
                              never find the restored node
    id of a producer          two producers under one id: the second one's batches pass for repeated
                              ones of the first, and are acknowledged without being stored
    id of a ledger            ledgers that were begun after the snapshot of the chains lie in the
                              segments, and are swept; a swept id is refused for good
    id of a timeline message  the handle of a deleted message would fit a new one, and a due record
                              would pass for one that is in its topic
"""

import sqlite3
from collections.abc import Iterable

import msgspec

from dovetail.backup.archive import Key
from dovetail.storage import chain

#: More than a node gives between two backups, and small beside what a number can be: terms are the
#: smallest, with 31 bits, and so a partition can be restored two thousand times.
NUMBERS_APART = 1_000_000

#: Where coordination keeps the next ids of ledgers and producers.
_IDS = "/ids/"


def renumbered(keys: Iterable[Key]) -> list[Key]:
    """The keys as a restored node begins with them."""
    return [_renumbered(item) for item in keys]


def _renumbered(item: Key) -> Key:
    if item.key.startswith(_IDS):
        return Key(item.key, str(int(item.value) + NUMBERS_APART).encode())
    if item.key.startswith(chain.PARTITIONS):
        record = chain.decode(item.value)
        moved = msgspec.structs.replace(record, term=record.term + NUMBERS_APART)
        return Key(item.key, chain.encode(moved))
    return item


def renumber_timeline(connection: sqlite3.Connection) -> None:
    """Leaves the gap in the file of a timeline."""
    connection.execute("UPDATE ids SET next = next + ?", (NUMBERS_APART,))
