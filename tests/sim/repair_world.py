"""A cluster around one partition, in one thread: real owners, real repair, real storage.

Real: `Partition`, `Ensembles`, `Repairer`, `StorageUpkeep`, `LedgerStore` on `FaultyDisk`s.
Simulated: time, the network (calls are late, or lost with the node), processes that die and come
back, and the coordination service. An owner that dies can do nothing any more, but what it has sent
arrives; two owners can believe that the partition is theirs.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TypeVar

from tests.faulty_disk import FaultyDisk
from tests.sim.world import MemoryCoordinator, PowerCut, SimStorageNode, VirtualClock

from dovetail.buffers import Buffer
from dovetail.clock import UnhurriedTime
from dovetail.coordination.protocol import Change, KeyValue, Outcome, Put, Snapshot, Unchanged
from dovetail.errors import (
    CoordinationDown,
    Damaged,
    DovetailError,
    NotFound,
    Unavailable,
    Uncertain,
)
from dovetail.log.catalog import IdBlocks, partition_key
from dovetail.log.context import PartitionContext
from dovetail.log.open_ledger import Appended
from dovetail.log.partition import Partition
from dovetail.log.tail import TailBudget
from dovetail.log.topic import TopicConfig
from dovetail.record_batch import StoredRecord, check_batch, decode_batch, encode_batch
from dovetail.storage import Ensembles, LedgerId, Placement, Quorum, chain
from dovetail.storage.chain import LedgerInfo, PartitionRecord
from dovetail.storage.disk.commands import Append, LetDamageGo
from dovetail.storage.disk.options import StoreSettings
from dovetail.storage.disk.store import LedgerStore
from dovetail.storage.held import Held
from dovetail.storage.identifiers import Entry, EntryId, LedgerState, Term
from dovetail.storage.pages import read_chains
from dovetail.storage.repair.repairer import Repairer, RepairSettings
from dovetail.storage.repair.upkeep import StorageUpkeep

STORE = StoreSettings(segment_bytes=12_000, disk_free_bytes_min=0, reserve_bytes=4_000)
REPAIR = RepairSettings(after_ms=2_000, bytes_per_second=10_000_000, check_ms=500, recheck_ms=9_000)
KEY = partition_key("t", 0)

#: A call to a node that does not answer fails after so long; a lease ends after so long.
CALL_MS = 300
LEASE_MS = 400

Result = TypeVar("Result")


class OwnStorage(SimStorageNode):
    """A storage node that also sees its own damage, as `LocalStorageNode` does."""

    @property
    def damaged(self) -> bool:
        return self._store.damaged

    def doubted(self) -> set[LedgerId] | None:
        return self._store.doubts.ledgers()

    def examine(self, ledgers: Mapping[LedgerId, bool]) -> None:
        self._store.doubts.examine({int(n): copied for n, copied in ledgers.items()})

    async def let_damage_go(self, settled: frozenset[LedgerId]) -> None:
        await self._ask(LetDamageGo(settled))
        try:
            while not self.dead.done() and self._store.compact_step():
                pass
        except PowerCut:
            self.dead.set_result(None)


class StorageProcess:
    """A storage node that dies and comes back, on a disk that stays, until it is lost."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.disk = FaultyDisk(world.rng)
        self.disk.power_cut = PowerCut
        self.disk_lost = False
        #: Segments in which bytes have changed.
        self.hurt: set[str] = set()
        self.store: LedgerStore
        self.node: OwnStorage | None = None
        self.upkeep: asyncio.Task[None] | None = None
        self.lives = 0

    async def start(self) -> None:
        """Serves when the chains were read: nobody is told "not here" before."""
        if self.node is not None or self.disk_lost:
            return
        self.disk.calls_until_cut = None
        self.store = LedgerStore(self.disk, STORE, self.world.rng)
        node = OwnStorage(self.store, self.world.rng)
        upkeep = StorageUpkeep(node, self.number, self.world.coordinator)
        await upkeep.once()
        self.node = node
        self.lives += 1
        self.upkeep = asyncio.create_task(self._keep_up(node, upkeep))

    async def _keep_up(self, node: OwnStorage, upkeep: StorageUpkeep) -> None:
        async def work() -> None:
            while True:
                await asyncio.sleep(self.world.rng.random() * 3)
                with contextlib.suppress(DovetailError):
                    await upkeep.once()

        working = asyncio.create_task(work())
        await asyncio.wait({node.dead, working}, return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        if self.node is node:
            self.stop()

    def stop(self) -> None:
        """Its power is gone."""
        if self.node is None:
            return
        if not self.node.dead.done():
            self.node.dead.set_result(None)
        self.node = None
        self.disk.calls_until_cut = None
        self.disk.crash()

    def holds(self, ledger: int, entry: int) -> bool:
        """Whether the entry can be read from its disk, up or down."""
        if self.disk_lost:
            return False
        try:
            self.store.read(LedgerId(ledger), EntryId(entry), last=EntryId(entry), bytes_max=1)
        except (NotFound, Damaged):
            return False
        return True


class Link:
    """A storage node as an owner reaches it, or does not."""

    def __init__(self, world: "World", owner: "Owner", number: int) -> None:
        self._world = world
        self._owner = owner
        self._number = number

    def _reached(self) -> OwnStorage | None:
        node = self._world.processes[self._number].node
        return None if node is None or self._owner.dead else node

    async def _call(self, ask: Callable[[OwnStorage], Awaitable[Result]]) -> Result:
        await asyncio.sleep(self._world.rng.random() * 0.004)
        node = self._reached()
        if node is None:
            await asyncio.sleep(CALL_MS / 1000)
            raise Unavailable(f"storage node {self._number} does not answer")
        asked = asyncio.ensure_future(ask(node))
        asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({asked, node.dead}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            asked.cancel()
            raise Uncertain(f"storage node {self._number} died")
        if self._owner.dead:
            raise Unavailable("this owner is dead")
        return asked.result()

    def append(self, command: Append, answer: Callable[[DovetailError | None], None]) -> None:
        loop, answered = asyncio.get_running_loop(), False

        def once(error: DovetailError | None) -> None:
            nonlocal answered
            if not answered:
                answered = True
                answer(Unavailable("this owner is dead") if self._owner.dead else error)

        def arrive() -> None:
            node = self._reached()
            if node is not None:
                node.append(command, once)

        # In order, as a connection is.
        loop.call_later(0.002, arrive)
        loop.call_later(CALL_MS / 1000, once, Uncertain(f"no answer from {self._number}"))

    async def fence(self, ledger: LedgerId, term: Term) -> LedgerState:
        return await self._call(lambda node: node.fence(ledger, term))

    async def read(
        self, ledger: LedgerId, first: EntryId, *, last: EntryId, bytes_max: int
    ) -> list[Entry]:
        return await self._call(
            lambda node: node.read(ledger, first, last=last, bytes_max=bytes_max)
        )

    async def read_for_recovery(self, ledger: LedgerId, entry: EntryId, term: Term) -> Entry | None:
        return await self._call(lambda node: node.read_for_recovery(ledger, entry, term))

    async def delete(self, ledger: LedgerId) -> None:
        await self._call(lambda node: node.delete(ledger))

    async def ledgers(self) -> set[LedgerId]:
        return await self._call(lambda node: node.ledgers())

    async def held(self, ledger: LedgerId, *, first: EntryId, last: EntryId) -> Held:
        return await self._call(lambda node: node.held(ledger, first=first, last=last))


class WatchedCoordinator(MemoryCoordinator):
    """Every change of the chain is looked at in the moment in which it happens."""

    def __init__(self, world: "World") -> None:
        super().__init__(world.rng)
        self._world = world

    def _tell(self, changes: Sequence[Change]) -> None:
        super()._tell(changes)
        for change in changes:
            if isinstance(change, Put) and change.key == KEY:
                self._world.on_chain(chain.decode(change.value).closed)
            elif isinstance(change, Put) and change.key.startswith(chain.PAGES):
                self._world.pages += 1
                self._world.on_chain(chain.decode_page(change.value).ledgers)


class OwnersCoordinator(MemoryCoordinator):
    """The coordination service as one owner reaches it."""

    def __init__(self, shared: MemoryCoordinator, owner: "Owner") -> None:
        self._shared = shared
        self._owner = owner

    async def get(self, key: str) -> KeyValue | None:
        self._check()
        return await self._shared.get(key)

    async def range(self, prefix: str) -> Snapshot:
        self._check()
        return await self._shared.range(prefix)

    async def transact(
        self, changes: Sequence[Change], *, conditions: Sequence[Unchanged] = ()
    ) -> Outcome:
        self._check()
        outcome = await self._shared.transact(changes, conditions=conditions)
        if self._owner.dead or self._owner.rng.random() < 0.02:
            raise Uncertain("the answer was lost")
        return outcome

    def _check(self) -> None:
        if self._owner.dead:
            raise CoordinationDown("this owner is dead")


class Owner:
    """A broker that believes that the partition is its own."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.rng = world.rng
        self.number = number
        self.dead = False
        self.partition: Partition | None = None
        self._coordinator = OwnersCoordinator(world.coordinator, self)
        ids = IdBlocks(self._coordinator, "ledger", block=3)

        async def next_ledger_id() -> LedgerId:
            return LedgerId(await ids.next())

        ensembles = Ensembles(self, removed=lambda: world.removed)
        self._context = PartitionContext(
            number,
            self._coordinator,
            ensembles,
            VirtualClock(),
            UnhurriedTime(VirtualClock()),
            TailBudget(0),
            next_ledger_id,
            lambda partition, error: None,
        )
        self.repairer = Repairer(self, self, clock=VirtualClock(), settings=REPAIR)
        ensembles.reader.on_damaged = self.repairer.doubt
        self._repairing = asyncio.create_task(self.repairer.run(self.partitions))

    def partitions(self) -> list[Partition]:
        return [self.partition] if self.partition is not None and self.partition.serving else []

    async def take_over(self) -> None:
        self.partition = await Partition.open(
            self._context,
            KEY,
            "t-0",
            self.world.config,
            may_claim=lambda _: True,
            only_if=lambda _: (),
        )
        self.partition.config = self.world.config
        self.partition.assigned = self.world.assigned

    def die(self) -> None:
        self.dead = True
        self._repairing.cancel()

    # `Nodes` and `StorageView`

    def node(self, number: int) -> Link:
        return Link(self.world, self, number)

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
        there = [n for n in self.present() if n not in without and n not in self.given_up()]
        there = [n for n in there if among is None or n in among]
        if len(there) < count:
            raise Unavailable(f"{count} storage nodes are needed, {len(there)} are there")
        return tuple(self.rng.sample(sorted(there), count))

    def away(self) -> tuple[int, ...]:
        known = set(self.world.processes).difference(self.present(), self.given_up())
        return tuple(sorted(known))

    def present(self) -> dict[int, str]:
        return {n: str(self.world.processes[n].lives) for n in self.world.present()}

    def given_up(self) -> frozenset[int]:
        return frozenset(self.world.draining | self.world.removed)


class World:
    """Everything that outlives a process."""

    def __init__(self, seed: int, *, quorum: Quorum, nodes: int) -> None:
        self.rng = random.Random(seed)
        self.coordinator = WatchedCoordinator(self)
        self._placements: dict[int, Placement] = {}
        #: Pages that were written.
        self.pages = 0
        self.config = TopicConfig(
            retention_ms=-1,
            retention_bytes=-1,
            ledger_bytes_max=2_500,
            ledger_age_ms_max=1 << 40,
            batch_bytes_max=100_000,
            quorum=quorum,
        )
        self.processes: dict[int, StorageProcess] = {}
        self.numbers = count(1)
        self.nodes_at_start = nodes
        self.owner_numbers = count(100)
        self.owners: list[Owner] = []
        self.taking_over = 0
        #: The nodes that somebody wants the partition to lie on; empty: any.
        self.assigned: tuple[int, ...] = ()
        self.assignment_held = False
        self.draining: set[int] = set()
        self.removed: set[int] = set()
        self._seen: dict[int, float] = {}
        self.values = count()
        #: What clients were told, by offset.
        self.acknowledged: dict[int, bytes] = {}
        self.log_start = 0
        self.faults: dict[str, int] = {}
        self.failure: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self.coordinator.transact([Put(KEY, chain.encode(PartitionRecord("t", 0)))])
        for _ in range(self.nodes_at_start):
            await self.add_node()

    async def add_node(self) -> None:
        number = next(self.numbers)
        self.processes[number] = process = StorageProcess(self, number)
        await process.start()

    def present(self) -> frozenset[int]:
        """Those that hold their lease, which outlives them a little."""
        now = asyncio.get_running_loop().time()
        for number, process in self.processes.items():
            if process.node is not None:
                self._seen[number] = now
        return frozenset(n for n, at in self._seen.items() if now - at < LEASE_MS / 1000)

    def background(self, work: Coroutine[None, None, None]) -> None:
        """Runs until the world ends; a failure is the world's."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    async def background_ended(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self.failure = self.failure or task.exception()

    def check_no_failure(self) -> None:
        """Raises what went wrong in the background."""
        if self.failure is not None:
            raise self.failure

    def change_quorum(self, quorum: Quorum) -> None:
        """The topic gets other sizes, and every owner is told."""
        self.config = replace(self.config, quorum=quorum, read_quorum=0)
        for owner in self.owners:
            if owner.partition is not None:
                owner.partition.config = self.config

    def reassign(self, nodes: tuple[int, ...]) -> None:
        """Somebody names the nodes that the partition is to lie on, or takes that back."""
        self.assigned = nodes
        for owner in self.owners:
            if owner.partition is not None:
                owner.partition.assigned = nodes

    @property
    def assignment_holds(self) -> bool:
        """Whether the nodes that were named are as many as are needed, and all of them stay."""
        staying = self.present() - self.draining - self.removed
        return len(self.assigned) == self.config.quorum.ensemble and staying.issuperset(
            self.assigned
        )

    def fault(self, name: str) -> None:
        self.faults[name] = self.faults.get(name, 0) + 1

    async def chain(self) -> PartitionRecord:
        (whole,) = await read_chains(self.coordinator)
        return whole

    def serving(self) -> Owner | None:
        """The newest owner, if it serves."""
        for owner in reversed(self.owners):
            if not owner.dead and owner.partitions():
                return owner
        return None

    async def new_owner(self) -> None:
        owner = Owner(self, next(self.owner_numbers))
        self.owners.append(owner)
        self.taking_over += 1
        try:
            await owner.take_over()
        except DovetailError:
            owner.die()
        finally:
            self.taking_over -= 1

    async def append(self, owner: Owner) -> bool:
        """One record of a client; noted if it was acknowledged in time."""
        assert owner.partition is not None
        value = f"{next(self.values)}:".encode() + self.rng.randbytes(self.rng.choice([30, 300]))
        raw = memoryview(encode_batch([(None, value)], timestamp=VirtualClock().wall_ms()))
        future = owner.partition.append(raw, check_batch(raw, bytes_max=100_000))
        done, _ = await asyncio.wait({future}, timeout=2)
        if not done or future.exception() is not None:
            return False
        appended: Appended = future.result()
        assert appended.base_offset not in self.acknowledged, "an offset was given twice"
        self.acknowledged[appended.base_offset] = value
        return True

    # What is really there

    def on_chain(self, closed: Sequence[LedgerInfo]) -> None:
        """A node that takes a place in a closed ledger holds all of it, in that very moment."""
        for info in closed:
            known = self._placements.get(info.ledger)
            self._placements[info.ledger] = info.placement
            if known is None or known == info.placement:
                continue
            for entry in range(info.entry_last + 1):
                before, after = known.nodes_for(entry), info.placement.nodes_for(entry)
                for node in set(after).difference(before):
                    process = self.processes[node]
                    sound = not process.disk_lost and not process.hurt
                    if sound and not process.holds(info.ledger, entry):
                        why = f"node {node} is named before it holds entry {entry}"
                        self.failure = self.failure or AssertionError(why)

    def copies(self, info: LedgerInfo, entry: int) -> list[int]:
        """The nodes that the chain names for an entry and whose disks have it."""
        named = info.placement.nodes_for(entry)
        return [n for n in named if self.processes[n].holds(info.ledger, entry)]

    async def is_safe_to_hurt(self) -> bool:
        """Whether every entry that counts lies on two disks, and no disk is hurt already.

        A damaged node cannot say "not here" of an open ledger: with a second one that cannot,
        nobody could close it.
        """
        record, owner = await self.chain(), self.serving()
        if owner is None or owner.partition is None or owner.partition.term != record.term:
            return False
        for number, process in self.processes.items():
            named = any(number in info.placement.nodes for info in record.open)
            hurt = process.hurt.intersection(process.disk.names())
            if (named and process.disk_lost) or (hurt and not process.disk_lost):
                return False
        confirmed = {o.info.ledger: o.entry_confirmed for o in owner.partition.open_ledgers}
        for info in record.ledgers:
            last = info.entry_last if info.closed else confirmed.get(info.ledger, -1)
            if any(len(self.copies(info, entry)) < 2 for entry in range(last + 1)):
                return False
        return True

    async def lacking(self) -> str | None:
        """Why the cluster is not whole, or None."""
        record = await self.chain()
        for info in record.closed:
            for node in info.placement.nodes:
                process = self.processes[node]
                if node in self.draining or node in self.removed or process.disk_lost:
                    return f"ledger {info.ledger} names node {node}, which is not to hold anything"
            for entry in range(info.entry_last + 1):
                found = self.copies(info, entry)
                if len(found) < info.placement.quorum.write:
                    return f"entry {entry} of ledger {info.ledger} lies on {found} only"
            fits = info.placement.quorum.ensemble <= len(self.assigned)
            if fits and self.assignment_holds and not info.placement.nodes <= {*self.assigned}:
                return f"ledger {info.ledger} lies on {info.placement.nodes}, not {self.assigned}"
        for info in record.open:
            if info.placement.nodes & self.draining:
                return f"open ledger {info.ledger} names a node that is being drained"
            if info.placement.quorum != self.config.quorum:
                return f"open ledger {info.ledger} has the topic's old quorum"
        for number, process in self.processes.items():
            if process.node is not None and process.node.damaged:
                return f"node {number} is still damaged: {process.node.doubted()}"
        return None


def values_of(batches: Sequence[Buffer]) -> list[StoredRecord]:
    """Records of batches as read."""
    return [record for batch in batches for record in decode_batch(batch)]
