"""What a handler may do: take its time within a limit, fail for one message of many, give up."""

import asyncio
import inspect
import logging
import threading
import time

import pytest

from dovetail.errors import InvalidInput
from dovetail.timeline import Draft, Message, Reject, Retry, Timeline, Where
from dovetail.timeline.client.blocking import BlockingDovetail, BlockingTimeline
from dovetail.timeline.client.client import Dovetail
from dovetail.timeline.client.fake import fake_dovetail
from dovetail.timeline.config import config_of
from dovetail.timeline.message import State


@pytest.mark.parametrize("of_timeline", [True, False])
async def test_a_handler_that_hangs_is_ended_and_its_message_goes_on(of_timeline: bool) -> None:
    """B22, F32: after its longest time, of the consumer or of the timeline; the attempt counts, and
    the last one makes a dead letter that says why."""
    ended: list[int] = []
    async with fake_dovetail() as d:
        limit = {"handling_ms_max": 100} if of_timeline else {}
        await d.timeline("t").create(config_of({"attempts_max": 2, **limit}))

        @d.consumer("t", concurrency=1, timeout=0 if of_timeline else 0.1)
        async def handle(message: Message) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(message.attempt)

        await d.timeline("t").schedule(b"x")
        await d.advance("1m")
        (dead,) = await d.timeline("t").dead()
        assert ended == [1, 2]
        assert "TimeoutError: the handler took longer than 0.1 s" in dead.reason


async def test_a_thread_that_hangs_costs_no_thread_of_the_next_handler() -> None:
    """B22, F31, F32: a thread cannot be ended, so it is left alone."""
    go_on = threading.Event()
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        if message.body == b"hangs":
            go_on.wait(20)
        seen.append(message.body)

    async with fake_dovetail() as d:
        await d.timeline("t").create(config_of({"attempts_max": 1}))
        d.consumer("t", concurrency=1, timeout=0.1)(handle)
        for body in (b"hangs", b"good", b"fine"):
            await d.timeline("t").schedule(body)
        await d.advance("1s")
        assert seen == [b"good", b"fine"]
        go_on.set()


async def test_progress_gives_a_handler_more_time() -> None:
    """B22: the longest time counts from the last progress."""
    async with fake_dovetail() as d:
        await d.timeline("t").create(config_of({"attempts_max": 1}))

        def handle(message: Message) -> None:
            for _ in range(6):
                time.sleep(0.1)
                message.progress()

        d.consumer("t", timeout=0.4)(handle)
        await d.timeline("t").schedule(b"x")
        await d.advance("1s")
        (consumer,) = d.consumers
        assert (consumer.handled, consumer.failed) == (1, 0)
        with pytest.raises(InvalidInput):
            d.consumer("t", timeout=-1)


async def test_a_batch_has_an_outcome_for_each_message() -> None:
    """B22: one is done, one comes again when it says, one is a dead letter, one fails as usual."""
    errors = [None, Retry("1h"), Reject("no such customer"), ValueError("bad day")]
    async with fake_dovetail() as d:
        t = d.timeline("t")
        await t.create()

        @d.consumer("t", batch=10, concurrency=1)
        async def handle(batch: list[Message]) -> list[BaseException | None]:
            return [errors[int(message.body)] for message in batch]

        ids = [(await t.schedule(b"%d" % number)).id for number in range(4)]
        begun_ms = d.now_ms
        await d.advance(0)
        done, later, rejected, failed = await t.look_up(*ids)
        assert done is None
        assert later is not None
        assert later.visible_ms == begun_ms + 3_600_000
        assert rejected is not None
        assert rejected.state is State.DEAD
        assert "Reject: no such customer" in rejected.reason
        assert failed is not None
        assert (failed.state, failed.attempts) == (State.WAITING, 1)


async def test_outcomes_that_are_none_fail_the_whole_batch_and_say_why() -> None:
    """B22: too few of them, or something else: nothing is taken for done."""
    async with fake_dovetail() as d:
        t = d.timeline("t")
        await t.create(config_of({"attempts_max": 1}))
        d.consumer("t", batch=10, concurrency=1)(lambda batch: [None] * (len(batch) + 1))
        await t.schedule(b"x")
        await d.advance(0)
        (dead,) = await t.dead()
        assert "a batch handler returns None, or a list" in dead.reason


async def test_a_rejected_message_is_a_dead_letter_at_once() -> None:
    """B22: whatever attempts are left, also from a plain function."""
    async with fake_dovetail(timelines=["t"]) as d:

        @d.consumer("t")
        def handle(message: Message) -> None:
            raise Reject("not one of ours")

        await d.timeline("t").schedule(b"x")
        await d.advance(0)
        (dead,) = await d.timeline("t").dead()
        assert dead.attempts == 1
        assert dead.reason.startswith("Reject: not one of ours")


