"""The coordinator of transactions: the doing part around `transaction`.

Promise:
- No client learns of a change before the journal has it, and no marker is sent before the journal
  has the decision. A coordinator that loads the journal continues from there.
- Every decision is completed: markers are sent until every partition, whichever broker owns it by
  then, has stored its own. A partition of a deleted topic needs none.
- A transaction that exceeds its producer's timeout is aborted, and its epoch fenced.

Memory is ahead of the journal by what is on its way there. A failed append leaves its change in
memory; the change is stored with the next one, before that is answered.

Survives: a crash at any point, a caller that disconnects, a journal that fails or hangs.
Not here: fencing a replaced coordinator: its journal refuses to append.
"""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial

from dovetail.background import Tasks
from dovetail.clock import Clock, UnhurriedTime
from dovetail.errors import DovetailError
from dovetail.log.groups.journal import JournalRecord
from dovetail.log.groups.partition_journal import PartitionJournal
from dovetail.log.groups.types import GroupError
from dovetail.log.groups.writer import JournalWriter
from dovetail.log.transactions import transaction as machine
from dovetail.log.transactions.journal import record_of, replay
from dovetail.log.transactions.transaction import NOBODY, Decided, Transaction
from dovetail.log.transactions.types import (
    Identity,
    Place,
    TransactionError,
    TransactionState,
)
from dovetail.logging import get_logger
from dovetail.record_batch import Marker

_log = get_logger("log.transactions")

#: Time-outs are looked for so often.
TICK_MS = 1_000

#: Ids that expired are looked for so often.
_EXPIRY_CHECK_MS = 60_000

#: A request that comes while the transaction before is being ended waits so long before it is
#: sent away. Markers take milliseconds; a client that is sent away pauses for longer than that.
BUSY_MS = 1_000

#: Between two attempts to store an end, or to send markers: at first, and at most.
_AGAIN_MS, _AGAIN_MS_MAX = 20, 1_000

