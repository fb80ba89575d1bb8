"""Copies entries to the nodes of a closed ledger's new placement, from any node that has them.

A copy is an append under the owner's term; `repairer.py` explains why that is safe, and decides
what to copy. This module copies one stretch of entries after another, at a limited rate. It notes
the entries that no node can supply and leaves them for later.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from dovetail.clock import Clock
from dovetail.errors import DovetailError, Fenced, NotFound, NotOwner, Unavailable
from dovetail.logging import get_logger
from dovetail.storage import (
    EnsembleWriter,
    Entry,
    EntryId,
    LedgerId,
    Placement,
    Quorum,
    Term,
    chain,
)
from dovetail.storage.chain import LedgerInfo, Page, PartitionRecord
from dovetail.storage.disk.commands import Append
from dovetail.storage.held import Span, held_in
from dovetail.storage.quorum.ensembles import Nodes
from dovetail.storage.repair import plan
from dovetail.storage.repair.plan import Copy, Presence, Progress
from dovetail.storage.repair.rate import ByteRate

_log = get_logger("storage")

#: Bytes that are read from one node and sent to another at once.
COPY_BYTES = 1024 * 1024

#: Entries of a ledger that nobody could give, after which the rest of it is left for later.
LOST_MAX = 100


class OpenLedger(Protocol):
    """A ledger that a partition still writes."""

    @property
    def writer(self) -> EnsembleWriter: ...
    @property
    def info(self) -> LedgerInfo: ...


class Chain(Protocol):
    """The older part of a chain, a page at a time."""

    def pages(self) -> Sequence[int]: ...
    async def page(self, number: int) -> Page | None: ...


class Repairable(Protocol):
    """A partition, as repair needs it."""

    name: str
    #: The storage nodes that it is to lie on; empty: those that are chosen by load.
    assigned: tuple[int, ...]

    @property
    def open_ledgers(self) -> Sequence[OpenLedger]: ...
    @property
    def quorum(self) -> Quorum: ...
    @property
    def chain(self) -> Chain: ...
    @property
    def record(self) -> PartitionRecord: ...
    @property
    def term(self) -> int: ...
    @property
    def serving(self) -> bool: ...
    def roll(self) -> None: ...
    def lose(self, error: NotOwner) -> None: ...
    async def replace_placement(self, info: LedgerInfo, after: Placement) -> None: ...


@dataclass(slots=True)
class RepairReport:
    """What repair has done and what it still sees, for metrics and the console."""

    entries_copied: int = 0
    bytes_copied: int = 0
    ledgers_moved: int = 0
    #: Closed ledgers that are not whole, by partition, as of the last pass.
    lacking: dict[str, int] = field(default_factory=dict)


class Job(NamedTuple):
    """A closed ledger that is being brought to `wanted`."""

    partition: Repairable
    info: LedgerInfo
    term: Term
    wanted: Placement
    presence: Mapping[int, Presence]
    progress: Progress

    @property
    def ledger(self) -> LedgerId:
        return LedgerId(self.info.ledger)


class _GiveUp(Exception):
    """It is useless to continue with this node now."""


class Copier:
    """Fills nodes, one after another."""

    def __init__(self, nodes: Nodes, *, clock: Clock, rate: ByteRate, report: RepairReport) -> None:
        self._nodes = nodes
        self._clock = clock
        self._rate = rate
        self._report = report
        #: Nodes that did not take a copy, and when: others are tried before them for a while.
        self.refused_ms: dict[int, float] = {}

    async def fill(self, job: Job, node: int) -> None:
        """Gives a node what it lacks, or notes what it still does."""
        done = -1
        try:
            for window in plan.windows(job.info.entry_last):
                held = await self._held(job, node, window)
                for copy in plan.copies(job.wanted, node, window, held):
                    await self._copy(job, copy)
                done = window.last
        except NotOwner:
            raise
        except (_GiveUp, DovetailError) as error:
            job.progress.note_lacking(node, Span(done + 1, job.info.entry_last))
            _log.warning("cannot copy now", ledger=job.ledger, node=node, error=str(error))

    async def _held(self, job: Job, node: int, window: Span) -> list[Span]:
        try:
            return await held_in(self._nodes.node(node), job.ledger, window)
        except DovetailError:
            self.refused_ms[node] = self._now()
            raise

    async def _copy(self, job: Job, copy: Copy) -> None:
        entry = copy.span.first
        while entry <= copy.span.last:
            entries = await self._read(job, copy, entry)
            if not entries:
                self._note_lost(job, copy, entry)
                entry += 1
                continue
            await self._store(job, copy.target, entries)
            entry = entries[-1].entry + 1

    def _note_lost(self, job: Job, copy: Copy, entry: int) -> None:
        """Nobody has the entry now. Raises `_GiveUp` if that is no wonder, or too much."""
        if chain.has_left(job.partition.record, job.info):
            raise _GiveUp("it has left its chain meanwhile")
        job.progress.note_lacking(copy.target, Span(entry, entry))
        asked = plan.sources(job.info.placement, entry, job.presence, target=copy.target)
        _log.error("no storage node can give an entry", ledger=job.ledger, entry=entry, asked=asked)
        if len(job.progress.lacking[copy.target]) >= LOST_MAX:
            raise _GiveUp(f"{LOST_MAX} entries cannot be read")

    async def _read(self, job: Job, copy: Copy, entry: int) -> list[Entry]:
        """Entries from `entry` on from any node that has them; none if no node has the first.

        Raises `Unavailable` if one that may have it does not answer.
        """
        silent: Unavailable | None = None
        for last in (copy.span.last, entry):  # A damaged one behind it must not hide the first.
            for node in plan.sources(job.info.placement, entry, job.presence, target=copy.target):
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

    async def _store(self, job: Job, target: int, entries: Sequence[Entry]) -> None:
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
                self.refused_ms[target] = self._now()
                raise _GiveUp(f"storage node {target} did not store a copy: {error}")
        self._report.entries_copied += len(entries)
        self._report.bytes_copied += size

    def _now(self) -> float:
        return self._clock.monotonic_ms()


def _setter(
    outcome: "asyncio.Future[DovetailError | None]",
) -> Callable[[DovetailError | None], None]:
    def answer(error: DovetailError | None) -> None:
        if not outcome.done():
            outcome.set_result(error)

    return answer
