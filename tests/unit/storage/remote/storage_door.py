"""A storage node behind a real door on loopback, which can be killed and opened again."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from dovetail.errors import DovetailError, ProtocolViolation
from dovetail.storage import (
    Entry,
    EntryId,
    LedgerId,
    LedgerState,
    LedgerStore,
    LocalStorageNode,
    RealDisk,
    StorageNode,
    StoreSettings,
    Term,
)
from dovetail.storage import calls as storage_calls
from dovetail.storage.disk.commands import Append, GroupReport
from dovetail.storage.held import Held
from dovetail.storage.node import Answer
from dovetail.storage.remote import RemoteStorageNode
from dovetail.storage.service import StorageService
from dovetail.wire import ByteBudget, Connection, Dispatch, Limits, Reply, WireServer, calls
from dovetail.wire.peer import PeerSettings

#: Whatever a test waits for comes within this, or never.
DEADLINE_S = 60.0

#: Who the node behind a door says it is.
IDENTITY = "storage-1"

#: Short waits for a node that is not there.
QUICK = PeerSettings(backoff_ms_min=1, backoff_ms_max=5)


def open_local(folder: Path, groups: list[GroupReport] | None = None) -> LocalStorageNode:
    store = LedgerStore(RealDisk(folder), StoreSettings(disk_free_bytes_min=0), random.Random(1))
    return LocalStorageNode(store, on_group=lambda g: None if groups is None else groups.append(g))


def greeting(service: StorageService) -> Dispatch:
    """A service behind the answer to `Hello`, as a node has it."""

    def dispatch(connection: Connection, frame: memoryview) -> Reply:
        if calls.api_key_of(frame) != calls.HELLO_KEY:
            return service(connection, frame)
        return calls.answer_hello(
            frame, node="node", now_ms=0, services=["storage"], identity=IDENTITY
        )

    return dispatch


class Door:
    """A `WireServer` that keeps its port, and everything that it saw."""

    def __init__(self, dispatch: Dispatch) -> None:
        """`dispatch` can be exchanged at any time."""
        self.dispatch = dispatch
        #: The api key of every frame that came.
        self.keys: list[int] = []
        self.budget = ByteBudget(1 << 30)
        self.connections: set[Connection] = set()
        self.opened_ever = 0
        self.violations: list[str] = []
        self.failures: list[Exception] = []
        self.port = 0
        self._server: WireServer | None = None

    async def open(self) -> None:
        limits = Limits(
            frame_bytes_max=100 << 20, frame_read_ms=60_000, idle_ms=60_000, connections_max=100
        )
        self._server = WireServer(self._dispatch, limits, self.budget, self)
        self.port = await self._server.start("127.0.0.1", self.port)

    async def kill(self) -> None:
        """No answer to anything, as after kill -9."""
        for connection in tuple(self.connections):
            connection.close()
        await self.stop()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()
            self._server = None

    def _dispatch(self, connection: Connection, frame: memoryview) -> Reply:
        self.keys.append(int.from_bytes(frame[:2], "big"))
        return self.dispatch(connection, frame)

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        self.opened_ever += 1

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def violation(self, connection: Connection, error: ProtocolViolation) -> None:
        self.violations.append(str(error))

    def failed(self, connection: Connection, error: Exception) -> None:
        self.failures.append(error)

    def moved(self, bytes_in: int, bytes_out: int) -> None:
        pass


class HeldNode:
    """A storage node that answers appends when it is told to."""

    def __init__(self) -> None:
        self.held: list[Answer] = []

    def append(self, command: Append, answer: Answer) -> None:
        self.held.append(answer)

    async def fence(self, ledger: LedgerId, term: Term) -> LedgerState:
        raise OSError("the disk is on fire")

    async def read(
        self, ledger: LedgerId, first: EntryId, *, last: EntryId, bytes_max: int
    ) -> list[Entry]:
        assert bytes_max <= storage_calls.READ_BYTES_MAX
        count = min(last - first + 1, 100_000)
        return [Entry(EntryId(first + n), Term(1), EntryId(-1), b"x") for n in range(count)]

    async def read_for_recovery(self, ledger: LedgerId, entry: EntryId, term: Term) -> Entry | None:
        raise AssertionError("not asked here")

    async def delete(self, ledger: LedgerId) -> None:
        raise AssertionError("not asked here")

    async def ledgers(self) -> set[LedgerId]:
        return {LedgerId(n) for n in range(100_000)}

    async def held(self, ledger: LedgerId, *, first: EntryId, last: EntryId) -> Held:
        raise AssertionError("not asked here")


@asynccontextmanager
async def storage_door(folder: Path) -> AsyncIterator[Door]:
    """A local storage node behind an open door."""
    async with contextlib.AsyncExitStack() as stack:
        node = open_local(folder)
        stack.push_async_callback(node.close)
        door = Door(greeting(StorageService(node)))
        await door.open()
        stack.push_async_callback(door.stop)
        yield door


@asynccontextmanager
async def remote(
    door: Door, settings: PeerSettings = QUICK, *, identity: str | None = IDENTITY
) -> AsyncIterator[RemoteStorageNode]:
    """A client of a door."""
    node = RemoteStorageNode(
        "127.0.0.1",
        door.port,
        client_id="test",
        identity=identity,
        settings=settings,
        rng=random.Random(1),
    )
    try:
        yield node
    finally:
        await node.close()


def begin(
    node: StorageNode,
    ledger: int,
    entry: int,
    payload: bytes,
    *,
    term: int = 1,
    confirmed: int = -1,
    told: Callable[[int], None] = lambda _: None,
) -> "asyncio.Future[DovetailError | None]":
    """Begins an append; the future gets its outcome, and `told` the entry at that moment."""
    future: asyncio.Future[DovetailError | None] = asyncio.get_running_loop().create_future()

    def answer(error: DovetailError | None) -> None:
        told(entry)
        future.set_result(error)

    numbers = LedgerId(ledger), EntryId(entry), Term(term), EntryId(confirmed)
    node.append(Append(*numbers, payload), answer)
    return future


async def until(reached: Callable[[], bool]) -> None:
    """Lets the loop turn until `reached`."""
    async with asyncio.timeout(DEADLINE_S):
        while not reached():
            await asyncio.sleep(0.0005)


async def append(
    node: StorageNode, ledger: int, entry: int, payload: bytes, *, term: int = 1
) -> DovetailError | None:
    """An append and its outcome."""
    async with asyncio.timeout(DEADLINE_S):
        return await begin(node, ledger, entry, payload, term=term)


async def outcomes_of(
    futures: "list[asyncio.Future[DovetailError | None]]",
) -> list[DovetailError | None]:
    """The outcomes of appends that were begun."""
    async with asyncio.timeout(DEADLINE_S):
        return list(await asyncio.gather(*futures))
