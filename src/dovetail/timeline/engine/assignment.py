"""Assigns buckets to consumers; pure, and the same on every broker.

Every message has a random bucket. An assignment says which consumer serves which bucket in a
window. A dealer computes it from nothing but the set of consumers and the number of buckets, so
brokers that know the same consumers agree without talking. Brokers that differ for a moment do no
harm, because the lease in the store decides; they only try for the same messages.

*ranges*: consumers sorted by id get contiguous ranges whose sizes differ by at most one.

*racks*: each bucket has one primary and, in every rack, one backup, which takes what the primary
left behind; it is another consumer than the primary, unless that is alone in its rack. Primaries
are chosen on a ring of hashes: a consumer has several points on it, a bucket goes to the next
point, and on to the one after it if that consumer is full (consistent hashing with bounded loads).
So a consumer that joins or leaves moves little more than its own buckets. Backups are ranges within
each rack, less a consumer's own buckets: they carry nothing until they are needed, so it does no
harm if they shift.

Promises: every bucket is assigned; no consumer is idle while there are buckets; in `racks` none has
more than `capacity`; ranges are half-open everywhere.

Not here: who counts as a consumer of a window (`window`), and what a backup may take (`loader`).
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from dovetail.errors import InvalidInput
from dovetail.timeline.message import BUCKETS_MAX

DealerName = Literal["ranges", "racks"]

#: Points of all consumers that a timeline can have, about: what an assignment has to sort. A
#: consumer has its part of them by the number of buckets, at least a digest full and at most 128;
#: the more, the more even. The number of consumers must not matter, or one more would move
#: everything.
_POINTS_ALL: Final = 512 * 1024
_POINTS_MIN: Final = 8
_POINTS_MAX: Final = 128
#: Places are whole numbers below 2**53, held as floats: those are sorted and compared in half the
#: time of integers of that size. The low bits of a point carry the number of its consumer, so that
#: one sort does it.
_NUMBER_BITS: Final = 20
_NUMBER_MASK: Final = (1 << _NUMBER_BITS) - 1
_HASH_SHIFT: Final = 64 - (53 - _NUMBER_BITS)
_RING_END: Final = float(1 << 53)
#: How much more than the average a consumer may have. Less is more even and moves more buckets
#: (`python -m bench.assignments` prints both).
_SLACK: Final = 1.25


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A consumer, as a dealer sees it."""

    id: str
    rack: str = ""


@dataclass(frozen=True, slots=True)
class BucketSet:
    """Buckets from `low` to below `high`; with a mask, only those whose byte is 1."""

    low: int
    high: int
    mask: bytes | None = None

    def __contains__(self, bucket: int) -> bool:
        if not self.low <= bucket < self.high:
            return False
        return self.mask is None or self.mask[bucket - self.low] == 1

    def __len__(self) -> int:
        return self.high - self.low if self.mask is None else self.mask.count(1)


NO_BUCKETS: Final = BucketSet(0, 0)


