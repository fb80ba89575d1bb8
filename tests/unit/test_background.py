"""R5: what runs in the background is seen to end, by its name."""

import asyncio
import logging

import pytest

from dovetail import background


async def _break() -> None:
    raise RuntimeError("planted")


async def test_a_task_that_a_defect_ends_is_logged_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R5: an unexpected exception ends no task in silence."""
    before = background.defects().get("planted-task", 0)
    with caplog.at_level(logging.ERROR, logger="dovetail"):
        task = background.start_task(_break(), name="planted-task")
        await asyncio.wait([task])
    assert background.defects()["planted-task"] == before + 1
    assert "planted" in caplog.text


async def test_a_cancelled_task_and_an_expected_failure_are_no_defects() -> None:
    """R5: its owner ended it, or reports the failure itself."""
    ended = background.start_task(asyncio.Event().wait(), name="cancelled")  # type: ignore[arg-type]
    failed = background.start_task(_break(), name="expected", expected=(RuntimeError,))
    ended.cancel()
    await asyncio.wait([ended, failed])
    assert not {"cancelled", "expected"} & set(background.defects())


def test_a_thread_that_a_defect_ends_is_logged_by_name(caplog: pytest.LogCaptureFixture) -> None:
    """R5: nor does a thread end in silence."""

    def broken() -> None:
        raise ValueError("planted in a thread")

    with caplog.at_level(logging.ERROR, logger="dovetail"):
        background.start_thread(broken, name="planted-thread").join()
    assert background.defects()["planted-thread"] >= 1
    assert "planted in a thread" in caplog.text


async def test_the_first_of_several_ends_the_wait_for_all() -> None:
    """The others are cancelled, and what the first raised is raised."""
    never, now = asyncio.Event(), asyncio.Event()
    now.set()
    assert await background.first_of(never.wait(), now.wait()) == (False, True)
    with pytest.raises(RuntimeError, match="planted"):
        await background.first_of(never.wait(), _break())


async def test_tasks_of_one_owner_end_together() -> None:
    """Also those that a task starts while it is being cancelled."""
    tasks = background.Tasks("owner")
    late: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tasks.start(asyncio.sleep(60), name="late")
            late.append("started")

    tasks.start(stubborn(), name="stubborn")
    await asyncio.sleep(0)
    await tasks.stop()
    assert late == ["started"]
    assert len(tasks) == 0
