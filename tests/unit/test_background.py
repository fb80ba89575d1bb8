"""R5: what runs in the background is seen to fail, by its name, and is started again."""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from dovetail import background, supervision
from dovetail.supervision import FAILING_AFTER, Failures, Supervisor, Work


async def _break() -> None:
    raise RuntimeError("planted")


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    """Of everything that the test starts."""
    made = Supervisor()
    with made.supervising():
        yield made


@pytest.fixture(autouse=True)
def _restart_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "PAUSE_S_MIN", 0.001)
    monkeypatch.setattr(supervision, "PAUSE_S_MAX", 0.001)


async def test_a_task_that_a_defect_ends_is_logged_by_name(
    caplog: pytest.LogCaptureFixture, supervisor: Supervisor
) -> None:
    """R5: an unexpected exception ends no task in silence."""
    with caplog.at_level(logging.ERROR, logger="dovetail"):
        task = background.start_task(_break(), name="planted-task")
        await asyncio.wait([task])
    assert supervisor.counts() == {"planted-task": 1}
    assert "planted" in caplog.text


async def test_a_cancelled_task_and_an_expected_failure_are_no_defects(
    supervisor: Supervisor,
) -> None:
    """R5: its owner ended it, or reports the failure itself."""
    ended = background.start_task(asyncio.Event().wait(), name="cancelled")  # type: ignore[arg-type]
    kept = background.keep_task(asyncio.Event().wait, name="kept")  # type: ignore[arg-type]
    failed = background.start_task(_break(), name="expected", expected=(RuntimeError,))
    given_up = background.keep_task(_break, name="expected", expected=(RuntimeError,))
    await asyncio.sleep(0)
    ended.cancel()
    kept.cancel()
    await asyncio.wait([ended, kept, failed, given_up])
    assert supervisor.counts() == {}


async def test_an_inner_cancellation_is_a_failure(supervisor: Supervisor) -> None:
    """R5: a task that ends because something that it awaited was cancelled has not been ended."""
    inner = asyncio.get_running_loop().create_future()

    async def wait() -> None:
        await inner

    task = background.start_task(wait(), name="inner")
    await asyncio.sleep(0)
    inner.cancel()
    await asyncio.wait([task])
    assert supervisor.counts() == {"inner": 1}


class _Panic(BaseException):
    """As extension modules raise: no `Exception`."""


@pytest.mark.parametrize(
    "failure",
    [RuntimeError("planted"), asyncio.CancelledError(), _Panic("planted"), GeneratorExit()],
    ids=repr,
)
async def test_a_kept_task_starts_again_until_it_is_well(
    failure: BaseException, supervisor: Supervisor
) -> None:
    """R5: whatever class the exception has; what keeps failing is a problem, by its name."""
    attempts = 0
    well, seen = asyncio.Event(), []

    async def work() -> None:
        nonlocal attempts
        attempts += 1
        if attempts <= supervision.FAILING_AFTER:
            seen.append(supervisor.problems())
            raise failure
        well.set()
        await asyncio.Event().wait()

    task = background.keep_task(work, name="room/work", of="one")
    async with asyncio.timeout(60):
        await well.wait()
    assert seen == [[]] * supervision.FAILING_AFTER
    (problem,) = supervisor.problems()
    assert problem.startswith("room/work (one): failed 3 times in a row, the last time with ")
    assert type(failure).__name__ in problem
    assert supervisor.failing() == {"room/work"}
    assert supervisor.counts() == {"room/work": 3}

    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_kept_task_that_fails_while_it_is_cancelled_is_not_started_again(
    supervisor: Supervisor,
) -> None:
    """R5: an owner that stops does not wait for ever."""
    starts = 0

    async def stubborn() -> None:
        nonlocal starts
        starts += 1
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("planted on the way out")

    task = background.keep_task(stubborn, name="stubborn")
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert starts == 1
    assert supervisor.counts() == {"stubborn": 1}


async def test_a_vital_task_that_fails_is_a_problem_for_good(supervisor: Supervisor) -> None:
    """R5: what cannot be replaced is never called well again."""
    await asyncio.wait([background.start_task(_break(), name="vital", vital=True)])
    assert supervisor.problems() == ["vital: ended with RuntimeError: planted"]


def test_failures_in_a_row_are_measured_by_the_work_itself() -> None:
    """R5: rare failures make no problem; the same one after every start does, however late."""
    rare, sweep = Work("rare"), Work("sweep")
    failures = Failures()
    for at_s in range(0, 100_000, 1_000):
        failures.note(rare, "planted", ran_s=1.0, now_s=at_s)
        assert failures.problems(at_s) == {}

    for round_ in range(3):
        failures.note(sweep, "planted", ran_s=600.0, now_s=200_000 + round_ * 605.0)
    assert set(failures.problems(201_210 + 1_205)) == {sweep}
    assert failures.problems(201_210 + 1_215) == {}