@dataclass(frozen=True, slots=True)
class Share:
    """What one consumer serves: its own buckets, and those it stands by for."""

    primary: BucketSet
    backup: BucketSet = NO_BUCKETS


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who serves what. Shares are made when they are asked for: a broker needs its own only."""

    dealer: DealerName
    buckets: int
    members: tuple[Member, ...]
    #: In `racks`: the number of each bucket's primary in `members`.
    owners: tuple[int, ...] = ()
    _by_owner: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    def share(self, consumer: str) -> Share | None:
        """The share of a consumer; None if it has none in this assignment."""
        at = next((n for n, member in enumerate(self.members) if member.id == consumer), None)
        if at is None:
            return None
        if self.dealer == "ranges":
            return Share(BucketSet(*span(self.buckets, len(self.members), at)))
        if not self._by_owner:
            for bucket, owner in enumerate(self.owners):
                self._by_owner.setdefault(owner, []).append(bucket)
        return Share(bucket_set(self._by_owner.get(at, ())), self._backup(at))

    def _backup(self, at: int) -> BucketSet:
        """What a consumer stands by for: its part of all buckets but its own, and what the one
        before it in the rack has of its part for its own."""
        rack = [n for n, member in enumerate(self.members) if member.rack == self.members[at].rack]
        place = rack.index(at)
        mine = range(*span(self.buckets, len(rack), place))
        if len(rack) == 1:
            return BucketSet(mine.start, mine.stop)
        before = range(*span(self.buckets, len(rack), (place - 1) % len(rack)))
        others = [bucket for bucket in mine if self.owners[bucket] != at]
        theirs = [bucket for bucket in before if self.owners[bucket] == rack[place - 1]]
        return bucket_set(sorted(others + theirs))

    def primary(self, bucket: int) -> Member:
        """Who serves a bucket."""
        if self.dealer == "racks":
            return self.members[self.owners[bucket]]
        return self.members[part_of(self.buckets, len(self.members), bucket)]

    def backups(self, bucket: int) -> list[Member]:
        """Who stands by for a bucket: one in every rack."""
        if self.dealer == "ranges":
            return []
        racks: dict[str, list[Member]] = {}
        for member in self.members:
            racks.setdefault(member.rack, []).append(member)
        primary = self.members[self.owners[bucket]]
        found = []
        for rack in racks.values():
            place = part_of(self.buckets, len(rack), bucket)
            place += rack[place] == primary
            found.append(rack[place % len(rack)])
        return found


def assign(dealer: DealerName, members: Iterable[Member], *, buckets: int) -> Assignment:
    """The assignment for these consumers; more than there are buckets, and the last ones get none.

    Raises `InvalidInput` if the number of buckets is out of range.
    """
    if not 0 < buckets <= BUCKETS_MAX:
        raise InvalidInput(f"a timeline has 1 to {BUCKETS_MAX} buckets, not {buckets}")
    by_id = {member.id: member for member in members}
    served = tuple(by_id[name] for name in sorted(by_id)[:buckets])
    if dealer == "ranges" or not served:
        return Assignment(dealer, buckets, served)
    return Assignment(dealer, buckets, served, _ring(served, buckets))


# Ranges


def span(buckets: int, parts: int, at: int) -> tuple[int, int]:
    """The half-open range of one of `parts`; sizes differ by at most one."""
    return at * buckets // parts, (at + 1) * buckets // parts


def part_of(buckets: int, parts: int, bucket: int) -> int:
    """Which part a bucket is in: the inverse of `span`."""
    return ((bucket + 1) * parts - 1) // buckets


def bucket_set(buckets: Sequence[int]) -> BucketSet:
    """Ascending buckets as a set, with a mask only where there are gaps."""
    if not buckets:
        return NO_BUCKETS
    low, high = buckets[0], buckets[-1] + 1
    if high - low == len(buckets):
        return BucketSet(low, high)
    mask = bytearray(high - low)
    for bucket in buckets:
        mask[bucket - low] = 1
    return BucketSet(low, high, bytes(mask))


# The ring


def capacity(buckets: int, consumers: int) -> int:
    """The most that one consumer gets.

    It grows in steps of a tenth, so that one consumer more or less seldom changes it: a new
    capacity moves buckets of everybody.
    """
    wanted = _SLACK * buckets / consumers
    found = 1
    while found < wanted:
        found = max(found + 1, found * 11 // 10)
    return found


def _ring(members: Sequence[Member], buckets: int) -> tuple[int, ...]:
    count = max(_POINTS_MIN, min(_POINTS_MAX, _POINTS_ALL // buckets // 8 * 8))
    ring = [
        point + number
        for number, member in enumerate(members)
        for point in _points(member.id, count)
    ]
    ring.sort()
    points = len(ring)
    ring.append(_RING_END)

    most = capacity(buckets, len(members))
    load = [0] * len(members)
    owners = [0] * buckets
    at = 0
    for place, bucket in _bucket_order(buckets):
        while ring[at] < place:
            at += 1
        step = at if at < points else 0
        owner = int(ring[step]) & _NUMBER_MASK
        while load[owner] >= most:
            step = step + 1 if step + 1 < points else 0
            owner = int(ring[step]) & _NUMBER_MASK
        load[owner] += 1
        owners[bucket] = owner

    _wake_idle(members, owners, load)
    return tuple(owners)


def _wake_idle(members: Sequence[Member], owners: list[int], load: list[int]) -> None:
    """Gives each consumer that got nothing one bucket of another that has several."""
    idle = [number for number, has in enumerate(load) if not has]
    if not idle:
        return
    buckets = len(owners)
    for number in idle:
        bucket = (int(_points(members[number].id, _POINTS_MIN)[0]) >> _NUMBER_BITS) % buckets
        while load[owners[bucket]] < 2:
            bucket = (bucket + 1) % buckets
        load[owners[bucket]] -= 1
        load[number] += 1
        owners[bucket] = number


@lru_cache(maxsize=65_536)
def _points(consumer: str, count: int) -> tuple[float, ...]:
    """Places on the ring, a multiple of eight; each digest has eight of them."""
    digests = b"".join(
        hashlib.blake2b(f"{number}/{consumer}".encode()).digest()
        for number in range(count // _POINTS_MIN)
    )
    return tuple(_place(number) for number in struct.unpack(f"<{count}Q", digests))


def _place(digest: int) -> float:
    """Where 64 random bits are on the ring."""
    return float(digest >> _HASH_SHIFT << _NUMBER_BITS)


@lru_cache(maxsize=16)
def _bucket_order(buckets: int) -> tuple[tuple[float, int], ...]:
    """The buckets by their place on the ring."""
    digests = (
        int.from_bytes(hashlib.blake2b(f"bucket {bucket}".encode(), digest_size=8).digest())
        for bucket in range(buckets)
    )
    return tuple(sorted((_place(digest), bucket) for bucket, digest in enumerate(digests)))


def loads(assignment: Assignment) -> Mapping[str, int]:
    """How many buckets each consumer has."""
    if assignment.dealer == "ranges":
        parts = len(assignment.members)
        sizes = (span(assignment.buckets, parts, at) for at in range(parts))
        return {
            member.id: high - low
            for member, (low, high) in zip(assignment.members, sizes, strict=True)
        }
    found = dict.fromkeys((member.id for member in assignment.members), 0)
    for owner in assignment.owners:
        found[assignment.members[owner].id] += 1
    return found
