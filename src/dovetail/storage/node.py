"""A storage node: the contract that all other code uses, and the local node with its group commit.

Group commit: one thread takes all waiting commands, writes them, syncs once and answers them all.
While it syncs, the next group gathers. So the disk's speed sets the number of syncs, and the load
sets the number of appends for each; no timer delays an append.

Answers are callbacks, not futures: an append costs the event loop one call, and answers come in the
order of appends.
"""

import asyncio
import errno
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar, cast

from dovetail.background import keep_thread
from dovetail.errors import (
    Damaged,
    DovetailError,
    EntryUnknown,
    LedgerUnknown,
    StorageOut,
    Unavailable,
)
from dovetail.storage.disk.commands import (
    Append,
    Command,
    Cut,
    DeleteLedger,
    Fence,
    FilesGone,
    GroupReport,
    LetDamageGo,
    LookForFiles,
    Outcome,
    ScrubReport,
    TakeCut,
)
from dovetail.storage.disk.store import LedgerStore
from dovetail.storage.held import Held
from dovetail.storage.identifiers import Entry, EntryId, LedgerId, LedgerState, Term

#: Bytes that share one sync at most. Syncs get slower with size, and the first waits for the last.
GROUP_BYTES_MAX = 32 * 1024 * 1024

#: Without anything to write for so long, the store marks that its last group is on the disk.
MARK_AFTER_S = 1.0

#: Threads for reads of what is not in memory. Reads wait for the disk, not for the processor.
READ_THREADS = 4

#: Findings that the node lists; a disk that dies has thousands.
DAMAGES_TOLD = 20

#: After these, segments may have become dead.
_MAKES_ROOM = (DeleteLedger, LetDamageGo, LookForFiles)

Answer = Callable[[DovetailError | None], None]
Found = TypeVar("Found")


class StorageNode(Protocol):
    """Where entries are kept; local or, through frames, remote."""

    def append(self, command: Append, answer: Answer) -> None:
        """Stores an entry; `answer` gets None when it is durable, or the error."""
        ...

    async def fence(self, ledger: LedgerId, term: Term) -> LedgerState:
        """Refuses lower terms from now on. Raises `Fenced` if a higher one has fenced."""
        ...

    async def read(
        self, ledger: LedgerId, first: EntryId, *, last: EntryId, bytes_max: int
    ) -> list[Entry]:
        """Entries from `first` on without a gap, at least one; see `LedgerStore.read`."""
        ...

    async def read_for_recovery(self, ledger: LedgerId, entry: EntryId, term: Term) -> Entry | None:
        """Fences, then reads; None is "not here, and the old writer cannot store it any more".

        Raises `Fenced` if a higher term has fenced.
        """
        ...

    async def delete(self, ledger: LedgerId) -> None:
        """Forgets the ledger; no error if it is not there."""
        ...

    async def ledgers(self) -> set[LedgerId]:
        """The ledgers that are here."""
        ...

    async def held(self, ledger: LedgerId, *, first: EntryId, last: EntryId) -> Held:
        """What can be read here of the entries from `first` to `last`, a page at a time.

        An entry that is not in it is missing or damaged; nothing is fenced by asking.
        """
        ...


