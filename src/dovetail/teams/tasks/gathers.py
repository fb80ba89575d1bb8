"""Gathering: when the items of a job are complete, and what becomes of them; pure.

The ends of all items of a job lie in one partition, because its id is their key, and with them an
opening, which the spray itself wrote. Each gives its number, the count of items, and the time until
which they are awaited; so all of this is a function of the log:

- An end counts if the broker stored it by then; later ones are left out by every reader.
- A group is complete when its opening and all its numbers have arrived. It is over when everything
  stored by its time has been read: a read that was requested `SLACK_MS` later came to the end of
  the partition.
- The group's row has the offset of its last end that counts, in place of a job's. All ends of a
  group are held until that row is in the chain's view, and then they end together (`chain`).

So two attempts make the same of a group, however they overlap, and one that begins behind some of
its ends finds the row at the last of them: a position never lies between that one and its row.

    a group    open ─ the last number arrives, or its time is over ─► closed ─ its row is in the
               view, own or another's ─► ended, with all that it holds

`SLACK_MS` is how far the clocks of brokers and tasks may be apart. Beyond that a late item could be
taken for a separate group; the next team then drops its job as a repetition. If nothing of a group
can be stored in time, opening and ends, nothing is gathered.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, TypedDict

from dovetail.teams.codecs import Codec, Undecodable, Unencodable
from dovetail.teams.envelope import Item
from dovetail.teams.outcome import RECORD_BYTES_MAX, FailureKind
from dovetail.teams.team import BACKOFF_MS_MAX

SLACK_MS = 2_000
#: The longest time that a gathering waits.
WITHIN_MS_MAX = BACKOFF_MS_MAX
#: Results of open groups in memory; beyond that they are read again when their group is closed.
KEPT_BYTES_MAX = 64 * 1024 * 1024
#: The kind of an item that had not ended in time.
MISSING = "missing"
#: An item that does not fit costs so much of the payload; a separator goes with each.
_MARK_BYTES = 64

GroupKey = tuple[bytes, int, int]


class GatheredItem(TypedDict, total=False):
    """The end of one item, as the team that gathers gets it."""

    ok: bool
    #: If it is ok.
    result: Any
    #: Why not, else: a `FailureKind`, or `missing`.
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """How an item ended: with a result, or with a kind of failure."""

    result: bytes | None
    kind: str = ""
    reason: str = ""
    #: Its result is not kept, and is read again at this offset.
    left_at: int | None = None


@dataclass(slots=True)
class Group:
    """The ends of the items of one job, as far as they have come."""

    base: bytes
    count: int
    until_ms: int
    #: All ends that count, the same number twice among them.
    offsets: list[int] = field(default_factory=list)
    ends: dict[int, End] = field(default_factory=dict)
    opened: bool = False
    closed: bool = False

    @property
    def key(self) -> GroupKey:
        return self.base, self.count, self.until_ms

    @property
    def last(self) -> int:
        """The offset under which its row is written."""
        return max(self.offsets)


class Groups:
    """The open groups of one partition."""

    def __init__(self) -> None:
        self._groups: dict[GroupKey, Group] = {}
        self._at: dict[int, Group] = {}
        self._due: list[tuple[int, GroupKey]] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._groups)

    @staticmethod
    def counts(item: Item | None, *, at_ms: int) -> bool:
        """Whether the end of an item, stored at a time, belongs to its group.

        Whoever may submit jobs can forge items, but no group that keeps the position for ever.
        """
        latest_ms = at_ms + WITHIN_MS_MAX + SLACK_MS
        return item is not None and at_ms <= item.until_ms <= latest_ms

    def add(self, offset: int, item: Item, end: End) -> Group | None:
        """One more end, or the opening, that counts; the group, if it is complete with it."""
        key = (item.base, item.count, item.until_ms)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(*key)
            heappush(self._due, (item.until_ms, key))
        group.offsets.append(offset)
        self._at[offset] = group
        if item.opens:
            group.opened = True
        elif item.number not in group.ends:
            size = len(end.result or b"")
            if self._bytes + size > KEPT_BYTES_MAX:
                end, size = End(None, left_at=offset), 0
            self._bytes += size
            group.ends[item.number] = end
        complete = group.opened and len(group.ends) == item.count
        return group if complete and not group.closed else None

    def over(self, *, read_ms: int) -> list[Group]:
        """The groups whose time is over, if all that was stored by `read_ms` is read."""
        found = []
        while self._due and self._due[0][0] + SLACK_MS <= read_ms:
            group = self._groups.get(heappop(self._due)[1])
            if group is not None and not group.closed:
                found.append(group)
        return found

    def end(self, offset: int) -> list[int]:
        """The row of the group with this end is in the view: the other ends that go with it."""
        group = self._at.get(offset)
        if group is None:
            return []
        self._groups.pop(group.key, None)
        for one in group.offsets:
            self._at.pop(one, None)
        kept = (end.result for end in group.ends.values() if end.left_at is None)
        self._bytes -= sum(len(result or b"") for result in kept)
        return [one for one in group.offsets if one != offset]


def payload_of(group: Group, *, given: Codec, wanted: Codec) -> bytes:
    """What the next team gets: a list with an entry for each item, in order.

    If it is too large for a record, results from some item on are left out, and marked so.
    """
    decode, encode = given.decoder(Any), wanted.encoder()
    entries: list[GatheredItem] = []
    left = RECORD_BYTES_MAX - _MARK_BYTES * (group.count + 1)
    for number in range(group.count):
        entry = _entry(group.ends.get(number), decode)
        try:
            size = len(encode(entry))
        except Unencodable as error:
            kind, reason = FailureKind.RESULT_UNWRITABLE.value, str(error)[:100]
            entry = {"ok": False, "kind": kind, "reason": reason}
            size = len(encode(entry))
        if size > left + _MARK_BYTES:
            entry = {"ok": False, "kind": FailureKind.RESULT_TOO_LARGE.value, "reason": ""}
        else:
            left -= max(0, size - _MARK_BYTES)
        entries.append(entry)
    return encode(entries)


def _entry(end: End | None, decode: Any) -> GatheredItem:
    if end is None:
        return {"ok": False, "kind": MISSING, "reason": "it did not end in time"}
    if end.result is None:
        return {"ok": False, "kind": end.kind, "reason": end.reason}
    try:
        return {"ok": True, "result": decode(end.result)}
    except Undecodable as error:
        return {"ok": False, "kind": FailureKind.JOB_UNREADABLE.value, "reason": str(error)[:100]}
