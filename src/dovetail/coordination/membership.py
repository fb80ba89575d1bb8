"""Who is there: every node under its own lease, and a view of all of them (L1, B2).

    /nodes/<id>      Member, bound to the node's lease; gone when the node is

A node announces itself with its address, roles and load, and renews the load periodically. Others
see it come and go by following the prefix. Before it leaves it says so: it is still alive and keeps
what it owns, but gets nothing new.

A number belongs to one process. A node that starts takes its number over, because its former life
may still be announced; a node that runs and finds another process under its number has been
replaced, and ends.

While `holds_lease` is true this node's key is there, and nobody claims what it owns (`absence_of`
is a condition of that). A lease that was lost is another thing: others may have taken everything
meanwhile. So under a new one this node first looks at the records again (`before_lease`), and only
then holds it.

Survives: the service being away (the view stays as it was), a lost lease (announced anew).
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from dovetail.clock import Clock
from dovetail.coordination import ABSENT, Coordinator, LeaseKeeper, Put, Revision, Unchanged
from dovetail.coordination.mirror import RETRY_MS, Mirror
from dovetail.errors import DovetailError, Uncertain
from dovetail.logging import get_logger

_log = get_logger("membership")

NODES = "/nodes/"

#: How often a node renews what it says about its load.
LOAD_MS = 2000

#: How long a broker that could not serve what it had gets nothing new.
DECLINE_MS = 30_000

#: How long a node that went is remembered, for clients that are on their way from it.
GONE_MS = 5000

OVERSEER_ROLE = "overseer"
BROKER_ROLE = "broker"
STORAGE_ROLE = "storage"


class Member(msgspec.Struct, frozen=True):
    """A node, as it says of itself."""

    node_id: int
    host: str
    port: int
    roles: tuple[str, ...]
    version: str
    name: str = ""
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
    #: Bytes that a storage node holds; what new ledgers are dealt by.
    stored_bytes: int = 0
    partitions: int = 0
    #: Its storage took itself out after a failed sync: nothing new is placed there.
    storage_out: bool = False
    #: What keeps it from serving fully; empty when it is healthy.
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveBrokers:
    """Who is there: `alive` keeps what it owns, `willing` may get more."""

    alive: frozenset[int]
    willing: frozenset[int]


class Membership:
    """The view of all nodes, and this node's place in it. It is the log's `Peers`."""

    def __init__(
        self, coordinator: Coordinator, *, node_id: int, clock: Clock, ttl_ms: int
    ) -> None:
        self._coordinator = coordinator
        self._node_id = node_id
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._members: dict[int, Member] = {}
        #: Nodes that went, and until when they are remembered.
        self._gone: dict[int, tuple[Member, float]] = {}
        self._mirror = Mirror(coordinator, NODES, apply=self._apply, settled=self._tell)
        self._holding: asyncio.Task[None] | None = None
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
        #: Called whenever somebody came, went, or is about to leave; loads change all the time.
        self.on_change: list[Callable[[], None]] = []
        #: See `Peers`.
        self.before_lease: list[Callable[[], Awaitable[None]]] = []

    # What is seen

    def members(self) -> dict[int, Member]:
        """All nodes that hold their lease, by number."""
        return self._members

    def gone(self) -> list[Member]:
        """Nodes that went moments ago."""
        now_ms = self._clock.monotonic_ms()
        return [member for member, until_ms in self._gone.values() if now_ms < until_ms]

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
        """Whether this node surely is announced, so that nobody claims what it owns."""
        return self._lease is not None and self._lease.valid(self._clock.monotonic_ms())

    def absence_of(self, number: int) -> Sequence[Unchanged]:
        """The condition that a node is not announced at the moment of a transaction."""
        return (Unchanged(_key(number), ABSENT),)

    # This node's place

    async def start(self) -> None:
        """Reads who is there, then follows. Raises `CoordinationDown`."""
        await self._mirror.start()

    async def announce(self, describe: Callable[[], Member]) -> None:
        """Makes this node known, until `stop`; returns when it is."""
        known = asyncio.Event()
        self._holding = asyncio.create_task(self._hold(describe, known))
        await known.wait()

    def renew(self) -> None:
        """What this node says of itself has changed: tells it now."""
        self._renew.set()

    def decline(self) -> None:
        """This broker could not serve what it had: it wants nothing new for a while."""
        self._declines_until_ms = self._clock.monotonic_ms() + DECLINE_MS
        self.renew()

    async def leave(self) -> None:
        """Tells the others that this node is about to go; returns when it is known here."""
        self.leaving = True
        self.renew()
        try:
            async with asyncio.timeout(self._ttl_ms / 1000):
                while self._node_id in self._brokers.willing:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            _log.warning("the coordination service does not hear that this node leaves")

    async def stop(self) -> None:
        """Leaves, so that others need not wait for the lease to end."""
        if self._holding is not None:
            self._holding.cancel()
            await asyncio.gather(self._holding, return_exceptions=True)
        await self._mirror.stop()

    async def _hold(self, describe: Callable[[], Member], known: asyncio.Event) -> None:
        while not self.replaced.is_set():
            try:
                async with LeaseKeeper(
                    self._coordinator, ttl_ms=self._ttl_ms, clock=self._clock
                ) as lease:
                    await self._hold_once(describe, known, lease)
            except DovetailError as error:
                _log.warning("not announced; trying again", error=str(error))
            except Exception as error:  # noqa: BLE001 - without a lease the node is none
                _log.error("announcing met a defect", error=repr(error))
            finally:
                self._lease = None
            await asyncio.sleep(RETRY_MS / 1000)

    async def _hold_once(
        self, describe: Callable[[], Member], known: asyncio.Event, lease: LeaseKeeper
    ) -> None:
        key, revision = _key(self._node_id), await self._take_number(first=not known.is_set())
        while not lease.lost.is_set() and not self.replaced.is_set():
            member = msgspec.structs.replace(
                describe(),
                incarnation=self._incarnation,
                lease=lease.id,
                leaving=self.leaving,
                declining=self._clock.monotonic_ms() < self._declines_until_ms,
            )
            value = msgspec.json.encode(member)
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
            if self._lease is None:
                for look_again in self.before_lease:
                    await look_again()
                self._lease = lease
            self._tell()
            known.set()
            await self._until_news(lease)
        if lease.lost.is_set():
            _log.warning("lease lost; announcing this node anew")

    async def _take_number(self, *, first: bool) -> Revision:
        """The revision under which this node's key can be written by this process."""
        found = await self._coordinator.get(_key(self._node_id))
        if found is None:
            self._lease = None  # It was removed: who saw that may have claimed what is ours.
            return ABSENT
        member = msgspec.json.decode(found.value, type=Member)
        if member.incarnation != self._incarnation and not first:
            _log.error("another process runs under this node's number", node=self._node_id)
            self.replaced.set()
        return found.revision

    async def _until_news(self, lease: LeaseKeeper) -> None:
        lost = asyncio.create_task(lease.lost.wait())
        asked = asyncio.create_task(self._renew.wait())
        try:
            await asyncio.wait(
                {lost, asked}, timeout=LOAD_MS / 1000, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in (lost, asked):
                task.cancel()

    # What the mirror tells

    def _apply(self, key: str, value: bytes | None, revision: Revision) -> None:
        number = int(key.removeprefix(NODES))
        if value is None:
            member = self._members.pop(number, None)
            if member is not None:
                self._gone[number] = (member, self._clock.monotonic_ms() + GONE_MS)
        else:
            self._members[number] = msgspec.json.decode(value, type=Member)

    def _tell(self) -> None:
        alive = [m for m in self._members.values() if BROKER_ROLE in m.roles]
        staying = [m for m in alive if not m.leaving]
        fit = [m for m in staying if not m.declining] or staying
        self._brokers = LiveBrokers(
            frozenset(m.node_id for m in alive), frozenset(m.node_id for m in fit)
        )
        lives = {
            (m.node_id, m.incarnation, m.leaving or m.declining or m.storage_out, m.roles)
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
