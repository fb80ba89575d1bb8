"""The shared log: where members find each other, and which decides who leads.

A `SharedLog` keeps records in one order that all members see alike, and folds them (`fold`). It
decides; elections only propose. There are three, and one conformance suite runs on all of them:

    MemorySharedLog         here; for tests, also those of users
    KafkaSharedLog          a topic with one partition, on Dovetail or on Kafka
    CoordinationSharedLog   keys of a coordination service (embedded or etcd)

Promises of each:
- `append` returns when the record is stored, counts, and has been folded here. `Fenced` means that
  it does not count; `Uncertain` that it may or may not be stored; `Unavailable` that it is not.
- Every record reaches `on_entry` once and in order, including those of `append`, before it returns.
- `trim` may drop old records; the state stays, also for members that join later.
"""

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dovetail.clock import Clock, SystemClock
from dovetail.election.fold import LogState, Moment, Record, Snapshot, moment_of
from dovetail.election.signature import Mark, RecordSigner
from dovetail.errors import Fenced, Unavailable, Uncertain

#: Verdicts that are kept for appends whose answer comes after the record itself.
VERDICTS_KEPT = 4_096


@dataclass(frozen=True, slots=True)
class Entry:
    """A record that was folded, and whether it counts."""

    index: int
    record: Record
    counts: bool


@dataclass(frozen=True, slots=True)
class _Read:
    """A record as it was read."""

    index: int
    record: Record
    moment: Moment
    mark: Mark | None


OnEntry = Callable[[Entry], None]


class SharedLog(Protocol):
    """Records in one order for all members."""

    @property
    def state(self) -> LogState:
        """What the records read so far say."""
        ...

    @property
    def untrimmed_count(self) -> int:
        """Records that a new member would have to read."""
        ...

    async def open(self, on_entry: OnEntry) -> None:
        """Reads all there is, then follows. Raises `Unavailable` if it cannot be reached."""
        ...

    async def append(self, record: Record) -> None:
        """Stores a record that counts. Raises `Fenced`, `Uncertain` or `Unavailable`."""
        ...

    async def trim(self) -> None:
        """Forgets records that a snapshot stands for."""
        ...

    async def close(self) -> None:
        """Ends reading; safe to call again."""
        ...


