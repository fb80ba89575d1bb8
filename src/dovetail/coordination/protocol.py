"""The contract of every coordination service, and its types.

The model is etcd's: one ordered history of revisions over a flat space of keys. A transaction that
changes something has its own revision, greater than all before it; one that is refused, or only
deletes keys that do not exist, has none. Writing a key again is a change, even with the same value.
A lease ends unless it is kept alive, and its keys go with it, in one revision.

Promises of every implementation:
- `transact` is atomic and durable when it returns; conditions and changes see one state.
- `watch` delivers every change after its revision, in order, a revision at a time and whole, or
  raises `WatchGap`; it never skips silently.
- `get` and `range` answer with a committed state that is never older than one that the same caller
  has seen, by whichever call or watch.
- A lease ends no earlier than its time; a service may round that time up (etcd: to seconds, and to
  a minimum), so a holder counts by the time that it asked for.

The limits below hold for every implementation, so that what runs embedded also runs on etcd. A call
beyond them raises `InvalidInput` and changes nothing.

Not here: who should own what. A lease is a hint for its holder; the store that it writes to checks
the term.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NewType, Protocol

Revision = NewType("Revision", int)
LeaseId = NewType("LeaseId", int)

#: The revision that a key has when it does not exist.
ABSENT = Revision(0)

#: Longest key, in UTF-8. Keys are paths of names; a topic name has at most 249 bytes.
KEY_BYTES_MAX = 1024
#: Largest value. What is larger is data, and belongs into a ledger.
VALUE_BYTES_MAX = 1024 * 1024
#: Most changes, and most conditions, of one transaction: etcd's own `max-txn-ops`.
TRANSACTION_CHANGES_MAX = 128
#: Most bytes of keys and values in one transaction. etcd takes requests of 1.5 MiB; the rest is
#: room for its framing.
TRANSACTION_BYTES_MAX = 1408 * 1024
#: Longest lease. A holder that need not show itself for a day is not known to be alive.
LEASE_TTL_MS_MAX = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as it is: `revision` is that of its last change, `created` that of its creation."""

    key: str
    value: bytes
    revision: Revision
    created: Revision
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The keys below a prefix, sorted by key, as of one revision; watch on from there."""

    revision: Revision
    items: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Condition: the key's last change is `revision`; `ABSENT` means that it must not exist."""

    key: str
    revision: Revision


@dataclass(frozen=True, slots=True)
class Put:
    """Change: write the key, bound to a lease if one is named (and unbound if none is)."""

    key: str
    value: bytes
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Change: remove the key; no error if it is not there."""

    key: str


Change = Put | Delete


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a transaction did: `applied` with its revision, or refused with nothing changed.

    When nothing changed, `revision` is that of the state which the conditions saw.
    """

    applied: bool
    revision: Revision


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One key changed; `value` is None when it was deleted or its lease ended."""

    key: str
    value: bytes | None
    revision: Revision


class Coordinator(Protocol):
    """Who is alive, who owns what: a small, ordered, durable store."""

    async def get(self, key: str) -> KeyValue | None:
        """The key as it is now, or None."""
        ...

    async def range(self, prefix: str) -> Snapshot:
        """All keys that begin with `prefix`, as of one revision."""
        ...

    async def transact(
        self, changes: Sequence[Change], *, conditions: Sequence[Unchanged] = ()
    ) -> Outcome:
        """Applies all changes if all conditions hold, else none.

        Raises `InvalidInput` if two changes name one key or a limit is passed, `LeaseLost` if the
        conditions hold but a named lease has ended, `Uncertain` if the answer was lost on the
        way. A caller that is cancelled while it waits does not know either.
        """
        ...

    def watch(
        self, prefix: str, *, after: Revision
    ) -> AbstractAsyncContextManager[AsyncIterator[tuple[WatchEvent, ...]]]:
        """Changes below `prefix` with a revision greater than `after`, one tuple a revision.

        `after` is a revision that this service gave. The events of one revision come in no
        promised order. The iterator raises `WatchGap` when that history is gone, or its reader
        was too slow to keep up, and `CoordinationDown` when the service is closed. One task
        reads it at a time.
        """
        ...

    async def grant(self, *, ttl_ms: int) -> LeaseId:
        """A new lease that ends `ttl_ms` from now unless kept alive."""
        ...

    async def keep_alive(self, lease: LeaseId) -> None:
        """Restarts the lease's time. Raises `LeaseLost` if it has ended."""
        ...

    async def revoke(self, lease: LeaseId) -> None:
        """Ends the lease and its keys now; no error if it has ended."""
        ...

    async def close(self) -> None:
        """Releases what is held; leases end by themselves."""
        ...
