"""One share-partition at the partition's owner: the doing part around `share_partition`.

It claims the stored state on first use. It stores the members' acknowledgements in the background,
one write at a time, each with everything decided by then, and answers members when theirs are
stored. A write without an answer is repeated under the same number, while the coordinator may be
moving. If that fails too, or another owner has claimed the state, the keeper forgets everything,
and the next use claims anew.

Survives: a coordinator that moves, an owner that is replaced, a caller that disconnects.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from dovetail.background import Alarm, Tasks
from dovetail.clock import Clock
from dovetail.errors import DovetailError, NotOwner, Unavailable
from dovetail.log.partition import Partition
from dovetail.log.reading import offset_for_time
from dovetail.log.share.share_partition import SharePartition
from dovetail.log.share.types import (
    Acknowledgement,
    Acquired,
    Batch,
    Mark,
    Place,
    ShareCounts,
    ShareError,
    ShareSettings,
    ShareState,
    ShareView,
)
from dovetail.logging import get_logger

_log = get_logger("log.share")

#: What has no answer is tried again after so long, for so long: a coordinator that moves to another
#: broker is there again by then. Members wait meanwhile.
_AGAIN_MS = 100
_ATTEMPTS_MAX = 50

#: Dead letters that could not be stored are tried again after so long.
_BURY_AGAIN_MS = 1_000

#: Records whose dead letters are made at once: each may be as large as the topic takes.
_BURIED_MAX = 100

T = TypeVar("T")


class ShareStore(Protocol):
    """Where the state of share-partitions is kept."""

    async def claim(self, place: Place, topic_id: str, term: int) -> ShareState:
        """What is stored, under a new claim. Raises `NotFound`, `Fenced`, `Unavailable`."""
        ...

    async def write(self, place: Place, state: ShareState) -> None:
        """Raises `NotFound`, `Fenced`, `Unavailable`."""
        ...


#: Stores the dead letters of these records.
Bury = Callable[["Keeper", Acquired, ShareSettings], Awaitable[None]]


class Keeper:
    """See the module."""

    def __init__(
        self,
        place: Place,
        partition: Partition,
        topic_id: str,
        store: ShareStore,
        bury: Bury,
        clock: Clock,
        limits: Callable[[str], ShareSettings],
        counts: ShareCounts | None = None,
    ) -> None:
        """`counts` outlives the keeper: it continues where the previous one stopped."""
        self.place = place
        self.counts = counts or ShareCounts()
        self.partition = partition
        self._topic_id = topic_id
        self._store = store
        self._bury = bury
        self._clock = clock
        self._limits = limits
        self._machine: SharePartition | None = None
        self._claimed = ShareState(topic_id, 0, 0)
        self._claiming: asyncio.Task[SharePartition] | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._writing = False
        self._burying = False
        self._closed: DovetailError | None = None
        self._tasks = Tasks()
        self._locks = Alarm(self._locks_end, name="log/share/locks", of=partition.name)
        #: Called whenever records become available again.
        self.on_available: set[Callable[[], None]] = set()

    # --- life -----------------------------------------------------------------------------------

    def close(self, error: DovetailError) -> None:
        """Nothing is shared here any more; waiting requests are refused."""
        self._closed = error
        self._drop(error)
        self._tasks.cancel()

    @property
    def idle(self) -> bool:
        """Whether no member has a record, and nothing is in flight."""
        machine = self._machine
        if self._writing or self._burying or self._claiming is not None or self.on_available:
            return False
        return machine is None or machine.next_deadline_ms is None

    @property
    def claimed(self) -> bool:
        """Whether it has claimed what is stored; a group that does not exist has nothing stored."""
        return self._machine is not None

    async def ready(self) -> SharePartition:
        """The machine, claimed if need be. Raises `NotFound`, `NotOwner`, `Unavailable`."""
        if self._closed is not None:
            raise self._closed
        if self._machine is not None:
            self._machine.settings = self._limits(self.place.group_id)
            return self._machine
        if self._claiming is None:
            self._claiming = self._tasks.start(
                self._claim(), name="log/share/claim", expected=(DovetailError,)
            )
        return await asyncio.shield(self._claiming)

    async def _claim(self) -> SharePartition:
        try:
            settings = self._limits(self.place.group_id)
            state = await self._insist(
                lambda: self._store.claim(self.place, self._topic_id, self.partition.term)
            )
            if state.start < 0:
                # Stored before anything is handed out: the next owner must not begin elsewhere.
                start = await self._beginning(settings)
                state = msgspec.structs.replace(state, start=start, version=1)
                await self._insist(lambda: self._store.write(self.place, state))
            if self._closed is not None:
                raise self._closed
        finally:
            self._claiming = None

        self._claimed = state
        machine = self._machine = SharePartition(state.start, state.spans, settings, self.counts)
        machine.trim(self.partition.log_start)
        self._decided(machine)
        self._begin_burying()
        return machine

    async def _beginning(self, settings: ShareSettings) -> int:
        """Where a group begins that was never here."""
        if settings.begins == "earliest":
            return self.partition.log_start
        _, _, age = settings.begins.partition(":")
        if age:
            found = await offset_for_time(self.partition, self._clock.wall_ms() - int(age))
            if found is not None:
                return found.offset
        return self.partition.high_watermark

    async def _insist(self, ask: Callable[[], Coroutine[None, None, T]]) -> T:
        """Asks until there is an answer, for a while."""
        for attempt in range(_ATTEMPTS_MAX):
            try:
                return await ask()
            except Unavailable:
                if attempt == _ATTEMPTS_MAX - 1 or self._closed is not None:
                    raise
            await asyncio.sleep(_AGAIN_MS / 1000)
        raise AssertionError("the last attempt raises")

    def _drop(self, error: DovetailError) -> None:
        """Forgets what was decided, with all locks."""
        self._machine = None
        self._locks.cancel()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_exception(error)
        self._wake()

    # --- what members do ------------------------------------------------------------------------

    def acquire(
        self,
        member: str,
        machine: SharePartition,
        read_from: int,
        batches: Iterable[Batch],
        *,
        records_max: int,
        strict: bool,
    ) -> list[Acquired]:
        """Gives a member what is available; nothing if the machine is not in use any more."""
        if machine is not self._machine:
            return []
        taken = machine.acquire(
            member,
            read_from,
            batches,
            records_max=records_max,
            strict=strict,
            now_ms=self._clock.monotonic_ms(),
        )
        self._set_alarm(machine)
        return taken

    async def acknowledge(self, member: str, said: Sequence[Acknowledgement]) -> ShareError:
        """Returns when it is stored, or refused. Raises what `ready` raises, or `Unavailable`."""
        machine = await self.ready()
        error = machine.acknowledge(member, said, now_ms=self._clock.monotonic_ms())
        stored = self._decided(machine)
        if error is ShareError.NONE and stored is not None:
            await stored
        return error

    def release_all(self, member: str) -> "asyncio.Future[None] | None":
        """A member's session ended: others have what it had from now on; says when it is stored."""
        machine = self._machine
        if machine is None or not machine.release_all(member):
            return None
        return self._decided(machine)

    def trim(self) -> None:
        """The log may begin later now."""
        if self._machine is not None and self._machine.trim(self.partition.log_start):
            self._decided(self._machine)

    def view(self) -> ShareView | None:
        """As it is now, if it is in use."""
        machine = self._machine
        if machine is None:
            return None
        spans = [*machine.spans()]
        undone = sum(span.length for span in spans if span.mark < Mark.ACKNOWLEDGED)
        undone += sum(span.length for span in spans if span.mark is Mark.ARCHIVING)
        log_end = self.partition.high_watermark
        return ShareView(
            start=machine.start,
            log_end=log_end,
            lag=undone + max(log_end - machine.end, 0),
            acquired=sum(span.length for span in spans if span.mark is Mark.ACQUIRED),
            again=sum(span.length for span in spans if span.mark is Mark.AVAILABLE),
            deliveries=max((s.count for s in spans if s.mark < Mark.ACKNOWLEDGED), default=0),
            dying=sum(span.length for span in spans if span.mark is Mark.ARCHIVING),
        )

    # --- storing --------------------------------------------------------------------------------

    def _decided(self, machine: SharePartition) -> "asyncio.Future[None] | None":
        """Begins to store what was decided; the future says when it is, None: nothing to store."""
        self._set_alarm(machine)
        self._wake()
        if not machine.dirty:
            return None
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stored.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting.append(stored)
        if not self._writing:
            self._writing = True
            self._tasks.start(self._write(machine), name="log/share/write", of=self.partition.name)
        return stored

    async def _write(self, machine: SharePartition) -> None:
        error: DovetailError = Unavailable(f"{self.partition.name}: what was said is not stored")
        waiting: list[asyncio.Future[None]] = []
        try:
            while machine is self._machine and machine.dirty:
                machine.dirty = False
                waiting, self._waiting = self._waiting, []
                start, spans = machine.stored()
                version = self._claimed.version + 1
                state = msgspec.structs.replace(
                    self._claimed, version=version, start=start, spans=spans
                )
                self._claimed = state

                await self._insist(partial(self._store.write, self.place, state))
                for future in waiting:
                    if not future.done():
                        future.set_result(None)
                waiting = []
        except DovetailError as met:
            error = met
            _log.warning(
                "cannot store a share group's acknowledgements",
                partition=self.partition.name,
                error=str(met),
            )
        finally:
            self._writing = False
            if machine is self._machine and (waiting or machine.dirty):
                self._waiting += waiting
                self._drop(error if not isinstance(error, NotOwner) else Unavailable(str(error)))
            for future in waiting:
                if not future.done():
                    future.set_exception(error)
        self._begin_burying()

    # --- dead letters ---------------------------------------------------------------------------

    def _begin_burying(self) -> None:
        """Begins with what is stored as given up; what is not, a crash could still take back."""
        machine = self._machine
        if machine is None or self._burying or self._writing or not machine.dying():
            return
        self._burying = True
        self._tasks.start(self._bury_all(machine), name="log/share/bury", of=self.partition.name)

    async def _bury_all(self, machine: SharePartition) -> None:
        """Stores dead letters until there are none left, or something else has to be stored."""
        try:
            while machine is self._machine and not self._writing and (dying := machine.dying()):
                first, last, deliveries = dying[0]
                piece = Acquired(first, min(last, first + _BURIED_MAX - 1), deliveries)
                try:
                    # As they are now: an operator names another topic when letters find no place.
                    await self._bury(self, piece, self._limits(self.place.group_id))
                except Exception as error:  # noqa: BLE001 - letters wait after a defect too
                    _log.warning(
                        "cannot store dead letters; they wait",
                        group=self.place.group_id,
                        partition=self.partition.name,
                        error=repr(error),
                    )
                    await asyncio.sleep(_BURY_AGAIN_MS / 1000)
                    continue
                if machine is self._machine:
                    machine.buried(piece.first, piece.last)
                    self._decided(machine)
        finally:
            self._burying = False
        self._begin_burying()

    # --- time -----------------------------------------------------------------------------------

    def _set_alarm(self, machine: SharePartition) -> None:
        due_ms = machine.next_deadline_ms
        if due_ms is None:
            self._locks.cancel()
        else:
            self._locks.set(max(due_ms - self._clock.monotonic_ms(), 1.0) / 1000)

    def _locks_end(self) -> None:
        machine = self._machine
        if machine is not None:
            machine.expire(now_ms=self._clock.monotonic_ms())
            self._decided(machine)

    def _wake(self) -> None:
        for wake in tuple(self.on_available):
            wake()
