"""A pool of daemon threads for functions of users: one that hangs does not hold up the program.

The interpreter waits at its exit for every thread of the standard pool, however it was shut down;
a handler without an end would keep a program that was told to stop for ever.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from dovetail.background import start_thread

Given = ParamSpec("Given")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Call:
    future: Future[Any]
    work: Callable[[], Any]

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.work()
        except BaseException as error:  # noqa: BLE001 - who waits for it gets it
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class DaemonPool(ThreadPoolExecutor):
    """Runs calls in up to `threads_max` threads. It is one of the standard pools by its class only,
    because asyncio takes no other for its default; all that runs is here."""

    def __init__(self, threads_max: int, name: str) -> None:
        super().__init__(threads_max, name)
        self._threads_max, self._name = threads_max, name
        #: What to do, or None: there is no more.
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._running: list[threading.Thread] = []
        #: Threads that wait for a call, less the calls that wait for one.
        self._idle = 0
        self._over = False

    def submit(
        self, fn: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs
    ) -> "Future[Result]":
        """Raises `RuntimeError` after `shutdown`, as the standard pool does."""
        future: Future[Result] = Future()
        call = _Call(future, partial(fn, *args, **kwargs))
        with self._starting:
            if self._over:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._calls.put(call)
            self._idle -= 1
            if self._idle < 0 and len(self._running) < self._threads_max:
                self._idle += 1
                self._running.append(start_thread(self._serve, name="user/thread", of=self._name))
        return future

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            # What it holds ends with it, and not with the next call.
            del call
            with self._starting:
                self._idle += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls; with `cancel_futures`, those that have not begun never do."""
        with self._starting:
            self._over = True
            while cancel_futures and not self._calls.empty():
                if (call := self._calls.get()) is not None:
                    call.future.cancel()
            for _ in self._running:
                self._calls.put(None)
        if wait:
            for thread in self._running:
                thread.join()
