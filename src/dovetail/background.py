"""Background work: every long-lived task, thread and timer starts here, by name (R5).

    start_task, start_thread    work that comes to an end; an unexpected failure is its end
    keep_task, keep_thread      work that lasts; an unexpected failure restarts it, with backoff
    Alarm, later                a callback at a later time; one that fails is called again
    watch_loop                  reports failures of loop callbacks that nothing else catches
    on_signals                  adds a handler of signals to the existing ones

Promises: an unexpected failure of any of them, of whatever class, is logged with the name, counted,
and reported to the supervisor of its starter (`supervision.py`), which reports work that restarts
do not help. A task without another reference is kept alive here. A task that its owner cancels has
ended as it should; a `CancelledError` out of something that it awaited is a failure like any other.
An error that the caller names as `expected` ends the work, and the caller reports it.

Names are words of the code (`room/work`); `of` says which one, where there are several.
`tests/background_work.py` lists them all, with what a failure of each means.
"""

import _thread
import asyncio
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

from dovetail.supervision import Supervisor, Work, current

T = TypeVar("T")
Expected = tuple[type[BaseException], ...]

_tasks: set[asyncio.Task[Any]] = set()


def start_task(
    work: Coroutine[Any, Any, T],
    *,
    name: str,
    of: str = "",
    expected: Expected = (),
    vital: bool = False,
) -> "asyncio.Task[T]":
    """Starts a task on the running loop and keeps it until it ends.

    A `vital` one cannot be replaced: if it fails, that is a problem of its owner for good.
    """
    what, supervisor, began_s = Work(name, of), current(), time.monotonic()
    task = asyncio.get_running_loop().create_task(work, name=str(what))
    _tasks.add(task)

    def see_end(ended: "asyncio.Task[T]") -> None:
        _tasks.discard(ended)
        error = failure_of(ended)
        if error is not None and not isinstance(error, expected):
            supervisor.note(what, error, ran_s=time.monotonic() - began_s, for_good=vital)

    task.add_done_callback(see_end)
    return task


def keep_task(
    make: Callable[[], Coroutine[Any, Any, T]], *, name: str, of: str = "", expected: Expected = ()
) -> "asyncio.Task[T]":
    """Starts a task that makes its work again after every unexpected failure.

    It ends when the work returns or fails as `expected`, or when it is cancelled.
    """
    kept = _keep(make, Work(name, of), expected, current())
    return start_task(kept, name=name, of=of, expected=expected)


async def _keep(
    make: Callable[[], Coroutine[Any, Any, T]],
    what: Work,
    expected: Expected,
    supervisor: Supervisor,
) -> T:
    while True:
        began_s = time.monotonic()
        try:
            return await make()
        except BaseException as error:
            if isinstance(error, expected) or is_over(error):
                raise
            pause_s = supervisor.note(what, error, ran_s=time.monotonic() - began_s)
        await asyncio.sleep(pause_s)


def failure_of(ended: "asyncio.Future[Any]") -> BaseException | None:
    """What ended it against its owner's will; None if it returned or was cancelled."""
    if not ended.cancelled():
        return ended.exception()
    if isinstance(ended, asyncio.Task) and not ended.cancelling():
        return asyncio.CancelledError("what it waited for was cancelled")
    return None


def is_cancelled() -> bool:
    """Whether this task itself is to end, and not only something that it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_over(error: BaseException) -> bool:
    """Whether what this task met is its own end: the interpreter is about to end, somebody cancels
    it, or its coroutine is being closed. All else came out of something that it awaited."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return True
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True
    # A coroutine that is closed, as that of a task which the end of its loop left over, runs in no
    # task.
    return task is None or task.cancelling() > 0


def start_thread(body: Callable[[], object], *, name: str, of: str = "") -> threading.Thread:
    """Starts a daemon thread; an exception that leaves `body` ends the thread."""
    return keep_thread(body, name=name, of=of, stopped=_ENDED)


