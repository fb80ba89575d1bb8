"""A consumer: runs handlers for pushed messages under their leases, and reports the outcome.

    pushed ──▶ waiting ──▶ running ──▶ done     (deleted)
                  │           ├──────▶ failed   (released, due again after a pause that grows)
                  │           └──────▶ lost     (the lease is another's: the handler is cancelled)
                  └──────────────────▶ back     (given back uncounted, when the consumer stops)

- A handler begins at the due time by the node's clock, never before.
- While a message is here its lease is extended; if that fails, the message is lost (`leases`).
- Finished messages are deleted in as few requests as possible. A request whose answer was lost is
  repeated, which is safe, because a handle fits once.
- A broker that forgot us (restart, network) is asked for a new session under the same id; leases
  that we hold remain valid, and messages leased in a previous life of this id are handled too.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from dovetail.background import Tasks
from dovetail.clock import Clock
from dovetail.errors import DovetailError, Exists, InvalidInput, NotFound, TopicUnknown, Unavailable
from dovetail.logging import get_logger
from dovetail.timeline import frames
from dovetail.timeline.client.credit import OUTSTANDING, TAKE_MAX, Credit
from dovetail.timeline.client.finished import REPORTING_MAX, Finished
from dovetail.timeline.client.handler import BatchHandler, Handler, HandlerCall, Outcomes
from dovetail.timeline.client.leases import Leases, cancel_soon
from dovetail.timeline.client.link import COMMAND_MS_MAX, Link
from dovetail.timeline.client.message import Message, message_of
from dovetail.timeline.client.node_clock import NodeClock
from dovetail.timeline.client.options import ConsumerOptions
from dovetail.timeline.client.retry import NotHandled, Reject, pause_ms, reason_of
from dovetail.timeline.config import TimelineConfig
from dovetail.timeline.message import (
    BATCH_MAX,
    TIME_MS_MAX,
    Extension,
    Handle,
    Leased,
    Release,
    Status,
)

_log = get_logger("consumer")

#: How long a request for messages waits.
WAIT_MS: Final = 20_000
#: A consumer that stops waits so long for the answers to what it has asked for.
PAUSE_S_MAX: Final = 5.0
#: How long a consumer waits for the id of its former life: longer than the session of one that
#: hangs, which lasts for its last request for messages and `SESSION_MS` of silence.
TWIN_S_MAX: Final = 40.0
#: Time between two reports to the broker.
REPORT_S: Final = 1.0
#: The same while messages wait here for a handler, and how long they may before they are shared.
SHARE_MS: Final = 250
#: Pause before a broker that does not answer is asked again.
_RETRY_S_MIN: Final = 0.05
_RETRY_S_MAX: Final = 2.0


class Consumer:
    """See the module."""

    def __init__(
        self,
        timeline: str,
        handler: Handler | BatchHandler,
        options: ConsumerOptions,
        *,
        connect: Callable[[int, str], Link],
        clock: Clock,
    ) -> None:
        self.timeline = timeline
        self._handler = HandlerCall(handler, timeline, options)
        self._options = options
        self._connect = connect
        self._node = NodeClock(clock)

        self._session, self._config = 0, TimelineConfig()
        self._reopening = asyncio.Lock()
        self._leases = Leases(
            timeline,
            options.lease_ms,
            now_ms=self._node.now_ms,
            extend=self._extend,
            on_lost=self._on_lost,
        )
        self._running: dict[Handle, asyncio.Task[None]] = {}
        #: Handlers that were called; the others wait for their time or for a slot.
        self._begun: set[asyncio.Task[Any]] = set()

        self._slots = asyncio.Semaphore(options.concurrency)
        self._credit = Credit(options)

        self._finished = Finished()
        #: Requests for messages that are outstanding on each link, and whether one was answered.
        self._asked: Counter[Link] = Counter()
        self._answered = asyncio.Event()
        #: Links that are being closed.
        self._leaving = Tasks()

        self._stopping = asyncio.Event()
        self.handled = 0
        self.failed = 0
        self._reported = (0, 0)
        #: The broker's last report about the timeline; None before the first.
        self.signals: frames.Signals | None = None

    # Life

    async def run(self) -> None:
        """Serves until `stop`. Raises what cannot be mended, such as `TopicUnknown`."""
        self._commands = self._connect(COMMAND_MS_MAX, "")
        self._line = self._commands.beside(WAIT_MS + COMMAND_MS_MAX)
        tasks = Tasks()
        keep = partial(tasks.keep, of=self.timeline, expected=(DovetailError,))
        try:
            await self._patiently(self._open, opening=True)

            taking = [keep(self._take, name="client/take") for _ in range(OUTSTANDING)]
            pending = {*taking, keep(self._report, name="client/report")}
            pending.add(keep(self._leases.keep, name="client/extend"))
            pending.add(keep(self._leases.watch, name="client/watch"))
            pending |= {keep(self._finish, name="client/finish") for _ in range(REPORTING_MAX)}
            ending = keep(partial(self._end_gracefully, taking), name="client/end")
            pending.add(ending)

            while not ending.done():
                ended, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    if not task.cancelled():
                        task.result()  # Raises what cannot be mended.
        finally:
            await tasks.stop()
            for task in self._running.values():
                task.cancel()
            await self._commands.close()
            await self._line.close()
            await self._leaving.finish()
            self._handler.close()

    async def _end_gracefully(self, taking: "list[asyncio.Task[None]]") -> None:
        await self._stopping.wait()
        await self._take_no_more(taking)
        await self._let_run_out()
        await self._drain()

    def stop(self) -> None:
        """Takes nothing more; what runs may end, what waits goes back."""
        self._stopping.set()

    async def _take_no_more(self, taking: "list[asyncio.Task[None]]") -> None:
        """Has the broker answer what waits, so that nothing is pushed that nobody takes."""
        self._credit.give(0)
        try:
            async with asyncio.timeout(PAUSE_S_MAX):
                await self._commands.ask(frames.Pause(self._session), frames.Done)
                await asyncio.wait(taking)
        except (DovetailError, TimeoutError):
            for task in taking:
                task.cancel()

    async def _let_run_out(self) -> None:
        """Waits for handlers that run; gives back, uncounted, what has not begun."""
        tasks = set(self._running.values())
        for task in tasks - self._begun:
            cancel_soon(task)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._options.stop_ms / 1000)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _drain(self) -> None:
        """Reports what is finished, as far as the broker answers."""
        try:
            async with asyncio.timeout(self._options.stop_ms / 1000):
                while not self._finished.reported:
                    await self._patiently(self._report_finished)
                    async with self._finished.hushed():
                        pass  # What was on its way is reported by now, or here again.
                await self._commands.ask(frames.Close(self._session), frames.Done)
        except (DovetailError, TimeoutError) as error:
            _log.warning("stopped without a goodbye", timeline=self.timeline, error=str(error))

    async def _patiently(
        self, work: Callable[[], Awaitable[None]], *, opening: bool = False
    ) -> None:
        """Does it, again and again while the broker cannot. Raises what stays as it is.

        Where the broker does not know our session, a new one is opened, unless that is the work.
        """
        pause_s = _RETRY_S_MIN
        twin_until_s: float | None = None
        while True:
            try:
                await work()
            except TopicUnknown:
                raise
            except NotFound:
                await (asyncio.sleep(_RETRY_S_MIN) if opening else self._reopen())
            except Exists as error:
                # A former life of this id ends by itself; another consumer under it does not.
                now_s = asyncio.get_running_loop().time()
                twin_until_s = twin_until_s or now_s + TWIN_S_MAX
                if now_s >= twin_until_s:
                    raise
                _log.warning("consumer id in use", timeline=self.timeline, error=str(error))
                await asyncio.sleep(min(_RETRY_S_MAX, twin_until_s - now_s))
            except DovetailError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(pause_s * random.SystemRandom().uniform(0.5, 1.0))
                pause_s = min(_RETRY_S_MAX, 2 * pause_s)
            else:
                return

    async def _open(self) -> None:
        """Opens a session, and takes up what this id holds and we do not know of.

        Nothing is finished and nothing is pushed meanwhile: what is here is exactly what we know.
        """
        options = self._options
        async with self._finished.hushed():
            request = options.opening(self.timeline)
            try:
                opened = await self._commands.ask(request, frames.Opened, changes=False)
            except Unavailable:
                self._commands.turn_away()
                raise

            # A session is known to one broker, so both links must lead there; and what the session
            # before has pushed is here now, or never comes.
            old, self._line = self._line, self._commands.beside(WAIT_MS + COMMAND_MS_MAX)
            await old.close()
            await self._quiet(old)

            known = [*self._leases.known() | self._finished.handles()]
            limit = min(TAKE_MAX, self._credit.capacity - len(self._leases))
            if limit > 0 and len(known) <= BATCH_MAX:
                held = await self._commands.ask(
                    frames.Held(opened.session, limit, known), frames.Pushed, changes=False
                )
                if not self._session:
                    self._leases.inherit(leased.handle for leased in held.messages)
                self._credit.give(-self._welcome(held.messages))
            self._config = opened.config
            limits_ms = [opened.config.handling_ms_max, options.handling_ms_max]
            self._handler.limit_s = min(filter(None, limits_ms), default=0) / 1000
            self._session = opened.session

    async def _quiet(self, line: Link) -> None:
        """Returns when no request for messages is outstanding on a link."""
        while self._asked[line]:
            self._answered.clear()
            await self._answered.wait()
        del self._asked[line]

    async def _reopen(self) -> None:
        session = self._session
        await asyncio.sleep(_RETRY_S_MIN)
        # Several find at once that the session is over, and one of them opens the next.
        async with self._reopening:
            if session == self._session:
                await self._patiently(self._open, opening=True)

    @property
    def idle(self) -> bool:
        """Whether nothing is here to be handled, and all that was is reported."""
        return not self._leases and self._finished.reported

    async def _move(self, address: str) -> None:
        """Goes on at a better broker, with every lease; stays where it is if that fails.

        First the new session, then the last pushes of the old one, then its end.
        """
        commands = self._connect(COMMAND_MS_MAX, address)
        request = self._options.opening(self.timeline)
        try:
            opened = await commands.ask(request, frames.Opened, changes=False)
        except DovetailError as error:
            _log.warning("could not move", timeline=self.timeline, to=address, error=str(error))
            await commands.close()
            return

        line = commands.beside(WAIT_MS + COMMAND_MS_MAX)
        async with self._finished.hushed():
            old = (self._commands, self._line, self._session)
            self._commands, self._line, self._session = commands, line, opened.session

        try:
            async with asyncio.timeout(PAUSE_S_MAX):
                await old[0].ask(frames.Pause(old[2]), frames.Done)
                await self._quiet(old[1])
                await old[0].ask(frames.Close(old[2]), frames.Done)
        except (DovetailError, TimeoutError) as error:
            _log.warning("left without a goodbye", timeline=self.timeline, error=str(error))

        await old[0].close()
        await old[1].close()
        _log.info("moved", timeline=self.timeline, to=address)

    # Taking

    async def _take(self) -> None:
        while not self._stopping.is_set():
            limit = self._credit.take(outstanding=self._asked[self._line])
            if not limit:
                await self._credit.changed()
                continue

            taken = 0
            try:
                taken = await self._receive(limit)
            except TopicUnknown:
                raise
            except NotFound:
                await self._reopen()
            except DovetailError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(_RETRY_S_MIN)
            finally:
                self._credit.give(limit - taken)

    async def _receive(self, limit: int) -> int:
        """Asks for messages, and begins with what was pushed; how many that were."""
        line = self._line
        self._asked[line] += 1
        try:
            request = frames.Consume(self._session, limit, WAIT_MS)
            pushed = await line.ask(request, frames.Pushed, changes=False)
            return self._welcome(pushed.messages)
        finally:
            self._asked[line] -= 1
            self._answered.set()

    def _welcome(self, leases: Sequence[Leased]) -> int:
        """Begins with what was pushed; the number of those that can be read."""
        found = [self._message_of(leased) for leased in leases if leased.handle not in self._leases]
        new = [message for message in found if message is not None]
        self._leases.add(new)
        size = max(1, self._options.batch)
        for start in range(0, len(new), size):
            part = new[start : start + size]
            # Made by the loop itself, because `start_task` takes 3 us more for every message.
            task = asyncio.get_running_loop().create_task(self._handle(part))
            for message in part:
                self._running[message.handle] = task
        return len(new)

    def _message_of(self, leased: Leased) -> Message | None:
        """The message; None if it cannot be read, which is a failed attempt of this one alone."""
        try:
            return message_of(leased, self.timeline, lease_ms=self._options.lease_ms)
        except InvalidInput as error:
            _log.warning("unreadable", timeline=self.timeline, id=leased.id, error=str(error))
            self.failed += 1
            self._give_back(leased, error)
            return None

    # Handling

    async def _handle(self, messages: list[Message]) -> None:
        error: BaseException | None = None
        begun: list[Message] = []
        outcomes: Outcomes = ()
        try:
            await self._node.until(max(message.start_ms for message in messages))
            async with self._slots:
                if self._stopping.is_set():
                    return
                self._begun.add(asyncio.current_task())  # type: ignore[arg-type]
                begun = await self._leases.fit(messages)
                outcomes = await self._handler(begun)

        except asyncio.CancelledError:
            error = TimeoutError("the consumer stopped before the handler ended")
        except NotHandled:
            begun, outcomes = [], ()
        except Exception as raised:  # noqa: BLE001 - whatever a handler raises is a failed attempt
            error = raised
        except BaseException as raised:
            error = raised
            raise
        finally:
            failed = outcomes if error is None else [error] * len(begun)
            self._settle(messages, dict(zip((each.handle for each in begun), failed, strict=True)))
            self._begun.discard(asyncio.current_task())
            self._credit.give(len(messages))

    def _settle(
        self, messages: list[Message], outcomes: Mapping[Handle, BaseException | None]
    ) -> None:
        """Deletes what was handled, releases what failed, and returns, uncounted, the rest."""
        done: list[Handle] = []
        for message in messages:
            handle = message.handle
            self._running.pop(handle, None)
            if handle not in outcomes:
                self._finished.back(self._leases.untried(message))
                self._leases.end(message)
            elif not self._leases.end(message):
                self.failed += 1
            elif (error := outcomes[handle]) is None:
                done.append(handle)
            else:
                self.failed += 1
                self._give_back(message, error)

        self.handled += len(done)
        if done:
            self._finished.done(done)

    def _give_back(self, message: Message | Leased, error: BaseException) -> None:
        """An attempt failed."""
        again_ms = self._node.now_ms() + pause_ms(message, error, self._config)
        due_ms, rejected = max(0, min(TIME_MS_MAX, again_ms)), isinstance(error, Reject)
        self._finished.back(Release(message.handle, due_ms, True, reason_of(error), rejected))

    # Reporting to the broker

    async def _finish(self) -> None:
        while True:
            await self._patiently(self._report_finished)
            await self._finished.any.wait()
            self._finished.any.clear()

    async def _report_finished(self) -> None:
        """Deletes and releases what is finished; what was not answered stays for the next time."""
        await self._finished.report(self._delete, self._release)

    async def _delete(self, handles: list[Handle]) -> None:
        await self._commands.ask(frames.Delete(self._session, handles), frames.Statuses)

    async def _release(self, releases: list[Release]) -> None:
        await self._commands.ask(frames.ReleaseAll(self._session, releases), frames.Statuses)

    async def _extend(self, given: list[Extension]) -> list[Status]:
        answer = await self._commands.ask(frames.Extend(self._session, given), frames.Statuses)
        return answer.statuses

    def _on_lost(self, message: Message) -> None:
        """Ends its handler; that of a batch goes on for the others in it."""
        if not self._options.batch and (task := self._running.get(message.handle)):
            cancel_soon(task)

    @property
    def busy(self) -> bool:
        """Whether nothing more can be taken, and nothing was finished since the last report."""
        room = self._credit.capacity - len(self._leases)
        return room < self._credit.enough and self._reported == (self.handled, self.failed)

    async def _share(self, idle: int) -> None:
        """Keeps nothing waiting here while another consumer is idle, and fetches ahead otherwise.

        What has waited for a moment goes back, uncounted, and requests that are outstanding are
        ended, so that the broker sends no more than handlers can begin.
        """
        waiting = self._waiting(older_ms=SHARE_MS)
        if not idle:
            self._credit.fetch_ahead(True)
        elif waiting:
            self._credit.fetch_ahead(False)
            for task in waiting:
                cancel_soon(task)
            await self._commands.ask(frames.Pause(self._session), frames.Done)

    def _waiting(self, *, older_ms: int = 0) -> "set[asyncio.Task[None]]":
        """Those that wait for a handler, and were due so long ago."""
        due = self._leases.due_by(self._node.now_ms() - older_ms)
        return {self._running[each.handle] for each in due} - self._begun

    async def _report(self) -> None:
        while True:
            handled, failed = self.handled - self._reported[0], self.failed - self._reported[1]
            free = max(0, self._options.handled_at_once - len(self._leases))
            request = self._node.report(
                self._session, handled=handled, failed=failed, busy=self.busy, free=free
            )
            try:
                answer = await self._commands.ask(request, frames.Reported, changes=False)
            except NotFound:
                await self._reopen()  # Our broker is gone, and another one answers.
            except DovetailError as error:
                _log.debug("not reported", timeline=self.timeline, error=str(error))
                await asyncio.sleep(REPORT_S)
            else:
                self._reported = (self._reported[0] + handled, self._reported[1] + failed)
                self.signals = answer.signals
                self._node.on_answer(answer.now_ms, trusted=answer.trusted)
                if answer.signals.better and not self._stopping.is_set():
                    await self._move(answer.signals.better)
                await self._share(answer.signals.idle)
            await asyncio.sleep(SHARE_MS / 1000 if self._waiting() else REPORT_S)
