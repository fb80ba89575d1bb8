"""Workers whose processes, pipes and groups fail at unlucky moments: no crew raises or waits."""

import errno
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.crew_run import run_crew

from dovetail.teams.context import JobContext
from dovetail.teams.envelope import Job
from dovetail.teams.graph import Pipeline
from dovetail.teams.outcome import DeadLetter, FailureKind
from dovetail.teams.team import Team
from dovetail.teams.workers import crew as crew_module
from dovetail.teams.workers.crew import Crew, Done, Ended
from dovetail.teams.workers.worker_report import RUNNING

#: More than a pipe takes.
_LARGE = b"x" * 300_000
#: A crew that waits for a child waits for ever; this is not a limit of speed.
_STEP_S_MAX = 5.0


def crew_of(function: Callable[..., Any], **more: Any) -> Crew:
    settings: dict[str, Any] = {"timeout": "1h", "attempts": 1, "codec": "raw", **more}
    return Crew(Pipeline("p", Team("t", function, **settings)).stages()[0])


def jobs(*payloads: bytes) -> list[Job]:
    return [Job(str(n).encode(), payload) for n, payload in enumerate(payloads)]


def kinds(ended: list[Ended]) -> list[FailureKind | None]:
    return [one.failure.kind if isinstance(one, DeadLetter) else None for one in ended]


def until(crew: Crew, reached: Callable[[], bool]) -> list[Ended]:
    """Steps until then; the crew must not wait for any of its children meanwhile."""
    ended: list[Ended] = []
    deadline = time.monotonic() + 30
    while not reached():
        began = time.monotonic()
        ended += [end for _, end in crew.step(began)]
        assert time.monotonic() - began < _STEP_S_MAX, "a crew waits for nobody"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return ended


def same(job: bytes) -> bytes:
    return job


@pytest.mark.timeout(60)
def test_jobs_and_results_larger_than_a_pipe_pass_each_other() -> None:
    """T6: the child writes results while it is sent jobs, and neither waits for the other."""
    with crew_of(same) as crew:
        ended = run_crew(crew, jobs(*[b"x"] * 200, *[_LARGE] * 60))
    assert [len(one.result) for one in ended if isinstance(one, Done)] == [1] * 200 + [300_000] * 60


@pytest.mark.timeout(60)
def test_a_child_that_does_not_read_holds_up_nobody() -> None:
    """T14: what its pipe does not take is sent when it reads on; its crew steps on meanwhile."""
    read, write = os.pipe()

    def setup() -> None:
        os.read(read, 1)

    with crew_of(same, setup=setup) as crew:
        for number, job in enumerate(jobs(*[_LARGE] * 4)):
            crew.add(number, job)
        until(crew, lambda: any(one.is_behind for one in crew._workers))
        ended = until(crew, lambda: time.monotonic() - crew._workers[0].quiet_since_s > 0.1)
        assert ended == []
        os.write(write, bytes(100))
        assert len(until(crew, lambda: not crew.in_hand)) == 4
    os.close(read)
    os.close(write)


def test_a_process_that_the_system_refuses_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """T6: no memory, no number or no file for it now; jobs wait, and the reason is told."""
    fork, refused, troubles = os.fork, list[int](), set[str]()

    def stingy() -> int:
        if len(refused) < 2:
            refused.append(1)
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", stingy)
    before = len(os.listdir("/proc/self/fd"))
    with crew_of(same) as crew:
        step = crew.step

        def watched(now_s: float) -> list[tuple[int, Ended]]:
            troubles.add(crew.trouble)
            return step(now_s)

        monkeypatch.setattr(crew, "step", watched)
        assert kinds(run_crew(crew, jobs(b"1", b"2"))) == [None, None]
        assert crew.trouble == ""
    assert len(refused) == 2
    assert any("Resource temporarily unavailable" in one for one in troubles)
    assert len(os.listdir("/proc/self/fd")) == before, "the pipes of those that were refused"


