"""One partition, on the node that owns it. Promises:
- A record is readable only when it is confirmed, and records are confirmed only in order, also from
  one ledger to the next.
- Offsets are assigned without gaps and never twice; compaction leaves gaps later (`compaction/`).
- After a failed append nothing behind it is confirmed. The partition takes itself over
  (`ownership.py`), so that what was stored, and only that, has an offset.

States:

    IDLE        no ledger is open; the first append opens one        → OPENING
    OPENING     appends wait                                         → WRITING | BROKEN
    WRITING     appends go straight to the ledger                    → BROKEN | CLOSED
    BROKEN      an append failed; taking itself over, appends wait   → IDLE, or refused for a while
    LOST        another broker owns it; everything is refused
    CLOSED      given away or shut down

Not here: the records inside a batch (`examining.py`), which broker owns what (`claims.py`).
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from enum import Enum
from functools import partial

from dovetail.background import failure_of, later, start_task
from dovetail.buffers import Buffer
from dovetail.errors import DovetailError, Fenced, NotOwner, Refused, Unavailable, Uncertain
from dovetail.log.chain_keeper import ChainKeeper
from dovetail.log.checkpoint import IndexCache, encode_checkpoint
from dovetail.log.context import PartitionContext
from dovetail.log.open_ledger import Appended, InFlight, OpenLedger, copy_outcome
from dovetail.log.ownership import OnlyIf, Taken, hand_on, take_over
from dovetail.log.tail import Tail
from dovetail.log.topic import TopicConfig
from dovetail.logging import get_logger
from dovetail.prompt_future import PromptFuture
from dovetail.record_batch import CONTROL, BatchHeader, read_marker, stamp, stamp_append_time
from dovetail.storage import Placement, Quorum, Term, chain
from dovetail.storage.chain import LedgerInfo, PartitionRecord

_log = get_logger("log")

#: After a failure that could not be mended, appends are refused at once for so long.
REFUSE_MS = 500

#: A roll that failed is tried again: meanwhile the old ledger grows.
ROLL_AGAIN_MS = 1000


class _State(Enum):
    IDLE = "idle"
    OPENING = "opening"
    WRITING = "writing"
    BROKEN = "broken"
    LOST = "lost"
    CLOSED = "closed"


class Partition:
    """Appends, confirmation and the tail; reading older data is in `log/reading.py`."""

    def __init__(
        self, context: PartitionContext, key: str, name: str, config: TopicConfig, taken: Taken
    ) -> None:
        self.context = context
        self.name = name
        self._config = config
        self._key = key
        self._state = _State.IDLE
        self._refused: tuple[float, DovetailError] | None = None
        self._waiting: deque[tuple[memoryview, BatchHeader, asyncio.Future[Appended]]] = deque()
        self._in_flight: deque[InFlight] = deque()
        self._rolling: asyncio.Task[None] | None = None
        self._mending: asyncio.Task[None] | None = None

        self.assigned: tuple[int, ...] = ()  # See `Repairable`.
        #: A ledger that may be in the chain already: the service did not answer. It is used next.
        self._placed: LedgerInfo | None = None
        self.open_ledgers: list[OpenLedger] = []
        self.tail = Tail(context.tail_budget)
        self.indexes = IndexCache()
        self.cursors: OrderedDict[int, tuple[int, int]] = OrderedDict()
        #: Since when it could not be mended or written to; another broker may do better.
        self.stuck_since_ms: float | None = None
        #: Why it could not go on in a new ledger at the last attempt; it is tried again.
        self.roll_error: DovetailError | None = None
        #: Called whenever something new can be read.
        self.on_confirmed: set[Callable[[], None]] = set()

        self._keeper = taken.keeper
        self.producers = taken.producers
        self.high_watermark = taken.keeper.record.closed_end
        self._offset_next = self.high_watermark

    @classmethod
    async def open(
        cls,
        context: PartitionContext,
        key: str,
        name: str,
        config: TopicConfig,
        *,
        may_claim: Callable[[PartitionRecord], bool],
        only_if: OnlyIf,
    ) -> "Partition":
        """Takes the partition over and serves it. Raises what `take_over` raises."""
        taken = await take_over(
            context.coordinator,
            context.ensembles,
            key,
            owner=context.node_id,
            may_claim=may_claim,
            only_if=only_if,
            clock=context.clock,
        )
        return cls(context, key, name, config, taken)

    @property
    def config(self) -> TopicConfig:
        """The topic's settings, as last seen."""
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        before, self._config = self._config, config
        if config.quorum != before.quorum:  # It holds from the next ledger on (L14).
            self.roll()

    @property
    def quorum(self) -> Quorum:
        """Quorum sizes that new ledgers get."""
        return self._config.quorum

    @property
    def chain(self) -> ChainKeeper:
        """The chain with all its pages."""
        return self._keeper

    @property
    def record(self) -> PartitionRecord:
        """The newest part of the chain as it is."""
        return self._keeper.record

    @property
    def serving(self) -> bool:
        """Whether this node still answers for the partition."""
        return self._state not in (_State.LOST, _State.CLOSED)

    @property
    def mending(self) -> bool:
        """Whether it is being claimed again, with a term that is not known yet."""
        return self._state is _State.BROKEN

    @property
    def term(self) -> int:
        return self._keeper.record.term

    @property
    def log_start(self) -> int:
        return self._keeper.record.log_start

    @property
    def last_stable(self) -> int:
        """Nothing below it belongs to a transaction that is open; what readers of it see (K8)."""
        return max(self.log_start, self.producers.stable_below(self.high_watermark))

    @property
    def payload_bytes(self) -> int:
        """Bytes of all batches that are kept."""
        return self.record.closed_bytes + self.open_bytes

    @property
    def open_bytes(self) -> int:
        return sum(ledger.index.payload_bytes for ledger in self.open_ledgers)

    # Appending

    def append(self, batch: memoryview, header: BatchHeader) -> "asyncio.Future[Appended]":
        """Stores a checked batch, whose bytes are changed in place; the future says where.

        The future raises `SequenceGap`, `ProducerFenced`, `NotOwner`, `DiskFull`, `Uncertain`.
        """
        future: PromptFuture[Appended] = PromptFuture()
        if self._state is _State.WRITING:
            self._append_now(batch, header, future)
        elif self._state in (_State.LOST, _State.CLOSED):
            future.set_exception(NotOwner(f"{self.name} is not owned by this node any more"))
        elif self._refused is not None and self._refused[0] > self._now():
            future.set_exception(self._refused[1])
        else:
            self._waiting.append((batch, header, future))
            if self._state is _State.IDLE:
                self._state = _State.OPENING
                self._mending = self._begin(self._start_writing())
        return future

    def _append_now(
        self, batch: memoryview, header: BatchHeader, future: "asyncio.Future[Appended]"
    ) -> None:
        now_ms, elapsed_ms = self.context.clock.wall_ms(), self.context.clock.monotonic_ms()
        marker = read_marker(batch, header) if header.attributes & CONTROL else None
        try:
            duplicate = self.producers.duplicate_of(header, now_ms=elapsed_ms, marker=marker)
        except (Refused, Unavailable) as error:
            future.set_exception(error)
            return
        if duplicate is not None:
            self._answer_duplicate(duplicate, duplicate + header.last_offset_delta + 1, future)
            return

        append_time = -1
        if self.config.stamps_append_time:
            header = stamp_append_time(batch, header, now_ms)
            append_time = now_ms

        base_offset = self._offset_next
        stamp(batch, base_offset=base_offset, leader_epoch=self.term)
        header = BatchHeader(base_offset, *header[1:])
        self._offset_next = header.offset_end
        aborted = self.producers.note(header, now_ms=now_ms, marker=marker)

        ledger = self.open_ledgers[-1]
        item = InFlight(ledger, base_offset, header.offset_end, batch, future, append_time)
        ledger.index.note_batch(item.entry, header, len(batch))
        if aborted is not None:
            ledger.index.note_aborted(aborted)
        self._send(item, batch)
        if ledger.index.wants_checkpoint:
            self._send_checkpoint(ledger)
            if ledger.index.payload_bytes >= self.config.ledger_bytes_max:
                self.roll()

    def _answer_duplicate(
        self, base_offset: int, offset_end: int, future: "asyncio.Future[Appended]"
    ) -> None:
        """The batch is stored, or on its way: the answer waits for the same confirmation."""
        for item in self._in_flight:
            if item.offset_end == offset_end and item.future is not None:
                item.future.add_done_callback(lambda first: copy_outcome(first, future))
                return
        future.set_result(Appended(base_offset, -1))

    def _send(self, item: InFlight, payload: Buffer) -> None:
        self._in_flight.append(item)
        item.open_ledger.writer.append(payload, lambda error: self._on_answer(item, error))

    def _send_checkpoint(self, ledger: OpenLedger) -> None:
        entry = ledger.writer.entry_next
        now_ms, end = self.context.time.now_ms(), self._offset_next
        checkpoint = ledger.index.take_checkpoint(
            entry, self.producers, offset_next=end, now_ms=now_ms
        )
        item = InFlight(ledger, end, end, b"", None)
        self._send(item, encode_checkpoint(checkpoint))

    # Confirming

    def _on_answer(self, item: InFlight, error: DovetailError | None) -> None:
        if error is not None:
            if item in self._in_flight:
                self._break(item, error)
            return

        item.done = True
        confirmed = False
        while self._in_flight and self._in_flight[0].done:
            first = self._in_flight.popleft()
            first.open_ledger.note_confirmed(first.entry, first.offset_end)
            if first.future is not None:
                self.tail.add(first.base_offset, first.offset_end, first.batch)
                self.high_watermark = first.offset_end
                confirmed = True
                if not first.future.done():
                    first.future.set_result(Appended(first.base_offset, first.append_time))
        if confirmed:
            for wake in tuple(self.on_confirmed):
                wake()

    def _break(self, cause: InFlight, error: DovetailError) -> None:
        """An append failed: all others on their way are uncertain, and the ledger is at its end."""
        failed, self._in_flight = self._in_flight, deque()
        for ledger in self.open_ledgers:
            ledger.finished.cancel()
        for item in failed:
            if item.future is not None and not item.future.done():
                item.future.set_exception(
                    error if item is cause else Uncertain(f"may or may not be stored: {error}")
                )

        if isinstance(error, Fenced):
            self.lose(NotOwner(f"{self.name} has another owner now: {error}"))
        elif self.serving:
            _log.warning("append failed; taking over anew", partition=self.name, error=str(error))
            self._state = _State.BROKEN
            self._mending = self._begin(self._mend(error))

    async def _mend(self, cause: DovetailError) -> None:
        """Takes the partition over again, so that offsets follow what is stored."""
        if self._rolling is not None:
            # What it still has on its way to the chain would refuse the claim.
            await asyncio.wait([self._rolling])
        try:
            taken = await take_over(
                self.context.coordinator,
                self.context.ensembles,
                self._key,
                owner=self.context.node_id,
                may_claim=lambda record: record.owner == self.context.node_id,
                clock=self.context.clock,
            )
        except NotOwner as error:
            self.lose(error)
            return
        except DovetailError as error:
            self._refuse_for_a_while(error)
            self.stuck_since_ms = self.stuck_since_ms or self._now()
            again = partial(self._mend_again, cause)
            later(REFUSE_MS / 1000, again, name="log/mend-again", of=self.name)
            return

        self._keeper, self.producers = taken.keeper, taken.producers
        self._placed = None
        self.stuck_since_ms = self.roll_error = None
        self.open_ledgers.clear()
        self.high_watermark = self._offset_next = taken.keeper.record.closed_end
        self.tail.clear()
        self._state = _State.IDLE
        _log.info("partition taken over anew", partition=self.name, term=self.term)
        self._refuse_for_a_while(cause)

    def _mend_again(self, cause: DovetailError) -> None:
        if self._state is _State.BROKEN:
            self._mending = self._begin(self._mend(cause))

    def lose(self, error: NotOwner) -> None:
        """The partition is another's: nothing is served any more."""
        if not self.serving:
            return
        self._state = _State.LOST
        if self._mending is not None and self._mending is not asyncio.current_task():
            self._mending.cancel()  # Else it would claim back what another has.
        self._refuse_waiting(error)
        for wake in tuple(self.on_confirmed):
            wake()
        self.context.on_lost(self, error)

    def _refuse_for_a_while(self, error: DovetailError) -> None:
        """Waiting appends fail now, and new ones at once until some time has passed."""
        if not isinstance(error, Unavailable):
            error = Unavailable(str(error))
        self._refused = (self._now() + REFUSE_MS, error)
        self._refuse_waiting(error)

    def _refuse_waiting(self, error: DovetailError) -> None:
        while self._waiting:
            future = self._waiting.popleft()[2]
            if not future.done():
                future.set_exception(error)

    # Ledgers

    async def _start_writing(self) -> None:
        """Opens the first ledger and sends what waits."""
        try:
            await self._open_ledger()
        except DovetailError as error:
            if isinstance(error, NotOwner):
                self.lose(error)
            elif self._state is _State.OPENING:
                self._state = _State.IDLE
                self._refuse_for_a_while(error)
                if self.stuck_since_ms is None:
                    _log.warning("cannot open a ledger", partition=self.name, error=str(error))
                    self.stuck_since_ms = self._now()
            return

        if self._state is not _State.OPENING:
            return
        self._state = _State.WRITING
        self.stuck_since_ms = None
        while self._waiting:
            self._append_now(*self._waiting.popleft())

    async def _open_ledger(self) -> None:
        """A new ledger at the end of the chain; the next append goes there."""
        term, keeper = self.term, self._keeper
        if self._placed is None:
            ledger_id = await self.context.next_ledger_id()
            placement = self.context.ensembles.place(ledger_id, self.quorum, on=self.assigned)
            self._placed = LedgerInfo(placement, term, opened_ms=self.context.clock.wall_ms())
        info, placement = self._placed, self._placed.placement
        await keeper.change(lambda record: chain.with_open(record, info))
        self._placed = None
        if self._state in (_State.BROKEN, _State.LOST):
            raise Unavailable(f"{self.name} failed while the append waited; send again")

        async def move(placement: Placement) -> None:
            await keeper.change(lambda record: chain.with_placement(record, placement))

        writer = self.context.ensembles.writer(placement, term=Term(term), change=move)
        if self.open_ledgers:
            self._send_checkpoint(self.open_ledgers[-1])
        self.open_ledgers.append(OpenLedger(writer, info, self._offset_next))
        self._send_checkpoint(self.open_ledgers[-1])

    def roll(self) -> None:
        """Goes on in a new ledger; appends do not wait for it."""
        rolling = self._rolling is not None and not self._rolling.done()
        if self._state is _State.WRITING and not rolling:
            self._rolling = self._begin(self._roll())

    async def _roll(self) -> None:
        keeper = self._keeper
        try:
            if len(self.open_ledgers) == 1:  # Else the last roll could not close the old one.
                await self._open_ledger()
            await self.open_ledgers[0].finish()
            await self._close_first_ledger()
        except NotOwner as error:
            if keeper is self._keeper and self._state is _State.WRITING:
                self.lose(error)
        except asyncio.CancelledError:
            return  # An append failed, and it is mended.
        except DovetailError as error:
            self.context.on_roll_failed(self, error)
            self.roll_error = error
            later(ROLL_AGAIN_MS / 1000, self.roll, name="log/roll-again", of=self.name)
        else:
            self.roll_error = None

    async def _close_first_ledger(self) -> None:
        ledger = self.open_ledgers[0]
        info = ledger.closed_info()
        await self._keeper.change(lambda record: chain.with_closed(record, info))
        self.open_ledgers.remove(ledger)
        if info.offset_end > info.first_offset:
            self.indexes.keep(info.ledger, ledger.index)

    # The end of things

    async def trim(self, log_start: int) -> None:
        """Drops what is below `log_start`: at once for readers, in whole ledgers on disk."""
        gone = await self._keeper.trim(log_start)
        for info in gone:
            self.indexes.forget(info.ledger)
        await self.context.ensembles.let_go([info.placement for info in gone])

    async def replace_placement(self, info: LedgerInfo, after: Placement) -> None:
        """Puts a closed ledger onto other nodes, which hold it already (`storage/repair`)."""
        await self._keeper.move(info, after)

    async def close(self, *, successor: int | None = None) -> None:
        """Gives the partition back: everything confirmed, the ledger closed, a fast next start.

        A `successor` is named in the record, and takes it from there at once.
        """
        if self._state is _State.OPENING and self._mending is not None:
            await self._mending
        if self._rolling is not None:
            await asyncio.wait([self._rolling])
        if self._state is _State.BROKEN and self._mending is not None:
            self._mending.cancel()
            await asyncio.wait([self._mending])

        if self._state is _State.WRITING:
            self._send_checkpoint(self.open_ledgers[-1])
            self._state = _State.CLOSED
            await asyncio.wait([ledger.finish() for ledger in self.open_ledgers])
            while self.open_ledgers and not self.open_ledgers[0].finished.cancelled():
                await self._close_first_ledger()

        lost = self._state is _State.LOST
        self._state = _State.CLOSED
        self._refuse_waiting(NotOwner(f"{self.name} was given back"))
        self.tail.clear()
        for wake in tuple(self.on_confirmed):
            wake()
        if successor is not None and not lost:
            await hand_on(
                self.context.coordinator, self._key, owner=self.context.node_id, successor=successor
            )

    def _begin(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """Works beside the callers. A defect ends this object; the broker takes the partition anew.

        Else it would stay between two states, and appends wait for ever.
        """
        task = start_task(work, name="log/partition")

        def ended(task: "asyncio.Task[None]") -> None:
            if (defect := failure_of(task)) is not None:
                self.lose(NotOwner(f"{self.name} met a defect: {defect!r}"))

        task.add_done_callback(ended)
        return task

    def _now(self) -> float:
        return self.context.clock.monotonic_ms()
