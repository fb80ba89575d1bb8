"""Workers as real processes: functions that raise, hang, crash and overflow."""

import asyncio
import faulthandler
import gc
import json
import os
import resource
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.crew_run import run_crew

from dovetail.errors import InvalidInput
from dovetail.teams.context import JobContext
from dovetail.teams.envelope import Job, job_of
from dovetail.teams.graph import Pipeline, Stage
from dovetail.teams.outcome import REASON_CHARACTERS_MAX, DeadLetter, FailureKind, Reject
from dovetail.teams.team import Team
from dovetail.teams.workers import crew as crew_module
from dovetail.teams.workers.allowance import Allowance
from dovetail.teams.workers.crew import Crew, Done, Ended


class Worker(Crew):
    """A crew that keeps what it runs."""

    def __init__(self, stage: Stage, **more: Any) -> None:
        super().__init__(stage, **more)
        self.stage = stage

    def run(self, given: list[Job], *, until: int = 0) -> list[Ended]:
        return run_crew(self, given, until=until)


def worker_of(function: Callable[..., Any], **more: Any) -> Worker:
    # On a machine that stands still for a second, a job that ends at once must not be overdue.
    settings = {"timeout": "30s", "attempts": 2, "backoff": "5ms", **more}
    return Worker(Pipeline("p", Team("t", function, **settings)).stages()[0])


def jobs(*payloads: str) -> list[Job]:
    return [Job(str(n).encode(), text.encode()) for n, text in enumerate(payloads)]


def run(function: Callable[..., Any], *payloads: str, **more: Any) -> list[Ended]:
    with worker_of(function, **more) as worker:
        return worker.run(jobs(*payloads))


def results(ended: list[Ended]) -> list[bytes | None]:
    return [one.result if isinstance(one, Done) else None for one in ended]


def dead(ended: list[Ended]) -> dict[str, DeadLetter]:
    return {one.job.id: one for one in ended if isinstance(one, DeadLetter)}


def mischief(job: int) -> Any:
    """What a function can do to its worker, by number."""
    match job:
        case 10:
            raise ValueError("ten is too many")
        case 20:
            os._exit(7)
        case 30:
            while True:
                pass
        case 40:
            # The system gives the memory when it is touched, and nobody does.
            return bytes(2**30)
        case 50:
            faulthandler.disable()
            os.kill(os.getpid(), signal.SIGSEGV)
        case 60:
            return object()
        case 70:
            raise Reject("never")
        case 80:
            raise SystemExit(3)
    return job + 1


def test_a_binary_key_goes_through_a_worker_unchanged() -> None:
    """F7: to the function, and on to the job that follows from its result."""
    first = Team("first", lambda job: job)
    second = Team("second", lambda job: job)
    first.pipe_to(second)
    keys = [b"\xac\xed\x00\x05%c" % number for number in range(128, 256)]
    given = [job_of(place="x", key=key, value=b"1") for key in keys]
    with Worker(Pipeline("p", first, second).stages()[0]) as worker:
        ended = worker.run(given)

    done = [one for one in ended if isinstance(one, Done)]
    assert [one.job.key for one in done] == keys
    assert [[forward.key for forward in one.forwards] for one in done] == [[k] for k in keys]


def test_a_function_has_python_s_usual_collector() -> None:
    """T15: a task looks for garbage rarely, for its jobs make none; a function may make some."""
    usual = gc.get_threshold()
    gc.set_threshold(usual[0] + 99_000)
    try:
        assert results(run(lambda _job: gc.get_threshold(), "1")) == [b"[%d,%d,%d]" % usual]
    finally:
        gc.set_threshold(*usual)


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


