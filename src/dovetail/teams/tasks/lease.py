"""A lease: what one Spark task does for a pipeline, until it is ended.

A task serves a list of partitions, of one team or of several: there are as many tasks as Spark has
slots, and every partition is in one of them. So fewer slots than partitions still serve all of them
at the same time, and a partition without jobs costs a request a second and no slot.

One thread waits for everything: brokers, workers, timers. A task ends when Spark kills it, when its
parent is gone, or with the error of the partition that failed. Its successor begins from the
snapshots; two tasks that serve one partition at the same time do no harm (`chain`).
"""

import gc
import os
import select
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from dovetail.errors import DovetailError, Unavailable
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import KafkaClient, client_of
from dovetail.settings.tracing import TracingSettings
from dovetail.spark.records import warn_if_plain
from dovetail.teams.chains.chain import AGE_S_MAX
from dovetail.teams.chains.lane import clock_s
from dovetail.teams.graph import Stage
from dovetail.teams.tasks.attempt import Attempt, Share
from dovetail.teams.tasks.cancel_log import CancelLog
from dovetail.teams.tasks.gathering import Gathering
from dovetail.teams.tasks.serving import Serving
from dovetail.teams.travel.parcel import Parcel
from dovetail.teams.workers.allowance import Allowance

#: A snapshot that does not get through in this time is left to the next.
_COMMIT_S_MAX = 1.0
#: Between two looks whether the parent is there.
_LOOK_S_MAX = 1.0
#: New objects before the collector looks for cycles among them: more than jobs in hand have.
_GARBAGE_MAX = 100_000


class TeamFailed(DovetailError):
    """A partition could not be served; the message names the team."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The partitions of each task, by the task's number. For `mapPartitions`."""

    #: A mapping from the number of a task to its shares.
    tasks: Parcel
    brokers: Brokers
    traced: TracingSettings | None

    def __call__(self, numbers: Iterable[int]) -> Iterable[None]:
        """Numbers of tasks in, nothing out."""
        _settle()
        tasks: Mapping[int, Sequence[Share]] = self.tasks.open()
        shares = [share for number in numbers for share in tasks[number]]
        serve(shares, self.brokers, traced=self.traced)
        return ()


def serve(
    shares: Sequence[Share], brokers: Brokers, *, traced: TracingSettings | None = None
) -> None:
    """Serves the partitions until this process is not wanted any more. Raises `TeamFailed`."""
    warn_if_plain()
    parent, client = os.getppid(), client_of(brokers)
    task = _Task(client, KafkaClient(brokers, timeout_s=_COMMIT_S_MAX), traced)
    try:
        for share in shares:
            with _Naming(share):
                task.begin(share)
        task.loop(parent)
    finally:
        task.close()


@dataclass(slots=True)
class _Turn:
    """One partition of a task, and what it waits for."""

    share: Share
    attempt: Attempt
    filenos: frozenset[int] = frozenset()
    due_s: float = 0.0

    def step(self, ready: set[int]) -> None:
        """Goes on. Raises `TeamFailed`."""
        with _Naming(self.share):
            self.attempt.step(clock_s(), ready)
            self.filenos = frozenset(self.attempt.filenos())
            self.due_s = self.attempt.due_s(clock_s())

    def wakes(self, now_s: float, ready: set[int]) -> bool:
        """Whether there is something to do. What the others of a team with a limit have begun or
        ended can let it begin more."""
        limited = self.share.stage.policy.limited
        return limited or now_s >= self.due_s or not ready.isdisjoint(self.filenos)


class _Task:
    """The partitions of one task, and what they share."""

    def __init__(
        self, client: KafkaClient, committing: KafkaClient, traced: TracingSettings | None
    ) -> None:
        self._client, self._committing, self._traced = client, committing, traced
        self._turns: deque[_Turn] = deque()
        self._logs: dict[str, CancelLog] = {}
        self._allowances: dict[str, Allowance] = {}

    def begin(self, share: Share) -> None:
        """One more partition. Raises what its attempt raises."""
        client, committing = self._client, self._committing
        if share.gathers:
            self._turns.append(_Turn(share, Gathering(share, client, committing=committing)))
            return
        pipeline = share.stage.pipeline
        self._logs[pipeline] = self._logs.get(pipeline) or CancelLog(client, pipeline)
        serving = Serving(
            share,
            client,
            committing=committing,
            cancels=self._logs[pipeline],
            traced=self._traced,
            allowance=self._allowance(share.stage),
        )
        self._turns.append(_Turn(share, serving))

    def _allowance(self, stage: Stage) -> Allowance | None:
        policy = stage.policy
        if not policy.limited:
            return None
        return self._allowances.setdefault(
            stage.team,
            Allowance(
                per_s=policy.rate_per_s, running_max=policy.running_max, now_s=time.monotonic()
            ),
        )

    def loop(self, parent: int) -> None:
        """Serves until the parent is another one. Raises what ends a partition."""
        before_s, ready, all_wake = clock_s(), set[int](), True
        while os.getppid() == parent:
            now_s = clock_s()
            if now_s - before_s > AGE_S_MAX:
                raise Unavailable(f"this task slept for {now_s - before_s:.0f} s; it begins anew")
            before_s = now_s

            cancels = sum(log.count for log in self._logs.values())
            # Partitions of a team with a limit take turns at what it may begin.
            self._turns.rotate(-1)
            for turn in [one for one in self._turns if all_wake or one.wakes(now_s, ready)]:
                turn.step(ready)
            # One of them has read the cancels, and all look at them.
            all_wake = cancels < sum(log.count for log in self._logs.values())
            ready = set() if all_wake else self._wait()

    def _wait(self) -> set[int]:
        """Waits until something has come or is due; what has come."""
        waiting = select.poll()
        for turn in self._turns:
            for descriptor in turn.filenos:
                waiting.register(descriptor, select.POLLIN)
        now_s = clock_s()
        due_s = min((turn.due_s for turn in self._turns), default=now_s + _LOOK_S_MAX)
        left_ms = min(max(0.0, due_s - now_s), _LOOK_S_MAX) * 1000
        return {descriptor for descriptor, _ in waiting.poll(left_ms)}

    def close(self) -> None:
        """Leaves all of them, whatever happens to one."""
        with ExitStack() as stack:
            stack.callback(self._committing.close)
            for log in self._logs.values():
                stack.callback(log.close)
            for turn in self._turns:
                stack.callback(turn.attempt.close)


class _Naming:
    """Names the team in whatever ends one of its partitions."""

    def __init__(self, share: Share) -> None:
        self._share = share

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            team, number = self._share.stage.team, self._share.number
            reason = str(error) if isinstance(error, DovetailError) else repr(error)
            raise TeamFailed(f"team {team!r}, partition {number}: {reason}") from error


_settled = False


def _settle() -> None:
    """Hides what is loaded by now from the garbage collector, once a process.

    Spark's Python workers collect everything after every task; with Arrow and pandas loaded that
    takes 20 to 40 ms. Jobs in hand are thousands of objects without a cycle: looking through them
    after each 700 that are new cost a tenth of the processor.
    """
    global _settled  # noqa: PLW0603 - it is about the process
    if not _settled:
        _settled = True
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GARBAGE_MAX)
