"""Calls a user's handler: a coroutine function on the loop, a plain function in a thread.

A handler may have a time limit, counted from its call or from the last `Message.progress`. Beyond
it a coroutine is cancelled. A thread cannot be cancelled: it is abandoned, its messages go on to
another attempt, and later plain handlers get threads of a new pool, so that as many run as before.

The handler of a batch returns nothing if all is done, or an outcome for each message, in order:
None for done, or the exception that it would have raised for that message alone.

What a handler raises is logged, with its traceback: the message comes again, maybe for hours,
before it is a dead letter. `Retry` and `Reject` are decisions of the handler, not errors.
"""

import asyncio
import contextvars
import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from dovetail.background import start_task
from dovetail.daemon_pool import DaemonPool
from dovetail.given_functions import check_function, check_ran, is_async
from dovetail.logging import RateLimit, get_logger
from dovetail.timeline.client.message import Message
from dovetail.timeline.client.options import ConsumerOptions
from dovetail.timeline.client.retry import NotHandled, Reject, Retry
from dovetail.timeline.client.spans import handling

_log = get_logger("consumer")

#: Failures written in a second: enough to see what is wrong, and no disk is filled by a handler
#: that fails at once, thousands of times a second.
_FAILURES_PER_SECOND_MAX: Final = 5

Handler = Callable[[Message], Any]
BatchHandler = Callable[[list[Message]], Any]
#: What became of each message of a call: None, or why it failed.
Outcomes = Sequence[BaseException | None]


class HandlerCall:
    """The handler of one consumer."""

    def __init__(
        self, handler: Handler | BatchHandler, timeline: str, options: ConsumerOptions
    ) -> None:
        check_function(handler, f"the handler of timeline {timeline!r}")
        self._handler: Callable[[Any], Any] = handler
        self._plain = not is_async(handler)
        self._timeline = timeline
        self._batch = options.batch > 0
        self._concurrency = options.concurrency
        self._threads = self._new_threads()
        #: Longest time without progress, in seconds; 0 if there is none.
        self.limit_s = options.handling_ms_max / 1000
        self._failures = RateLimit(lines_per_second_max=_FAILURES_PER_SECOND_MAX)

    def _new_threads(self) -> DaemonPool:
        # As many as may run at once: the loop's own pool has few, and others use it.
        return DaemonPool(self._concurrency, f"consumer of {self._timeline}")

    async def __call__(self, messages: list[Message]) -> Outcomes:
        """What became of each. Raises whatever the handler raises, and `TimeoutError`."""
        if not messages:
            return ()
        given = messages if self._batch else messages[0]
        try:
            with handling(self._timeline, messages):
                found = await (
                    self._limited(given, messages) if self.limit_s else self._call(given)
                )
            outcomes = self._outcomes(found, messages)
        except Exception as error:
            self._report(error, messages[0])
            raise
        for message, outcome in zip(messages, outcomes, strict=True):
            if outcome is not None:
                self._report(outcome, message)
        return outcomes

    def _report(self, error: BaseException, message: Message) -> None:
        """Writes why a message was not handled. Of a batch that failed, it names the first."""
        if isinstance(error, NotHandled):
            return
        admitted, unreported = self._failures.admit("failed", now_ms=time.monotonic() * 1000)
        if unreported:
            _log.warning("lines suppressed", timeline=self._timeline, suppressed=unreported)
        if not admitted:
            return
        fields = {"timeline": self._timeline, "id": message.id, "attempt": message.attempt}
        if isinstance(error, Retry | Reject):
            _log.info("not handled", kind=type(error).__name__, reason=str(error), **fields)
        else:
            _log.exception("handler failed", error, **fields)

    async def _call(self, given: Any) -> Any:
        if not self._plain:
            return await self._handler(given)
        within = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, within.run, self._call_plain, given)
        # A lambda does not show that it gives a coroutine.
        if inspect.isawaitable(found):
            return await found
        check_ran(found, "the handler")
        return found

    def _call_plain(self, given: Any) -> Any:
        """Raises what the handler raises, but in a form that a future can hold."""
        try:
            return self._handler(given)
        except StopIteration as error:
            # As in a coroutine. A future refuses this class, and would never be done.
            raise RuntimeError("the handler raised StopIteration") from error

    async def _limited(self, given: Any, messages: list[Message]) -> Any:
        task = start_task(self._call(given), name="client/handler", expected=(BaseException,))
        began_s = time.monotonic()
        try:
            while not task.done():
                last_s = max(began_s, *(message._progress_s for message in messages))
                left_s = last_s + self.limit_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError(f"the handler took longer than {self.limit_s:g} s")
                await asyncio.wait([task], timeout=left_s)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                if self._plain:
                    # The thread goes on to its end, and is not counted on any more.
                    self._threads.shutdown(wait=False)
                    self._threads = self._new_threads()
                else:
                    # It may clean up, but its time is over whatever it does.
                    await asyncio.wait([task], timeout=self.limit_s)

    def _outcomes(self, found: Any, messages: list[Message]) -> Outcomes:
        if not self._batch or found is None:
            return [None] * len(messages)
        outcomes = list(found) if isinstance(found, list | tuple) else [found]
        if len(outcomes) != len(messages) or not all(
            each is None or isinstance(each, BaseException) for each in outcomes
        ):
            raise TypeError(
                f"a batch handler returns None, or a list with None or an exception for each of "
                f"its {len(messages)} messages, not {found!r:.200}"
            )
        return outcomes

    def close(self) -> None:
        """Starts nothing more; a thread that runs goes on to its end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
