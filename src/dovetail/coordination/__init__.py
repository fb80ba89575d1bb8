"""Coordination: which nodes are alive, and who owns what under which term.

A small, ordered, durable store of keys that every node sees alike. It serves four purposes:

- Membership. A node writes its key bound to a lease, and keeps the lease alive. Dead nodes
  disappear by themselves; the others watch the prefix.
- Ownership. A node that wants to own something writes a key with the next term, on condition that
  the key is unchanged since it was read. Of many that try, one succeeds.
- Configuration. Topics and ledgers are keys; a change of several is one transaction.
- Notification. Read a range, then watch after its revision: nothing is missed and nothing comes
  twice. On `WatchGap` do both again. Watches are hints about state, never the state.

An election here tells a node that it may try. The store to which it then writes refuses an old
term: a paused holder does not know that its lease has ended.

A further service needs a module here that keeps the contract of `protocol.py`, a kind in
`settings/coordination.py`, a branch in `node/coordinators.py` (`open_coordinator`), and a run of
the conformance suite in `tests/unit/coordination`.

    protocol.py        the contract, with its types and limits
    embedded.py        in this process, on one SQLite file: no other service to run
    shared.py          in another process of this machine, which shares its embedded one
    service.py         answers the calls of those other processes
    calls.py           these calls
    etcd.py            on an etcd cluster (extra `etcd`)
    lease.py           `LeaseKeeper`: keeps a lease alive in the background, on any service
    mirror.py          a view of the keys below a prefix, kept up to date
    membership.py      the one membership: every node under its own lease
    _limits.py         the limits that every implementation enforces
    _keyspace.py       the committed keys, and the draft of a group of transactions; pure
    _leases.py         deadlines of the embedded leases; pure
    _history.py        the latest revisions, and the watches on them
    _journal.py        the SQLite file: lock, checks, commit
    _etcd_members.py   connections to etcd's members, deadlines, failover
    _etcd_messages.py  between our types and etcd's messages; pure
    _etcd_watch.py     a watch that outlives its connections

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