def keep_thread(
    body: Callable[[], object], *, name: str, of: str = "", stopped: threading.Event
) -> threading.Thread:
    """Starts a daemon thread that calls `body` again after every failure, until `stopped`.

    It ends when `body` returns.
    """
    what, supervisor = Work(name, of), current()
    given = (body, what, stopped, supervisor)
    thread = threading.Thread(target=_run, args=given, name=str(what), daemon=True)
    thread.start()
    return thread


def _run(
    body: Callable[[], object], what: Work, stopped: threading.Event, supervisor: Supervisor
) -> None:
    # What the body starts belongs to the same owner.
    with supervisor.supervising():
        while True:
            began_s = time.monotonic()
            try:
                body()
                return
            except BaseException as error:  # noqa: BLE001 - no class may end it unseen
                pause_s = supervisor.note(what, error, ran_s=time.monotonic() - began_s)
            if stopped.wait(pause_s):
                return


#: Of threads that are not started again.
_ENDED = threading.Event()
_ENDED.set()


class Alarm:
    """A callback that is called once, at a later time, and again later if it fails."""

    __slots__ = ("_callback", "_delay_s", "_handle", "_supervisor", "_what")

    def __init__(self, callback: Callable[[], object], *, name: str, of: str = "") -> None:
        self._callback = callback
        self._what = Work(name, of)
        self._supervisor = current()
        self._handle: asyncio.Handle | None = None
        self._delay_s = 0.0

    @property
    def is_set(self) -> bool:
        """Whether the callback is going to be called."""
        return self._handle is not None

    def set(self, delay_s: float) -> None:
        """Calls back after `delay_s`, and no more at the time that was set before."""
        self.cancel()
        self._delay_s = delay_s
        loop = asyncio.get_running_loop()
        if delay_s > 0:
            self._handle = loop.call_later(delay_s, self._ring)
        else:
            self._handle = loop.call_soon(self._ring)

    def cancel(self) -> None:
        """Does not call back, unless it is set again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle = None
        try:
            self._callback()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next time must come
            pause_s = self._supervisor.note(self._what, error, ran_s=self._delay_s)
            if not self.is_set:
                self.set(pause_s)


def later(delay_s: float, callback: Callable[[], object], *, name: str, of: str = "") -> Alarm:
    """Calls back once after `delay_s`, unless the alarm that it returns is cancelled."""
    alarm = Alarm(callback, name=name, of=of)
    alarm.set(delay_s)
    return alarm


def watch_loop(supervisor: Supervisor) -> None:
    """Has the running loop report its callbacks that fail, such as those that threads hand in."""

    def on_report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # Others are about a transport, which has an owner: a client may be the cause.
        if "handle" in context and isinstance(error, Exception):
            supervisor.note(Work("loop/callback", str(context.get("message"))), error, ran_s=0.0)
        else:
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(on_report)


def on_signals(act: Callable[[int], None], *numbers: int) -> None:
    """Has `act` called with the number of each of these signals, in a thread of its own.

    A handler itself runs in the middle of whatever the main thread does: if that is `Event.wait`,
    the thread holds the lock that `Event.set` takes, and both stand still for ever. For the same
    reason it is no thread of `threading`, which takes locks to start one.
    """
    supervisor = current()

    def run(number: int) -> None:
        try:
            act(number)
        except BaseException as error:  # noqa: BLE001 - nobody else would hear of it
            supervisor.note(Work("signal", signal.Signals(number).name), error, ran_s=0.0)

    def handle(number: int, _: FrameType | None) -> None:
        _thread.start_new_thread(run, (number,))

    for number in numbers:
        signal.signal(number, handle)


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

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(
        self, work: Coroutine[Any, Any, T], *, name: str, of: str = "", expected: Expected = ()
    ) -> "asyncio.Task[T]":
        """Starts a task, as `start_task` does."""
        return self._note(start_task(work, name=name, of=of, expected=expected))

    def keep(
        self,
        make: Callable[[], Coroutine[Any, Any, T]],
        *,
        name: str,
        of: str = "",
        expected: Expected = (),
    ) -> "asyncio.Task[T]":
        """Starts a task that lasts, as `keep_task` does."""
        return self._note(keep_task(make, name=name, of=of, expected=expected))

    def _note(self, task: "asyncio.Task[T]") -> "asyncio.Task[T]":
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