def test_a_second_process_that_is_refused_leaves_the_work_to_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T6, T14: a crew of two that gets one works with that."""
    fork, made = os.fork, list[int]()

    def stingy() -> int:
        if made:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        made.append(1)
        return fork()

    monkeypatch.setattr(os, "fork", stingy)
    stage = Pipeline("p", Team("t", same, timeout="1h", attempts=1, codec="raw")).stages()[0]
    with Crew(stage, size=2) as crew:
        assert kinds(run_crew(crew, jobs(*[b"1"] * 600))) == [None] * 600


def leaves_its_group(job: bytes) -> bytes:
    os.setpgid(0, os.getpgid(os.getppid()))
    if job == b"1":
        time.sleep(3600)
    return job


@pytest.mark.timeout(60)
def test_a_function_that_leaves_its_group_ends_at_its_timeout() -> None:
    """T6, F20: the group that is killed is empty then, and its process is killed all the same."""
    with crew_of(leaves_its_group, timeout="200ms") as crew:
        ended = run_crew(crew, jobs(b"0", b"1", b"2"))
    assert kinds(ended) == [None, FailureKind.TIMEOUT, None]


@pytest.mark.timeout(60)
def test_children_that_nobody_can_wait_for_end_all_the_same() -> None:
    """F20: a library of the task's process has the system wait for its children."""

    def work(job: bytes) -> bytes:
        if job == b"1":
            os._exit(3)
        if job == b"2":
            time.sleep(3600)
        return job

    usual = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with crew_of(work, timeout="500ms") as crew:
            ended = run_crew(crew, jobs(b"0", b"1", b"2", b"3"))
    finally:
        signal.signal(signal.SIGCHLD, usual)
    assert kinds(ended) == [None, FailureKind.CRASH, FailureKind.TIMEOUT, None]


def test_a_process_that_is_gone_is_noticed_though_its_copy_lives() -> None:
    """F20, T6: the copy that it has forked holds its pipe open, which so is not closed."""

    def work(job: bytes) -> bytes:
        if job == b"1":
            if os.fork() == 0:
                time.sleep(3600)
            os._exit(3)
        return job

    with crew_of(work, timeout="1h") as crew:
        for number, job in enumerate(jobs(b"0", b"1", b"2")):
            crew.add(number, job)
        assert sorted(map(str, kinds(until(crew, lambda: not crew.in_hand)))) == [
            "None",
            "None",
            "crash",
        ]


def _files() -> dict[int, str]:
    """The files of this process."""
    found = {}
    for number in range(256):
        with suppress(OSError):
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found


@pytest.mark.parametrize("text", [b"hello, this is a text", b"\x03\0\0\0abc"])
def test_what_is_not_from_a_worker_costs_its_job_alone(text: bytes) -> None:
    """F20: a function that writes into a file that is not its own, which is its worker's pipe."""

    others = set(_files().values())

    def work(job: bytes) -> bytes:
        for number, name in _files().items() if job == b"1" else ():
            if name.startswith("pipe:") and name not in others:
                # The end that takes jobs cannot be written to.
                with suppress(OSError):
                    os.write(number, text)
        return job

    with crew_of(work, attempts=2) as crew:
        for number, job in enumerate(jobs(b"0", b"1", b"2")):
            crew.add(number, job)
        ended = until(crew, lambda: not crew.in_hand)
    [letter] = [one for one in ended if isinstance(one, DeadLetter)]
    assert (letter.failure.kind, letter.attempts) == (FailureKind.CRASH, 2)
    assert sum(isinstance(one, Done) for one in ended) == 2


def test_idle_processes_that_are_killed_are_not_stillborn() -> None:
    """T5: more than five at once, and the team goes on with others."""
    read, write = os.pipe()

    def work(job: bytes) -> bytes:
        return os.read(read, 1)

    count = crew_module._STILLBORN_MAX + 1
    stage = Pipeline("p", Team("t", work, timeout="1h", codec="raw")).stages()[0]
    with Crew(stage, size=count) as crew:
        for number, job in enumerate(jobs(*[b""] * count)):
            crew.add(number, job)
        until(crew, lambda: sum(len(one.begun()) for one in crew._workers) == count)
        os.write(write, bytes(count))
        until(crew, lambda: not crew.in_hand)
        for worker in crew._workers:
            os.kill(worker.pid, signal.SIGKILL)
        until(crew, lambda: not crew._workers)
        crew.add(count, jobs(b"")[0])
        os.write(write, b"x")
        assert kinds(until(crew, lambda: not crew.in_hand)) == [None]
    os.close(read)
    os.close(write)


