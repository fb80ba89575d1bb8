"""Who is there: every node under its own lease, and a view of all of them (L1, B2).

    /nodes/<id>      Member, bound to the node's lease; gone when the node is

A node announces itself with its address, roles and load, and renews the load periodically. Others
see it come and go by watching the prefix; a view that fell behind reads everything again.

Survives: the service being away (the view stays as it was), a lost lease (announced anew).
"""

import asyncio
from collections.abc import Callable

import msgspec

from dovetail.clock import Clock
from dovetail.coordination import Coordinator, LeaseKeeper, Put, Revision
from dovetail.errors import DovetailError, WatchGap
from dovetail.logging import get_logger

_log = get_logger("membership")

NODES = "/nodes/"

#: How often a node renews what it says about its load.
LOAD_MS = 2000

#: Pause before the view is read again after the service was away.
RETRY_MS = 200


class Member(msgspec.Struct, frozen=True):
    """A node, as it says of itself."""

    node_id: int
    host: str
    port: int
    roles: tuple[str, ...]
    version: str
    #: Bytes that a storage node holds; what new ledgers are dealt by.
    stored_bytes: int = 0
    partitions: int = 0


class Membership:
    """The view of all nodes, and this node's place in it."""

    def __init__(self, coordinator: Coordinator, *, clock: Clock, ttl_ms: int) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._members: dict[int, Member] = {}
        self._tasks: list[asyncio.Task[None]] = []
        #: Called whenever somebody came, went or changed.
        self.on_change: list[Callable[[], None]] = []

    def members(self) -> dict[int, Member]:
        """All nodes that hold their lease, by number."""
        return self._members

    async def start(self) -> None:
        """Reads who is there, then follows. Raises `CoordinationDown`."""
        await self._read_all()
        self._tasks.append(asyncio.create_task(self._follow()))

    async def announce(self, describe: Callable[[], Member]) -> None:
        """Makes this node known, until `stop`; returns when it is."""
        known = asyncio.Event()
        self._tasks.append(asyncio.create_task(self._hold(describe, known)))
        await known.wait()

    async def stop(self) -> None:
        """Leaves, so that others need not wait for the lease to end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _hold(self, describe: Callable[[], Member], known: asyncio.Event) -> None:
        while True:
            try:
                async with LeaseKeeper(
                    self._coordinator, ttl_ms=self._ttl_ms, clock=self._clock
                ) as lease:
                    while not lease.lost.is_set():
                        member = describe()
                        value = msgspec.json.encode(member)
                        key = f"{NODES}{member.node_id:06d}"
                        await self._coordinator.transact([Put(key, value, lease.id)])
                        known.set()
                        await _wait(lease.lost, LOAD_MS)
                _log.warning("lease lost; announcing this node anew")
            except DovetailError as error:
                _log.warning("not announced; trying again", error=str(error))
            await asyncio.sleep(RETRY_MS / 1000)

    async def _read_all(self) -> Revision:
        """Everybody as of now; the watch goes on from the revision that is returned."""
        snapshot = await self._coordinator.range(NODES)
        members = (msgspec.json.decode(item.value, type=Member) for item in snapshot.items)
        self._members = {member.node_id: member for member in members}
        self._tell()
        return snapshot.revision

    async def _follow(self) -> None:
        while True:
            try:
                revision = await self._read_all()
                async with self._coordinator.watch(NODES, after=revision) as events:
                    async for changes in events:
                        for change in changes:
                            self._apply(change.key, change.value)
                        self._tell()
            except WatchGap:
                continue
            except DovetailError as error:
                _log.warning("the view of the cluster is not renewed", error=str(error))
            await asyncio.sleep(RETRY_MS / 1000)

    def _apply(self, key: str, value: bytes | None) -> None:
        number = int(key.removeprefix(NODES))
        if value is None:
            self._members.pop(number, None)
        else:
            self._members[number] = msgspec.json.decode(value, type=Member)

    def _tell(self) -> None:
        for listener in self.on_change:
            listener()


async def _wait(event: asyncio.Event, wait_ms: int) -> None:
    try:
        async with asyncio.timeout(wait_ms / 1000):
            await event.wait()
    except TimeoutError:
        pass