def untellable(job: int) -> int:
    """Raises what cannot be written down as it is."""
    match job:
        case 3:
            raise ValueError("broken \ud800 text")
        case 5:
            raise Reject("\udcff" * 5_000)
        case 7:
            raise _Unprintable
    return job


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_exception_whose_text_is_not_unicode_is_a_dead_letter(concurrency: int) -> None:
    """F20: it costs neither its worker nor the jobs beside it."""
    ended = run(
        untellable, *map(str, range(10)), attempts=1, timeout="30s", concurrency=concurrency
    )
    letters = dead(ended)
    assert set(letters) == {"3", "5", "7"}
    assert results(ended) == [None if n in (3, 5, 7) else b"%d" % n for n in range(10)]

    reasons = {name: letter.failure.reason for name, letter in letters.items()}
    assert reasons["3"] == "ValueError: broken \\ud800 text"
    assert len(reasons["5"]) == REASON_CHARACTERS_MAX
    assert reasons["7"] == "_Unprintable: (its message cannot be read: SystemExit)"
    for letter in letters.values():
        assert letter.headers()


def test_poison_ends_in_dead_letters_and_the_others_are_done() -> None:
    """T6, T5: exception, exit, endless loop, 1 GB result, crash: each with its reason."""
    jobs = list(range(0, 300, 1))
    ended = run(mischief, *map(str, jobs), timeout="300ms")
    letters = dead(ended)
    poison = {"10", "20", "30", "40", "50", "60", "70", "80"}
    assert set(letters) == poison
    assert [one for n, one in enumerate(results(ended)) if str(n) not in poison] == [
        b"%d" % (n + 1) for n in jobs if str(n) not in poison
    ]
    told = {name: (letter.failure.kind, letter.attempts) for name, letter in letters.items()}
    assert told == {
        "10": (FailureKind.EXCEPTION, 2),
        "20": (FailureKind.CRASH, 2),
        "30": (FailureKind.TIMEOUT, 2),
        "40": (FailureKind.RESULT_TOO_LARGE, 2),
        "50": (FailureKind.CRASH, 2),
        "60": (FailureKind.RESULT_UNWRITABLE, 2),
        "70": (FailureKind.REJECTED, 1),
        "80": (FailureKind.EXCEPTION, 2),
    }
    assert "exit code 7" in letters["20"].failure.reason
    assert "SIGSEGV" in letters["50"].failure.reason
    assert "1073741824 bytes" in letters["40"].failure.reason
    assert "ten is too many" in letters["10"].failure.reason
    assert "in mischief" in letters["10"].failure.traceback


def test_a_job_that_hangs_first_is_left_at_its_timeout() -> None:
    """T6: what a child begins after it was last looked at is timed too."""

    def hang(job: int) -> int:
        while job == 1:
            pass
        return job

    ended = run(hang, "1", "2", timeout="200ms", attempts=1)
    assert dead(ended)["0"].failure.kind is FailureKind.TIMEOUT
    assert results(ended) == [None, b"2"]


class Order(TypedDict):
    total: int


def total_of(job: Order) -> int:
    return job["total"]


def test_jobs_are_checked_against_the_annotation() -> None:
    """T10: what does not fit is not tried twice, and the function does not see it."""
    ended = run(total_of, '{"total": 4}', '{"total": "4"}', "{", attempts=5)
    assert results(ended) == [b"4", None, None]
    assert {one.failure.kind for one in dead(ended).values()} == {FailureKind.JOB_UNREADABLE}
    assert {one.attempts for one in dead(ended).values()} == {1}


def test_a_shaky_function_is_tried_again(tmp_path: Path) -> None:
    """T6: retries until the limit; the attempt that succeeds gives the result."""

    def shaky(job: int) -> int:
        path = tmp_path / str(job)
        count = int(path.read_text()) + 1 if path.exists() else 1
        path.write_text(str(count))
        if count < 3:
            raise RuntimeError(f"attempt {count}")
        return count

    assert results(run(shaky, "1", "2", attempts=3)) == [b"3", b"3"]
    for path in tmp_path.iterdir():
        path.unlink()
    letters = dead(run(shaky, "1", attempts=2))
    assert letters["0"].failure.reason == "RuntimeError: attempt 2"


