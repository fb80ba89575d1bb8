"""Requests whose time is over, looked at together."""

import asyncio

import pytest

from dovetail.kafka.handlers import backend
from dovetail.kafka.handlers.backend import TimeOuts
from dovetail.supervision import Supervisor


async def test_only_those_are_called_whose_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """K1: each once, after its time; what was discarded never; and none is kept behind."""
    monkeypatch.setattr(backend, "TIME_OUT_STEP_S", 0.001)
    waiting, called = TimeOuts(), []
    over = asyncio.Event()

    def first() -> None:
        called.append("first")

    def second() -> None:
        called.append("second")
        waiting.discard(second)  # As a request does that has ended.
        over.set()

    def never() -> None:
        called.append("never")

    waiting.add(second, 0.01)
    waiting.add(first, 0.002)
    waiting.add(never, 0.003)
    waiting.add(never, 3600.0)
    waiting.discard(never)
    async with asyncio.timeout(60):
        await over.wait()
    assert called == ["first", "second"]
    assert len(waiting) == 0
    waiting.add(first, 0.0)
    async with asyncio.timeout(60):
        while len(called) < 3:
            await asyncio.sleep(0.001)
    assert called == ["first", "second", "first"]


async def test_one_that_fails_is_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """R5: it is reported, and the others have their turn."""
    monkeypatch.setattr(backend, "TIME_OUT_STEP_S", 0.001)
    supervisor = Supervisor()
    waiting = TimeOuts()
    calls: list[str] = []
    over = asyncio.Event()

    def fails() -> None:
        calls.append("fails")
        if len(calls) == 1:
            raise ZeroDivisionError("nobody expects it")

    with supervisor.supervising():
        waiting.add(fails, 0.0)
    waiting.add(over.set, 0.0)
    async with asyncio.timeout(60):
        await over.wait()
    assert calls == ["fails", "fails"]
    assert supervisor.counts() == {"kafka/time-out": 1}
