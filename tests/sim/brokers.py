"""A cluster of brokers in one thread: real logs, real stores, everything between them simulated.

Real: `Log` with its catalog, claims, owners and partitions, `Membership` with its lease,
`LedgerStore`s on `FaultyDisk`s, sweeping. Simulated: time, processes and wires (`processes.py`),
and the coordination service. A transaction whose answer does not come is `Uncertain`: it may have
happened, not have happened, or happen a second later, as with etcd.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any

from tests.sim.broker_history import Author, History
from tests.sim.processes import Process, Wire, exchange
from tests.sim.storage_hosts import (
    BrokerNodes,
    StorageClient,
    StorageHost,
    answer,
    raise_failure,
    spawn,
)
from tests.sim.world import MemoryCoordinator, VirtualClock

from dovetail.coordination import protocol
from dovetail.coordination.membership import BROKER_ROLE, NODES, Member, Membership
from dovetail.errors import (
    CoordinationDown,
    DovetailError,
    Uncertain,
    WatchGap,
)
from dovetail.log.owners import DELETED
from dovetail.log.service import Log
from dovetail.log.topic import TopicConfig
from dovetail.storage import Ensembles, chain
from dovetail.storage.chain import PAGES, PARTITIONS
from dovetail.storage.repair.sweeping import sweep
from dovetail.storage.selection import least_loaded

CLOCK = VirtualClock()

#: How long the coordination service is waited for.
COORDINATION_WAIT_S = 0.7
#: A watch that has heard nothing for so long asks again.
WATCH_WAIT_S = 1.0


class SimCoordination(MemoryCoordinator):
    """The coordination service: every change has an author and is checked as it happens."""

    def __init__(self, rng: random.Random, history: Callable[[], History]) -> None:
        super().__init__(rng)
        self._checked = history
        self._author: Author | None = None

    def look(self, key: str) -> protocol.KeyValue | None:
        return self._keys.get(key)

    def look_below(self, prefix: str) -> protocol.Snapshot:
        found = sorted(key for key in self._keys if key.startswith(prefix))
        return protocol.Snapshot(
            protocol.Revision(self._revision), tuple(self._keys[key] for key in found)
        )

    def apply_as(
        self,
        author: Author,
        changes: Sequence[protocol.Change],
        conditions: Sequence[protocol.Unchanged],
    ) -> protocol.Outcome:
        self._author = author
        try:
            return self.apply(changes, conditions)
        finally:
            self._author = None

    def _tell(self, changes: Sequence[protocol.Change]) -> None:
        # Pages first: the record that comes with them names them.
        for change in sorted(changes, key=lambda change: not change.key.startswith(PAGES)):
            if isinstance(change, protocol.Put):
                self._checked().on_put(change.key, change.value, self._author)
            elif isinstance(change, protocol.Delete):
                self._checked().on_delete(change.key)
        super()._tell(changes)

    async def news(self, prefix: str, after: int) -> list[tuple[protocol.WatchEvent, ...]]:
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
    def history(self) -> list[tuple[protocol.WatchEvent, ...]]:
        return self._history


class CoordinationClient:
    """A `Coordinator` at the other end of a wire."""

    def __init__(
        self, life: "Life", service: SimCoordination, wires: "BrokerWires", rng: random.Random
    ) -> None:
        self._life = life
        self._service = service
        self._calls = wires.calls
        self._watches = wires.watches
        self._rng = rng

    async def _ask(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await exchange(
            self._calls,
            lambda reply: spawn(answer(work, reply)),
            wait_s=COORDINATION_WAIT_S,
            lost=CoordinationDown("the coordination service does not answer"),
        )

    async def get(self, key: str) -> protocol.KeyValue | None:
        found: protocol.KeyValue | None = await self._ask(lambda: self._service.get(key))
        return found

    async def range(self, prefix: str) -> protocol.Snapshot:
        found: protocol.Snapshot = await self._ask(lambda: self._service.range(prefix))
        return found

    async def transact(
        self, changes: Sequence[protocol.Change], *, conditions: Sequence[protocol.Unchanged] = ()
    ) -> protocol.Outcome:
        self._life.check_claims(self._service, changes, conditions)
        if self._calls.requests.cut and self._rng.random() < 0.5:
            await asyncio.sleep(COORDINATION_WAIT_S)
            raise CoordinationDown("no connection to the coordination service")

        def serve(reply: Callable[[object], None]) -> None:
            try:
                reply(self._service.apply_as(self._life.author, changes, conditions))
            except DovetailError as error:
                reply(error)

        outcome: protocol.Outcome = await exchange(
            self._calls,
            serve,
            wait_s=COORDINATION_WAIT_S,
            lost=Uncertain("the transaction was not answered"),
        )
        return outcome

    @contextlib.asynccontextmanager
    async def watch(
        self, prefix: str, *, after: protocol.Revision
    ) -> AsyncIterator[AsyncIterator[tuple[protocol.WatchEvent, ...]]]:
        yield self._events(prefix, after)

    async def _events(
        self, prefix: str, after: protocol.Revision
    ) -> AsyncIterator[tuple[protocol.WatchEvent, ...]]:
        """Asks again and again; what was lost on the way is told again, or reported as a gap."""
        while True:
            asked_from = after
            try:
                news = await exchange(
                    self._watches,
                    lambda reply, at=int(asked_from): spawn(  # type: ignore[misc]
                        answer(lambda: self._service.news(prefix, at), reply)
                    ),
                    wait_s=WATCH_WAIT_S + COORDINATION_WAIT_S,
                    lost=CoordinationDown("the watch hears nothing"),
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

    async def grant(self, *, ttl_ms: int) -> protocol.LeaseId:
        lease: protocol.LeaseId = await self._ask(lambda: self._service.grant(ttl_ms=ttl_ms))
        return lease

    async def keep_alive(self, lease: protocol.LeaseId) -> None:
        await self._ask(lambda: self._service.keep_alive(lease))

    async def revoke(self, lease: protocol.LeaseId) -> None:
        await self._ask(lambda: self._service.revoke(lease))

    async def close(self) -> None:
        pass


class BrokerWires:
    """What joins a broker to the others; calls and watches of coordination fail apart too."""

    def __init__(self, hosts: Iterable[int], rng: random.Random) -> None:
        self.calls = Wire(rng)
        self.watches = Wire(rng)
        self.storage = {number: Wire(rng) for number in hosts}

    def heal(self) -> None:
        for wire in (self.calls, self.watches, *self.storage.values()):
            wire.heal()


class Life:
    """One life of a broker: its process, and what runs in it."""

    def __init__(
        self,
        author: Author,
        *,
        service: SimCoordination,
        hosts: dict[int, StorageHost],
        wires: BrokerWires,
        config: TopicConfig,
        ttl_ms: int,
        rng: random.Random,
    ) -> None:
        self.author = author
        self.process = Process(f"broker {author.number}, life {author.life}")
        self._client = CoordinationClient(self, service, wires, rng)
        self._hosts = hosts
        self._wires = wires.storage
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
        task.add_done_callback(raise_failure)

    async def _live(self) -> None:
        number = self.author.number
        try:
            membership = Membership(self._client, node_id=number, clock=CLOCK, ttl_ms=self._ttl_ms)
            await membership.start()
            clients = {n: StorageClient(host, self._wires[n]) for n, host in self._hosts.items()}
            log = Log(
                node_id=number,
                coordinator=self._client,
                ensembles=Ensembles(BrokerNodes(self._hosts, clients, self._rng, self._ttl_ms)),
                clock=CLOCK,
                defaults=self._config,
                tail_bytes_max=self._rng.choice([0, 5_000, 1 << 20]),
                peers=membership,
                select=least_loaded,
                rng=self._rng,
            )
            self.made(log)
            await log.load()
            self.membership = membership
            await membership.register(lambda: Member(number, "sim", 0, (BROKER_ROLE,), "0"))
            self.log = log
            await log.start()
            await self.started()
        except DovetailError:
            self.process.kill()  # As a node that cannot start: whoever runs it starts it again.
            return
        while not membership.replaced.is_set():
            await asyncio.sleep(1)
            log.owned.hand_on_stuck()
        self.process.kill()

    def made(self, log: Log) -> None:
        """What else runs on a log is made here, before it starts."""

    async def started(self) -> None:
        """And is started here."""

    def check_claims(
        self,
        service: SimCoordination,
        changes: Sequence[protocol.Change],
        conditions: Sequence[protocol.Unchanged],
    ) -> None:
        """What it is about to claim belongs to nobody who is alive, as far as it knows itself."""
        for change, condition in zip(changes, conditions, strict=False):
            found = service.look(change.key)
            if not (
                isinstance(change, protocol.Put) and change.key.startswith(PARTITIONS) and found
            ):
                continue
            before, after = chain.decode(found.value), chain.decode(change.value)
            if found.revision != condition.revision:
                continue  # It comes too late, and changes nothing.
            assert after.owner in (before.owner, DELETED) or after.term > before.term, (
                f"{self.author} names {after.owner} for {change.key} under the term of another"
            )
            taken = after.term > before.term
            if taken and after.owner != DELETED and self.membership is not None:
                others = self.membership.brokers().alive - {self.author.number}
                assert before.owner not in others, (
                    f"{self.author} takes {change.key} from {before.owner}, which lives"
                )

    def node_is_back(self, number: int) -> None:
        """A storage node is there again; a broker's node tells its writers."""

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
    """Whether a broker holds its lease, by the coordination service."""
    return service.look(f"{NODES}{number:06d}") is not None
