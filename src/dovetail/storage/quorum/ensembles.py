"""Ledgers on several storage nodes: performs what the quorum machines decide.

`writer.py` and `recovery.py` decide; this module applies their effects to storage nodes, local and
remote alike. One node with one copy is the smallest ensemble and takes the same path.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from dovetail.background import Tasks, keep_task
from dovetail.buffers import Buffer
from dovetail.errors import DovetailError, EntryConflict, Fenced, Unavailable, Uncertain
from dovetail.storage.deletion import Deletions
from dovetail.storage.disk.commands import Append
from dovetail.storage.identifiers import Entry, EntryId, LedgerId, Term
from dovetail.storage.node import StorageNode
from dovetail.storage.placement import Fragment, Placement
from dovetail.storage.quorum import recovery
from dovetail.storage.quorum import writer as writing
from dovetail.storage.quorum.arithmetic import Quorum, check_quorum
from dovetail.storage.quorum.reader import QuorumReader
from dovetail.storage.quorum.recovery import QuorumRecovery
from dovetail.storage.quorum.writer import QuorumWriter

#: Bytes asked for at once on a long way through a ledger.
READ_AHEAD_BYTES = 1024 * 1024

Confirm = Callable[[DovetailError | None], None]
#: Puts a new placement into the metadata; raises if that did not happen.
ChangePlacement = Callable[[Placement], Awaitable[None]]


class Nodes(Protocol):
    """The storage nodes of a cluster."""

    def node(self, number: int) -> StorageNode:
        """The node, reachable or not. Raises `Unavailable` if it is not known at all."""
        ...

    def choose(
        self,
        count: int,
        *,
        without: Sequence[int],
        beside: Sequence[int] = (),
        among: Collection[int] | None = None,
    ) -> tuple[int, ...]:
        """The best nodes for new data, in other racks than `beside`, which stay, if there are any.
        With `among` it is one of these. Raises `Unavailable` if there are not so many."""
        ...

    def near(self, number: int) -> bool:
        """Whether a node is asked before others: it stands in the same rack."""
        ...

    def away(self) -> tuple[int, ...]:
        """Nodes that belong to the cluster and are not there now."""
        ...


class EnsembleWriter:
    """Ids, order and confirmation for one ledger.

    After the first failure that cannot be mended nothing more is confirmed: the entries behind it
    are *uncertain*, and the owner closes this ledger by recovery and goes on in a new one.
    """

    def __init__(
        self, nodes: Nodes, placement: Placement, *, term: Term, change: ChangePlacement
    ) -> None:
        self._nodes = nodes
        self._placement = placement
        self._term = term
        self._change = change
        self._machine = QuorumWriter(placement.quorum, placement.fragments[-1].nodes)
        self._waiting: deque[tuple[int, Confirm]] = deque()
        self._errors: dict[int, DovetailError] = {}
        #: Whether entries were confirmed while a node of the ensemble was down.
        self.went_on_with_fewer = False
        self._changing: asyncio.Task[None] | None = None

    @property
    def ledger(self) -> LedgerId:
        return LedgerId(self._placement.ledger)

    @property
    def placement(self) -> Placement:
        """Where it lies now."""
        return self._placement

    @property
    def entry_next(self) -> EntryId:
        """The id that the next append gets."""
        return EntryId(self._machine.entry_next)

    @property
    def down(self) -> Collection[int]:
        """Nodes that failed and were not replaced: nothing is sent to them."""
        return self._machine.down

    def append(self, payload: Buffer, confirm: Confirm) -> EntryId:
        """Sends an entry; `confirm` gets None when it and all before it are stored, or the error.

        Confirmations come in the order of the appends.
        """
        entry = self.entry_next
        self._waiting.append((entry, confirm))
        self._perform(self._machine.append(payload))
        return entry

    def node_back(self, number: int) -> None:
        """A node that was away answers again."""
        self._perform(self._machine.on_back(number))

    def _perform(self, effects: list[writing.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, writing.Send):
                self._send(effect)
            elif isinstance(effect, writing.Confirm):
                while self._waiting and self._waiting[0][0] <= effect.entry:
                    self._waiting.popleft()[1](None)
            elif isinstance(effect, writing.Replace):
                self._changing = keep_task(
                    partial(self._replace, effect), name="storage/replace-nodes"
                )
            else:
                self._fail(effect.error)

    def _send(self, effect: writing.Send) -> None:
        def answered(error: DovetailError | None) -> None:
            if error is None:
                self._perform(self._machine.on_stored(effect.node, effect.entry))
            elif isinstance(error, Fenced | EntryConflict):
                self._perform(self._machine.on_refused(error))
            else:
                self._errors[effect.node] = error
                self._perform(self._machine.on_failed(effect.node))

        _append(self._nodes, self.ledger, self._term, effect, answered)

    async def _replace(self, effect: writing.Replace) -> None:
        """Finds other nodes and puts them into the metadata, or continues without them."""
        try:
            nodes = _replaced(self._nodes, self._placement, effect)
        except Unavailable:
            self.went_on_with_fewer = True
            cause = next(self._errors[node] for node in effect.nodes if node in self._errors)
            self._perform(self._machine.on_not_replaced(cause))
            return
        placement = self._placement.with_nodes(effect.first_entry, nodes)
        try:
            await self._change(placement)
        except DovetailError as error:
            self._perform(self._machine.on_refused(error))
            return
        self._placement = placement
        self._perform(self._machine.on_replaced(nodes))

    def _fail(self, error: DovetailError) -> None:
        failed, self._waiting = self._waiting, deque()
        for at, (_, confirm) in enumerate(failed):
            confirm(error if at == 0 else Uncertain(f"may or may not be stored: {error}"))


def _append(
    nodes: Nodes,
    ledger: LedgerId,
    term: Term,
    effect: writing.Send | recovery.WriteBack,
    answered: Confirm,
) -> None:
    """Sends an entry to the node that the effect names."""
    try:
        node = nodes.node(effect.node)
    except Unavailable as error:
        answered(error)
        return
    entry, confirmed = EntryId(effect.entry), EntryId(effect.confirmed)
    node.append(Append(ledger, entry, term, confirmed, effect.payload), answered)


def _replaced(nodes: Nodes, placement: Placement, effect: writing.Replace) -> tuple[int, ...]:
    """The ensemble with other nodes in the places of those that failed."""
    now = placement.fragments[-1].nodes
    stay = tuple(node for node in now if node not in effect.nodes)
    spare = iter(nodes.choose(len(effect.nodes), without=now, beside=stay))
    return tuple(next(spare) if node in effect.nodes else node for node in now)


class Ensembles:
    """Ledgers of a cluster: placed, written, recovered, read and deleted."""

    def __init__(self, nodes: Nodes, *, removed: Callable[[], Collection[int]] = frozenset) -> None:
        """`removed` are the nodes that left the cluster for good."""
        self._nodes = nodes
        self._deletions = Deletions(nodes, removed=removed)
        self.reader = QuorumReader(nodes)

    def place(self, ledger: LedgerId, quorum: Quorum, *, on: Collection[int] = ()) -> Placement:
        """A new ledger's placement; on the nodes `on` as long as all of them take new data.

        If there are too few nodes, some that are away are named too, as long as every entry finds
        Qa that are there: the ledger is then as if they had died right after it was opened, and
        is made whole in the same way. Else one dead node of three would stop every takeover.

        Raises `Unavailable` if even so there are too few, `InvalidInput` if sizes do not fit.
        """
        check_quorum(quorum)
        if len(on) == quorum.ensemble:
            with suppress(Unavailable):
                chosen = self._nodes.choose(quorum.ensemble, without=(), among=on)
                return Placement(ledger, quorum, (Fragment(0, chosen),))
        try:
            chosen = self._nodes.choose(quorum.ensemble, without=())
        except Unavailable:
            # A write set can have all of those that are away.
            away = self._nodes.away()[: quorum.write - quorum.ack]
            if not away:
                raise
            chosen = (*self._nodes.choose(quorum.ensemble - len(away), without=()), *away)
        return Placement(ledger, quorum, (Fragment(0, chosen),))

    def writer(
        self, placement: Placement, *, term: Term, change: ChangePlacement
    ) -> EnsembleWriter:
        """A writer for a new ledger that is in the metadata already."""
        return EnsembleWriter(self._nodes, placement, term=term, change=change)

    async def recover(self, placement: Placement, term: Term) -> tuple[Placement, EntryId]:
        """Fences the ledger and finds its last entry; close it with the placement that is returned.

        Raises `Fenced` if a higher term was here, `Unavailable` if too few nodes answer.
        """
        return await _Recovery(self._nodes, placement, term).run()

    async def read(
        self, placement: Placement, first: EntryId, *, last: EntryId, bytes_max: int
    ) -> list[Entry]:
        """See `QuorumReader.read`."""
        return await self.reader.read(placement, first, last=last, bytes_max=bytes_max)

    async def read_forward(
        self, placement: Placement, first: EntryId, *, last: EntryId
    ) -> AsyncIterator[Entry]:
        """All entries from `first` to `last`."""
        while first <= last:
            entries = await self.read(placement, first, last=last, bytes_max=READ_AHEAD_BYTES)
            for entry in entries:
                yield entry
            first = EntryId(entries[-1].entry + 1)

    async def delete(self, placement: Placement) -> None:
        """Deletes the ledger on every node. Raises if one did not answer; do it again then."""
        await self._deletions.insist(placement)

    async def let_go(self, placements: Sequence[Placement]) -> None:
        """Ledgers that left their chain: nodes that answer delete them soon, the others later."""
        await self._deletions.let_go(placements)

    async def close(self) -> None:
        """Ends what is done in the background."""
        await self._deletions.close()


class _Recovery:
    """One run of the recovery machine."""

    def __init__(self, nodes: Nodes, placement: Placement, term: Term) -> None:
        fragment = placement.fragments[-1]
        self._nodes = nodes
        self._placement = placement
        self._term = term
        self._machine = QuorumRecovery(
            placement.quorum, fragment.nodes, fragment_first=fragment.first_entry
        )
        self._ledger = LedgerId(placement.ledger)
        loop = asyncio.get_running_loop()
        self._result: asyncio.Future[tuple[Placement, EntryId]] = loop.create_future()
        self._tasks = Tasks()

    async def run(self) -> tuple[Placement, EntryId]:
        try:
            self._perform(self._machine.start())
            return await self._result
        finally:
            self._tasks.cancel()

    def _perform(self, effects: list[recovery.Effect]) -> None:
        for effect in effects:
            if self._result.done():
                return
            if isinstance(effect, recovery.Done):
                self._result.set_result((self._placement, EntryId(effect.entry_last)))
            elif isinstance(effect, recovery.Stuck):
                self._result.set_exception(effect.error)
            elif isinstance(effect, writing.Replace):
                self._replace(effect)
            elif isinstance(effect, recovery.WriteBack):
                self._write_back(effect)
            else:
                self._tasks.start(self._ask(effect), name="storage/recovery-ask")

    async def _ask(self, effect: recovery.AskFence | recovery.AskEntry | recovery.AskAhead) -> None:
        try:
            node = self._nodes.node(effect.node)
            if isinstance(effect, recovery.AskFence):
                state = await node.fence(self._ledger, self._term)
                effects = self._machine.on_fenced(effect.node, state.confirmed, state.entry_last)
            elif isinstance(effect, recovery.AskAhead):
                payloads = await self._read_ahead(node, effect)
                effects = self._machine.on_ahead(effect.node, effect.first, payloads)
            else:
                found = await node.read_for_recovery(
                    self._ledger, EntryId(effect.entry), self._term
                )
                payload = None if found is None else found.payload
                effects = self._machine.on_entry(effect.node, effect.entry, payload)
        except Fenced as error:
            effects = self._machine.on_refused(error)
        except DovetailError as error:
            effects = self._machine.on_failed(effect.node, error)
        except Exception as error:
            if not self._result.done():  # Nobody would wait for the end of it otherwise.
                self._result.set_exception(error)
            raise
        self._perform(effects)

    async def _read_ahead(self, node: StorageNode, effect: recovery.AskAhead) -> list[Buffer]:
        """What the node gives at once; nothing, if it cannot: then it is asked entry by entry."""
        first, last = EntryId(effect.first), EntryId(effect.last)
        try:
            found = await node.read(self._ledger, first, last=last, bytes_max=READ_AHEAD_BYTES)
        except DovetailError:
            return []
        return [entry.payload for entry in found]

    def _write_back(self, effect: recovery.WriteBack) -> None:
        def answered(error: DovetailError | None) -> None:
            if error is None:
                self._perform(self._machine.on_stored(effect.node, effect.entry))
            elif isinstance(error, Fenced):
                self._perform(self._machine.on_refused(error))
            else:
                self._perform(self._machine.on_failed(effect.node, error))

        _append(self._nodes, self._ledger, self._term, effect, answered)

    def _replace(self, effect: writing.Replace) -> None:
        try:
            nodes = _replaced(self._nodes, self._placement, effect)
        except Unavailable as error:
            self._perform(self._machine.on_refused(error))
            return
        self._placement = self._placement.with_nodes(effect.first_entry, nodes)
        self._perform(self._machine.on_replaced(nodes))


class OneNode:
    """A cluster of one: what `dovetail up` has."""

    def __init__(self, number: int, node: StorageNode) -> None:
        self._number = number
        self._node = node

    def node(self, number: int) -> StorageNode:
        if number != self._number:
            raise Unavailable(f"storage node {number} is not part of this cluster of one")
        return self._node

    def near(self, number: int) -> bool:
        return True

    def choose(
        self,
        count: int,
        *,
        without: Sequence[int],
        beside: Sequence[int] = (),
        among: Collection[int] | None = None,
    ) -> tuple[int, ...]:
        if count > 1 or self._number in without:
            raise Unavailable(f"a ledger needs {count} storage nodes, but this is a single node")
        return (self._number,)

    def away(self) -> tuple[int, ...]:
        return ()
