"""Calling a user's handler: a coroutine function in the loop, a plain function in a thread."""

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dovetail.timeline.client.message import Message
from dovetail.timeline.client.options import ConsumerOptions
from dovetail.timeline.client.spans import handling

Handler = Callable[[Message], Any]
BatchHandler = Callable[[list[Message]], Any]


class HandlerCall:
    """The handler of one consumer."""

    def __init__(
        self, handler: Handler | BatchHandler, timeline: str, options: ConsumerOptions
    ) -> None:
        self._handler: Callable[[Any], Any] = handler
        self._plain = not inspect.iscoroutinefunction(handler)
        self._timeline = timeline
        self._batch = options.batch > 0
        #: As many as may run at once: the loop's own pool has few, and others use it.
        self._threads = ThreadPoolExecutor(options.concurrency, f"consumer of {timeline}")

    async def __call__(self, messages: list[Message]) -> None:
        """Returns when they are handled. Raises whatever the handler raises."""
        if not messages:
            return
        given = messages if self._batch else messages[0]
        with handling(self._timeline, messages):
            if not self._plain:
                await self._handler(given)
                return

            within = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._threads, within.run, self._handler, given)
            # A partial, or an object that is called, does not show that it is a coroutine.
            if inspect.isawaitable(found):
                await found

    def close(self) -> None:
        """Starts nothing more; a thread that runs goes on to its end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
