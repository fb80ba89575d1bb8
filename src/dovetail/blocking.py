"""For callers without asyncio: something with `async with`, used by `with`.

Its event loop runs in its own thread. Calls may come from any other thread, and return when they
are done. A call from the loop's own thread, as in a callback, would wait for itself, so it is
refused.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Self, TypeVar

from dovetail.background import keep_thread
from dovetail.supervision import Supervisor

Result = TypeVar("Result")
Held = TypeVar("Held")


class Blocking(Generic[Held]):
    """What `make` makes in the loop; inside `with` it is entered."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Held]]) -> None:
        self._make = make
        self._context: AbstractAsyncContextManager[Held] | None = None
        self._held: Held | None = None
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._supervisor = Supervisor()

    def __enter__(self) -> Self:
        with self._supervisor.supervising():
            self._thread = keep_thread(
                self._loop.run_forever, name="client/loop", stopped=self._stopped
            )
        try:
            self._held = self.call(self._enter())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if self._context is not None:
                self.leave(self._context)
        finally:
            self._end()

    async def _enter(self) -> Held:
        context = self._make()
        entered = await context.__aenter__()
        self._context = context
        return entered

    def _end(self) -> None:
        self.call(self._loop.shutdown_default_executor())
        self._stopped.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread is not None
        self._thread.join()
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs the work in the loop, and waits for it."""
        return self.submit(work).result()

    def submit(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Runs the work in the loop; does not wait for it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "called from the loop's own thread, which would wait for itself; call from another"
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def enter(self, context: AbstractAsyncContextManager[Result]) -> Result:
        """Enters something else in the loop; `leave` leaves it."""
        return self.call(_entered(context))

    def leave(self, context: AbstractAsyncContextManager[Any]) -> None:
        """Leaves what was entered."""
        self.call(_left(context))

    @property
    def held(self) -> Held:
        """What was made, for work in its loop."""
        if self._held is None:
            raise RuntimeError("not connected; use it with `with`")
        return self._held


async def _entered(context: AbstractAsyncContextManager[Result]) -> Result:
    return await context.__aenter__()


async def _left(context: AbstractAsyncContextManager[Any]) -> None:
    await context.__aexit__(None, None, None)
