"""Re-replication: the owner of a partition brings its closed ledgers back to full strength (L10).

In the background, a ledger at a time, no faster than a rate (`plan.py` decides, the repairer does):
a node that lacks entries gets them from its peers; a node that is gone or leaving is replaced by
another, which gets all of its entries *before* the chain names it. A ledger that is still open is
closed first: the owner goes on in a new one, on nodes that stay.

Why copying is safe, whoever does it and whoever dies meanwhile:

- Only closed ledgers are copied. Their end is in the chain and never moves, nobody recovers them
  any more, and no writer's entry beyond that end will ever be read.
- An entry id of a ledger has one payload for ever: one writer chose it, and recoveries only repeat
  what they found. So a copy is the same bytes wherever it comes from, and a second copy, by a
  second owner or by one that was believed dead, is a success that writes nothing (L5).
- Copies are appends under the owner's term. A term is above every fence that was there when it was
  claimed; a node that fenced with a higher one has seen a newer owner, and stops the old one here.
  A copy creates no fence, and need not: what protects a closed ledger is the chain. Its old writer
  is refused by the nodes that fenced it, which keep their fences; the new node was never in the
  ensemble that this writer knows.
- The chain changes by one compare-and-set under the owner's term, after the copies are durable. An
  owner that dies before it leaves copies that no chain names; the next owner finds them there when
  it asks, or they go with the ledger. An owner that was replaced is refused by the compare-and-set.
  So the chain never names a node that did not hold everything of its place.
- The node that gave its place away keeps what it has: readers that go by the old placement find it
  there, and should it come back it needs little to take a place again. What it has goes when the
  ledger leaves its chain (`sweeping.py`) and not before, because its fence would go too.

Survives: source, target or owner dying at any step (the ledger stays as it was, the next pass asks
anew); two owners at once; a node that was given up and comes back.

Not here: choosing nodes (`Nodes`), who is there and who is leaving (`StorageView`), a damaged
node's own view of itself (`wholeness.py`).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from dovetail.clock import Clock
from dovetail.errors import DovetailError, Fenced, NotFound, NotOwner, Unavailable
from dovetail.logging import get_logger
from dovetail.storage import EnsembleWriter, Entry, EntryId, LedgerId, Placement, Quorum, Term
from dovetail.storage.chain import LedgerInfo, PartitionRecord
from dovetail.storage.disk.commands import Append
from dovetail.storage.held import Span, held_in
from dovetail.storage.placement import Fragment
from dovetail.storage.quorum.ensembles import Nodes
from dovetail.storage.repair import plan
from dovetail.storage.repair.plan import Attendance, Copy, Presence, Progress

_log = get_logger("storage")

#: Pause between two passes over all partitions. A pass with nothing to do looks at each partition
#: once: 1000 take some milliseconds.
CHECK_MS = 5_000

#: What a node was found to hold is asked again after so long, for losses that nobody noticed.
RECHECK_MS = 60 * 60 * 1000

#: Bytes that are read from one node and sent to another at once.
COPY_BYTES = 1024 * 1024

#: Entries of a ledger that nobody could give, after which the rest of it is left for later.
LOST_MAX = 100


class StorageView(Protocol):
    """The storage nodes, as the cluster sees them."""

    def present(self) -> Mapping[int, str]:
        """Those that hold their lease, each with its life: another one after every start."""
        ...

    def given_up(self) -> Collection[int]:
        """Those that are to hold nothing in the end: draining, or removed."""
        ...


class OpenLedger(Protocol):
    """A ledger that a partition still writes."""

    @property
    def writer(self) -> EnsembleWriter: ...
    @property
    def info(self) -> LedgerInfo: ...


class Repairable(Protocol):
    """A partition, as repair needs it."""

    name: str

    @property
    def open_ledgers(self) -> Sequence[OpenLedger]: ...
    @property
    def quorum(self) -> Quorum: ...
    @property
    def record(self) -> PartitionRecord: ...
    @property
    def term(self) -> int: ...
    @property
    def serving(self) -> bool: ...
    def roll(self) -> None: ...
    def lose(self, error: NotOwner) -> None: ...
    async def replace_placement(self, before: Placement, after: Placement) -> None: ...


@dataclass(frozen=True, slots=True)
class RepairSettings:
    """How long a node is waited for, and how fast copies are made."""

    after_ms: int
    bytes_per_second: int
    check_ms: int = CHECK_MS
    recheck_ms: int = RECHECK_MS


class ByteRate:
    """Spreads bytes over time: no more than a rate, and no burst after a pause."""

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_ms = bytes_per_second / 1000
        self._free_at_ms = 0.0

    def take(self, size: int, *, now_ms: float) -> float:
        """Milliseconds to wait before these bytes go."""
        start = max(now_ms, self._free_at_ms)
        self._free_at_ms = start + size / self._bytes_per_ms
        return start - now_ms


@dataclass(slots=True)
class RepairReport:
    """What repair has done and what it still sees, for metrics and the console."""

    entries_copied: int = 0
    bytes_copied: int = 0
    ledgers_moved: int = 0
    #: Closed ledgers that are not whole, by partition, as of the last pass.
    lacking: dict[str, int] = field(default_factory=dict)


class _Known(NamedTuple):
    """When a node was found to hold all of a ledger; void when either has changed since."""

    fragments: tuple[Fragment, ...]
    departures: int
    at_ms: float


class _Job(NamedTuple):
    """A closed ledger that is being brought to `wanted`."""

    partition: Repairable
    ledger: LedgerId
    entry_last: int
    term: Term
    placement: Placement
    wanted: Placement
    presence: Mapping[int, Presence]
    progress: Progress


class _GiveUp(Exception):
    """No use to go on with this node now."""


class Repairer:
    """Repairs the partitions of one node, one after another."""

    def __init__(
        self, nodes: Nodes, view: StorageView, *, clock: Clock, settings: RepairSettings
    ) -> None:
        self._nodes = nodes
        self._view = view
        self._clock = clock
        self._settings = settings
        self._attendance = Attendance(grace_ms=settings.after_ms)
        self._rate = ByteRate(settings.bytes_per_second)
        #: By ledger and node.
        self._known: dict[int, dict[int, _Known]] = {}
        #: How often the nodes of an open ledger had gone away when it was first seen.
        self._opened: dict[int, dict[int, int]] = {}
        #: Partitions with nothing to do, as long as nothing changes.
        self._resting: dict[str, tuple[PartitionRecord, object]] = {}
        #: Nodes that did not take a copy, and when: others are tried before them for a while.
        self._refused_ms: dict[int, float] = {}
        self._woken = asyncio.Event()
        self.report = RepairReport()

    def wake(self) -> None:
        """Something has changed: the next pass begins at once."""
        self._woken.set()

    def doubt(self, ledger: int, node: int) -> None:
        """The node could not read an entry of the ledger: it is asked anew what it holds."""
        self._known.get(ledger, {}).pop(node, None)
        self._resting.clear()
        self.wake()

    async def run(self, partitions: Callable[[], Sequence[Repairable]]) -> None:
        """Passes over the partitions for ever; cancel it to end."""
        while True:
            self._woken.clear()
            served = partitions()
            for partition in served:
                try:
                    await self.mend(partition)
                except Exception as error:  # noqa: BLE001 - the others must be repaired still
                    _log.error("repair met a defect", partition=partition.name, error=repr(error))
            self._forget_all_but(served)
            try:
                async with asyncio.timeout(self._settings.check_ms / 1000):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def mend(self, partition: Repairable) -> None:
        """One pass over a partition; raises nothing that is expected."""
        self._attendance.note(self._view.present(), now_ms=self._now())
        record, stamp = partition.record, self._stamp()
        if self._wants_roll(partition):
            partition.roll()
        if self._resting.get(partition.name) == (record, stamp):
            return
        self._resting.pop(partition.name, None)

        try:
            lacking = 0
            for info in record.closed:
                if not partition.serving:
                    return
                lacking += not await self._mend_ledger(partition, info)
        except NotOwner as error:
            partition.lose(error)
            return
        except DovetailError as error:
            _log.warning("cannot repair now", partition=partition.name, error=str(error))
            return

        self.report.lacking[partition.name] = lacking
        examined = {info.ledger for info in record.closed}
        if not lacking and all(info.ledger in examined for info in partition.record.closed):
            self._resting[partition.name] = (partition.record, stamp)

    # Ledgers

    def _wants_roll(self, partition: Repairable) -> bool:
        """Whether the open ledger keeps its entries from being repaired."""
        if len(partition.open_ledgers) != 1:
            return False
        ledger = partition.open_ledgers[0]
        placement = ledger.writer.placement
        presence = self._presence_of(placement.nodes)
        leaving = plan.must_leave(placement, presence)
        quorum = partition.quorum
        if leaving or placement.quorum != quorum:
            try:
                self._nodes.choose(quorum.ensemble, without=leaving)
            except Unavailable:
                return False
            return True

        if not self._has_gaps(ledger):
            return False
        age_ms = self._clock.wall_ms() - ledger.info.opened_ms
        settled = all(state is Presence.HERE for state in presence.values())
        return settled and age_ms >= self._settings.after_ms

    def _has_gaps(self, ledger: OpenLedger) -> bool:
        """Whether entries of an open ledger may lie on fewer nodes than they should."""
        placement = ledger.writer.placement
        if ledger.writer.went_on_with_fewer or len(placement.fragments) > 1:
            return True
        departures = {node: self._attendance.departures(node) for node in placement.nodes}
        return self._opened.setdefault(placement.ledger, departures) != departures

    async def _mend_ledger(self, partition: Repairable, info: LedgerInfo) -> bool:
        """Brings one ledger forward; True if it is whole."""
        placement = info.placement
        presence = self._presence_of(placement.nodes)
        leaving = plan.must_leave(placement, presence)

        unknown = [
            node
            for node, state in presence.items()
            if state is Presence.HERE and not self._is_complete(placement, node)
        ]
        if not leaving and not unknown:
            return all(state is Presence.HERE for state in presence.values())

        wanted = plan.aim(placement, presence, self._spare(placement, presence))
        presence |= self._presence_of(wanted.nodes)
        job = _Job(
            partition,
            LedgerId(info.ledger),
            info.entry_last,
            Term(partition.term),
            placement,
            wanted,
            presence,
            Progress(),
        )

        departures = {node: self._attendance.departures(node) for node in wanted.nodes}
        for node in sorted(wanted.nodes):
            if presence[node] is Presence.HERE:
                await self._fill(job, node)

        settled = plan.settle(placement, wanted, job.progress, entry_last=info.entry_last)
        if settled != placement:
            await partition.replace_placement(placement, settled)
            self.report.ledgers_moved += 1
            _log.info(
                "ledger moved",
                partition=partition.name,
                ledger=info.ledger,
                left=sorted(placement.nodes - settled.nodes),
                joined=sorted(settled.nodes - placement.nodes),
            )

        self._note_complete(job, settled, departures)
        return all(
            presence[node] is Presence.HERE and self._is_complete(settled, node)
            for node in settled.nodes
        )

    def _spare(self, placement: Placement, presence: Mapping[int, Presence]) -> Sequence[int]:
        """Nodes that can take the places of those that leave, the best first.

        Those that hold another fragment of the ledger come late, for they are loaded with it; those
        that refused a copy come last.
        """
        count = len(plan.must_leave(placement, presence))
        known = sorted(n for n in placement.nodes if presence[n] is Presence.HERE)
        since_ms = self._now() - self._settings.recheck_ms
        refused = {node for node, at_ms in self._refused_ms.items() if at_ms > since_ms}
        fresh = self._choose(count, without=placement.nodes | refused)
        return (*fresh, *known, *self._choose(count, without=placement.nodes))

    def _choose(self, count_max: int, *, without: Collection[int]) -> Sequence[int]:
        """As many nodes as there are, up to `count_max`."""
        for count in range(count_max, 0, -1):
            try:
                return self._nodes.choose(count, without=tuple(without))
            except Unavailable:
                continue
        return ()

    # Copying

    async def _fill(self, job: _Job, node: int) -> None:
        """Gives a node what it lacks, or notes what it still does."""
        job.progress.asked.add(node)
        if self._is_complete(job.wanted, node):
            return
        done = -1
        try:
            for window in plan.windows(job.entry_last):
                held = await self._held(job, node, window)
                for copy in plan.copies(job.wanted, node, window, held):
                    await self._copy(job, copy)
                done = window.last
        except NotOwner:
            raise
        except (_GiveUp, DovetailError) as error:
            job.progress.note_lacking(node, Span(done + 1, job.entry_last))
            _log.warning("cannot copy now", ledger=job.ledger, node=node, error=str(error))

    async def _held(self, job: _Job, node: int, window: Span) -> list[Span]:
        try:
            return await held_in(self._nodes.node(node), job.ledger, window)
        except DovetailError:
            self._refused_ms[node] = self._now()
            raise

    async def _copy(self, job: _Job, copy: Copy) -> None:
        entry = copy.span.first
        while entry <= copy.span.last:
            entries = await self._read(job, copy, entry)
            if not entries:
                self._note_lost(job, copy, entry)
                entry += 1
                continue
            await self._store(job, copy.target, entries)
            entry = entries[-1].entry + 1

    def _note_lost(self, job: _Job, copy: Copy, entry: int) -> None:
        """Nobody has the entry now. Raises `_GiveUp` if that is no wonder, or too much."""
        if all(info.ledger != job.ledger for info in job.partition.record.ledgers):
            raise _GiveUp("it has left its chain meanwhile")
        job.progress.note_lacking(copy.target, Span(entry, entry))
        asked = plan.sources(job.placement, entry, job.presence, target=copy.target)
        _log.error("no storage node can give an entry", ledger=job.ledger, entry=entry, asked=asked)
        if len(job.progress.lacking[copy.target]) >= LOST_MAX:
            raise _GiveUp(f"{LOST_MAX} entries cannot be read")

    async def _read(self, job: _Job, copy: Copy, entry: int) -> list[Entry]:
        """Entries from `entry` on from whoever has them; none if nobody has the first.

        Raises `Unavailable` if one that may have it does not answer.
        """
        silent: Unavailable | None = None
        for last in (copy.span.last, entry):  # A damaged one behind it must not hide the first.
            for node in plan.sources(job.placement, entry, job.presence, target=copy.target):
                try:
                    return await self._nodes.node(node).read(
                        job.ledger, EntryId(entry), last=EntryId(last), bytes_max=COPY_BYTES
                    )
                except Unavailable as error:
                    silent = error
                except NotFound:
                    continue
                except DovetailError as error:
                    _log.warning("cannot read a copy", node=node, error=str(error))
        if silent is not None:
            raise silent
        return []

    async def _store(self, job: _Job, target: int, entries: Sequence[Entry]) -> None:
        """Returns when all are durable there. Raises `NotOwner` if the node knows a newer owner."""
        size = sum(len(entry.payload) for entry in entries)
        wait_ms = self._rate.take(size, now_ms=self._now())
        if wait_ms > 0:
            await asyncio.sleep(wait_ms / 1000)

        node, loop = self._nodes.node(target), asyncio.get_running_loop()
        outcomes: list[asyncio.Future[DovetailError | None]] = []
        for entry in entries:
            outcome: asyncio.Future[DovetailError | None] = loop.create_future()
            outcomes.append(outcome)
            copy = Append(job.ledger, entry.entry, job.term, entry.confirmed, entry.payload)
            node.append(copy, _setter(outcome))

        for error in await asyncio.gather(*outcomes):
            if isinstance(error, Fenced):
                raise NotOwner(f"a newer owner was at storage node {target}: {error}")
            if error is not None:
                self._refused_ms[target] = self._now()
                raise _GiveUp(f"storage node {target} did not store a copy: {error}")
        self.report.entries_copied += len(entries)
        self.report.bytes_copied += size

    # What is known

    def _presence_of(self, nodes: Collection[int]) -> dict[int, Presence]:
        now_ms, given_up = self._now(), self._view.given_up()
        return {
            node: self._attendance.presence(node, given_up=given_up, now_ms=now_ms)
            for node in nodes
        }

    def _stamp(self) -> object:
        """Differs when partitions that were whole must be looked at again."""
        return (
            self._attendance.lives(),
            frozenset(self._view.given_up()),
            self._now() // self._settings.recheck_ms,
        )

    def _is_complete(self, placement: Placement, node: int) -> bool:
        known = self._known.get(placement.ledger, {}).get(node)
        return (
            known is not None
            and known.fragments == placement.fragments
            and known.departures == self._attendance.departures(node)
            and self._now() - known.at_ms < self._settings.recheck_ms
        )

    def _note_complete(self, job: _Job, settled: Placement, departures: Mapping[int, int]) -> None:
        known = self._known.setdefault(job.ledger, {})
        everything = Span(0, job.entry_last)
        for node in settled.nodes & job.wanted.nodes:
            if job.presence[node] is Presence.HERE and not job.progress.lacks(node, everything):
                known[node] = _Known(settled.fragments, departures[node], self._now())

    def _forget_all_but(self, partitions: Sequence[Repairable]) -> None:
        """Lets go what is known of ledgers and partitions that are not here any more."""
        names = {partition.name for partition in partitions}
        ledgers = {info.ledger for p in partitions for info in p.record.closed}
        still_open = {o.info.ledger for p in partitions for o in p.open_ledgers}
        self._known = {n: known for n, known in self._known.items() if n in ledgers}
        self._opened = {n: opened for n, opened in self._opened.items() if n in still_open}
        self._resting = {n: resting for n, resting in self._resting.items() if n in names}
        lacking = self.report.lacking
        self.report.lacking = {n: count for n, count in lacking.items() if n in names}

    def _now(self) -> float:
        return self._clock.monotonic_ms()


def _setter(
    outcome: "asyncio.Future[DovetailError | None]",
) -> Callable[[DovetailError | None], None]:
    def answer(error: DovetailError | None) -> None:
        if not outcome.done():
            outcome.set_result(error)

    return answer