class LocalStorageNode:
    """The storage node of this process: a `LedgerStore` on a thread of its own."""

    def __init__(
        self,
        store: LedgerStore,
        *,
        on_group: Callable[[GroupReport], None] = lambda _: None,
        on_out: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Starts the thread; call it inside the event loop that is to get the answers."""
        self._store = store
        self._on_group = on_group
        self._on_out = on_out
        self._loop = asyncio.get_running_loop()
        self._waiting: SimpleQueue[tuple[Command, Callable[[Outcome], None]] | None] = SimpleQueue()
        self._closed = False
        self._may_delete = asyncio.Event()
        self._may_delete.set()
        self.scrub = ScrubReport()
        self._readers = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="storage/read")
        self._read_lock = threading.Lock()
        self._to_read: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()
        #: Threads that read what waits.
        self._reading_now = 0
        self._was_read: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._answering = False
        self._stopped = threading.Event()
        self._thread = keep_thread(self._work, name="storage/commit", stopped=self._stopped)

    @property
    def out_because(self) -> str | None:
        """Why the node took itself out, or None while it works."""
        return self._store.out_because

    @property
    def full_because(self) -> str | None:
        """Why writes are refused, as long as the disk has no room; None otherwise."""
        try:
            has_room = self._store.has_room()
        except OSError as error:
            return f"the room on the disk is not known: {error}"
        if not has_room:
            return "the disk is full: writes are refused; free some room"
        return self._store.full_because

    def bytes_on_disk(self) -> int:
        """Bytes in segment files."""
        return self._store.bytes_on_disk()

    def append(self, command: Append, answer: Answer) -> None:
        self._submit(command, cast("Callable[[Outcome], None]", answer))

    async def fence(self, ledger: LedgerId, term: Term) -> LedgerState:
        state = await self._ask(Fence(ledger, term))
        assert isinstance(state, LedgerState)
        return state

    async def delete(self, ledger: LedgerId) -> None:
        await self._may_delete.wait()
        await self._ask(DeleteLedger(ledger))

    @contextmanager
    def deletions_held(self) -> Iterator[None]:
        """Inside, no ledger goes: deletions that were not asked for before wait until the end."""
        assert self._may_delete.is_set()
        self._may_delete.clear()
        try:
            yield
        finally:
            self._may_delete.set()

    async def cut(self) -> Cut:
        """All segments as they are, behind everything that was appended before."""
        found = await self._ask(TakeCut())
        assert isinstance(found, Cut)
        return found

    async def read(
        self, ledger: LedgerId, first: EntryId, *, last: EntryId, bytes_max: int
    ) -> list[Entry]:
        return await self._reading(
            ledger, lambda: self._store.read(ledger, first, last=last, bytes_max=bytes_max)
        )

    async def read_for_recovery(self, ledger: LedgerId, entry: EntryId, term: Term) -> Entry | None:
        await self.fence(ledger, term)
        try:
            return (await self.read(ledger, entry, last=entry, bytes_max=1))[0]
        except (EntryUnknown, LedgerUnknown):
            return None

    async def ledgers(self) -> set[LedgerId]:
        return self._store.ledgers()

    async def held(self, ledger: LedgerId, *, first: EntryId, last: EntryId) -> Held:
        return await self._reading(ledger, lambda: self._store.held(ledger, first=first, last=last))

    async def _reading(self, ledger: LedgerId, ask: Callable[[], Found]) -> Found:
        # Not `run_in_executor`: its two futures cost the loop more than the read itself, and a
        # takeover of ten thousand partitions is forty thousand reads.
        future: asyncio.Future[Found] = self._loop.create_future()
        with self._read_lock:
            self._to_read.append((future, ask))
            begin = self._reading_now < READ_THREADS
            self._reading_now += begin
        if begin:
            self._readers.submit(self._read_all)
        try:
            return await future
        except OSError as error:
            what = f"ledger {ledger} cannot be read: {error}"
            if error.errno == errno.EIO:
                raise Damaged(what) from error
            raise Unavailable(what) from error

    # Damage, seen from this node alone (`DamagedNode` in storage/repair/wholeness.py)

    @property
    def damaged(self) -> bool:
        return self._store.damaged

    def doubted(self) -> set[LedgerId] | None:
        return self._store.doubts.ledgers()

    def examine(self, ledgers: Mapping[LedgerId, bool]) -> None:
        self._store.doubts.examine({int(ledger): copied for ledger, copied in ledgers.items()})

    def note_damage(self, what: str) -> None:
        """Adds to what the node says of its disk, until everything is here again."""
        self.scrub.damaged += 1
        if len(self._store.report.damaged) < DAMAGES_TOLD:
            self._store.report.damaged.append(what)

    async def look_for_files(self) -> tuple[str, ...]:
        """The segment files that are gone from their folder; what lives in them is moved now."""
        found = await self._ask(LookForFiles())
        assert isinstance(found, FilesGone)
        return found.names

    async def let_damage_go(self, settled: frozenset[LedgerId]) -> None:
        await self._ask(LetDamageGo(settled))

    async def close(self) -> None:
        """Commits what waits, then gives the files back."""
        if self._closed:
            return
        self._closed = True
        self._stopped.set()
        self._waiting.put(None)
        await self._loop.run_in_executor(None, self._thread.join)
        self._readers.shutdown(wait=True)
        self._store.close()

    def _submit(self, command: Command, answer: Callable[[Outcome], None]) -> None:
        if self._closed:
            self._loop.call_soon(answer, StorageOut("the storage node is closed"))
            return
        self._waiting.put((command, answer))

    async def _ask(self, command: Command) -> Outcome:
        future: asyncio.Future[Outcome] = self._loop.create_future()

        def respond(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        self._submit(command, respond)
        outcome = await future
        if isinstance(outcome, DovetailError):
            raise outcome
        return outcome

    # On the threads of readers

    def _read_all(self) -> None:
        """Reads what waits, until nothing does."""
        while True:
            with self._read_lock:
                if not self._to_read:
                    self._reading_now -= 1
                    return
                future, ask = self._to_read.popleft()
            self._read(future, ask)

    def _read(self, future: "asyncio.Future[Any]", ask: Callable[[], Any]) -> None:
        if future.cancelled():
            return
        try:
            found = ask()
        except BaseException as error:  # noqa: BLE001 - the reader must have its answer
            self._was_read.append((future, None, error))
        else:
            self._was_read.append((future, found, None))

        # One wake-up serves all that are done until the loop comes to it.
        if not self._answering:
            self._answering = True
            self._call_on_loop(self._answer_readers)

    def _answer_readers(self) -> None:
        # First, so that what is done from here on wakes the loop anew.
        self._answering = False
        while self._was_read:
            future, found, error = self._was_read.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(found)
            else:
                future.set_exception(error)

    # On the thread

    def _work(self) -> None:
        may_compact = True
        while True:
            group, stop = self._gather(wait=not may_compact)
            if not group and not stop and not may_compact:
                self._upkeep(self._store.mark)
            if group:
                commands = [command for command, _ in group]
                outcomes = self._commit(commands)
                self._answer_on_loop(group, outcomes)
                may_compact = may_compact or any(isinstance(c, _MAKES_ROOM) for c in commands)
            if stop:
                return
            if may_compact:
                may_compact = bool(self._upkeep(self._store.compact_step))

    def _gather(
        self, *, wait: bool
    ) -> tuple[list[tuple[Command, Callable[[Outcome], None]]], bool]:
        """Everything that waits, up to a group's size, and whether to stop after it."""
        group: list[tuple[Command, Callable[[Outcome], None]]] = []
        size = 0
        store = self._store
        timeout_s = None if store.marked or store.out_because is not None else MARK_AFTER_S
        while size < GROUP_BYTES_MAX:
            try:
                item = self._waiting.get(block=wait and not group, timeout=timeout_s)
            except Empty:
                break
            if item is None:
                return group, True
            group.append(item)
            if isinstance(item[0], Append):
                size += len(item[0].payload)
        return group, False

    def _commit(self, commands: Sequence[Command]) -> list[Outcome]:
        try:
            return self._store.commit(commands)
        except BaseException as error:  # noqa: BLE001 - a defect must not leave writers waiting
            because = self._fail(error)
            return [StorageOut(because) for _ in commands]

    def _upkeep(self, step: Callable[[], bool | None]) -> bool | None:
        """Does what nobody waits for; if that takes the node out, it is reported all the same."""
        try:
            return step()
        except BaseException as error:  # noqa: BLE001 - the thread must live: writers wait for it
            self._fail(error)
            return False
        finally:
            if self._store.out_because is not None:
                self._call_on_loop(partial(self._on_out, self._store.out_because))

    def _fail(self, error: BaseException) -> str:
        because = f"the storage node has failed: {error!r}; restart it"
        self._store.out_because = because
        return because

    def _answer_on_loop(
        self, group: list[tuple[Command, Callable[[Outcome], None]]], outcomes: list[Outcome]
    ) -> None:
        report, out_because = self._store.group_report, self._store.out_because

        def answer() -> None:
            self._on_group(report)
            if out_because is not None:
                self._on_out(out_because)
            for (_, respond), outcome in zip(group, outcomes, strict=True):
                respond(outcome)

        self._call_on_loop(answer)

    def _call_on_loop(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # The loop is closed: nobody waits for answers any more.
            self._closed = True
