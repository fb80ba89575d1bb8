"""Re-replication: the owner of a partition brings its closed ledgers back to full strength (L10).

The repairer works in the background, one ledger at a time, at a limited rate; `plan.py` decides
what it does. A node that lacks entries gets them from its peers. A node that is gone or leaving is
replaced by another, which gets all entries *before* the chain names it. A ledger that is still open
is closed first: the owner rolls to a new one, on nodes that stay.

Why copying is safe, whichever owner does it and whatever dies meanwhile:

- Only closed ledgers are copied. Their end is in the chain and never moves, no recovery touches
  them, and no entry that a writer stored beyond that end will ever be read.
- An entry id of a ledger has one payload for ever: one writer chose it, and recoveries only repeat
  what they found. So a copy has the same bytes wherever it comes from, and a second copy, by a
  second owner or by one that was believed dead, is a success that writes nothing (L5).
- Copies are appends under the owner's term. A term is above every fence that existed when it was
  claimed. A node with a higher fence has seen a newer owner, and stops the old one here. A copy
  creates no fence, and need not: the chain protects a closed ledger. The nodes that fenced its old
  writer refuse it and keep their fences; the new node was never in the ensemble that this writer
  knows.
- The chain changes by one compare-and-set under the owner's term, after the copies are durable. An
  owner that dies before it leaves copies that no chain names; the next owner finds them when it
  asks the node, or they go with the ledger. A replaced owner is refused by the compare-and-set. So
  the chain never names a node that does not hold everything of its place.
- A node that loses its place keeps what it has: readers with the old placement find it there, and
  if the node returns it needs little to take a place again. Its entries go when the ledger leaves
  its chain (`sweeping.py`) and not before, because its fence would go too.

Survives: source, target or owner dying at any step (the ledger stays as it was, and the next pass
asks anew); two owners at once; a node that was given up and returns.

Not here: choosing nodes (`Nodes`), which nodes are present or leaving (`StorageView`), a damaged
node's own view of itself (`wholeness.py`).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dovetail.clock import Clock
from dovetail.errors import DovetailError, NotOwner, Unavailable
from dovetail.logging import get_logger
from dovetail.storage import Placement, Term
from dovetail.storage.chain import LedgerInfo, PartitionRecord
from dovetail.storage.held import Span
from dovetail.storage.placement import Fragment
from dovetail.storage.quorum.ensembles import Nodes
from dovetail.storage.repair import plan
from dovetail.storage.repair.copying import Copier, Job, OpenLedger, Repairable, RepairReport
from dovetail.storage.repair.plan import Attendance, Presence, Progress
from dovetail.storage.repair.rate import ByteRate

_log = get_logger("storage")

#: Pause between two passes over all partitions. A pass with nothing to do looks at each partition
#: once: 1000 take some milliseconds.
CHECK_MS = 5_000

#: What a node was found to hold is asked again after so long, for losses that nobody noticed.
RECHECK_MS = 60 * 60 * 1000


class StorageView(Protocol):
    """The storage nodes, as the cluster sees them."""

    def present(self) -> Mapping[int, str]:
        """Those that hold their lease, each with its life: another one after every start."""
        ...

    def given_up(self) -> Collection[int]:
        """Those that are to hold nothing in the end: draining, or removed."""
        ...


@dataclass(frozen=True, slots=True)
class RepairSettings:
    """How long a node is waited for, and how fast copies are made."""

    after_ms: int
    bytes_per_second: int
    check_ms: int = CHECK_MS
    recheck_ms: int = RECHECK_MS


class _Known(NamedTuple):
    """When a node was found to hold all of a ledger; void when either has changed since."""

    fragments: tuple[Fragment, ...]
    departures: int
    at_ms: float


class _PageSeen(NamedTuple):
    """A page as it was looked at, and when all of it was whole; None if it was not."""

    ledgers: frozenset[int]
    whole: object


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
        self.report = RepairReport()
        rate = ByteRate(settings.bytes_per_second)
        self._copier = Copier(nodes, clock=clock, rate=rate, report=self.report)
        #: By ledger and node.
        self._known: dict[int, dict[int, _Known]] = {}
        #: How often the nodes of an open ledger had gone away when it was first seen.
        self._opened: dict[int, dict[int, int]] = {}
        #: Partitions with nothing to do, as long as nothing changes.
        self._resting: dict[str, tuple[PartitionRecord, object]] = {}
        #: By partition and page; pages that are whole are not read again either.
        self._pages: dict[tuple[str, int], _PageSeen] = {}
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Something has changed: the next pass begins at once."""
        self._woken.set()

    def doubt(self, ledger: int, node: int) -> None:
        """The node could not read an entry of the ledger: ask it again what it holds."""
        self._known.get(ledger, {}).pop(node, None)
        self._resting.clear()
        self._pages = {at: page._replace(whole=None) for at, page in self._pages.items()}
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
                    _log.error(
                        "repair failed: internal error", partition=partition.name, error=repr(error)
                    )
            self._forget_all_but(served)
            try:
                async with asyncio.timeout(self._settings.check_ms / 1000):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def mend(self, partition: Repairable) -> None:
        """One pass over a partition; raises nothing that is expected."""
        self._attendance.note(self._view.present(), now_ms=self._now())
        record, stamp = partition.record, (self._stamp(), partition.assigned)
        if self._wants_roll(partition):
            partition.roll()
        if self._resting.get(partition.name) == (record, stamp):
            return
        self._resting.pop(partition.name, None)

        try:
            lacking = 0
            for number in partition.chain.pages():
                lacking += await self._mend_page(partition, number, stamp)
            lacking += await self._mend_ledgers(partition, record.closed)
        except NotOwner as error:
            partition.lose(error)
            return
        except DovetailError as error:
            _log.warning("cannot repair now", partition=partition.name, error=str(error))
            return

        if not partition.serving:
            return
        self.report.lacking[partition.name] = lacking
        examined = {info.ledger for info in record.closed}
        if not lacking and all(info.ledger in examined for info in partition.record.closed):
            self._resting[partition.name] = (partition.record, stamp)

    async def _mend_page(self, partition: Repairable, number: int, stamp: object) -> int:
        """How many ledgers of a page are not whole."""
        at, stamp = (partition.name, number), (stamp, partition.term)
        seen = self._pages.get(at)
        if seen is not None and seen.whole == stamp:
            return 0
        page = await partition.chain.page(number)
        ledgers = () if page is None else page.ledgers
        lacking = await self._mend_ledgers(partition, ledgers)
        self._pages[at] = _PageSeen(
            frozenset(info.ledger for info in ledgers), None if lacking else stamp
        )
        return lacking

    async def _mend_ledgers(self, partition: Repairable, infos: Sequence[LedgerInfo]) -> int:
        lacking = 0
        for info in infos:
            if not partition.serving:
                break
            lacking += not await self._mend_ledger(partition, info)
        return lacking

    # Ledgers

    def _wants_roll(self, partition: Repairable) -> bool:
        """Whether the open ledger keeps its entries from being repaired."""
        if len(partition.open_ledgers) != 1:
            return False
        ledger = partition.open_ledgers[0]
        placement, target = ledger.writer.placement, self._target(partition)
        presence = self._presence_of(placement.nodes, target)
        leaving = plan.must_leave(placement, presence)
        quorum = partition.quorum
        if leaving or placement.quorum != quorum:
            try:
                self._nodes.choose(quorum.ensemble, without=leaving, among=target)
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
        placement, target = info.placement, self._target(partition)
        if target is not None and placement.quorum.ensemble > len(target):
            target = None  # From when the topic had more copies: it has no room there.
        presence = self._presence_of(placement.nodes, target)
        leaving = plan.must_leave(placement, presence)

        unknown = [
            node
            for node, state in presence.items()
            if state is Presence.HERE and not self._is_complete(placement, node)
        ]
        if not leaving and not unknown:
            return all(state is Presence.HERE for state in presence.values())

        wanted = plan.aim(placement, presence, self._spare(placement, presence, target))
        presence |= self._presence_of(wanted.nodes, target)
        job = Job(
            partition,
            info,
            Term(partition.term),
            wanted,
            presence,
            Progress(),
        )

        departures = {node: self._attendance.departures(node) for node in wanted.nodes}
        for node in sorted(wanted.nodes):
            if presence[node] is Presence.HERE:
                job.progress.asked.add(node)
                if not self._is_complete(wanted, node):
                    await self._copier.fill(job, node)

        settled = plan.settle(placement, wanted, job.progress, entry_last=info.entry_last)
        if settled != placement:
            await partition.replace_placement(info, settled)
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

    def _target(self, partition: Repairable) -> frozenset[int] | None:
        """Where the partition is to lie if somebody said so (K13); None if nodes are chosen by
        load, which is so too while one of those is gone or leaving."""
        assigned = frozenset(partition.assigned)
        gone = (Presence.LEAVING, Presence.GONE)
        if any(state in gone for state in self._presence_of(assigned).values()):
            return None
        return assigned if len(assigned) == partition.quorum.ensemble else None

    def _spare(
        self,
        placement: Placement,
        presence: Mapping[int, Presence],
        target: Collection[int] | None,
    ) -> Sequence[int]:
        """Nodes that can take the places of those that leave, the best first.

        Those that hold another fragment of the ledger come late, for they are loaded with it; those
        that refused a copy come last.
        """
        count = len(plan.must_leave(placement, presence))
        known = sorted(n for n in placement.nodes if presence[n] is Presence.HERE)
        since_ms = self._now() - self._settings.recheck_ms
        refused = {node for node, at_ms in self._copier.refused_ms.items() if at_ms > since_ms}

        def choose(without: Collection[int]) -> Sequence[int]:
            """As many nodes as there are, up to `count`."""
            for some in range(count, 0, -1):
                with suppress(Unavailable):
                    return self._nodes.choose(
                        some, without=tuple(without), beside=known, among=target
                    )
            return ()

        return (*choose(placement.nodes | refused), *known, *choose(placement.nodes))

    # What is known

    def _presence_of(
        self, nodes: Collection[int], target: Collection[int] | None = None
    ) -> dict[int, Presence]:
        """With a target, nodes outside of it are to hold nothing of this partition in the end."""
        now_ms, given_up = self._now(), frozenset(self._view.given_up())
        if target is not None:
            given_up |= frozenset(nodes).difference(target)
        return {
            node: self._attendance.presence(node, given_up=given_up, now_ms=now_ms)
            for node in nodes
        }

    def _stamp(self) -> object:
        """Differs when partitions that were whole must be checked again."""
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

    def _note_complete(self, job: Job, settled: Placement, departures: Mapping[int, int]) -> None:
        known = self._known.setdefault(job.ledger, {})
        everything = Span(0, job.info.entry_last)
        for node in settled.nodes & job.wanted.nodes:
            if job.presence[node] is Presence.HERE and not job.progress.lacks(node, everything):
                known[node] = _Known(settled.fragments, departures[node], self._now())

    def _forget_all_but(self, partitions: Sequence[Repairable]) -> None:
        """Forgets ledgers and partitions that are no longer here."""
        names = {partition.name for partition in partitions}
        pages = {(p.name, number) for p in partitions for number in p.chain.pages()}
        self._pages = {at: page for at, page in self._pages.items() if at in pages}
        ledgers = {info.ledger for p in partitions for info in p.record.closed}
        ledgers = ledgers.union(*(page.ledgers for page in self._pages.values()))
        still_open = {o.info.ledger for p in partitions for o in p.open_ledgers}
        self._known = {n: known for n, known in self._known.items() if n in ledgers}
        self._opened = {n: opened for n, opened in self._opened.items() if n in still_open}
        self._resting = {n: resting for n, resting in self._resting.items() if n in names}
        lacking = self.report.lacking
        self.report.lacking = {n: count for n, count in lacking.items() if n in names}

    def _now(self) -> float:
        return self._clock.monotonic_ms()