def test_threads_wait_together_and_a_stuck_one_is_left_behind() -> None:
    """T6: functions that wait run several at once; one that hangs costs only itself."""
    meeting = threading.Barrier(4, timeout=60)

    def wait(job: int) -> int:
        if job == 99:
            time.sleep(3600)
        if job < 4:
            meeting.wait()
        return os.getpid()

    with worker_of(wait, concurrency=5, timeout="500ms", attempts=1) as worker:
        ended = worker.run(jobs("0", "1", "2", "3", "99"))
        assert set(dead(ended)) == {"4"}
        assert dead(ended)["4"].failure.kind is FailureKind.TIMEOUT
        [before] = {one for one in results(ended) if one is not None}
        [after] = results(worker.run(jobs("7")))
        assert after != before, "the process that holds a stuck thread is replaced"


async def naps(job: float) -> float:
    if job < 0:
        time.sleep(3600)
    if job == 0:
        os._exit(1)
    await asyncio.sleep(job)
    return job


WITHIN: list[int] = []


async def waits_for_others(count: int) -> int:
    """Ends when so many are within; one after the other none would."""
    WITHIN.append(count)
    while len(WITHIN) < count:
        await asyncio.sleep(0.01)
    return count


def test_async_functions_wait_together_and_time_out() -> None:
    """T6: tasks on one loop; a timeout ends one, a blocked loop or a crash costs its culprit."""
    assert results(run(waits_for_others, *["20"] * 20, concurrency=20)) == [b"20"] * 20
    ended = run(naps, *["0.2"] * 20, "60.5", concurrency=21, timeout="2s", attempts=1)
    assert set(dead(ended)) == {"20"}
    ended = run(naps, "0.01", "-1", "0.02", "0", "0.03", concurrency=5, timeout="1s", attempts=1)
    assert {name: one.failure.kind for name, one in dead(ended).items()} == {
        "1": FailureKind.TIMEOUT,
        "3": FailureKind.CRASH,
    }


def double_all(jobs: list[int]) -> list[int]:
    if 13 in jobs:
        raise ValueError("thirteen")
    return [job * 2 for job in jobs]


def double_rows(jobs: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pc.multiply(jobs.column("n"), 2)})


def loses_one(jobs: list[int]) -> list[int]:
    return jobs[1:]


def test_functions_of_batches_and_tables() -> None:
    """T6: lists and Arrow; poison in a batch is found by giving its jobs one by one."""
    ended = run(double_all, "1", "13", "2", "x", kind="batch", attempts=1, timeout="30s")
    assert results(ended) == [b"2", None, b"4", None]
    assert dead(ended)["1"].failure.reason == "ValueError: thirteen"
    assert dead(ended)["3"].failure.kind is FailureKind.JOB_UNREADABLE
    assert results(run(double_rows, '{"n": 1}', '{"n": 2}', kind="arrow")) == [
        b'{"n":2}',
        b'{"n":4}',
    ]
    ended = run(loses_one, "1", "2", kind="batch", attempts=1, timeout="30s")
    assert "returned 0 results for 1 jobs" in dead(ended)["0"].failure.reason


def spoils(job: int) -> int:
    """Leaves a process that cannot report what it did, or two of them, or none at once."""
    if job == 1:
        os.closerange(3, 1000)
    if job == 2:
        os.fork()
    if job == 3:
        os._exit(3)
    return job


@pytest.mark.parametrize("concurrency", [1, 5])
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_function_that_spoils_its_process_costs_only_itself(
    attempts: int, concurrency: int
) -> None:
    """F20, T6: it closes the pipe on which its outcome goes, or is gone before another thread has
    seen it begin; a copy that it has forked and let return takes no jobs from it."""
    given = [str(n % 4) for n in range(16)]
    ended = run(spoils, *given, attempts=attempts, concurrency=concurrency)
    assert results(ended) == [None if n in "13" else n.encode() for n in given]
    kinds = {one.failure.kind for one in dead(ended).values()}
    assert kinds == {FailureKind.CRASH}


