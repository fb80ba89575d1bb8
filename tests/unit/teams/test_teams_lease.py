"""Which partitions of a task go on when something has come."""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.teams.tasks import lease
from dovetail.teams.tasks.lease import TeamFailed

pytest.importorskip("pyspark")

#: Nothing is due by itself while a test runs.
_NEVER_S = 3_600.0


class _Over(Exception):
    """Ends the loop of a task."""


class Partition:
    """An attempt that only counts: it waits for a pipe, and reads a byte when it goes on."""

    def __init__(self, *, limited: bool = False) -> None:
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        self.share: Any = SimpleNamespace(
            stage=SimpleNamespace(team="t", policy=SimpleNamespace(limited=limited)), number=0
        )
        self.steps = 0
        self.then = lambda: None

    def filenos(self) -> list[int]:
        return [self.read]

    def due_s(self, now_s: float) -> float:
        return now_s + _NEVER_S

    def step(self, now_s: float, ready: set[int]) -> None:
        self.steps += 1
        try:
            os.read(self.read, 1)
        except BlockingIOError:
            return
        self.then()


@pytest.fixture
def made() -> Iterator[tuple[lease._Task, list[Partition]]]:
    partitions = [Partition(), Partition(), Partition(limited=True)]
    task = lease._Task(None, None, None)  # type: ignore[arg-type]
    task._turns.extend(lease._Turn(one.share, one) for one in partitions)  # type: ignore[arg-type]
    yield task, partitions
    for one in partitions:
        os.close(one.read)
        os.close(one.write)


def over() -> None:
    raise _Over


def run(task: lease._Task) -> None:
    """Until a partition ends it."""
    with pytest.raises(TeamFailed, match="_Over"):
        task.loop(os.getppid())


def test_a_partition_for_which_nothing_has_come_does_not_go_on(
    made: tuple[lease._Task, list[Partition]],
) -> None:
    """T15: but one of a team with a limit does, for others may have left it something."""
    task, (busy, idle, limited) = made
    left = [4]

    def again() -> None:
        left[0] -= 1
        if not left[0]:
            raise _Over
        os.write(busy.write, b"x")

    busy.then = again
    os.write(busy.write, b"x")
    run(task)
    assert busy.steps == 4
    assert idle.steps == 1, "at the beginning"
    assert limited.steps >= 3


def test_all_look_at_the_cancels_that_one_has_read(
    made: tuple[lease._Task, list[Partition]],
) -> None:
    """T17: at once, and not when something else comes for them."""
    task, (reads, other, _) = made
    log = SimpleNamespace(count=0)
    task._logs["p"] = log  # type: ignore[assignment]

    def hears() -> None:
        log.count += 1

    step = other.step

    def looks(now_s: float, ready: set[int]) -> None:
        step(now_s, ready)
        if log.count:
            raise _Over

    reads.then = hears
    other.step = looks  # type: ignore[method-assign]
    os.write(reads.write, b"x")
    run(task)
    assert other.steps == 2, "before, and after"
