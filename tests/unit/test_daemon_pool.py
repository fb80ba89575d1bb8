"""The pool for functions of users: as the standard one, but that its threads are daemons."""

import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest

from dovetail.daemon_pool import DaemonPool

DEADLINE_S = 60.0


@pytest.fixture(params=[DaemonPool, ThreadPoolExecutor])
def pool(request: pytest.FixtureRequest) -> Iterator[Executor]:
    made = request.param(2, "test")
    yield made
    made.shutdown(wait=True)


def test_calls_return_and_raise(pool: Executor) -> None:
    """R5: whatever the class: a future that is never done would be a handler that never ends."""
    assert pool.submit(divmod, 7, 2).result(DEADLINE_S) == (3, 1)
    assert pool.submit(int, "11", base=2).result(DEADLINE_S) == 3
    for kind in (ValueError, SystemExit, KeyboardInterrupt, GeneratorExit):

        def fail(kind: type[BaseException] = kind) -> None:
            raise kind

        with pytest.raises(kind):
            pool.submit(fail).result(DEADLINE_S)
    assert list(pool.map(abs, [-1, -2, -3])) == [1, 2, 3]


def test_as_many_run_at_once_as_were_asked_for(pool: Executor) -> None:
    """Two that wait for each other both end, again and again; a third waits for its turn."""
    for _ in range(50):
        both = threading.Barrier(2)
        assert len([pool.submit(both.wait, DEADLINE_S).result for _ in range(2)]) == 2
        pool.submit(int).result(DEADLINE_S)
    gate, begun = threading.Event(), threading.Semaphore(0)

    def wait() -> bool:
        begun.release()
        return gate.wait(DEADLINE_S)

    futures = [pool.submit(wait) for _ in range(3)]
    assert begun.acquire(timeout=DEADLINE_S)
    assert begun.acquire(timeout=DEADLINE_S)
    assert not begun.acquire(timeout=0.05)
    gate.set()
    assert all(future.result(DEADLINE_S) for future in futures)


def test_what_has_not_begun_can_be_given_up(pool: Executor) -> None:
    """A cancelled call never begins, and nothing begins after the end."""
    gate = threading.Event()
    blocked = [pool.submit(gate.wait, DEADLINE_S) for _ in range(2)]
    ran: list[int] = []
    cancelled, given_up = pool.submit(ran.append, 1), pool.submit(ran.append, 2)
    assert cancelled.cancel()
    pool.shutdown(wait=False, cancel_futures=True)
    assert given_up.cancelled()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(int)
    gate.set()
    assert all(future.result(DEADLINE_S) for future in blocked)
    pool.shutdown(wait=True)
    assert ran == []