def closes_and_goes_on(job: int) -> int:
    os.closerange(3, 1000)
    time.sleep(0.2)
    return job


def test_a_process_that_goes_on_without_its_pipe_is_judged_when_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F20: its job ends between two looks at it, and is counted once."""
    unsent = crew_module.Worker.unsent

    def later(worker: crew_module.Worker) -> list[int]:
        worker._wait(10)
        return unsent(worker)

    monkeypatch.setattr(crew_module.Worker, "unsent", later)
    ended = run(closes_and_goes_on, "1", "2", attempts=2)
    assert {one.failure.kind for one in dead(ended).values()} == {FailureKind.CRASH}
    assert [one.attempts for one in dead(ended).values()] == [2, 2]


def test_a_long_job_holds_up_no_other() -> None:
    """T14: jobs behind long ones in the same crew end at once, and the long ones later."""

    def work(job: int) -> int:
        if job % 10 == 3:
            time.sleep(3600)
        return job

    with worker_of(work, timeout="1h") as worker:
        ended = worker.run(jobs(*map(str, range(60))), until=6)
        assert results(ended) == [b"%d" % n for n in range(60) if n % 10 != 3]


def test_a_burst_behind_stuck_jobs_gets_processes_at_once() -> None:
    """T14: as many as are stuck; otherwise a short job behind ten long ones waits ten times."""

    def work(job: int) -> int:
        time.sleep(3600)
        return job

    with worker_of(work, timeout="1h") as worker:
        for number in range(4):
            worker.add(number, Job(str(number).encode(), b"1"))
        while worker._stuck(time.monotonic()) < 4:
            worker.step(time.monotonic())
        for number in range(4, 20):
            worker.add(number, Job(str(number).encode(), b"1"))
        worker.step(time.monotonic())
        assert len(worker._workers) == 8


def test_a_process_may_have_a_thousand_files_open() -> None:
    """T14, T15: a Spark worker holds those of its user's libraries too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert results(run(lambda job: job, "1", "2")) == [b"1", b"2"]
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_follows_from_a_stored_result_is_made_without_the_function() -> None:
    """T5: connectors run on the result; beside it, other jobs are done as ever."""

    def work(job: int) -> int:
        return job + 100

    first, second = Team("first", work), Team("second", int)
    first.pipe_to(second, transform=lambda result: result * 2)
    stage = Pipeline("p", first, second).stages()[0]
    with Worker(stage) as worker:
        worker.add(7, Job(b"a", b"5"), stored=True)
        [fresh, again] = worker.run(jobs("1"))
    assert isinstance(fresh, Done)
    assert isinstance(again, Done)
    assert [one.payload for one in (*fresh.forwards, *again.forwards)] == [b"202", b"10"]


def told(job: int, context: JobContext) -> list[object]:
    if context.attempt < 3:
        raise RuntimeError("once more")
    left_s = context.deadline_s - time.time()
    return [context.job_id, context.attempt, context.headers["tenant"].decode(), 0 < left_s <= 30]


async def told_async(job: int, context: JobContext) -> list[object]:
    return told(job, context)


@pytest.mark.parametrize(("function", "concurrency"), [(told, 1), (told, 3), (told_async, 3)])
def test_a_function_learns_about_its_job(function: Callable[..., Any], concurrency: int) -> None:
    """F75, T16: id, attempt, headers of its producer, and until when it may run."""
    headers = [("tenant", b"blue"), ("dovetail-parent", b"p")]
    given = job_of(place="", key=b"order-7", value=b"1", headers=headers)
    with worker_of(function, attempts=3, concurrency=concurrency, timeout="30s") as worker:
        assert results(worker.run([given])) == [b'["order-7",3,"blue",true]']
    with pytest.raises(InvalidInput, match="gets no context"):
        Team("t", lambda jobs, context: jobs, kind="batch")


