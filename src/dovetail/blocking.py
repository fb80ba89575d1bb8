"""For callers without asyncio: something with `async with`, used by `with`.

Its event loop runs in its own thread. Calls may come from any other thread, and return when they
are done. A call from the loop's own thread, as in a callback, would wait for itself, so it is
refused; so is a call after the end, and one in a forked process, which has no such thread.

    open ──end──> refuses calls ──> ends those that wait ──> waits a while for threads ──> closed

No call outlives the end: what still runs then is cancelled, and its callers get `Uncertain`.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Self, TypeVar

from dovetail.background import keep_thread, start_thread
from dovetail.daemon_pool import DaemonPool
from dovetail.errors import InvalidInput, Uncertain
from dovetail.supervision import Supervisor

#: How long the end waits for work that was cancelled, and for threads: a handler that is stuck
#: cannot be stopped, and must not hold up the program.
END_S_MAX = 5.0
#: Blocking calls that run at once in threads: the most that Python's own pool has.
THREADS_MAX = 32

Result = TypeVar("Result")
Held = TypeVar("Held")


class Blocking(Generic[Held]):
    """What `make` makes in the loop; inside `with` it is entered."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Held]]) -> None:
        self._make = make
        self._context: AbstractAsyncContextManager[Held] | None = None
        self._held: Held | None = None
        self._loop = asyncio.new_event_loop()
        self._threads = DaemonPool(THREADS_MAX, "client/blocking")
        self._loop.set_default_executor(self._threads)
        self._process = os.getpid()
        self._accepting = threading.Lock()
        self._ended = False
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._supervisor = Supervisor()

    def __enter__(self) -> Self:
        self._check_open()
        if self._thread is not None:
            raise InvalidInput("it is open already; use it with one `with`")
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
        if self.forked:
            # All that could be ended is in the other process.
            return
        try:
            if self._context is not None and not self._ended:
                self.leave(self._context)
        finally:
            self._end()

    async def _enter(self) -> Held:
        context = self._make()
        entered = await context.__aenter__()
        self._context = context
        return entered

    def _end(self) -> None:
        with self._accepting:
            if self._ended:
                return
            self._ended = True
        if self._thread is None:
            self._loop.close()
            return
        # What was accepted before is in the loop by now, ahead of this.
        asyncio.run_coroutine_threadsafe(_end_what_runs(), self._loop).result()
        self._stopped.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

        start_thread(self._threads.shutdown, name="client/threads").join(END_S_MAX)
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs the work in the loop, and waits. Raises `Uncertain` if the end comes first."""
        future = self.submit(work)
        try:
            return future.result()
        except CancelledError:
            if self._ended:
                raise Uncertain("closed while a call waited; it may or may not be done") from None
            raise

    def submit(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Runs the work in the loop; does not wait for it. Raises `InvalidInput` after the end."""
        try:
            if threading.current_thread() is self._thread:
                raise RuntimeError(
                    "called from the loop's own thread, which would wait for itself; call from "
                    "another"
                )
            with self._accepting:
                self._check_open()
                if self._thread is None:
                    raise RuntimeError("not connected; use it with `with`")
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that made it."""
        return os.getpid() != self._process

    def _check_open(self) -> None:
        if self.forked:
            raise InvalidInput("made in another process; make one after the fork")
        if self._ended:
            raise InvalidInput("it is closed; make another one")

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


async def _end_what_runs() -> None:
    """Cancels it, and waits for that a while."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=END_S_MAX)


async def _entered(context: AbstractAsyncContextManager[Result]) -> Result:
    return await context.__aenter__()


async def _left(context: AbstractAsyncContextManager[Any]) -> None:
    await context.__aexit__(None, None, None)
