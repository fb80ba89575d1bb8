"""A cluster of carriers in one thread: real logs, real stores, everything between them simulated.

Real: `Log` with its catalog, claims, holdings and partitions, `Membership` with its lease,
`LedgerStore`s on `FaultyDisk`s, sweeping. Simulated: time, processes and wires (`processes.py`),
and the coordination service. A transaction whose answer does not come is `Uncertain`: it may have
happened, not have happened, or happen a second later, as with etcd.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from tests.sim.carrier_history import Author, History
from tests.sim.processes import Process, Wire, exchange, here, of_nobody
from tests.sim.world import MemoryCoordinator, PowerCut, SimStorageNode, VirtualClock

from dovetail.broker.membership import CARRIER_ROLE, NODES, Member, Membership
from dovetail.buffers import Buffer
from dovetail.coordination.protocol import (
    Change,
    Delete,
    KeyValue,
    LeaseId,
    Outcome,
    Put,
    Revision,
    Snapshot,
    Unchanged,
    WatchEvent,
)
from dovetail.errors import (
    CoordinationDown,
    DovetailError,
    Unavailable,
    Uncertain,
    WatchGap,
)
from dovetail.ledger import Ensembles, StorageNode
from dovetail.ledger.faulty_disk import FaultyDisk
from dovetail.ledger.holding import Held
from dovetail.ledger.identifiers import Entry, EntryId, LedgerId, LedgerState, Term
from dovetail.ledger.selection import least_loaded
from dovetail.ledger.store import LedgerStore, StoreSettings
from dovetail.log.service import Log
from dovetail.log.sweeping import sweep
from dovetail.log.topic import TopicConfig

STORE = StoreSettings(segment_bytes=16_000, disk_free_bytes_min=0, reserve_bytes=4_000)
CLOCK = VirtualClock()

#: How long a storage node and the coordination service are waited for.
STORAGE_WAIT_S = 0.8
COORDINATION_WAIT_S = 0.7
#: A watch that has heard nothing for so long asks again.
WATCH_WAIT_S = 1.0


class SimCoordination(MemoryCoordinator):
    """The coordination service: every change has an author and is checked as it happens."""

    def __init__(self, rng: random.Random, history: Callable[[], History]) -> None:
        super().__init__(rng)
        self._checked = history
        self._author: Author | None = None

    def look(self, key: str) -> KeyValue | None:
        return self._keys.get(key)

    def look_below(self, prefix: str) -> Snapshot:
        found = sorted(key for key in self._keys if key.startswith(prefix))
        return Snapshot(Revision(self._revision), tuple(self._keys[key] for key in found))

    def apply_as(
        self, author: Author, changes: Sequence[Change], conditions: Sequence[Unchanged]
    ) -> Outcome:
        self._author = author
        try:
            return self.apply(changes, conditions)
        finally:
            self._author = None

    def _tell(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, Put):
                self._checked().on_put(change.key, change.value, self._author)
            elif isinstance(change, Delete):
                self._checked().on_delete(change.key)
        super()._tell(changes)

    async def news(self, prefix: str, after: int) -> list[tuple[WatchEvent, ...]]:
        """What happened after a revision, each revision whole; [] if nothing does for a while."""
        woken = asyncio.Event()
        self._watches[woken] = None
        try:
            async with asyncio.timeout(WATCH_WAIT_S):
                while True:
                    found = [
                        mine
                        for events in self._history[after:]
                        if (mine := tuple(e for e in events if e.key.startswith(prefix)))
                    ]
                    if found:
                        return found
                    after = len(self._history)
                    woken.clear()
                    await woken.wait()
        except TimeoutError:
            return []
        finally:
            self._watches.pop(woken)

    @property
    def history(self) -> list[tuple[WatchEvent, ...]]:
        return self._history


class CoordinationClient:
    """A `Coordinator` at the other end of a wire."""

    def __init__(
        self, service: SimCoordination, wire: Wire, author: Author, rng: random.Random
    ) -> None:
        self._service = service
        self._wire = wire
        self._author = author
        self._rng = rng

    async def _ask(
        self, work: Callable[[], Coroutine[Any, Any, Any]], *, wait_s: float = COORDINATION_WAIT_S
    ) -> Any:
        return await exchange(
            self._wire,
            lambda reply: spawn(answer(work, reply)),
            wait_s=wait_s,
            lost=CoordinationDown("the coordination service does not answer"),
        )

    async def get(self, key: str) -> KeyValue | None:
        found: KeyValue | None = await self._ask(lambda: self._service.get(key))
        return found

    async def range(self, prefix: str) -> Snapshot:
        found: Snapshot = await self._ask(lambda: self._service.range(prefix))
        return found

    async def transact(
        self, changes: Sequence[Change], *, conditions: Sequence[Unchanged] = ()
    ) -> Outcome:
        if self._wire.requests.cut and self._rng.random() < 0.5:
            await asyncio.sleep(COORDINATION_WAIT_S)
            raise CoordinationDown("no connection to the coordination service")

        def serve(reply: Callable[[object], None]) -> None:
            try:
                reply(self._service.apply_as(self._author, changes, conditions))
            except DovetailError as error:
                reply(error)

        outcome: Outcome = await exchange(
            self._wire,
            serve,
            wait_s=COORDINATION_WAIT_S,
            lost=Uncertain("the transaction was not answered"),
        )
        return outcome

    @contextlib.asynccontextmanager
    async def watch(
        self, prefix: str, *, after: Revision
    ) -> AsyncIterator[AsyncIterator[tuple[WatchEvent, ...]]]:
        yield self._events(prefix, after)

    async def _events(self, prefix: str, after: Revision) -> AsyncIterator[tuple[WatchEvent, ...]]:
        """Asks again and again; what was lost on the way is told again, or reported as a gap."""
        while True:
            asked_from = after
            try:
                news = await self._ask(
                    lambda at=asked_from: self._service.news(prefix, int(at)),
                    wait_s=WATCH_WAIT_S + COORDINATION_WAIT_S,
                )
            except CoordinationDown:
                fate = self._rng.random()
                if fate < 0.2:
                    raise
                if fate < 0.4:
                    raise WatchGap("what was missed is not kept any more") from None
                continue
            for events in news:
                after = events[0].revision
                yield events

    async def grant(self, *, ttl_ms: int) -> LeaseId:
        lease: LeaseId = await self._ask(lambda: self._service.grant(ttl_ms=ttl_ms))
        return lease

    async def keep_alive(self, lease: LeaseId) -> None:
        await self._ask(lambda: self._service.keep_alive(lease))

    async def revoke(self, lease: LeaseId) -> None:
        await self._ask(lambda: self._service.revoke(lease))

    async def close(self) -> None:
        pass


def spawn(work: Coroutine[Any, Any, None]) -> None:
    """A task that belongs to no process."""
    task = asyncio.get_running_loop().create_task(work, context=of_nobody())
    task.add_done_callback(_raise_failure)


def _raise_failure(task: "asyncio.Task[None]") -> None:
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

    def __init__(self, number: int, rng: random.Random, fault: Callable[[str], None]) -> None:
        self.number = number
        self._rng = rng
        self._fault = fault
        self.disk = FaultyDisk(rng)
        self.disk.power_cut = PowerCut
        self.store: LedgerStore
        self.node: SimStorageNode | None = None
        #: When it went away last; carriers hear of it when its lease ends.
        self.away_since: float | None = None
        self.start()

    def start(self) -> None:
        if self.node is not None:
            return
        self.disk.calls_until_cut = None
        self.store = LedgerStore(self.disk, STORE, self._rng)
        assert self.store.report.damaged == []
        self.node = node = SimStorageNode(self.store, self._rng)
        self.away_since = None
        node.dead.add_done_callback(lambda _: self._on_dead(node))

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

    def append(
        self,
        ledger: LedgerId,
        entry: EntryId,
        *,
        term: Term,
        confirmed: EntryId,
        payload: Buffer,
        answer: Callable[[DovetailError | None], None],
    ) -> None:
        process, sent = here(), bytes(payload)
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
            node.append(
                ledger,
                entry,
                term=term,
                confirmed=confirmed,
                payload=sent,
                answer=lambda o: self._wire.answers.send(lambda: process.call(tell, o)),
            )

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


class _Nodes:
    """The storage nodes, as one carrier reaches them; it hears late who went away."""

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

    def choose(self, count: int, *, without: Sequence[int]) -> tuple[int, ...]:
        there = [n for n in self._hosts if n not in (*without, *self.away())]
        if len(there) < count:
            raise Unavailable(f"{count} storage nodes are needed and {len(there)} are there")
        return tuple(self._rng.sample(there, count))


class Life:
    """One life of a carrier: its process, and what runs in it."""

    def __init__(
        self,
        author: Author,
        *,
        service: SimCoordination,
        hosts: dict[int, StorageHost],
        wires: dict[int, Wire],
        coordination_wire: Wire,
        config: TopicConfig,
        ttl_ms: int,
        rng: random.Random,
    ) -> None:
        self.author = author
        self.process = Process(f"carrier {author.number}, life {author.life}")
        self._client = CoordinationClient(service, coordination_wire, author, rng)
        self._hosts = hosts
        self._wires = wires
        self._config = config
        self._ttl_ms = ttl_ms
        self._rng = rng
        self.log: Log | None = None
        self.membership: Membership | None = None
        self.leaving = False
        self.run(self._live())

    @property
    def serves(self) -> bool:
        return self.process.alive and self.log is not None

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """A task of this process."""
        task = asyncio.get_running_loop().create_task(work, context=self.process.context.copy())
        task.add_done_callback(_raise_failure)

    async def _live(self) -> None:
        number = self.author.number
        try:
            membership = Membership(self._client, node_id=number, clock=CLOCK, ttl_ms=self._ttl_ms)
            await membership.start()
            clients = {n: StorageClient(host, self._wires[n]) for n, host in self._hosts.items()}
            log = Log(
                node_id=number,
                coordinator=self._client,
                ensembles=Ensembles(_Nodes(self._hosts, clients, self._rng, self._ttl_ms)),
                clock=CLOCK,
                defaults=self._config,
                tail_bytes_max=self._rng.choice([0, 5_000, 1 << 20]),
                peers=membership,
                select=least_loaded,
                rng=self._rng,
            )
            await log.load()
            self.membership = membership
            await membership.announce(lambda: Member(number, "sim", 0, (CARRIER_ROLE,), "0"))
            self.log = log
            await log.start()
        except DovetailError:
            self.process.kill()  # As a node that can not start: whoever runs it starts it again.
            return
        while not membership.replaced.is_set():
            await asyncio.sleep(1)
            log.holdings.hand_on_stuck()
        self.process.kill()

    def node_is_back(self, number: int) -> None:
        """A storage node is there again; a carrier's node tells its writers."""

        def tell() -> None:
            if self.log is not None:
                for partition in self.log.partitions():
                    for ledger in partition.open_ledgers:
                        ledger.writer.node_back(number)

        self.process.call(tell)

    def stop(self) -> None:
        """A clean stop: tells the others, gives everything back, goes."""

        async def stop() -> None:
            if self.log is not None and self.membership is not None:
                await self.membership.leave()
                await self.log.close()
                await self.membership.stop()
            self.process.kill()

        self.leaving = True
        self.run(stop())


async def sweep_host(host: StorageHost, service: SimCoordination) -> None:
    """What a storage node does when it starts and from time to time."""
    if host.node is not None:
        with contextlib.suppress(DovetailError):
            await sweep(host.node, service)


def announced(service: SimCoordination, number: int) -> bool:
    """Whether a carrier holds its lease, by the coordination service."""
    return service.look(f"{NODES}{number:06d}") is not None