#: Sends markers; returns the partitions that have it now, or need none any more.
SendMarkers = Callable[[Marker, Collection[Place]], Awaitable[set[Place]]]


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Limits of transactions."""

    timeout_ms_max: int = 15 * 60 * 1000
    id_expiry_ms: int = 7 * 24 * 60 * 60 * 1000


@dataclass(slots=True)
class _Entry:
    """A transactional id: as it is in memory, and as the journal surely has it."""

    now: Transaction | None = None
    durable: Transaction | None = None
    #: When an open transaction is aborted, on the clock that does not jump.
    deadline_ms: float = 0.0
    ending: bool = False
    #: Set when nothing is being ended.
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _Joining:
    """Partitions that came while the journal was storing others of the same transaction."""

    places: dict[Place, None]
    done: "asyncio.Future[int | TransactionError]"


class TransactionCoordinator:
    """Coordinates the transactional ids whose journal it is given."""

    def __init__(
        self,
        journal: PartitionJournal,
        clock: Clock,
        settings: TransactionSettings,
        *,
        next_producer_id: Callable[[], Awaitable[int]],
        send_markers: SendMarkers,
    ) -> None:
        self._journal = journal
        self._writer = JournalWriter(journal)
        self._clock = clock
        self._time = UnhurriedTime(clock)
        self._settings = settings
        self._next_producer_id = next_producer_id
        self._send_markers = send_markers
        self._entries: dict[str, _Entry] = {}
        self._joining: dict[tuple[str, Identity], _Joining] = {}
        self._tasks = Tasks()
        self._loaded = False
        self._closed = False
        self._expiry_due_ms = 0.0

    # --- life -----------------------------------------------------------------------------------

    @property
    def loaded(self) -> bool:
        """Whether it knows what the journal holds."""
        return self._loaded

    async def load(self, records: AsyncIterable[JournalRecord]) -> None:
        """Takes over what the journal has. Raises `Damaged` if a record cannot be read."""
        for transactional_id, known in (await replay(records)).items():
            entry = self._entries[transactional_id] = _Entry(known, known)
            if not known.prepared:
                entry.ended.set()
            self._set_deadline(entry, known)
        self._loaded = True

    def start(self) -> None:
        """Goes on with what is decided, and watches the time from now on."""
        for transactional_id, entry in self._entries.items():
            if entry.now is not None and entry.now.prepared:
                self._begin_end(transactional_id, entry)
        self._tasks.keep(self._run_timer, name="log/transactions/timer")

    async def close(self) -> None:
        """Ends; waiting requests are answered that the coordinator is elsewhere."""
        self._closed = True
        await self._writer.close()
        await self._tasks.stop()
        for entry in self._entries.values():
            entry.ended.set()

    def snapshot(self) -> list[JournalRecord]:
        """The live state as records, with what is on its way to the journal."""
        if not self._loaded:
            raise AssertionError("a coordinator that has not loaded its journal knows no state")
        live = {}
        for transactional_id, entry in self._entries.items():
            if entry.durable is not None:
                record = record_of(transactional_id, entry.durable)
                live[record.key] = record
        live.update((record.key, record) for record in self._writer.records_in_flight())
        return [*live.values()]

    # --- requests -------------------------------------------------------------------------------

    async def begin(
        self, transactional_id: str, *, timeout_ms: int, expected: Identity | None
    ) -> Identity | TransactionError:
        """A producer's id and epoch; the previous owner of the transactional id is fenced.

        Raises `Unavailable` if there is no new id to be had.
        """
        deadline_ms = self._clock.monotonic_ms() + BUSY_MS
        while True:
            fresh_id = await self._fresh_id(transactional_id)
            found = await self._decide(
                transactional_id,
                lambda known, fresh_id=fresh_id: machine.begin(  # type: ignore[misc]
                    known,
                    fresh_id=fresh_id,
                    timeout_ms=timeout_ms,
                    expected=expected,
                    now_ms=self._clock.wall_ms(),
                ),
            )
            if isinstance(found, TransactionError):
                return found
            if not found.prepared:
                return found.identity
            # The open transaction is being aborted; the producer hears of its own epoch alone.
            if self._clock.monotonic_ms() >= deadline_ms:
                return TransactionError.BUSY

    async def add(
        self, transactional_id: str, who: Identity, partitions: Collection[Place]
    ) -> int | TransactionError:
        """Partitions join the transaction; its number.

        The record of a transaction names all its partitions. So those that come while one is being
        stored join together: a transaction over thousands of them does not cost their square.
        """
        key = transactional_id, who
        joining = self._joining.get(key)
        if joining is not None:
            joining.places.update(dict.fromkeys(partitions))
            return await asyncio.shield(joining.done)

        joining = _Joining({}, asyncio.get_running_loop().create_future())
        self._joining[key] = joining
        try:
            found = await self._decide(
                transactional_id,
                lambda known: machine.add(known, who, partitions, now_ms=self._clock.wall_ms()),
            )
        finally:
            del self._joining[key]
            self._add_together(transactional_id, who, joining)
        return found if isinstance(found, TransactionError) else found.number

    def _add_together(self, transactional_id: str, who: Identity, joining: _Joining) -> None:
        """The waiting requests continue together; the one before them may be gone."""
        if not joining.places:
            return

        def then(adding: "asyncio.Task[int | TransactionError]") -> None:
            failed = adding.cancelled() or adding.exception() is not None
            found = TransactionError.NOT_COORDINATOR if failed else adding.result()
            if not joining.done.done():
                joining.done.set_result(found)

        together = self.add(transactional_id, who, [*joining.places])
        self._tasks.start(together, name="log/transactions/add").add_done_callback(then)

    def verify(
        self, transactional_id: str, who: Identity, partition: Place
    ) -> int | TransactionError:
        """The number of the transaction that goes on and has this partition, by the journal."""
        refused = self._refusal()
        if refused is not None:
            return refused
        entry = self._entries.get(transactional_id)
        if entry is not None and entry.now is not None and entry.now.prepared:
            return TransactionError.BUSY
        found = machine.verify(None if entry is None else entry.durable, who, partition)
        return found if isinstance(found, TransactionError) else found.number

    async def end(
        self, transactional_id: str, who: Identity, *, commit: bool, bumps: bool
    ) -> Identity | TransactionError:
        """Commits or aborts; who the producer is from now on. It is decided when this returns.

        Raises `Unavailable` if there is no new id to be had.
        """
        fresh_id = await self._fresh_id(transactional_id) if bumps else NOBODY
        found = await self._decide(
            transactional_id,
            lambda known: machine.end(
                known,
                who,
                commit=commit,
                bumps=bumps,
                fresh_id=fresh_id,
                now_ms=self._clock.wall_ms(),
            ),
        )
        return found if isinstance(found, TransactionError) else found.identity

    def describe(self, transactional_id: str) -> Transaction | TransactionError:
        """The transactional id as it is."""
        refused = self._refusal()
        if refused is not None:
            return refused
        entry = self._entries.get(transactional_id)
        if entry is None or entry.now is None or entry.now.state is TransactionState.DEAD:
            return TransactionError.NOT_FOUND
        return entry.now

    def transactions(self) -> Iterable[tuple[str, Transaction]]:
        """Every transactional id that is known."""
        for transactional_id, entry in self._entries.items():
            if entry.now is not None and entry.now.state is not TransactionState.DEAD:
                yield transactional_id, entry.now

    # --- deciding and storing -------------------------------------------------------------------

    def _refusal(self) -> TransactionError | None:
        if self._closed:
            return TransactionError.NOT_COORDINATOR
        return None if self._loaded else TransactionError.LOADING

    async def _fresh_id(self, transactional_id: str) -> int:
        entry = self._entries.get(transactional_id)
        if self._refusal() is None and machine.needs_id(None if entry is None else entry.now):
            return await self._next_producer_id()
        return NOBODY

    async def _decide(
        self, transactional_id: str, decide: Callable[[Transaction | None], Decided]
    ) -> Decided:
        """What `decide` makes of the transaction, when the journal has it."""
        deadline_ms = self._clock.monotonic_ms() + BUSY_MS
        while True:
            refused = self._refusal()
            if refused is not None:
                return refused
            entry = self._entries.get(transactional_id)
            found = decide(None if entry is None else entry.now)
            wait_ms = deadline_ms - self._clock.monotonic_ms()
            if found is not TransactionError.BUSY or entry is None or entry.ended.is_set():
                break
            if wait_ms <= 0:
                break
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await entry.ended.wait()
            except TimeoutError:
                return TransactionError.BUSY

        if isinstance(found, TransactionError):
            return found
        error = await self._move(transactional_id, found)
        return found if error is None else error

    async def _move(self, transactional_id: str, to: Transaction) -> TransactionError | None:
        """Goes on to what was decided; returns when the journal has it."""
        entry = self._entries.setdefault(transactional_id, _Entry())
        if to is not entry.now:
            if entry.now is None or entry.now.number != to.number:
                self._set_deadline(entry, to)
            entry.now = to
            if to.prepared:
                entry.ended.clear()
        if entry.durable is to:
            return None

        outcome = await self._store(transactional_id, entry, to)
        if outcome is GroupError.NONE:
            return None
        if outcome is GroupError.NOT_COORDINATOR:
            return TransactionError.NOT_COORDINATOR
        return TransactionError.NOT_AVAILABLE

    def _store(
        self, transactional_id: str, entry: _Entry, to: Transaction
    ) -> "asyncio.Future[GroupError]":
        def then(error: GroupError) -> None:
            if error is GroupError.NONE:
                entry.durable = to
            if to.prepared and entry.now is to and not self._closed:
                self._begin_end(transactional_id, entry)

        return self._writer.append([record_of(transactional_id, to)], then)

    def _set_deadline(self, entry: _Entry, begun: Transaction) -> None:
        """When a transaction is aborted; what has passed of it under another coordinator counts."""
        if begun.state is TransactionState.ONGOING:
            passed_ms = max(0, self._clock.wall_ms() - begun.started_ms)
            left_ms = max(0, begun.timeout_ms - passed_ms)
            entry.deadline_ms = self._clock.monotonic_ms() + left_ms

    # --- ending ---------------------------------------------------------------------------------

    def _begin_end(self, transactional_id: str, entry: _Entry) -> None:
        if not entry.ending:
            entry.ending = True
            entry.ended.clear()
            end = partial(self._end, transactional_id, entry)
            self._tasks.keep(end, name="log/transactions/end", of=transactional_id)

    async def _end(self, transactional_id: str, entry: _Entry) -> None:
        """Brings a decision to every partition, however long that takes."""
        decided = entry.now
        if decided is None or not decided.prepared:
            return  # It was ended, and failed behind that; the next transaction may be open.
        pause_ms = _AGAIN_MS
        while entry.durable is not decided:
            # Nobody knows whether the journal has it: no marker before that is sure.
            await self._store(transactional_id, entry, decided)
            if entry.durable is not decided:
                pause_ms = await self._pause(pause_ms)

        missing, pause_ms = decided.partitions, _AGAIN_MS
        while missing:
            try:
                done = await self._send_markers(decided.marker(self._journal.term), missing)
                missing = tuple(place for place in missing if place not in done)
            except DovetailError as error:
                _log.warning("cannot send markers yet", id=transactional_id, error=str(error))
            if missing:
                pause_ms = await self._pause(pause_ms)

        completed = machine.complete(decided, now_ms=self._clock.wall_ms())
        entry.now, entry.ending = completed, False
        entry.ended.set()
        await self._store(transactional_id, entry, completed)

    async def _pause(self, pause_ms: int) -> int:
        await asyncio.sleep(pause_ms / 1000)
        return min(2 * pause_ms, _AGAIN_MS_MAX)

    # --- time -----------------------------------------------------------------------------------

    async def _run_timer(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self.tick()

    def tick(self) -> None:
        """Aborts what took too long, and forgets what was not used for long."""
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
        old_ms = self._time.now_ms()
        expires = now_ms >= self._expiry_due_ms
        if expires:
            self._expiry_due_ms = now_ms + _EXPIRY_CHECK_MS
        for transactional_id, entry in [*self._entries.items()]:
            known = entry.now
            if known is None:
                continue
            if known.state is TransactionState.ONGOING and entry.deadline_ms <= now_ms:
                _log.info("transaction timed out", id=transactional_id, ms=known.timeout_ms)
                entry.now = machine.time_out(known, now_ms=wall_ms)
                entry.ended.clear()
                self._store(transactional_id, entry, entry.now)
            elif expires:
                self._expire(transactional_id, entry, known, old_ms)

    def _expire(self, transactional_id: str, entry: _Entry, known: Transaction, now: int) -> None:
        after_ms = self._settings.id_expiry_ms
        dead = machine.expire(known, after_ms=after_ms, now_ms=now)
        if dead.state is not TransactionState.DEAD:
            return
        entry.now = dead

        def then(error: GroupError) -> None:
            if error is GroupError.NONE and entry.now is dead:
                self._entries.pop(transactional_id, None)

        self._writer.append([record_of(transactional_id, None)], then)
