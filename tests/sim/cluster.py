"""A cluster in one thread: the real state machines under a simulated network, clock and disks.

Real: `QuorumWriter`, `QuorumRecovery`, `Placement`, `LedgerStore` on `FaultyDisk`s.
Simulated: messages (delay, loss, reordering, duplicates, one-way partitions), time, the
coordination service (one record behind compare-and-set, reached by messages too), and processes
that crash, pause and come back. An owner that pauses and wakes goes on as if nothing had happened:
only the stores stop it.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from tests.faulty_disk import FaultyDisk
from tests.sim.pausing import Pausable

from dovetail.errors import DovetailError, EntryUnknown, Fenced, LedgerUnknown, Unavailable
from dovetail.storage.disk.commands import Append, Fence
from dovetail.storage.disk.options import StoreSettings
from dovetail.storage.disk.store import LedgerStore
from dovetail.storage.identifiers import EntryId, LedgerId, LedgerState, Term
from dovetail.storage.placement import Fragment, Placement
from dovetail.storage.quorum import recovery
from dovetail.storage.quorum import writer as writing
from dovetail.storage.quorum.arithmetic import Quorum
from dovetail.storage.quorum.recovery import QuorumRecovery
from dovetail.storage.quorum.writer import QuorumWriter

STORE = StoreSettings(segment_bytes=4_000, disk_free_bytes_min=0, reserve_bytes=1_500)

#: How long a request to a node is waited for, and a write to be confirmed.
REQUEST_MS = 60
#: How long a change of the chain is waited for.
CHANGE_MS = 200
META = -1
#: A long read of recovery gives some entries and not all, so that both ways are gone.
AHEAD_BYTES = 40


class PowerCut(Exception):
    """A storage node loses its power in the middle of a system call."""


@dataclass(frozen=True)
class LedgerMeta:
    """A ledger in the chain."""

    placement: Placement
    term: int
    entry_last: int | None = None

    @property
    def ledger(self) -> int:
        return self.placement.ledger


@dataclass(frozen=True)
class ChainMeta:
    """The one record of the coordination service."""

    revision: int = 0
    term: int = 0
    ledgers: tuple[LedgerMeta, ...] = ()


class World:
    """Time, the network and everybody in it."""

    def __init__(self, seed: int, *, quorum: Quorum, nodes: int, owners: int) -> None:
        self.rng = random.Random(seed)
        self.quorum = quorum
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.loss = 0.0
        #: The part of messages that takes far longer than anybody waits.
        self.slow = 0.0
        self.blocked: set[tuple[int, int]] = set()
        self.chain = ChainMeta()
        self.ledger_ids = count(1)
        self.payloads = count()
        #: What clients were told: (ledger, entry, payload), in order of their answers.
        self.acknowledged: list[tuple[int, int, bytes]] = []
        self.ends: dict[int, int] = {}
        self.faults: dict[str, int] = {}
        self.nodes = {n: StorageProcess(self, n) for n in range(nodes)}
        self.owners = {100 + n: Owner(self, 100 + n) for n in range(owners)}

    def at(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), action))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until

    def send(self, source: int, target: int, action: Callable[[], None]) -> None:
        """Delivers after a while, perhaps twice, perhaps never."""
        if (source, target) in self.blocked or self.rng.random() < self.loss:
            return
        slow = self.rng.random() < self.slow
        delay = self.rng.random() * 500 if slow else self.rng.expovariate(1 / 3)
        self.at(delay, action)
        if self.rng.random() < 0.02:
            self.at(delay + self.rng.random() * 20, action)

    def fault(self, name: str) -> None:
        self.faults[name] = self.faults.get(name, 0) + 1

    def compare_and_set(self, revision: int, chain: ChainMeta) -> bool:
        if revision != self.chain.revision:
            return False
        open_terms = [m.term for m in chain.ledgers if m.entry_last is None]
        assert len(open_terms) <= 2, "three open ledgers"
        for ledger in self.chain.ledgers:
            after = next((m for m in chain.ledgers if m.ledger == ledger.ledger), None)
            if ledger.entry_last is not None and after is not None:
                assert after.entry_last == ledger.entry_last, "a closed ledger was changed"
        self.chain = ChainMeta(revision + 1, chain.term, chain.ledgers)
        return True


class Process(Pausable):
    """Something that can crash, pause and be cut off."""

    def __init__(self, world: World, name: int) -> None:
        super().__init__()
        self.world = world
        self.name = name
        self.alive = True

    def crash(self) -> None:
        self.alive, self.paused = False, False
        self._held_back.clear()
        self.life += 1


class StorageProcess(Process):
    """A storage node: the real store on a faulty disk."""

    def __init__(self, world: World, name: int) -> None:
        super().__init__(world, name)
        self.disk = FaultyDisk(world.rng)
        self.disk.power_cut = PowerCut
        self.store = LedgerStore(self.disk, STORE, world.rng)
        self.disk_lost = False

    def crash(self) -> None:
        super().crash()
        self.disk.calls_until_cut = None
        self.disk.crash()

    def restart(self) -> None:
        if self.alive or self.disk_lost:
            return
        self.store = LedgerStore(self.disk, STORE, self.world.rng)
        assert self.store.report.damaged == []
        self.alive = True

    def ask(
        self, source: Process, work: Callable[[LedgerStore], Any], then: Callable[[Any], None]
    ) -> None:
        """Another process asks; `then` gets a result or an error, if the answer arrives."""
        source_life, world = source.life, self.world
        then = once(then)

        def arrive() -> None:
            try:
                answer = work(self.store)
            except PowerCut:
                world.fault("power cut in a write")
                self.crash()
                world.at(world.rng.random() * 300, self.restart)
                return
            except DovetailError as error:
                answer = error
            world.send(
                self.name, source.name, lambda: source.deliver(source_life, lambda: then(answer))
            )

        world.send(source.name, self.name, lambda: self.deliver(self.life, arrive))


@dataclass
class _Ledger:
    """A ledger that an owner writes."""

    meta: LedgerMeta
    writer: QuorumWriter
    waiting: dict[int, bytes] = field(default_factory=dict)
    last_sent: int = -1


class Owner(Process):
    """A broker that claims the partition, recovers it, and writes."""

    def __init__(self, world: World, name: int) -> None:
        super().__init__(world, name)
        self.term = 0
        self.seen = ChainMeta()
        self.ledger: _Ledger | None = None
        self.attempt = 0
        self.recovering: dict[QuorumRecovery, LedgerMeta] = {}
        self.busy = False

    def crash(self) -> None:
        super().crash()
        self.ledger, self.busy = None, False

    def restart(self) -> None:
        self.alive = True

    def _of_this_attempt(self, then: Callable[[Any], None]) -> Callable[[Any], None]:
        """Answers count once, and not after the owner has begun anew."""
        attempt, first = self.attempt, once(then)
        return lambda answer: first(answer) if attempt == self.attempt else None

    # Coordination, by messages

    def read_chain(self, then: Callable[[ChainMeta], None]) -> None:
        life, then = self.life, self._of_this_attempt(then)
        self.world.send(
            self.name,
            META,
            lambda: self.world.send(
                META, self.name, lambda c=self.world.chain: self.deliver(life, lambda: then(c))
            ),
        )

    def change_chain(self, chain: ChainMeta, then: Callable[[bool], None]) -> None:
        life, revision = self.life, self.seen.revision

        def note(applied: bool) -> None:
            if applied:
                self.seen = ChainMeta(revision + 1, chain.term, chain.ledgers)
            then(applied)

        answer = self._of_this_attempt(note)

        def arrive() -> None:
            applied = self.world.compare_and_set(revision, chain)
            self.world.send(META, self.name, lambda: self.deliver(life, lambda: answer(applied)))

        self.world.send(self.name, META, arrive)
        # No answer in time: it may or may not have happened, and the owner does not go on.
        self.world.at(CHANGE_MS, lambda: self.deliver(life, lambda: answer(False)))

    # Takeover

    def take_over(self) -> None:
        """Claims with term + 1, recovers what is open, closes it, opens a new ledger."""
        if not self.alive or self.paused or self.busy:
            return
        self.busy, self.ledger = True, None
        self.attempt += 1
        attempt, life = self.attempt, self.life
        # An attempt whose messages were lost is given up after a while.
        self.world.at(1500, lambda: self.deliver(life, lambda: self._give_up(attempt)))
        self.read_chain(self._claim)

    def _give_up(self, attempt: int) -> None:
        if attempt == self.attempt:
            self.busy = False

    def _claim(self, chain: ChainMeta) -> None:
        self.seen = chain
        self.term = chain.term + 1
        self.change_chain(ChainMeta(0, self.term, chain.ledgers), self._go_on_if)

    def _go_on_if(self, applied: bool) -> None:
        if applied:
            self._recover_next()
        else:
            self.busy = False

    def _recover_next(self) -> None:
        meta = next((m for m in self.seen.ledgers if m.entry_last is None), None)
        if meta is None:
            self._open()
            return
        last = meta.placement.fragments[-1]
        machine = QuorumRecovery(meta.placement.quorum, last.nodes, fragment_first=last.first_entry)
        self._perform_recovery(meta, machine, machine.start())

    def _perform_recovery(
        self, meta: LedgerMeta, machine: QuorumRecovery, effects: list[recovery.Effect]
    ) -> None:
        ledger, term = LedgerId(meta.ledger), Term(self.term)
        for effect in effects:
            if isinstance(effect, recovery.Done):
                self._close(self.recovering.pop(machine, meta), effect.entry_last)
            elif isinstance(effect, recovery.Stuck):
                self.busy = False
            elif isinstance(effect, writing.Replace):
                self._replace_in_recovery(meta, machine, effect)
            elif isinstance(effect, recovery.AskFence):
                self._recovery_ask(
                    meta,
                    machine,
                    effect.node,
                    lambda s: s.commit([Fence(ledger, term)])[0],
                    lambda a, n=effect.node: machine.on_fenced(n, a.confirmed, a.entry_last),
                )
            elif isinstance(effect, recovery.AskAhead):
                self._recovery_ask(
                    meta,
                    machine,
                    effect.node,
                    lambda s, f=effect: read_ahead(s, ledger, f.first, f.last),
                    lambda a, f=effect: machine.on_ahead(f.node, f.first, a),
                )
            elif isinstance(effect, recovery.AskEntry):
                self._recovery_ask(
                    meta,
                    machine,
                    effect.node,
                    lambda s, e=effect.entry: fenced_read(s, ledger, term, e),
                    lambda a, f=effect: machine.on_entry(f.node, f.entry, a),
                )
            else:
                self._recovery_ask(
                    meta,
                    machine,
                    effect.node,
                    lambda s, f=effect: s.commit(
                        [Append(ledger, EntryId(f.entry), term, EntryId(f.confirmed), f.payload)]
                    )[0],
                    lambda _, f=effect: machine.on_stored(f.node, f.entry),
                )

    def _recovery_ask(
        self,
        meta: LedgerMeta,
        machine: QuorumRecovery,
        node: int,
        work: Callable[[LedgerStore], Any],
        on_answer: Callable[[Any], list[recovery.Effect]],
    ) -> None:
        answered = False
        attempt = self.attempt

        def then(answer: Any) -> None:
            nonlocal answered
            answered = True
            if attempt != self.attempt:
                return
            if isinstance(answer, Fenced):
                effects = machine.on_refused(answer)
            elif isinstance(answer, DovetailError):
                effects = machine.on_failed(node)
            else:
                effects = on_answer(answer)
            self._perform_recovery(meta, machine, effects)

        def timeout() -> None:
            if not answered and attempt == self.attempt:
                self._perform_recovery(meta, machine, machine.on_failed(node))

        self.world.nodes[node].ask(self, work, then)
        life = self.life
        self.world.at(REQUEST_MS, lambda: self.deliver(life, timeout))

    def _replace_in_recovery(
        self, meta: LedgerMeta, machine: QuorumRecovery, effect: writing.Replace
    ) -> None:
        meta = self.recovering.get(machine, meta)
        chosen = self._choose(meta.placement.fragments[-1].nodes, effect.nodes)
        if chosen is None:
            error = Unavailable("no spare node")
            self._perform_recovery(meta, machine, machine.on_refused(error))
            return
        # Not in the chain before the ledger is closed: until then the old nodes are the witnesses.
        after = replace(meta, placement=meta.placement.with_nodes(effect.first_entry, chosen))
        self.world.fault("ensemble change in recovery")
        self.recovering[machine] = after
        self._perform_recovery(after, machine, machine.on_replaced(chosen))

    def _close(self, meta: LedgerMeta, entry_last: int) -> None:
        closed = replace(meta, entry_last=entry_last)
        ledgers = tuple(closed if m.ledger == meta.ledger else m for m in self.seen.ledgers)
        self.change_chain(ChainMeta(0, self.term, ledgers), self._go_on_if)

    # Writing

    def _choose(self, keep: tuple[int, ...], bad: frozenset[int]) -> tuple[int, ...] | None:
        spare = [n for n, p in self.world.nodes.items() if n not in keep and p.alive]
        self.world.rng.shuffle(spare)
        chosen = []
        for node in keep:
            if node in bad:
                if not spare:
                    return None
                chosen.append(spare.pop())
            else:
                chosen.append(node)
        return tuple(chosen)

    def _open(self) -> None:
        alive = [n for n, p in self.world.nodes.items() if p.alive]
        quorum = self.world.quorum
        if len(alive) < quorum.ensemble:
            alive = [n for n, p in self.world.nodes.items() if not p.disk_lost]
        if len(alive) < quorum.ensemble:
            self.busy = False
            return
        nodes = tuple(self.world.rng.sample(alive, quorum.ensemble))
        ledger = next(self.world.ledger_ids)
        meta = LedgerMeta(Placement(ledger, quorum, (Fragment(0, nodes),)), self.term)

        def opened(applied: bool) -> None:
            self.busy = False
            if applied:
                self.ledger = _Ledger(meta, QuorumWriter(quorum, nodes))

        self.change_chain(ChainMeta(0, self.term, (*self.seen.ledgers, meta)), opened)

    def append(self, payload: bytes) -> None:
        """A client's record; acknowledged when it is confirmed."""
        ledger = self.ledger
        if not self.alive or self.paused or ledger is None or ledger.writer.failure:
            return
        entry = ledger.writer.entry_next
        ledger.waiting[entry] = payload
        self._perform(ledger, ledger.writer.append(payload))

    def _perform(self, ledger: _Ledger, effects: list[writing.Effect]) -> None:
        if ledger is not self.ledger:
            return
        for effect in effects:
            if isinstance(effect, writing.Send):
                self._send(ledger, effect)
            elif isinstance(effect, writing.Confirm):
                for entry in sorted(e for e in ledger.waiting if e <= effect.entry):
                    payload = ledger.waiting.pop(entry)
                    self.world.acknowledged.append((ledger.meta.ledger, entry, payload))
            elif isinstance(effect, writing.Replace):
                self._replace(ledger, effect)
            else:
                self.ledger = None

    def _send(self, ledger: _Ledger, effect: writing.Send) -> None:
        answered = False

        def then(answer: Any) -> None:
            nonlocal answered
            answered = True
            if answer is None:
                self._perform(ledger, ledger.writer.on_stored(effect.node, effect.entry))
            elif isinstance(answer, Fenced):
                self._perform(ledger, ledger.writer.on_refused(answer))
            else:
                self._perform(ledger, ledger.writer.on_failed(effect.node))

        def timeout() -> None:
            if not answered:
                self._perform(ledger, ledger.writer.on_failed(effect.node))

        command = Append(
            LedgerId(ledger.meta.ledger),
            EntryId(effect.entry),
            Term(ledger.meta.term),
            EntryId(effect.confirmed),
            effect.payload,
        )
        self.world.nodes[effect.node].ask(self, lambda s: s.commit([command])[0], then)
        life = self.life
        self.world.at(REQUEST_MS, lambda: self.deliver(life, timeout))

    def _replace(self, ledger: _Ledger, effect: writing.Replace) -> None:
        chosen = self._choose(ledger.meta.placement.fragments[-1].nodes, effect.nodes)
        if chosen is None:
            error = Unavailable("no spare node")
            self._perform(ledger, ledger.writer.on_not_replaced(error))
            return
        placement = ledger.meta.placement.with_nodes(effect.first_entry, chosen)
        meta = replace(ledger.meta, placement=placement)
        ledgers = tuple(meta if m.ledger == meta.ledger else m for m in self.seen.ledgers)

        def changed(applied: bool) -> None:
            if ledger is not self.ledger:
                return
            if not applied:
                self.ledger = None
                return
            ledger.meta = meta
            self.world.fault("ensemble change")
            self._perform(ledger, ledger.writer.on_replaced(chosen))

        self.change_chain(ChainMeta(0, self.term, ledgers), changed)


def once(action: Callable[[Any], None]) -> Callable[[Any], None]:
    """An answer that arrives twice counts once, as with request ids."""
    done = False

    def run(answer: Any) -> None:
        nonlocal done
        if not done:
            done = True
            action(answer)

    return run


def fenced_read(store: LedgerStore, ledger: LedgerId, term: Term, entry: int) -> bytes | None:
    """Fences and reads in one step, as a storage node does for recovery."""
    state = store.commit([Fence(ledger, term)])[0]
    if isinstance(state, DovetailError):
        raise state
    assert isinstance(state, LedgerState)
    try:
        found = store.read(ledger, EntryId(entry), last=EntryId(entry), bytes_max=1)
    except (EntryUnknown, LedgerUnknown):
        return None
    return bytes(found[0].payload)


def read_ahead(store: LedgerStore, ledger: LedgerId, first: int, last: int) -> list[bytes]:
    """A few entries at once, without a fence; nothing if the first is not there."""
    try:
        found = store.read(ledger, EntryId(first), last=EntryId(last), bytes_max=AHEAD_BYTES)
    except DovetailError:
        return []
    return [bytes(entry.payload) for entry in found]
