"""Background work: every long-lived task and thread starts here, by name, and is seen to end (R5).

Promises: a task or thread that an unexpected exception ends leaves a log line with its name and
counts in `defects`; a task that nobody else keeps is kept here. A cancelled task has ended as its
owner wanted. A failure that the owner expects (`expected`) is the owner's to report.

Not here: starting it again, and what that means for health. The owner decides both.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from dovetail.logging import get_logger

_log = get_logger("background")

T = TypeVar("T")
Expected = tuple[type[BaseException], ...]

_tasks: set[asyncio.Task[Any]] = set()
_defects: Counter[str] = Counter()


def start_task(
    work: Coroutine[Any, Any, T], *, name: str, expected: Expected = ()
) -> "asyncio.Task[T]":
    """Starts a task on the running loop and keeps it until it ends."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _tasks.add(task)

    def see_end(ended: "asyncio.Task[T]") -> None:
        _tasks.discard(ended)
        if ended.cancelled():
            return
        error = ended.exception()
        if error is not None and not isinstance(error, expected):
            _note_defect(name, error)

    task.add_done_callback(see_end)
    return task


def start_thread(body: Callable[[], object], *, name: str) -> threading.Thread:
    """Starts a daemon thread; an exception that leaves `body` ends the thread, and is logged."""

    def run() -> None:
        try:
            body()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end unseen
            _note_defect(name, error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


async def first_of(*awaited: Awaitable[object]) -> tuple[bool, ...]:
    """Waits until one of them ends, cancels the others, and says which have ended.

    Raises what an ended one raised.
    """
    tasks = [asyncio.ensure_future(one) for one in awaited]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = tuple(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    for task, over in zip(tasks, ended, strict=True):
        if over:
            task.result()
    return ended


class Tasks:
    """The background tasks of one owner, which end together."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(
        self, work: Coroutine[Any, Any, T], *, name: str, expected: Expected = ()
    ) -> "asyncio.Task[T]":
        """Starts a task, named after the owner and `name`."""
        task = start_task(work, name=f"{self._owner}/{name}", expected=expected)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def __len__(self) -> int:
        return len(self._tasks)

    async def finish(self) -> None:
        """Waits until all have ended by themselves."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cancel(self) -> None:
        """Cancels all, and does not wait for their end."""
        for task in tuple(self._tasks):
            task.cancel()

    async def stop(self) -> None:
        """Cancels all and waits until they have ended."""
        while self._tasks:
            self.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


def defects() -> dict[str, int]:
    """How often an unexpected exception ended each task or thread, by name."""
    return dict(_defects)


def _note_defect(name: str, error: BaseException) -> None:
    _defects[name] += 1
    _log.exception("background work met a defect", error, name=name)
