"""Processes and the wires between them, in one thread and in virtual time.

A `Process` is whoever a callback belongs to: a context variable says so, and tasks and timers
inherit it. The loop asks before it runs anything: what belongs to a process that has crashed never
runs again, not even its `finally`; what belongs to one that is paused runs when it wakes, timers
that were due meanwhile included. That is what kill -9 and SIGSTOP do.

A `Wire` joins two places and has two ways, each of which can be cut, held or slow by itself. What
is on a wire belongs to nobody: it arrives even if its sender has died.
"""

import asyncio
import contextvars
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.sim.world import VirtualLoop

from dovetail.errors import DovetailError

_PROCESS: contextvars.ContextVar["Process | None"] = contextvars.ContextVar("process", default=None)
_NOBODY = contextvars.Context()


class Process:
    """One life of a process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.context = contextvars.Context()
        self.context.run(_PROCESS.set, self)
        self._held: list[asyncio.Handle] = []

    @property
    def runs(self) -> bool:
        return self.alive and not self.paused

    def hold(self, handle: asyncio.Handle) -> None:
        """Keeps back what was to run."""
        self._held.append(handle)

    def kill(self) -> None:
        """Nothing of it ever runs again."""
        self.alive = False

    def pause(self) -> None:
        """Nothing of it runs until it wakes."""
        self.paused = True

    def wake(self) -> None:
        """What was held back runs, in order, unless something before it cancels it."""
        self.paused = False
        if self.alive:
            self.release()

    def release(self) -> None:
        """Gives free what was held back; of the dead, only to take them apart."""
        held, self._held = self._held, []
        loop = asyncio.get_running_loop()
        for handle in held:
            loop.call_soon(_run_unless_cancelled, handle, context=_NOBODY.copy())

    def call(self, action: Callable[..., object], *args: object) -> None:
        """Runs something in the process, when it runs; never, if it is dead by then."""
        asyncio.get_running_loop().call_soon(action, *args, context=self.context.copy())


def _run_unless_cancelled(handle: asyncio.Handle) -> None:
    if not handle.cancelled():
        handle._run()


class _Guarded:
    """A callback that belongs to a process."""

    __slots__ = ("_callback", "_loop", "_process", "handle")

    def __init__(
        self, loop: "ProcessLoop", process: Process, callback: Callable[..., object]
    ) -> None:
        self._loop = loop
        self._process = process
        self._callback = callback
        self.handle: asyncio.Handle

    def __call__(self, *args: object) -> None:
        if self._process.runs or self._loop.ending:
            self._callback(*args)
        else:
            self._process.hold(self.handle)


class ProcessLoop(VirtualLoop):
    """An event loop that knows whose callbacks it runs."""

    def __init__(self) -> None:
        super().__init__()
        #: Whether the dead may run again, to be taken apart when everything ends.
        self.ending = False
        #: Tasks of the dead wait for ever, and nobody else keeps them from the collector.
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_max = 1000

    def create_task(self, coro: Any, **kind: Any) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = super().create_task(coro, **kind)
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_max:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks_max = 1000 + 2 * len(self._tasks)
        return task

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        guarded = self._guarded(callback, context)
        if guarded is None:
            return super().call_soon(callback, *args, context=context)
        handle = super().call_soon(guarded, *args, context=context)
        guarded.handle = handle
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        guarded = self._guarded(callback, context)
        if guarded is None:
            return super().call_at(when, callback, *args, context=context)
        handle = super().call_at(when, guarded, *args, context=context)
        guarded.handle = handle
        return handle

    def _guarded(
        self, callback: Callable[..., object], context: contextvars.Context | None
    ) -> _Guarded | None:
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        return None if process is None or self.ending else _Guarded(self, process, callback)


def of_nobody() -> contextvars.Context:
    """A context for what belongs to no process."""
    return _NOBODY.copy()


def here() -> Process:
    """The process whose code runs now."""
    process = _PROCESS.get()
    assert process is not None, "this runs in no process"
    return process


class Way:
    """One direction of a wire; things arrive in order."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._free_at = 0.0
        self._waiting: list[Callable[[], None]] = []
        self.cut = False
        self.held = False
        #: The part that is lost, and the longest delay.
        self.loss = 0.0
        self.delay_s = 0.002

    def send(self, action: Callable[[], None]) -> None:
        """Runs `action` at the other end, later or never."""
        if self.cut or (self.loss and self._rng.random() < self.loss):
            return
        if self.held:
            self._waiting.append(action)
            return
        loop = asyncio.get_running_loop()
        # Never the same moment twice: timers of one moment run in any order.
        due = loop.time() + self._rng.random() * self.delay_s
        self._free_at = max(self._free_at + 1e-9, due)
        loop.call_at(self._free_at, action, context=of_nobody())

    def heal(self) -> None:
        """What was held goes on its way; what was lost is lost."""
        self.cut = self.held = False
        self.loss, self.delay_s = 0.0, 0.002
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            self.send(action)


class Wire:
    """Requests one way, answers the other."""

    def __init__(self, rng: random.Random) -> None:
        self.requests = Way(rng)
        self.answers = Way(rng)

    def heal(self) -> None:
        self.requests.heal()
        self.answers.heal()


async def exchange(
    wire: Wire,
    serve: Callable[[Callable[[object], None]], None],
    *,
    wait_s: float,
    lost: DovetailError,
) -> Any:
    """Asks over a wire: `serve` runs at the other end, and answers by what it is given.

    Raises the answer if it is an error, `lost` if none comes in time.
    """
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def arrive() -> None:
        serve(lambda outcome: wire.answers.send(lambda: settle(future, outcome)))

    wire.requests.send(arrive)
    try:
        async with asyncio.timeout(wait_s):
            outcome = await future
    except TimeoutError:
        raise lost from None
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def settle(future: "asyncio.Future[object]", outcome: object) -> None:
    """Sets the result, once."""
    if not future.done():
        future.set_result(outcome)


async def end_everything(loop: ProcessLoop, processes: Sequence[Process]) -> None:
    """Takes apart what still stands, the dead included: nothing is left to the collector."""
    loop.ending = True
    for process in processes:
        process.release()
    for _ in range(1000):
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0)
    raise AssertionError(f"tasks that do not end: {tasks}")
