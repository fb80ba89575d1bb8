"""The ledger room: fenced, append-only storage of entries.

A *ledger* is a sequence of entries with ids 0, 1, 2, ... that one writer under one *term*
appends. An *entry* is opaque bytes. The writer chooses the ids, so replicas agree and a repeated
append is harmless. A new owner *fences* a ledger with a higher term: from then on the storage
node refuses the old writer, whatever that writer believes.

From the bottom up:

    disk.py          files: write, sync, read                 faulty_disk.py: its evil twin
    frame.py         how a record lies in a segment file, and how a scan tells torn from damaged
    run.py           where entries lie: compact rows, in memory and in index files
    segment.py       one segment file and its birth
    index.py         which entries there are, for the writing thread and for readers
    holding.py       what a node holds of a ledger, and what it should: spans of entries
    recovery.py      from files back to state, at start
    doubt.py         what a damaged node may have lost without knowing what it was
    compaction.py    giving room back, and letting damaged segments go
    store.py         the storage node's deciding and writing core; one thread, no asyncio
    node.py          StorageNode: the store behind asyncio, with group commit
    quorum.py        quorum arithmetic
    quorum_writer.py, quorum_recovery.py   the protocol, pure
    placement.py     which nodes hold which entries of a ledger
    ensembles.py     ledgers on several nodes: the doing part of the protocol
    deletion.py      deleting them, whether all nodes answer or not

All ledgers of a node share one sequence of segment files. That is what makes one sync enough for
everything that waits, however many partitions are written: 1,000 files would need 1,000 syncs.
The price is that space comes back only when a segment has no live entry left, or when what lives
in it is moved (`store.py`, compaction).
"""

from dovetail.storage.disk.files import Disk, RealDisk
from dovetail.storage.disk.store import Durability, LedgerStore, StoreSettings
from dovetail.storage.identifiers import NO_ENTRY, Entry, EntryId, LedgerId, LedgerState, Term
from dovetail.storage.node import LocalStorageNode, StorageNode
from dovetail.storage.placement import Placement
from dovetail.storage.quorum.arithmetic import SINGLE, Quorum
from dovetail.storage.quorum.ensembles import Ensembles, EnsembleWriter, OneNode

__all__ = [
    "NO_ENTRY",
    "SINGLE",
    "Disk",
    "Durability",
    "EnsembleWriter",
    "Ensembles",
    "Entry",
    "EntryId",
    "LedgerId",
    "LedgerState",
    "LedgerStore",
    "LocalStorageNode",
    "OneNode",
    "Placement",
    "Quorum",
    "RealDisk",
    "StorageNode",
    "StoreSettings",
    "Term",
]
