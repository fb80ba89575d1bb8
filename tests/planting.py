"""Plants unexpected exceptions in background work that runs, by its name (R5).

A *task* gets the exception where it waits, as if what it waits for had raised it, or as it starts;
an *alarm* when it rings; a *thread* at the next line that it runs. Everything around it is real.
"""

import asyncio
import ctypes
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from types import CoroutineType, SimpleNamespace
from typing import Any

import pytest

from dovetail import background, supervision
from dovetail.supervision import FAILING_AFTER, Supervisor, Work

#: Far above what anything here needs on a machine that does other work too.
WAIT_S_MAX = 60.0


class Planted(BaseException):
    """Of a class that nobody expects: not even an `Exception`."""


class Planter:
    """Plants, and sees what the supervisors hear of it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.heard: Counter[str] = Counter()
        self.supervisor_of: dict[str, Supervisor] = {}
        self._changed = threading.Condition()
        self._at_start: Counter[str] = Counter()
        self._alarms: dict[str, list[background.Alarm]] = {}
        self._running: dict[str, int] = {}
        self._rung: dict[str, background.Alarm] = {}
        self._ahead_s = 0.0

        self._patch_time(patch)
        self._patch_note(patch)
        self._patch_keep(patch)
        self._patch_alarm(patch)
        self._patch_thread(patch)

    def _patch_time(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(supervision, "PAUSE_S_MIN", 0.02)
        patch.setattr(supervision, "PAUSE_S_MAX", 0.02)
        ahead = SimpleNamespace(monotonic=lambda: time.monotonic() + self._ahead_s)
        patch.setattr(supervision, "time", ahead)

    def _patch_note(self, patch: pytest.MonkeyPatch) -> None:
        note = Supervisor.note

        def heard(supervisor: Supervisor, work: Work, *given: Any, **named: Any) -> float:
            pause_s = note(supervisor, work, *given, **named)
            with self._changed:
                self.heard[work.name] += 1
                self.supervisor_of[work.name] = supervisor
                self._changed.notify_all()
            return pause_s

        patch.setattr(Supervisor, "note", heard)

    def _patch_keep(self, patch: pytest.MonkeyPatch) -> None:
        keep = background._keep

        async def kept(
            make: Callable[[], Coroutine[Any, Any, Any]], work: Work, *given: Any
        ) -> Any:
            async def begin() -> Any:
                if self._at_start[work.name] > 0:
                    self._at_start[work.name] -= 1
                    raise Planted("as it starts")
                return await make()

            return await keep(begin, work, *given)

        patch.setattr(background, "_keep", kept)

    def _patch_alarm(self, patch: pytest.MonkeyPatch) -> None:
        make = background.Alarm.__init__

        def made(alarm: background.Alarm, callback: Callable[[], object], **named: str) -> None:
            def ring() -> None:
                # Of several, such as those of two timelines, the one that the test has ring.
                chosen = self._rung.get(named["name"], alarm) is alarm
                if chosen and self._at_start[named["name"]] > 0:
                    self._at_start[named["name"]] -= 1
                    raise RuntimeError("as it rings")
                callback()

            make(alarm, ring, **named)
            self._alarms.setdefault(named["name"], []).append(alarm)

        patch.setattr(background.Alarm, "__init__", made)

    def _patch_thread(self, patch: pytest.MonkeyPatch) -> None:
        run = background._run

        def running(body: Callable[[], object], work: Work, *given: Any) -> None:
            def begin() -> None:
                with self._changed:
                    self._running[work.name] = threading.get_ident()
                    self._changed.notify_all()
                body()

            run(begin, work, *given)

        patch.setattr(background, "_run", running)

    # Planting

    def at_start(self, name: str, times: int = FAILING_AFTER) -> None:
        """The next starts of the work, or rings of the alarm, raise."""
        self._at_start[name] = times

    def in_call(
        self, patch: pytest.MonkeyPatch, owner: Any, attribute: str, *, name: str, times: int
    ) -> None:
        """What the work calls raises, so many times."""
        call = getattr(owner, attribute)
        left = [times]

        def planted(*given: Any, **named: Any) -> Any:
            if left[0] > 0:
                left[0] -= 1
                raise Planted(f"{name} called {attribute}")
            return call(*given, **named)

        patch.setattr(owner, attribute, planted)

    async def ring(self, name: str, *, heard: int) -> None:
        """The newest alarm of the name rings, until so many failures were heard of: who sets it
        anew meanwhile takes a ring away."""
        self._rung[name] = self._alarms[name][-1]
        async with asyncio.timeout(WAIT_S_MAX):
            while self.heard[name] < heard:
                self._rung[name].set(0)
                await asyncio.sleep(0.05)

    def task(self, name: str) -> "asyncio.Task[Any]":
        """A task of the name, of several always the same."""
        found = [task for task in asyncio.all_tasks() if _is(task, name)]
        counts = Counter(task.get_name() for task in found)
        found.sort(key=lambda task: (counts[task.get_name()], task.get_name()))
        assert found, f"no task {name}: {sorted(task.get_name() for task in asyncio.all_tasks())}"
        return found[0]

    async def where_it_waits(self, name: str, error: BaseException | None = None) -> None:
        """What the task waits for raises; without an `error` it is cancelled."""
        task = self.task(name)
        async with asyncio.timeout(WAIT_S_MAX):
            while _waited_for(task) is None:
                await asyncio.sleep(0)
        waiter = _waited_for(task)
        assert waiter is not None
        if error is None:
            waiter.cancel()
        else:
            waiter.set_exception(error)

    def in_thread(self, name: str) -> None:
        """The thread raises at the next line of its work that it runs."""
        with self._changed:
            assert self._changed.wait_for(lambda: name in self._running, WAIT_S_MAX), name
            thread = self._running.pop(name)
        raised = ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread), ctypes.py_object(Planted)
        )
        assert raised == 1

    # Seeing

    def wait_heard(self, name: str, count: int) -> None:
        """Returns when so many failures of the work were heard of; on a thread."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.heard[name] >= count, WAIT_S_MAX), name

    async def until_heard(self, name: str, count: int) -> None:
        await asyncio.to_thread(self.wait_heard, name, count)

    def pass_time(self) -> None:
        """As if all had been quiet since."""
        self._ahead_s += 1_000_000.0


def _is(task: "asyncio.Task[Any]", name: str) -> bool:
    return task.get_name() == name or task.get_name().startswith(f"{name} (")


def _waited_for(task: "asyncio.Task[Any]") -> "asyncio.Future[Any] | None":
    """The future that the work inside `_keep` waits for; None while it pauses or runs."""
    at: Any = task.get_coro()
    names = []
    while isinstance(at, CoroutineType):
        names.append(at.__qualname__)
        at = at.cr_await
    if names[-2:] == ["_keep", "sleep"] or "cython" in type(at).__module__:
        return None  # It is about to be started again; or gRPC holds the future.

    waiter = getattr(task, "_fut_waiter", None)
    if isinstance(waiter, asyncio.Task):
        return _waited_for(waiter)
    return None if waiter is None or waiter.done() else waiter