def test_the_pause_before_a_restart_doubles_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """R5: work that cannot succeed costs next to nothing."""
    monkeypatch.setattr(supervision, "PAUSE_S_MIN", 0.1)
    monkeypatch.setattr(supervision, "PAUSE_S_MAX", 5.0)
    failures, work = Failures(), Work("work")
    pauses = [failures.note(work, "planted", ran_s=0.0, now_s=0.0) for _ in range(50)]
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert set(pauses[6:]) == {5.0}


def test_a_thread_that_a_defect_ends_is_logged_by_name(
    caplog: pytest.LogCaptureFixture, supervisor: Supervisor
) -> None:
    """R5: nor does a thread end in silence, whatever class the exception has."""

    def broken() -> None:
        raise _Panic("planted in a thread")

    with caplog.at_level(logging.ERROR, logger="dovetail"):
        background.start_thread(broken, name="planted-thread").join()
    assert supervisor.counts() == {"planted-thread": 1}
    assert "planted in a thread" in caplog.text


def test_a_kept_thread_starts_again_until_it_is_stopped(supervisor: Supervisor) -> None:
    """R5: what it starts belongs to the same owner, and a stop ends the pause."""
    starts, stopped = 0, threading.Event()
    owners = []

    def broken() -> None:
        nonlocal starts
        starts += 1
        owners.append(supervision.current())
        if starts == 5:
            stopped.set()
        raise SystemExit("planted")

    background.keep_thread(broken, name="thread", stopped=stopped).join()
    assert starts == 5
    assert set(owners) == {supervisor}
    assert supervisor.failing() == {"thread"}


async def test_an_alarm_that_fails_rings_again(supervisor: Supervisor) -> None:
    """R5: a timer whose callback sets the next one survives a defect in it."""
    rang, well = 0, asyncio.Event()

    def ring() -> None:
        nonlocal rang
        rang += 1
        if rang <= 3:
            raise RuntimeError("planted")
        well.set()

    alarm = background.Alarm(ring, name="alarm")
    alarm.set(0)
    await well.wait()
    assert supervisor.counts() == {"alarm": 3}
    assert supervisor.failing() == {"alarm"}
    assert not alarm.is_set

    alarm.set(0)
    alarm.cancel()
    await asyncio.sleep(0.01)
    assert rang == 4


async def test_a_callback_that_is_called_later_is_called_again(supervisor: Supervisor) -> None:
    """R5: whatever it raises; it is counted under its name, and is over when it was well."""
    rang, well = 0, asyncio.Event()

    def ring() -> None:
        nonlocal rang
        rang += 1
        if rang < 3:
            raise RuntimeError("planted")
        well.set()

    alarm = background.later(0.001, ring, name="timer", of="x")
    await well.wait()
    assert supervisor.counts() == {"timer": 2}
    assert not alarm.is_set


async def test_a_callback_that_a_thread_hands_in_is_heard_of() -> None:
    """R5: it fails again and again, and that is a problem; what is about a client's line is not."""
    supervisor, loop = Supervisor(), asyncio.get_running_loop()
    background.watch_loop(supervisor)

    def broken() -> None:
        raise RuntimeError("planted")

    def hand_in() -> None:
        for _ in range(FAILING_AFTER):
            loop.call_soon_threadsafe(broken)

    await asyncio.to_thread(hand_in)
    await asyncio.sleep(0.01)
    assert supervisor.failing() == {"loop/callback"}
    loop.call_exception_handler({"message": "SSL", "exception": OSError("broken line")})
    assert supervisor.counts() == {"loop/callback": FAILING_AFTER}


async def test_the_first_of_several_ends_the_wait_for_all() -> None:
    """The others are cancelled, and what the first raised is raised."""
    never, now = asyncio.Event(), asyncio.Event()
    now.set()
    assert await background.first_of(never.wait(), now.wait()) == (False, True)
    with pytest.raises(RuntimeError, match="planted"):
        await background.first_of(never.wait(), _break())


async def test_tasks_of_one_owner_end_together() -> None:
    """Also those that a task starts while it is being cancelled."""
    tasks = background.Tasks()
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


def test_a_signal_that_interrupts_a_wait_does_not_stand_still_with_it() -> None:
    """R5: `Event.wait` holds the lock that `Event.set` takes, and a handler runs in its middle."""
    stop = threading.Event()
    was = signal.getsignal(signal.SIGUSR1)
    try:
        background.on_signals(lambda _: stop.set(), signal.SIGUSR1)
        with stop._cond:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGUSR1)
        assert stop.wait(30)
    finally:
        signal.signal(signal.SIGUSR1, was)


def test_what_a_signal_has_done_and_fails_is_heard_of(supervisor: Supervisor) -> None:
    """R5: a stop that fails would be a line on the terminal, and a process that goes on."""
    was = signal.getsignal(signal.SIGUSR1)

    def act(_: int) -> None:
        raise RuntimeError("planted")

    try:
        background.on_signals(act, signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        until_s = time.monotonic() + 60
        while not supervisor.counts() and time.monotonic() < until_s:
            time.sleep(0.001)
        assert supervisor.counts() == {"signal": 1}
    finally:
        signal.signal(signal.SIGUSR1, was)
