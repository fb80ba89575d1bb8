"""Ledgers: fenced, append-only storage of entries, on one node or several.

A *ledger* is a sequence of entries with ids 0, 1, 2, ... that one writer appends under one *term*.
An *entry* is opaque bytes. The writer chooses the ids, so replicas agree and a repeated append is
harmless. A new owner *fences* a ledger with a higher term: from then on the storage node refuses
the old writer, whatever that writer believes.

From the bottom up:

    identifiers.py  ledger id, entry id and term, as types
    held.py         spans of entry ids: what a node holds of a ledger, and what it should hold
    disk/           one node's disk: segment files, their index, recovery at start
    node.py         `StorageNode`: the contract; the local node with its group commit
    identity.py     binds a storage node's number to its disk
    placement.py    which nodes hold which entries of a ledger
    quorum/         ledgers on several nodes
    deletion.py     deletes ledgers, at once or in the background
    chain.py        a partition's ledgers, as the coordination service keeps them; pure
    pages.py        reads whole chains, including the pages of their older ledgers
    selection.py    strategies that choose nodes
    repair/         keeps every ledger at full strength
    calls.py        the private calls to a storage node
    service.py      answers these calls
    remote.py       makes these calls: a storage node in another process
    cluster.py      the storage nodes of a cluster
"""

from dovetail.storage.disk.files import Disk, RealDisk
from dovetail.storage.disk.options import Durability, StoreSettings
from dovetail.storage.disk.store import LedgerStore
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
