"""The leases of an embedded coordinator: a table of deadlines on monotonic time; pure.

A lease is in one of three states, and never goes back:

    alive     now < deadline; can be renewed and written with
    expired   now >= deadline, its keys still there; only the end can follow
    ended     not in the table, its keys gone

So a late expiry task never lengthens a lease: the deadline decides, whichever call sees it first.
Leases are not stored. Their holders live in this process, and the keys bound to a lease are deleted
when the file is opened next.
"""

from dataclasses import dataclass

from dovetail.coordination.protocol import LeaseId


@dataclass(slots=True)
class _Lease:
    ttl_ms: int
    deadline_ms: float


class LeaseTable:
    """Which leases are alive. Ids go up from `first`, and none is given twice."""

    def __init__(self, *, first: LeaseId) -> None:
        self._leases: dict[LeaseId, _Lease] = {}
        self._next = first

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, *, ttl_ms: int, now_ms: float) -> LeaseId:
        lease = self._next
        self._next = LeaseId(lease + 1)
        self._leases[lease] = _Lease(ttl_ms=ttl_ms, deadline_ms=now_ms + ttl_ms)
        return lease

    def alive(self, lease: LeaseId, *, now_ms: float) -> bool:
        held = self._leases.get(lease)
        return held is not None and now_ms < held.deadline_ms

    def renew(self, lease: LeaseId, *, now_ms: float) -> bool:
        """Restarts the time if the lease is alive; returns whether it was."""
        held = self._leases.get(lease)
        if held is None or now_ms >= held.deadline_ms:
            return False
        held.deadline_ms = now_ms + held.ttl_ms
        return True

    def expired(self, *, now_ms: float) -> list[LeaseId]:
        return [lease for lease, held in self._leases.items() if now_ms >= held.deadline_ms]

    def remove(self, lease: LeaseId) -> None:
        self._leases.pop(lease, None)
