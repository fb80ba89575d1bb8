"""Coordination: who is alive, who owns what, under which term.

A small, ordered, durable store of keys that every node sees alike. Four tools are made of it:

- Membership. A node writes its key bound to a lease, and keeps the lease alive. Dead nodes
  disappear by themselves; the others watch the prefix.
- Ownership. Who would own something writes a key under the condition that it is unchanged since
  it was read, with a term one higher. Of many that try, one is applied.
- Configuration. Topics and ledgers are keys; a change of several is one transaction.
- Notice. Read a range, then watch after its revision: nothing is missed and nothing comes twice.
  On `WatchGap` do both again. Watches are hints about state, never the state.

An election here tells a node that it may try. The store it then writes to refuses an old term:
a paused holder does not know that its lease has ended.

    protocol.py     the contract, its words and limits
    embedded.py     in this process, on one SQLite file: nothing else to run
    etcd.py         on an etcd cluster (extra `etcd`; `_etcd_*.py`: members, messages, watches)
    lease.py        `LeaseKeeper`: a lease held in the background, on any implementation
    _limits.py      what every implementation refuses
    _keyspace.py    pure: the committed keys, and the draft of a group of transactions
    _leases.py      pure: deadlines
    _history.py     the latest revisions, and the watches on them
    _journal.py     the SQLite file: lock, checks, commit

The conformance suite in `tests/unit/coordination` runs on every implementation.
"""

from dovetail.coordination.embedded import EmbeddedCoordinator, EmbeddedLimits
from dovetail.coordination.lease import LeaseKeeper, LeaseLife
from dovetail.coordination.protocol import (
    ABSENT,
    KEY_BYTES_MAX,
    LEASE_TTL_MS_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_CHANGES_MAX,
    VALUE_BYTES_MAX,
    Change,
    Coordinator,
    Delete,
    KeyValue,
    LeaseId,
    Outcome,
    Put,
    Revision,
    Snapshot,
    Unchanged,
    WatchEvent,
)

__all__ = [
    "ABSENT",
    "KEY_BYTES_MAX",
    "LEASE_TTL_MS_MAX",
    "TRANSACTION_BYTES_MAX",
    "TRANSACTION_CHANGES_MAX",
    "VALUE_BYTES_MAX",
    "Change",
    "Coordinator",
    "Delete",
    "EmbeddedCoordinator",
    "EmbeddedLimits",
    "KeyValue",
    "LeaseId",
    "LeaseKeeper",
    "LeaseLife",
    "Outcome",
    "Put",
    "Revision",
    "Snapshot",
    "Unchanged",
    "WatchEvent",
]