class LogFollower:
    """Folds records as they come; knows the verdict on each, and what to do after a gap."""

    def __init__(self, clock: Clock) -> None:
        self.state = LogState()
        self.index_next = 0
        self._clock = clock
        self._on_entry: OnEntry | None = None
        self._verdicts: OrderedDict[int, bool] = OrderedDict()
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        #: After a gap: what was read behind it, until a snapshot says what was before.
        self._behind_gap: list[_Read] | None = None
        self._gap_end = 0

    @property
    def has_gap(self) -> bool:
        """Whether a snapshot is missing that says what was before."""
        return self._behind_gap is not None

    def follow(self, on_entry: OnEntry) -> None:
        """What was there at the start is read: from now on entries are passed on."""
        self._on_entry = on_entry
        self.close_gap()

    def close_gap(self) -> None:
        """All is read, and a log that was trimmed without a snapshot held nothing of ours."""
        self._close_gap(None)

    def take(
        self, index: int, record: Record | None, wall_ms: int, mark: Mark | None = None
    ) -> None:
        """The next record; None is one of another environment or version, or of a stranger.

        `mark` says who signed it, where records are signed.
        """
        if index < self.index_next:
            return
        if index > self.index_next and self._behind_gap is None:
            self._behind_gap, self._gap_end = [], index
        self.index_next = index + 1
        if record is None:
            self._settle(index, counts=False)
            return

        read = _Read(index, record, moment_of(wall_ms, self.now()), mark)
        if self._behind_gap is None:
            self._fold(read)
            return
        self._behind_gap.append(read)
        # One that was copied from before does not reach up to the gap's end.
        if isinstance(record, Snapshot) and record.base + 1 >= self._gap_end:
            self._close_gap(record)

    async def verdict(self, index: int, *, timeout_s: float) -> bool:
        """Whether the record at `index` counts. Raises `Uncertain` if it is not read in time."""
        if index in self._verdicts:
            return self._verdicts[index]
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        future = self._waiting.setdefault(index, future)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(future)
        except TimeoutError as error:
            raise Uncertain(
                f"record {index} of the shared log was stored but not read back within "
                f"{timeout_s:g} s; whether it counts is not known"
            ) from error

    def now(self) -> Moment:
        """Both clocks."""
        return Moment(self._clock.wall_ms(), self._clock.monotonic_ms())

    def _close_gap(self, snapshot: Snapshot | None) -> None:
        behind, self._behind_gap = self._behind_gap, None
        if behind is None:
            return
        if snapshot is not None:
            self.state.start_from(snapshot, now=self.now())
        for read in behind:
            if snapshot is None or read.index > snapshot.base:
                self._fold(read)

    def _fold(self, read: "_Read") -> None:
        if read.mark is not None and not self.state.is_new(*read.mark):
            # Somebody wrote it once more.
            self._settle(read.index, counts=False)
            return
        counts = self.state.apply(read.record, read.moment)
        if self._on_entry is not None:
            self._on_entry(Entry(read.index, read.record, counts))
        self._settle(read.index, counts=counts)

    def _settle(self, index: int, *, counts: bool) -> None:
        self._verdicts[index] = counts
        if len(self._verdicts) > VERDICTS_KEPT:
            self._verdicts.popitem(last=False)
        waiting = self._waiting.pop(index, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(counts)


@dataclass(frozen=True, slots=True)
class Signing:
    """The secret that records are signed with, and whether others are ignored.

    Members of a version that did not sign are understood while it is not `required`.
    """

    secret: str = field(repr=False)
    required: bool = True


class FollowedLog:
    """What all shared logs have: one follower, and the index of the first record that is kept."""

    def __init__(self, clock: Clock | None, signing: Signing | None = None) -> None:
        self._clock = clock or SystemClock()
        self._follower = LogFollower(self._clock)
        self._first = 0
        self._required = signing is not None and signing.required
        self._signer: RecordSigner | None = None
        if signing is not None:
            self._signer = RecordSigner(signing.secret.encode(), uuid.uuid4().hex)

    @property
    def state(self) -> LogState:
        return self._follower.state

    @property
    def untrimmed_count(self) -> int:
        return self._follower.index_next - self._first


def fenced(record: Record, state: LogState) -> Fenced:
    """The error for a record that does not count."""
    kind, member = type(record).__name__.lower(), getattr(record, "member", "nobody")
    return Fenced(
        f"{kind} of term {getattr(record, 'term', '-')} by {member} refused: "
        f"the shared log is at term {state.term}, led by {state.leader}"
    )


class MemoryLog:
    """What `MemorySharedLog`s of one process share."""

    def __init__(self) -> None:
        self.records: list[tuple[Record, int]] = []
        self.first = 0
        self.readers: list[MemorySharedLog] = []


class MemorySharedLog(FollowedLog):
    """A shared log in memory; `connected = False` cuts this one member off from it."""

    def __init__(self, log: MemoryLog, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._log = log
        self._connected = True

    @property
    def untrimmed_count(self) -> int:
        return len(self._log.records) - self._log.first

    @property
    def connected(self) -> bool:
        """Whether this member reaches the log."""
        return self._connected

    @connected.setter
    def connected(self, connected: bool) -> None:
        self._connected = connected
        self._catch_up()

    async def open(self, on_entry: OnEntry) -> None:
        self._check_connected()
        self._log.readers.append(self)
        self._catch_up()
        self._follower.follow(on_entry)

    async def append(self, record: Record) -> None:
        self._check_connected()
        index = len(self._log.records)
        self._log.records.append((record, self._follower.now().wall_ms))
        for reader in list(self._log.readers):
            reader._catch_up()
        if not await self._follower.verdict(index, timeout_s=1.0):
            raise fenced(record, self.state)

    async def trim(self) -> None:
        base = len(self._log.records) - 1
        await self.append(self.state.snapshot(base=base))
        self._log.first = base + 1

    async def close(self) -> None:
        if self in self._log.readers:
            self._log.readers.remove(self)

    def _check_connected(self) -> None:
        if not self._connected:
            raise Unavailable("this member is cut off from the shared log in memory")

    def _catch_up(self) -> None:
        if not self._connected:
            return
        first = max(self._follower.index_next, self._log.first)
        for index in range(first, len(self._log.records)):
            record, wall_ms = self._log.records[index]
            self._follower.take(index, record, wall_ms)
