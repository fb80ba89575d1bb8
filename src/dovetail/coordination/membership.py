"""The membership: every node under its one lease, and a view of all of them (L1, B2).

    /nodes/<id>      Member, bound to the node's lease; gone when the node is

A node registers its address, roles and load, and renews the load periodically. The others see it
come and go by watching the prefix. A node that shuts down deregisters first: it is still alive and
keeps what it owns, but gets nothing new.

A number belongs to one process. A starting node takes its number over, because its previous process
may still be registered. A running node that finds another process under its number has been
replaced, and ends.

While `holds_lease` is true this node's key exists, and nobody claims what it owns (claims have
`absence_of` as a condition). After a lost lease, others may have taken everything. So under a new
lease this node first reads the records again (`before_lease`), and only then counts as its holder.

A process has one lease. Everything else that it keeps in coordination for its lifetime is bound to
the same one (`LeaseSource`), and written again when `on_lease` reports a new one.

Survives: an absent service (the view stays as it was), a lost lease (the node registers again).
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from dovetail.background import Tasks, first_of
from dovetail.clock import Clock
from dovetail.coordination import (
    ABSENT,
    Coordinator,
    LeaseId,
    LeaseKeeper,
    Put,
    Revision,
    Unchanged,
)
from dovetail.coordination.mirror import RETRY_MS, Mirror
from dovetail.errors import DovetailError, LeaseLost, Uncertain
from dovetail.logging import get_logger

_log = get_logger("membership")

NODES = "/nodes/"

#: How often a node renews its load.
LOAD_MS = 2000

#: How long a broker that could not serve what it had gets nothing new.
DECLINE_MS = 30_000

#: How long a node that went is remembered, for clients that are on their way from it.
GONE_MS = 5000
#: How long a node that went without deregistering is missed; one that is not wanted any more is
#: forgotten after that.
MISSED_MS = 24 * 3_600_000

OVERSEER_ROLE = "overseer"
BROKER_ROLE = "broker"
STORAGE_ROLE = "storage"


class Member(msgspec.Struct, frozen=True):
    """A node, as it describes itself."""

    node_id: int
    host: str
    port: int
    roles: tuple[str, ...]
    version: str
    name: str = ""
    #: Where it stands; empty if nobody said.
    rack: str = ""
    #: Differs from one life of a node to the next.
    incarnation: str = ""
    #: The lease that its key is bound to.
    lease: int = 0
    #: It gives away what it has, and gets nothing new.
    leaving: bool = False
    #: It could not serve what it had a moment ago, and gets nothing new while others can.
    declining: bool = False
    #: Where its health and metrics are, if they are served.
    http: str | None = None
    #: Bytes that a storage node holds; new ledgers are placed by it.
    stored_bytes: int = 0
    partitions: int = 0
    #: How often its storage found damage in what it holds; owners look at it anew then.
    damage_found: int = 0
    #: Its storage took itself out after a failed sync: nothing new is placed there.
    storage_out: bool = False
    #: Ledgers of the partitions that it owns which lie on too few storage nodes.
    copies_lacking: int = 0
    #: What keeps it from serving fully; empty when it is healthy.
    reasons: tuple[str, ...] = ()


class MissingNode(msgspec.Struct, frozen=True):
    """A node that should be there; `since_ms` is None if it went before this node looked."""

    node_id: int
    name: str
    roles: tuple[str, ...]
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LiveBrokers:
    """Who is there: `alive` keeps what it owns, `willing` may get more."""

    alive: frozenset[int]
    willing: frozenset[int]


class LeaseSource(Protocol):
    """The one lease of this process, for keys that are to go with it."""

    #: Called when the lease was lost, and when there is a new one.
    on_lease: list[Callable[[], None]]

    @property
    def lease_id(self) -> LeaseId:
        """The lease to bind keys to. Raises `LeaseLost` while there is none."""
        ...

    def holds_lease(self) -> bool:
        """Whether the lease surely has not ended."""
        ...


class Membership:
    """The view of all nodes and this node's place in it; the log's `Peers`, and a `LeaseSource`."""

    def __init__(
        self, coordinator: Coordinator, *, node_id: int, clock: Clock, ttl_ms: int
    ) -> None:
        self._coordinator = coordinator
        self._node_id = node_id
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._members: dict[int, Member] = {}
        #: Of the last change of each, also of those that are gone.
        self._revisions: dict[int, Revision] = {}
        #: Nodes that went, and until when they are remembered.
        self._gone: dict[int, tuple[Member, float]] = {}
        #: Nodes that went without deregistering.
        self._missing: dict[int, MissingNode] = {}

        self._mirror = Mirror(coordinator, NODES, apply=self._apply, settled=self._settle)
        self._tasks = Tasks()
        self._lease: LeaseKeeper | None = None
        self._incarnation = uuid.uuid4().hex[:12]
        self._renew = asyncio.Event()

        self._brokers = LiveBrokers(frozenset(), frozenset())
        self._lives: set[tuple[int, str, bool, tuple[str, ...]]] = set()
        self._changed = asyncio.Event()
        self._declines_until_ms = 0.0

        self.leaving = False
        #: Set when another process runs under this node's number.
        self.replaced = asyncio.Event()
        #: Called whenever a node came, went, or is about to leave; loads change all the time.
        self.on_change: list[Callable[[], None]] = []
        #: See `Peers`.
        self.before_lease: list[Callable[[], Awaitable[None]]] = []
        #: See `LeaseSource`.
        self.on_lease: list[Callable[[], None]] = []

    # What is seen

    def members(self) -> dict[int, Member]:
        """All nodes that hold their lease, by number."""
        return self._members

    def gone(self) -> list[Member]:
        """Nodes that went moments ago."""
        now_ms = self._clock.monotonic_ms()
        return [member for member, until_ms in self._gone.values() if now_ms < until_ms]

    def missing(self) -> list[MissingNode]:
        """Nodes that went without deregistering, and are not back."""
        now_ms = self._clock.wall_ms()
        return [one for one in self._missing.values() if now_ms - (one.since_ms or 0) < MISSED_MS]

    def storage(self) -> dict[int, Member]:
        """The storage nodes among them that can store something."""
        return {
            number: member
            for number, member in self._members.items()
            if STORAGE_ROLE in member.roles and not member.storage_out
        }

    def brokers(self) -> LiveBrokers:
        """The brokers among them."""
        return self._brokers

    def holds_lease(self) -> bool:
        """Whether this node is certainly registered, so that no other claims what it owns."""
        return self._lease is not None and self._lease.valid(self._clock.monotonic_ms())

    @property
    def lease_id(self) -> LeaseId:
        """The lease that this node's keys are bound to. Raises `LeaseLost` while there is none."""
        if self._lease is None:
            raise LeaseLost(f"node {self._node_id} has no lease now; try again")
        return self._lease.id

    def absence_of(self, number: int) -> Sequence[Unchanged]:
        """The condition that a node is no registered broker at the moment of a transaction."""
        member = self._members.get(number)
        if member is not None and BROKER_ROLE not in member.roles:
            # It owned partitions when it had that role. It can have it again, and then it has
            # registered anew.
            return (Unchanged(_key(number), self._revisions[number]),)
        return (Unchanged(_key(number), ABSENT),)

    # This node's place

    async def start(self) -> None:
        """Reads all members, then watches them. Raises `CoordinationDown`."""
        await self._mirror.start()

    async def register(self, describe: Callable[[], Member]) -> None:
        """Makes this node known, until `stop`; returns when it is."""
        known = asyncio.Event()
        hold, of = partial(self._hold, describe, known), f"node {self._node_id}"
        self._tasks.keep(hold, name="membership/lease", of=of)
        await known.wait()

    def renew(self) -> None:
        """This node's description has changed: publishes it now."""
        self._renew.set()

    def decline(self) -> None:
        """This broker could not serve what it had: it wants nothing new for a while."""
        self._declines_until_ms = self._clock.monotonic_ms() + DECLINE_MS
        self.renew()

    async def leave(self) -> None:
        """Deregisters: this node gets nothing new from now on; returns when that is known here."""
        self.leaving = True
        self.renew()
        try:
            async with asyncio.timeout(self._ttl_ms / 1000):
                while self._node_id in self._brokers.willing:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            _log.warning("cannot deregister this node: the coordination service does not answer")

    async def stop(self) -> None:
        """Gives the lease back, so that others need not wait for its end."""
        await self._tasks.stop()
        await self._mirror.stop()

    async def _hold(self, describe: Callable[[], Member], known: asyncio.Event) -> None:
        while not self.replaced.is_set():
            try:
                async with LeaseKeeper(
                    self._coordinator, ttl_ms=self._ttl_ms, clock=self._clock
                ) as lease:
                    note_loss, of = partial(self._note_loss, lease), f"node {self._node_id}"
                    self._tasks.keep(note_loss, name="membership/loss", of=of)
                    await self._hold_once(describe, known, lease)
            except DovetailError as error:
                _log.warning("cannot register this node; trying again", error=str(error))
            finally:
                self._set_lease(None)
            await asyncio.sleep(RETRY_MS / 1000)

    async def _hold_once(
        self, describe: Callable[[], Member], known: asyncio.Event, lease: LeaseKeeper
    ) -> None:
        key, revision = _key(self._node_id), await self._take_number(first=not known.is_set())
        while not lease.lost.is_set() and not self.replaced.is_set():
            value = msgspec.json.encode(self._described(describe(), lease))
            self._renew.clear()
            try:
                outcome = await self._coordinator.transact(
                    [Put(key, value, lease.id)], conditions=[Unchanged(key, revision)]
                )
                applied, revision = outcome.applied, outcome.revision
            except Uncertain:
                applied = False
            if not applied:
                revision = await self._take_number(first=not known.is_set())
                continue

            self._mirror.note(key, value, revision)
            if self._lease is None and not lease.lost.is_set():
                for read_again in self.before_lease:
                    await read_again()
                self._set_lease(lease)
            self._settle()
            known.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOAD_MS / 1000):
                    await first_of(lease.lost.wait(), self._renew.wait())

        if lease.lost.is_set():
            _log.warning("lease lost; registering this node again")

    def _described(self, member: Member, lease: LeaseKeeper) -> Member:
        return msgspec.structs.replace(
            member,
            incarnation=self._incarnation,
            lease=lease.id,
            leaving=self.leaving,
            declining=self._clock.monotonic_ms() < self._declines_until_ms,
        )

    async def _note_loss(self, lease: LeaseKeeper) -> None:
        """Reports a lost lease at once, also while the service does not answer."""
        await lease.lost.wait()
        if lease is self._lease:
            self._set_lease(None)

    def _set_lease(self, lease: LeaseKeeper | None) -> None:
        if lease is self._lease:
            return
        self._lease = lease
        for listener in self.on_lease:
            listener()

    async def _take_number(self, *, first: bool) -> Revision:
        """The revision under which this node's key can be written by this process."""
        found = await self._coordinator.get(_key(self._node_id))
        if found is None:
            self._set_lease(None)  # It was removed: who saw that may have claimed what is ours.
            return ABSENT
        member = msgspec.json.decode(found.value, type=Member)
        if member.incarnation != self._incarnation and not first:
            _log.error("another process runs under this node's number", node=self._node_id)
            self.replaced.set()
        return found.revision

    # What the mirror reports

    def _apply(self, key: str, value: bytes | None, revision: Revision) -> None:
        number = int(key.removeprefix(NODES))
        self._revisions[number] = revision
        if value is None:
            member = self._members.pop(number, None)
            if member is not None:
                self._gone[number] = (member, self._clock.monotonic_ms() + GONE_MS)
            if member is not None and not member.leaving:
                self._missing[number] = MissingNode(
                    number, member.name, member.roles, self._clock.wall_ms()
                )
        else:
            self._members[number] = msgspec.json.decode(value, type=Member)
            self._missing.pop(number, None)

    def _settle(self) -> None:
        alive = [m for m in self._members.values() if BROKER_ROLE in m.roles]
        staying = [m for m in alive if not m.leaving]
        fit = [m for m in staying if not m.declining] or staying
        self._brokers = LiveBrokers(
            frozenset(m.node_id for m in alive), frozenset(m.node_id for m in fit)
        )

        lives = {
            (
                m.node_id,
                f"{m.incarnation}/{m.damage_found}",
                m.leaving or m.declining or m.storage_out,
                m.roles,
            )
            for m in self._members.values()
        }
        if lives == self._lives:
            return
        self._lives = lives
        self._changed.set()
        for listener in self.on_change:
            listener()


def _key(number: int) -> str:
    return f"{NODES}{number:06d}"
