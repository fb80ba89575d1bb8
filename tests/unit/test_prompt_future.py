"""Futures whose listener hears at once."""

import asyncio
from typing import Any

import pytest

from dovetail.prompt_future import PromptFuture, when_done


async def test_the_listener_is_told_before_the_result_is_set() -> None:
    """The answer to a Produce leaves in the turn of the loop in which the disk has answered."""
    future, heard = PromptFuture[int](), []
    when_done(future, lambda done: heard.append(done.result()))
    future.set_result(7)
    assert heard == [7]
    assert await future == 7


async def test_the_listener_is_told_of_an_error_at_once() -> None:
    """As of a result; the error counts as seen."""
    future, heard = PromptFuture[int](), []
    when_done(future, lambda done: heard.append(done.exception()))
    error = ValueError("no")
    future.set_exception(error)
    assert heard == [error]


async def test_a_late_listener_is_told_what_is_known() -> None:
    """A batch that is refused at once has its outcome before anybody listens."""
    future, heard = PromptFuture[int](), []
    future.set_result(7)
    when_done(future, lambda done: heard.append(done.result()))
    assert heard == [7]


async def test_a_listener_that_fails_does_not_stop_who_sets_the_result() -> None:
    """One answer that cannot be written must not keep the entries behind it from confirmation."""
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))

    def fail(_: object) -> None:
        raise ValueError("broken")

    future = PromptFuture[int]()
    when_done(future, fail)
    future.set_result(7)
    assert [str(report["exception"]) for report in reports] == ["broken"]
    assert reports[0]["handle"] is fail


async def test_a_cancelled_future_tells_in_the_next_turn() -> None:
    """Whoever cancels is often in the middle of a list that the listener changes."""
    future, heard = PromptFuture[int](), []
    when_done(future, lambda done: heard.append(done.cancelled()))
    assert future.cancel()
    assert not future.cancel()
    assert heard == []
    await asyncio.sleep(0)
    assert heard == [True]


async def test_other_futures_tell_in_the_next_turn() -> None:
    """As ever."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    heard = []
    when_done(future, lambda done: heard.append(done.result()))
    future.set_result(7)
    assert heard == []
    await asyncio.sleep(0)
    assert heard == [7]


async def test_others_can_wait_beside_the_listener() -> None:
    """A sender that repeats a batch waits for the first one's outcome."""
    future, heard = PromptFuture[int](), []
    when_done(future, lambda _: None)
    future.add_done_callback(lambda done: heard.append(done.result()))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(future), 0)
    future.set_result(7)
    await asyncio.sleep(0)
    assert heard == [7]