def test_pandas_functions() -> None:
    """T6: the jobs as a data frame."""
    pytest.importorskip("pandas")

    def double(frame: Any) -> Any:
        return frame.assign(n=frame["n"] * 2)

    assert results(run(double, '{"n": 4}', kind="pandas")) == [b'{"n":8}']


def test_connectors_run_where_the_function_runs() -> None:
    """T7, T6: forwards come with the result; a condition that raises fails its own job."""

    def condition(result: int) -> bool:
        if result == 3:
            os._exit(1)
        return 10 / result > 2

    source, high, low = Team("a", int), Team("h", int), Team("l", int, codec="msgpack")
    source.policy = worker_of(int, attempts=1).stage.policy
    source.route_to(condition, high, low)
    with Worker(Pipeline("p", source, high, low).stages()[0]) as worker:
        ended = worker.run(jobs("1", "0", "3", "7"))
    assert {name: one.failure.kind for name, one in dead(ended).items()} == {
        "1": FailureKind.EXCEPTION,
        "2": FailureKind.CRASH,
    }
    assert [
        (one.forwards[0].target, one.forwards[0].key, one.forwards[0].payload)
        for one in ended
        if isinstance(one, Done)
    ] == [("h", b"0", b"1"), ("l", b"3", b"\x07")]


def test_a_worker_ends_with_its_parent() -> None:
    """T6: a function that hangs must not outlive whoever could kill it."""
    read, write = os.pipe()

    def hang(job: int) -> int:
        os.write(write, b"%d\n" % os.getpid())
        while True:
            pass

    parent = os.fork()
    if parent == 0:
        try:
            run(hang, "1", timeout="1h")
        finally:
            os._exit(0)
    child = int(os.read(read, 100))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":
            break
        threading.Event().wait(0.01)
    else:
        assert not Path(f"/proc/{child}").exists()
    os.close(read)
    os.close(write)


def test_a_process_is_set_up_once_and_torn_down(tmp_path: Path) -> None:
    """T16: before its first job, after its last; functions find what it returned."""
    log = tmp_path / "log"

    def note(text: str) -> None:
        with log.open("a") as file:
            file.write(text + "\n")

    def setup() -> str:
        note(f"up {os.getpid()}")
        return f"of {os.getpid()}"

    def work(job: int, context: JobContext) -> list[Any]:
        return [job, context.resource == f"of {os.getpid()}"]

    crew = worker_of(work, setup=setup, teardown=lambda resource: note(f"down {resource}"))
    with crew:
        ended = crew.run(jobs("1", "2", "3"))
    assert results(ended) == [b"[1,true]", b"[2,true]", b"[3,true]"]
    [up, down] = log.read_text().splitlines()
    assert up.replace("up", "down of") == down


def test_jobs_wait_while_the_set_up_fails(tmp_path: Path) -> None:
    """T16, T6: it raises twice; no job pays for it, and the reason is told meanwhile."""
    counted = tmp_path / "tries"

    def setup() -> None:
        with counted.open("a") as file:
            file.write("x")
        if len(counted.read_text()) < 3:
            raise ConnectionError("no database \udc80")

    troubles = set()
    with worker_of(lambda job: job, setup=setup, attempts=1, timeout="30s") as crew:
        step = crew.step

        def watched(now_s: float) -> list[tuple[int, Ended]]:
            troubles.add(crew.trouble)
            return step(now_s)

        crew.step = watched  # type: ignore[method-assign]
        assert results(crew.run(jobs("1"))) == [b"1"]
        assert crew.trouble == ""
    assert any("ConnectionError: no database" in one for one in troubles)


