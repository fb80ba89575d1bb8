"""A robust reader around a source, and a robust call of a handler.

Promise: when a source raises, whatever it is, it is reopened after a growing pause, at the position
that was reached; when a handler raises, that is logged and counted, and the next event comes. That
includes the `CancelledError` of a task that a source or a handler awaits: only a cancellation of
the reader or of the handling itself ends it.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, cast

from dovetail.background import Tasks, is_cancelled, is_over, start_task
from dovetail.election import Leadership, Position
from dovetail.errors import DovetailError
from dovetail.foreign import described, traceback_of
from dovetail.given_functions import check_function, check_ran, is_async
from dovetail.logging import get_logger
from dovetail.stream.filter import LeaderEventFilter, Verdict
from dovetail.stream.metrics import StreamMetrics
from dovetail.stream.retrying import Attempts, Next, Retries
from dovetail.stream.source import Event, Source

#: Pause before a source is opened again: from the first to the longest.
BACKOFF_S = (0.05, 2.0)

#: An event is handled once, whatever its handler raises.
ONCE = Retries()

_log = get_logger("stream")

AsyncHandler = Callable[[Event, Leadership], Awaitable[None]]
PlainHandler = Callable[[Event, Leadership], None]
Handler = AsyncHandler | PlainHandler


class Receiver(Protocol):
    """Who gets what was read."""

    async def on_events(self, events: Sequence[Event], generation: int) -> None:
        """Events of one reading, perhaps none; may wait when there is no room."""
        ...

    def on_source(self, *, alive: bool) -> None:
        """The stream is there, or lost."""
        ...


class StreamHandler(Protocol):
    """Reads a source for ever; `RobustStreamHandler` is the one that is used."""

    async def run(self, receiver: Receiver) -> None:
        """Reads until cancelled."""
        ...

    def seek(self, position: Position, generation: int) -> None:
        """Reads from here from now on."""
        ...


class RobustStreamHandler:
    """Opens the source again and again."""

    def __init__(self, source: Source, metrics: StreamMetrics) -> None:
        self._source = source
        self._metrics = metrics
        self._position: dict[int, int] = {}
        self._generation = 0
        self._sought = asyncio.Event()
        self._closing = Tasks()

    def seek(self, position: Position, generation: int) -> None:
        self._position, self._generation = dict(position), generation
        self._sought.set()

    async def run(self, receiver: Receiver) -> None:
        attempts = 0
        try:
            while True:
                before = dict(self._position)
                try:
                    await self._read(receiver)
                    continue
                except DovetailError as error:
                    _log.warning("reopening the stream", reason=str(error))
                except (Exception, asyncio.CancelledError):  # any source, any error
                    if is_cancelled():
                        raise
                    _log.exception("reopening the stream after an internal error")

                self._metrics.reconnects.inc()
                self._metrics.source_connected.set(0)
                receiver.on_source(alive=False)
                attempts = 0 if self._position != before else attempts + 1
                await self._pause(attempts)
        finally:
            await self._closing.finish()

    async def _pause(self, attempts: int) -> None:
        first, longest = BACKOFF_S
        pause_s = min(longest, first * 2**attempts) * random.uniform(0.5, 1.0)  # noqa: S311
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._sought.wait()

    async def _read(self, receiver: Receiver) -> None:
        """One reading; ends when another one is asked for."""
        self._sought.clear()
        generation = self._generation
        context = self._source.read(dict(self._position))
        batches = await context.__aenter__()
        sought = start_task(self._sought.wait(), name="stream/sought")
        try:
            self._metrics.source_connected.set(1)
            receiver.on_source(alive=True)
            iterator = aiter(batches)
            while True:
                following = start_task(_next(iterator), name="stream/next", expected=(Exception,))
                await asyncio.wait({following, sought}, return_when=asyncio.FIRST_COMPLETED)

                # The event and not its task: what was read before a seek must not move the place
                # that was sought, however the two interleave.
                if self._sought.is_set():
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
                    return

                events = following.result()
                for event in events:
                    self._position[event.lane] = event.offset + 1
                await receiver.on_events(events, generation)
        finally:
            sought.cancel()
            # The next reading need not wait until this one is put away.
            self._closing.start(_close(context), name="stream/close")


async def _next(batches: AsyncIterator[Sequence[Event]]) -> Sequence[Event]:
    return await anext(batches)


async def _close(context: object) -> None:
    try:
        await context.__aexit__(None, None, None)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - it is given up anyway
        _log.exception("cannot close a reading")


@dataclass(frozen=True, slots=True)
class Held:
    """An event that the filter makes wait, and since when."""

    event: Event
    since_s: float


class IsolatedHandler:
    """Calls the user's handler, in the loop if it is async and on a thread if it is not."""

    def __init__(
        self,
        handler: Handler,
        accept: LeaderEventFilter,
        metrics: StreamMetrics,
        *,
        stop_s: float,
        retries: Retries = ONCE,
    ) -> None:
        check_function(handler, "the handler of a stream")
        self._handler = handler
        self._filter = accept
        self._metrics = metrics
        self._stop_s = stop_s
        #: The event that fails, if one does.
        self.attempts = Attempts(retries)
        self._is_async = is_async(handler)
        self._stopping = False
        #: Nothing behind this event is handled.
        self.held: Held | None = None
        #: Whether somebody sets aside what failed for the last time; else it is just over.
        self.sets_aside = False

    def stop(self) -> None:
        """No further event is begun; the one under way ends."""
        self._stopping = True

    async def handle(self, events: Sequence[Event], leadership: Leadership) -> list[Event]:
        """Handles events in order, for a while; those that ended, well or not."""
        with self._metrics.handler_seconds.time():
            if self._is_async:
                return await self._in_loop(events, leadership)
            return await asyncio.to_thread(self._on_thread, events, leadership)

    async def _in_loop(self, events: Sequence[Event], leadership: Leadership) -> list[Event]:
        handler, batch = cast(AsyncHandler, self._handler), _Batch()
        for event in self._admit(events, leadership, batch):
            try:
                await handler(event, leadership)
            except BaseException as error:
                if is_over(error):
                    raise
                self._fail(event, error, batch)
        return self._count(batch)

    def _on_thread(self, events: Sequence[Event], leadership: Leadership) -> list[Event]:
        handler, batch = cast(PlainHandler, self._handler), _Batch()
        for event in self._admit(events, leadership, batch):
            try:
                check_ran(handler(event, leadership), "the handler")
            except BaseException as error:  # noqa: BLE001 - isolated, whatever its class
                # Also `sys.exit()`: on a thread it ends no program, and out of here it would end
                # the loop under the stream, which would stand still.
                self._fail(event, error, batch)
        return self._count(batch)

    def _admit(
        self, events: Sequence[Event], leadership: Leadership, batch: "_Batch"
    ) -> Iterator[Event]:
        """The events to handle now, one by one; whoever asks for the next has ended the last."""
        stop_s = time.monotonic() + self._stop_s
        for event in events:
            if self._stopping:
                return
            if self.attempts.next_for(event, time.monotonic()) is not Next.HANDLE:
                return
            verdict = self._judge(event, leadership)
            if verdict is Verdict.WAIT:
                return

            if verdict is Verdict.SKIP:
                batch.skipped += 1
            else:
                yield event
            if batch.held:
                return
            self.attempts.on_done()
            batch.done.append(event)
            if time.monotonic() >= stop_s:
                return

    def _judge(self, event: Event, leadership: Leadership) -> Verdict:
        """What the filter says; remembers the event that it holds."""
        held, defect = self.held, None
        try:
            verdict = Verdict(self._filter.verdict(event, leadership))
        except BaseException as error:  # a user's filter may raise anything
            if self._is_async and isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            verdict, defect = Verdict.WAIT, error

        if verdict is not Verdict.WAIT or not leadership.valid:
            self.held = None
        elif held is None or held.event != event:
            self.held = Held(event, time.monotonic())
            place = {"lane": event.lane, "offset": event.offset}
            if defect is None:
                _log.info("the filter makes an event wait", **place)
            else:
                _log.exception("the filter failed; its event waits", defect, **place)
        return verdict

    def _fail(self, event: Event, error: BaseException, batch: "_Batch") -> None:
        """The handler raised; the event is held if it is to be tried again, or set aside."""
        _log.exception("the handler raised", error, lane=event.lane, offset=event.offset)
        batch.failed += 1
        following = self.attempts.on_failure(
            event, time.monotonic(), reason=described(error), traceback=traceback_of(error)
        )
        batch.held = following is Next.WAIT or self.sets_aside

    def _count(self, batch: "_Batch") -> list[Event]:
        failed = batch.failed - batch.held
        self._metrics.handled.inc(len(batch.done) - failed - batch.skipped)
        self._metrics.failed.inc(batch.failed)
        self._metrics.skipped.inc(batch.skipped)
        return batch.done


@dataclass(slots=True)
class _Batch:
    """Events that are over; how many of them raised, and how many the filter skipped."""

    done: list[Event] = field(default_factory=list)
    failed: int = 0
    skipped: int = 0
    #: The last event raised, and is not over.
    held: bool = False
