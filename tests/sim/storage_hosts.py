"""Storage nodes of the simulated cluster: the real stores, and their clients over wires.

A node that loses its power loses what it had not synced, answers nothing, and comes back; its
clients time out. A request that was sent and not answered may have been done.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from tests.faulty_disk import FaultyDisk
from tests.sim.processes import Wire, exchange, here, of_nobody
from tests.sim.world import PowerCut, SimStorageNode

from dovetail.errors import DovetailError, Unavailable, Uncertain
from dovetail.storage import StorageNode
from dovetail.storage.disk.commands import Append
from dovetail.storage.disk.options import StoreSettings
from dovetail.storage.disk.store import LedgerStore
from dovetail.storage.held import Held
from dovetail.storage.identifiers import Entry, EntryId, LedgerId, LedgerState, Term

STORE = StoreSettings(segment_bytes=16_000, disk_free_bytes_min=0, reserve_bytes=4_000)

#: How long a storage node is waited for.
STORAGE_WAIT_S = 0.8


def spawn(work: Coroutine[Any, Any, None]) -> None:
    """A task that belongs to no process."""
    task = asyncio.get_running_loop().create_task(work, context=of_nobody())
    task.add_done_callback(raise_failure)


def raise_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        raise task.exception()  # type: ignore[misc]


async def answer(
    work: Callable[[], Coroutine[Any, Any, Any]], reply: Callable[[object], None]
) -> None:
    """Does the work of a server and answers."""
    try:
        outcome = await work()
    except DovetailError as error:
        outcome = error
    reply(outcome)


class StorageHost:
    """A storage node over all its lives: the real store on a faulty disk."""

    def __init__(
        self,
        number: int,
        rng: random.Random,
        *,
        fault: Callable[[str], None],
        on_back: Callable[["StorageHost"], None],
    ) -> None:
        self.number = number
        self._rng = rng
        self._fault = fault
        self._on_back = on_back
        self.disk = FaultyDisk(rng)
        self.disk.power_cut = PowerCut
        self.store: LedgerStore
        self.node: SimStorageNode | None = None
        #: When it went away last; brokers hear of it when its lease ends.
        self.away_since: float | None = None
        self.start()

    def start(self) -> None:
        if self.node is not None:
            return
        self.disk.calls_until_cut = None
        self.store = LedgerStore(self.disk, STORE, self._rng)
        assert self.store.report.damaged == []
        self.node = node = SimStorageNode(self.store, self._rng)
        node.dead.add_done_callback(lambda _: self._on_dead(node))
        if self.away_since is not None:
            self.away_since = None
            self._on_back(self)

    def crash(self) -> None:
        """Power cut, now."""
        if self.node is not None and not self.node.dead.done():
            self.node.dead.set_result(None)

    def _on_dead(self, node: SimStorageNode) -> None:
        if self.node is not node or node.dead.cancelled():
            return
        self._fault("storage node lost its power")
        self.node = None
        self.away_since = asyncio.get_running_loop().time()
        self.disk.crash()
        asyncio.get_running_loop().call_later(self._rng.random() * 3, self.start)

    def serve(
        self,
        work: Callable[[SimStorageNode], Coroutine[Any, Any, Any]],
        reply: Callable[[object], None],
    ) -> None:
        """Does what a request asks, if the node is there; a node that dies says nothing."""
        node = self.node
        if node is None or node.dead.done():
            if self._rng.random() < 0.5:
                reply(Unavailable(f"storage node {self.number} refuses connections"))
            return
        spawn(answer(lambda: work(node), lambda o: None if node.dead.done() else reply(o)))


class StorageClient:
    """A `StorageNode` at the other end of a wire."""

    def __init__(self, host: StorageHost, wire: Wire) -> None:
        self._host = host
        self._wire = wire

    def append(self, command: Append, answer: Callable[[DovetailError | None], None]) -> None:
        process, sent = here(), replace(command, payload=bytes(command.payload))
        done = False

        def tell(outcome: DovetailError | None) -> None:
            nonlocal done
            if not done:
                done = True
                timer.cancel()
                answer(outcome)

        def arrive() -> None:
            node = self._host.node
            if node is None or node.dead.done():
                return
            node.append(sent, lambda o: self._wire.answers.send(lambda: process.call(tell, o)))

        lost = Uncertain(f"storage node {self._host.number} did not answer")
        timer = asyncio.get_running_loop().call_later(STORAGE_WAIT_S, tell, lost)
        self._wire.requests.send(arrive)

    async def _ask(
        self, work: Callable[[SimStorageNode], Coroutine[Any, Any, Any]], lost: type[DovetailError]
    ) -> Any:
        return await exchange(
            self._wire,
            lambda reply: self._host.serve(work, reply),
            wait_s=STORAGE_WAIT_S,
            lost=lost(f"storage node {self._host.number} did not answer"),
        )

    async def fence(self, ledger: LedgerId, term: Term) -> LedgerState:
        state: LedgerState = await self._ask(lambda node: node.fence(ledger, term), Uncertain)
        return state

    async def delete(self, ledger: LedgerId) -> None:
        await self._ask(lambda node: node.delete(ledger), Uncertain)

    async def read(
        self, ledger: LedgerId, first: EntryId, *, last: EntryId, bytes_max: int
    ) -> list[Entry]:
        found: list[Entry] = await self._ask(
            lambda node: node.read(ledger, first, last=last, bytes_max=bytes_max), Unavailable
        )
        return found

    async def read_for_recovery(self, ledger: LedgerId, entry: EntryId, term: Term) -> Entry | None:
        found: Entry | None = await self._ask(
            lambda node: node.read_for_recovery(ledger, entry, term), Unavailable
        )
        return found

    async def ledgers(self) -> set[LedgerId]:
        found: set[LedgerId] = await self._ask(lambda node: node.ledgers(), Unavailable)
        return found

    async def held(self, ledger: LedgerId, *, first: EntryId, last: EntryId) -> Held:
        found: Held = await self._ask(
            lambda node: node.held(ledger, first=first, last=last), Unavailable
        )
        return found


class BrokerNodes:
    """The storage nodes, as one broker reaches them; it hears late who went away."""

    def __init__(
        self,
        hosts: dict[int, StorageHost],
        clients: dict[int, StorageClient],
        rng: random.Random,
        ttl_ms: int,
    ) -> None:
        self._hosts = hosts
        self._clients = clients
        self._rng = rng
        self._ttl_s = ttl_ms / 1000

    def node(self, number: int) -> StorageNode:
        return self._clients[number]

    def away(self) -> tuple[int, ...]:
        now = asyncio.get_running_loop().time()
        return tuple(
            number
            for number, host in self._hosts.items()
            if host.away_since is not None and now - host.away_since >= self._ttl_s
        )

    def near(self, number: int) -> bool:
        return False

    def choose(
        self,
        count: int,
        *,
        without: Sequence[int],
        beside: Sequence[int] = (),
        among: Collection[int] | None = None,
    ) -> tuple[int, ...]:
        there = [n for n in self._hosts if n not in (*without, *self.away())]
        if len(there) < count:
            raise Unavailable(f"{count} storage nodes are needed and {len(there)} are there")
        return tuple(self._rng.sample(there, count))
