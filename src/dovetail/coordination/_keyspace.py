"""The keys in memory, and changes to them that are decided but not yet committed; pure.

Promise: a `Keyspace` shows a committed state and nothing else. A `Draft` lies over it: each
transaction of a group is decided against what those before it left in the draft. When the group is
on disk, the keyspace absorbs the draft in one step; if the group fails, the draft is discarded and
nobody has seen any of it.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence, Set

from dovetail.coordination import protocol
from dovetail.errors import LeaseLost


class Keyspace:
    """The committed keys, as of one revision."""

    def __init__(self, items: Iterable[protocol.KeyValue], *, revision: protocol.Revision) -> None:
        self._items = {item.key: item for item in items}
        # Code points sort as their UTF-8 bytes do, so the order is that of etcd.
        self._sorted = sorted(self._items)
        self._bound: dict[protocol.LeaseId, Set[str]] = {}
        self._revision = revision

    @property
    def revision(self) -> protocol.Revision:
        return self._revision

    def get(self, key: str) -> protocol.KeyValue | None:
        return self._items.get(key)

    def range(self, prefix: str) -> protocol.Snapshot:
        """The keys that begin with `prefix`: one search, then only the keys that belong to it."""
        found = []
        for position in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            key = self._sorted[position]
            if not key.startswith(prefix):
                break
            found.append(self._items[key])
        return protocol.Snapshot(revision=self._revision, items=tuple(found))

    def bound(self, lease: protocol.LeaseId) -> Set[str]:
        """The keys that go when this lease ends."""
        return self._bound.get(lease, frozenset())

    def absorb(self, draft: "Draft") -> None:
        """Makes the draft, which is committed now, the state that is seen."""
        for key, item in draft.rows.items():
            if item is not None:
                if key not in self._items:
                    insort(self._sorted, key)
                self._items[key] = item
            elif key in self._items:
                del self._items[key]
                del self._sorted[bisect_left(self._sorted, key)]
        for lease, keys in draft.bound.items():
            if keys:
                self._bound[lease] = keys
            else:
                self._bound.pop(lease, None)
        self._revision = draft.revision


class Draft:
    """What a group of transactions would leave, decided one after the other."""

    def __init__(self, base: Keyspace, *, alive: Callable[[protocol.LeaseId], bool]) -> None:
        self._base = base
        self._alive = alive
        self.revision = base.revision
        #: The last state of each key that the group touched; None where it is deleted.
        self.rows: dict[str, protocol.KeyValue | None] = {}
        #: The keys of each lease that the group touched.
        self.bound: dict[protocol.LeaseId, set[str]] = {}
        #: The events of each new revision, in order.
        self.events: list[tuple[protocol.WatchEvent, ...]] = []
        #: The leases that the group ends.
        self.ended: set[protocol.LeaseId] = set()

    def transact(
        self, changes: Sequence[protocol.Change], conditions: Sequence[protocol.Unchanged]
    ) -> protocol.Outcome:
        """Decides one transaction. Raises `LeaseLost`, with nothing changed."""
        for condition in conditions:
            item = self._get(condition.key)
            if (protocol.ABSENT if item is None else item.revision) != condition.revision:
                return protocol.Outcome(applied=False, revision=self.revision)
        for change in changes:
            if isinstance(change, protocol.Put) and change.lease is not None:
                self._check_lease(change.lease, key=change.key)
        self._apply(changes)
        return protocol.Outcome(applied=True, revision=self.revision)

    def end_lease(self, lease: protocol.LeaseId) -> protocol.Outcome:
        """Deletes the lease's keys in one revision; later changes in the group find it ended."""
        self.ended.add(lease)
        self._apply([protocol.Delete(key) for key in sorted(self._keys_of(lease))])
        return protocol.Outcome(applied=True, revision=self.revision)

    def _check_lease(self, lease: protocol.LeaseId, *, key: str) -> None:
        if lease in self.ended or not self._alive(lease):
            raise LeaseLost(f"key {key!r} was not written: its lease {lease} has ended")

    def _apply(self, changes: Sequence[protocol.Change]) -> None:
        revision = protocol.Revision(self.revision + 1)
        events = []
        for change in changes:
            before = self._get(change.key)
            if isinstance(change, protocol.Put):
                created = revision if before is None else before.created
                value = bytes(change.value)
                after = protocol.KeyValue(change.key, value, revision, created, change.lease)
                events.append(protocol.WatchEvent(change.key, value, revision))
            elif before is not None:
                after = None
                events.append(protocol.WatchEvent(change.key, None, revision))
            else:
                continue

            self._bind(before, after)
            self.rows[change.key] = after

        if events:
            self.revision = revision
            self.events.append(tuple(events))

    def _bind(self, before: protocol.KeyValue | None, after: protocol.KeyValue | None) -> None:
        if before is not None and before.lease is not None:
            self._keys_of(before.lease).discard(before.key)
        if after is not None and after.lease is not None:
            self._keys_of(after.lease).add(after.key)

    def _keys_of(self, lease: protocol.LeaseId) -> set[str]:
        if lease not in self.bound:
            self.bound[lease] = set(self._base.bound(lease))
        return self.bound[lease]

    def _get(self, key: str) -> protocol.KeyValue | None:
        return self.rows[key] if key in self.rows else self._base.get(key)