def test_both_clients_take_the_same_arguments() -> None:
    """B22: the blocking one and the asynchronous one."""
    ours, theirs = (inspect.signature(each.consumer) for each in (Dovetail, BlockingDovetail))
    assert ours.parameters == theirs.parameters
    for async_kind, kind in ((Dovetail, BlockingDovetail), (Timeline, BlockingTimeline)):
        missing = _public(async_kind) - _public(kind)
        assert not missing, f"{kind.__name__} has no {missing}"


def _public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_a_filter_page_by_page_without_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    """B22, B23: and a call from the loop's own thread is refused, which would wait for itself."""
    monkeypatch.setattr("dovetail.timeline.operating.SELECT_MAX", 2)
    with BlockingDovetail(lambda: fake_dovetail(timelines=["t"])) as d:
        timeline = d.timeline("t")
        timeline.schedule_many([Draft(b"", delay="1h", key=f"k{n}") for n in range(5)])
        pages = list(timeline.select("cancel", Where(key_prefix="k")))
        assert [page.done for page in pages] == [2, 2, 1]
        assert timeline.peek() == []

        async def inside() -> None:
            with pytest.raises(RuntimeError, match="own thread"):
                timeline.peek()

        d.call(inside())


@pytest.mark.parametrize("timeout", ["0s", "5s"])
async def test_a_plain_handler_that_raises_stop_iteration_has_failed(timeout: str) -> None:
    """R5, B13: as `next` of something empty does; no future takes that class, and none may wait."""
    async with fake_dovetail(timelines=["t"]) as d:
        await d.timeline("t").alter(attempts_max=1)

        def handle(message: Message) -> None:
            next(iter(()))

        d.consumer("t", concurrency=1, timeout=timeout)(handle)
        for body in (b"1", b"2"):
            await d.timeline("t").schedule(body)
        await asyncio.wait_for(d.advance("1s"), 10)
        dead = await d.timeline("t").dead()
        assert [each.body for each in dead] == [b"1", b"2"]
        assert "StopIteration" in dead[0].reason


@pytest.mark.parametrize("batch", [0, 10])
async def test_what_a_handler_raises_is_in_the_log(
    batch: int, caplog: pytest.LogCaptureFixture
) -> None:
    """U7: a developer sees the traceback at the first attempt, not in a dead letter hours later."""
    async with fake_dovetail(timelines=["t"]) as d:

        @d.consumer("t", batch=batch)
        async def handle(given: object) -> None:
            raise ValueError("no such customer")

        await d.timeline("t").schedule(b"x")
        await d.advance("100ms")

    (record,) = (each for each in caplog.records if each.message == "handler failed")
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "no such customer"
    assert record.dovetail_fields["timeline"] == "t"  # type: ignore[attr-defined]
    assert record.dovetail_fields["attempt"] == 1  # type: ignore[attr-defined]


async def test_what_a_handler_decides_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """U7: `Retry` and `Reject`, of one message or within a batch, are not logged as failures."""
    async with fake_dovetail(timelines=["t", "batches"]) as d:

        @d.consumer("t")
        async def handle(message: Message) -> None:
            raise Retry("1h") if message.body == b"later" else Reject("never")

        @d.consumer("batches", batch=10)
        async def handle_batch(messages: list[Message]) -> list[Exception]:
            return [Reject("never") for _ in messages]

        await d.timeline("t").schedule(b"later")
        await d.timeline("t").schedule(b"never")
        await d.timeline("batches").schedule(b"never")
        await d.advance("100ms")
        assert len(await d.timeline("t").dead()) == len(await d.timeline("batches").dead()) == 1
    assert not [each for each in caplog.records if each.levelno > logging.INFO]


class _NoNotes(Exception):
    def __getattribute__(self, name: str) -> object:
        if name == "__notes__":
            raise ValueError("no notes")
        return super().__getattribute__(name)


_ODD_ERRORS = [_NoNotes("odd"), SyntaxError("odd", ("file", 1, 2, b"no text"))]  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", _ODD_ERRORS, ids=["notes", "syntax"])
@pytest.mark.parametrize("plain", [True, False])
async def test_an_exception_that_cannot_be_formatted_fails_like_any_other(
    odd: Exception, plain: bool
) -> None:
    """R6: its message stayed here for ever, under a lease that was extended again and again, and
    each took one place of a handler."""

    def fail(message: Message) -> None:
        raise odd

    async def fail_on_loop(message: Message) -> None:
        fail(message)

    async with fake_dovetail() as d:
        await d.timeline("t").create(config_of({"attempts_max": 2}))
        d.consumer("t", concurrency=1)(fail if plain else fail_on_loop)
        for _ in range(10):
            await d.timeline("t").schedule(b"x")
        await d.advance("1m")
        dead = await d.timeline("t").dead()
        assert len(dead) == 10
        assert "odd" in dead[0].reason
        assert "its traceback cannot be read" in dead[0].reason
        assert "in fail" in dead[0].reason