def test_a_slow_teardown_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """T14, T16: a process that is not needed any more has its time, and its crew steps on."""
    monkeypatch.setattr(crew_module, "_SPARE_S", 0.0)
    read, write = os.pipe()

    def work(job: bytes) -> bytes:
        if job == b"wait":
            os.read(read, 1)
        return job

    with crew_of(work, setup=lambda: 1, teardown=lambda _: time.sleep(3600)) as crew:
        crew.add(0, jobs(b"wait")[0])
        until(crew, lambda: crew._workers != [] and crew._workers[0].begun() != [])
        crew.add(1, jobs(b"2")[0])
        until(crew, lambda: crew.in_hand == 1)
        began = time.monotonic()
        until(crew, lambda: len(crew._leaving) == 1)
        crew.add(2, jobs(b"3")[0])
        until(crew, lambda: crew.in_hand == 1)
        assert time.monotonic() - began < crew_module._TEARDOWN_S
        os.write(write, b"go")
        until(crew, lambda: not crew.in_hand)
        monkeypatch.setattr(crew, "_last_s", 0.1)
        crew._leaving = [(0.0, worker) for _, worker in crew._leaving]
        until(crew, lambda: not crew._leaving)
    os.close(read)
    os.close(write)


def test_a_cancelled_neighbour_that_ends_the_process_costs_no_attempt() -> None:
    """T6, T17: two run in one process, one is cancelled and takes the process with it."""

    def work(job: bytes, context: JobContext) -> bytes:
        while job == b"1" and not context.cancelled:
            time.sleep(0.01)
        if job == b"1":
            os._exit(3)
        time.sleep(1)
        return job

    with crew_of(work, concurrency=2) as crew:
        for number, job in enumerate(jobs(b"0", b"1")):
            crew.add(number, job)
        until(crew, lambda: any(len(one.begun()) == 2 for one in crew._workers))
        assert crew.cancel(1, now_s=time.monotonic())
        assert kinds(until(crew, lambda: not crew.in_hand)) == [None]


def test_a_time_that_is_being_written_is_not_overdue() -> None:
    """T6: a process that the system stops in the middle of noting what it begins has not timed
    out; the page shows zeros until it goes on."""
    read, write = os.pipe()
    with crew_of(lambda job: os.read(read, 1), timeout="10s") as crew:
        crew.add(0, jobs(b"0")[0])
        until(crew, lambda: any(one.begun() for one in crew._workers))
        [worker] = crew._workers
        noted = RUNNING.unpack_from(worker._page)
        RUNNING.pack_into(worker._page, 0, 0, 0.0)
        assert worker.left_s(time.monotonic()) > 10
        RUNNING.pack_into(worker._page, 0, *noted)
        assert 0 < worker.left_s(time.monotonic()) <= 10
        os.write(write, b"x")
        assert kinds(until(crew, lambda: not crew.in_hand)) == [None]
    os.close(read)
    os.close(write)


def test_a_process_that_is_lost_with_many_outcomes_is_replaced_by_few() -> None:
    """T14: each job that may have ended it is given again alone, but not each to a process of its
    own, at once: to start a hundred held up all partitions of the task."""
    with crew_of(same) as crew:
        for number, job in enumerate(jobs(*[b"1"] * 200)):
            crew.add(number, job)
        until(crew, lambda: bool(crew._workers) and bool(crew._workers[0].given))
        crew._plan.suspected(crew._workers[0].given)
        crew._workers.pop().kill()
        most = 0

        def reached() -> bool:
            nonlocal most
            most = max(most, len(crew._workers))
            return not crew.in_hand

        assert kinds(until(crew, reached)) == [None] * 200
        assert most < 20
