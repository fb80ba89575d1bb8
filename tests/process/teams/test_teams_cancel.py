"""Cancelled jobs: waiting, delayed, running; without Spark, on a real node."""

import asyncio
import os
import select
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningNode
from tests.process.teams.attempts import attempt_at, committed, drive, kill, leave, read, share_of

from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import KafkaClient
from dovetail.teams import FrontEnd, JobContext, Pipeline, Team, cancel, create_topics
from dovetail.teams.chains.lane import clock_s
from dovetail.teams.delays import Courier
from dovetail.teams.tasks.cancel_log import CancelLog

pytestmark = pytest.mark.timeout(120)


def prepared(node: RunningNode, work: Callable[..., Any], **more: Any) -> Pipeline:
    pipeline = Pipeline(f"c{uuid.uuid4().hex[:8]}", Team("a", work, timeout="1h", **more))
    create_topics(pipeline, node.bootstrap)
    return pipeline


def outcomes(node: RunningNode, pipeline: Pipeline) -> dict[str, str]:
    """Each id with its result or the kind of its failure; none has two."""
    found: dict[str, str] = {}
    for key, value, headers in read(node, pipeline.topics().results):
        kind = headers.get("dovetail-kind", b"").decode()
        if kind != "postponed":
            assert key.decode() not in found, "one outcome"
            found[key.decode()] = kind or value.decode()
    return found


def test_a_job_that_waits_is_not_begun(node: RunningNode, tmp_path: Path) -> None:
    """T17: also one of a task that begins later, and there is no dead letter of it."""
    log = tmp_path / "ran"

    def work(job: int) -> int:
        with log.open("a") as file:
            file.write(f"{job} ")
        return job

    pipeline = prepared(node, work)
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit_many(range(4), ["0", "1", "2", "3"])
    for name in ("1", "2", "2"):
        cancel(pipeline.name, name, node.bootstrap, reason="not needed")
    share = share_of(pipeline, "a", uuid.uuid4().hex)
    attempt = attempt_at(node, share)
    drive([attempt], lambda: committed(node, share) == 4)
    leave(attempt)
    assert outcomes(node, pipeline) == {"0": "0", "1": "cancelled", "2": "cancelled", "3": "3"}
    assert log.read_text().split() == ["0", "3"]
    assert list(read(node, pipeline.topics().dead)) == []
    reasons = [told.get("dovetail-reason") for *_, told in read(node, pipeline.topics().results)]
    assert reasons.count(b"not needed") == 2


def _sleep(job: float) -> float:
    time.sleep(job)
    return job


async def _wait(job: float) -> float:
    await asyncio.sleep(job)
    return job


def _look(job: float, context: JobContext) -> float:
    until = time.monotonic() + job
    while time.monotonic() < until:
        if context.cancelled:
            Path(os.environ["SEEN"]).write_text(context.job_id)
            break
        time.sleep(0.01)
    return job


@pytest.mark.parametrize(
    ("work", "more"),
    [(_sleep, {}), (_wait, {"concurrency": 5}), (_sleep, {"concurrency": 5}), (_look, {})],
    ids=["process", "coroutine", "thread", "looks"],
)
def test_a_job_that_runs_ends_at_once(
    node: RunningNode,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    work: Callable[..., Any],
    more: dict[str, Any],
) -> None:
    """T17, T16: its outcome is there at once, its neighbours have theirs, and what comes later is
    done; a function that looks is told."""
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    pipeline = prepared(node, work, **more)
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit_many([3000.0, 0.01, 3000.0], ["long", "short", "longer"])
        share = share_of(pipeline, "a", uuid.uuid4().hex)
        attempt = attempt_at(node, share)
        drive([attempt], lambda: outcomes(node, pipeline) == {"short": "0.01"})
        for name in ("long", "longer"):
            cancel(pipeline.name, name, node.bootstrap)
        drive([attempt], lambda: committed(node, share) == 3)
        front.submit(0.02, "next")
        drive([attempt], lambda: committed(node, share) == 4)
    ended = {"short": "0.01", "long": "cancelled", "longer": "cancelled", "next": "0.02"}
    assert outcomes(node, pipeline) == ended
    if work is _look:
        drive([attempt], (tmp_path / "seen").exists)
    leave(attempt)


def test_a_cancel_outlives_whoever_read_it(node: RunningNode) -> None:
    """T17: the task that was told dies before it stored anything; the next one knows."""
    pipeline = prepared(node, _sleep)
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit_many([3000.0, 0.01], ["long", "short"])
    chain = uuid.uuid4().hex
    first = attempt_at(node, share_of(pipeline, "a", chain))
    drive([first], lambda: "short" in outcomes(node, pipeline))
    cancel(pipeline.name, "long", node.bootstrap)
    kill(first)
    share = share_of(pipeline, "a", chain)
    second = attempt_at(node, share)
    drive([second], lambda: committed(node, share) == 2)
    leave(second)
    assert outcomes(node, pipeline) == {"short": "0.01", "long": "cancelled"}


def test_a_retry_that_is_put_off_is_cancelled_now(node: RunningNode) -> None:
    """T17: the job waits in a timeline for an hour; it ends as `cancelled`, at once and once."""

    def work(_job: int) -> int:
        raise RuntimeError("not now")

    pipeline = prepared(node, work, attempts=3, backoff="1h")
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit(1, "later")
    share = share_of(pipeline, "a", uuid.uuid4().hex, delays=True)
    attempt = attempt_at(node, share)
    courier = Courier(pipeline.name, Brokers(node.bootstrap))
    courier.start()
    try:
        drive([attempt], lambda: committed(node, share) == 1)
        cancel(pipeline.name, "later", node.bootstrap)
        drive([attempt], lambda: bool(outcomes(node, pipeline)))
    finally:
        courier.stop()
    leave(attempt)
    assert outcomes(node, pipeline) == {"later": "cancelled"}


def test_partitions_that_share_the_cancels_do_not_wait_for_them(node: RunningNode) -> None:
    """T15, T17: the answer that one of them took is not awaited by the next, with a second."""
    pipeline = prepared(node, _sleep)
    client = KafkaClient(Brokers(node.bootstrap))
    log = CancelLog(client, pipeline.name)
    log.step(clock_s(), set())
    cancel(pipeline.name, "any", node.bootstrap)
    # An answer without records can come first.
    while not log.count:
        ready = set(select.select([log.fileno()], [], [], 30)[0])
        log.step(clock_s(), ready)
    began = time.monotonic()
    for _ in range(60):
        log.step(clock_s(), ready)
    took_s = time.monotonic() - began
    log.close()
    client.close()
    assert log.count == 1
    assert took_s < 30, "a poll that was not answered was waited for"