def test_a_job_says_how_far_it_is() -> None:
    """T16: the last word counts, what is not a part is refused, and an end is the end of it."""

    def work(job: float, context: JobContext) -> float:
        context.progress(job, "half \udc80" * 20)
        time.sleep(0.3)
        return job

    with worker_of(work, attempts=1, timeout="30s") as crew:
        said: list[tuple[float, str]] = []
        step = crew.step

        def watched(now_s: float) -> list[tuple[int, Ended]]:
            ended = step(now_s)
            said.extend(crew.progress.values())
            return ended

        crew.step = watched  # type: ignore[method-assign]
        ended = crew.run(jobs("0.5", "2", "-1"))
        assert crew.progress == {}
    assert [one is not None for one in results(ended)] == [True, False, False]
    assert {part for part, _ in said} == {0.5}
    assert all(len(text) <= 80 for _, text in said)


@pytest.mark.parametrize("how", ["cancelled", "overdue", "exits"])
def test_programs_that_a_function_started_end_with_it(tmp_path: Path, how: str) -> None:
    """T17, T6: a shell and what that started, when the job is cancelled, runs out of time, or its
    process has ended by itself."""
    started = tmp_path / "started"

    def work(job: int) -> int:
        shell = subprocess.Popen(["sh", "-c", f"sleep 3000 & echo $! > {started}.new; wait"])
        while not Path(f"{started}.new").exists() or not Path(f"{started}.new").read_text():
            time.sleep(0.01)
        Path(f"{started}.new").rename(started)
        if how == "exits":
            os._exit(3)
        return shell.wait()

    with worker_of(work, attempts=1, timeout="1h" if how == "cancelled" else "1s") as crew:
        crew.add(0, jobs("1")[0])
        deadline = time.monotonic() + 30
        while not started.exists() or (how != "cancelled" and crew.in_hand):
            crew.step(time.monotonic())
            time.sleep(0.01)
            assert time.monotonic() < deadline
        if how == "cancelled":
            assert crew.cancel(0, now_s=time.monotonic())
        sleeper = int(started.read_text())
        while _runs(sleeper):
            crew.step(time.monotonic())
            time.sleep(0.01)
            assert time.monotonic() < deadline, "it outlives its function"


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_no_more_run_at_once_than_a_team_may(tmp_path: Path) -> None:
    """T19: across two partitions, with workers enough for more; and the rate holds."""

    def work(job: int) -> list[float]:
        began = time.monotonic()
        time.sleep(0.05)
        return [began, time.monotonic()]

    stage = Pipeline("p", Team("t", work, running_max=2, rate="100/s")).stages()[0]
    allowance = Allowance(per_s=100.0, running_max=2, now_s=time.monotonic())
    with (
        Crew(stage, size=3, allowance=allowance) as one,
        Crew(stage, size=3, allowance=allowance) as other,
    ):
        for number, job in enumerate(jobs("1", "2", "3", "4", "5", "6")):
            (one if number % 2 else other).add(number, job)
        ended: list[Ended] = []
        while len(ended) < 6:
            for crew in (one, other):
                ended += [end for _, end in crew.step(time.monotonic())]
            select.select([*one.filenos(), *other.filenos()], [], [], 0.005)
    spans = [json.loads(one.result) for one in ended if isinstance(one, Done)]
    assert len(spans) == 6
    for began, _ in spans:
        assert sum(start <= began < end for start, end in spans) <= 2


def test_many_jobs_that_never_end_hold_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """T14, F70: more of them than a crew has processes at any time; memory is what bounds them."""

    def work(job: int) -> int:
        while job < 20:
            time.sleep(60)
        return job

    left = [1.0]
    monkeypatch.setattr(crew_module, "memory_left", lambda: left[0])
    payloads = [str(number) for number in range(23)]
    with worker_of(work, timeout="1h") as crew:
        ended = crew.run(jobs(*payloads), until=20)
        assert results(ended) == [b"20", b"21", b"22"]
        left[0] = 0.05
        before = len(crew._workers)
        assert before > crew_module.WORKERS_ANYWAY
        for number in range(50, 50 + before):
            crew.add(number, Job(str(number).encode(), b"1"))
        for _ in range(10):
            crew.step(time.monotonic())
            time.sleep(0.02)
        assert len(crew._workers) == before, "no memory, no process"
