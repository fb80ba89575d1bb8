"""Retries with a long backoff: through a timeline, on a real node, without Spark."""

import random
import uuid
from collections import Counter

import pytest
from tests.conftest import RunningNode
from tests.process.teams.attempts import (
    attempt_at,
    committed,
    count,
    drive,
    kill,
    leave,
    read,
    share_of,
    step,
)

from dovetail.kafka.client.brokers import Brokers
from dovetail.teams import FrontEnd, Pipeline, Team, create_topics, team
from dovetail.teams.delays import Courier
from dovetail.teams.graph import delays_topic

JOBS = 40


def moody(job: int) -> int:
    if random.random() < 0.5:
        raise RuntimeError("not in the mood")
    return job


def test_a_postponed_job_leaves_and_nothing_is_decided_twice(node: RunningNode) -> None:
    """T12, T5: attempts die at any step; each job is done, given up or postponed, once.

    The backoff is ten minutes: an attempt that waited for it would not end here.
    """
    pipeline = Pipeline(f"p{uuid.uuid4().hex[:8]}", Team("a", moody, attempts=2, backoff="10m"))
    topics = pipeline.topics()
    create_topics(pipeline, node.bootstrap)
    share = share_of(pipeline, "a", uuid.uuid4().hex)
    with FrontEnd(pipeline, node.bootstrap) as front:
        ids = front.submit_many(range(JOBS))
        for steps in (6, 12, 20):
            attempt = attempt_at(node, share)
            for _ in range(steps):
                step([attempt])
            kill(attempt)
        last = attempt_at(node, share)
        drive([last], lambda: committed(node, share) == JOBS)
        leave(last)
        outcomes = [outcome.id for outcome in front.results(idle_s=0.5)]
    marks = {key.decode(): headers for key, _, headers in read(node, topics.results)}
    assert Counter(key.decode() for key, _, _ in read(node, topics.results)) == Counter(ids)
    postponed = {
        name: headers
        for name, headers in marks.items()
        if headers.get("dovetail-kind") == b"postponed"
    }
    assert 0 < len(postponed) < JOBS
    assert Counter(outcomes) == Counter(set(ids) - set(postponed)), "a mark is no outcome"
    delayed = [
        (key.decode(), headers) for key, _, headers in read(node, delays_topic(pipeline.name))
    ]
    assert Counter(name for name, _ in delayed) == Counter(list(postponed))
    for name, headers in delayed:
        assert headers["dovetail-to"] == topics.input.encode()
        assert headers["dovetail-attempts"] == b"1"
        assert headers["dovetail-not-before"] == postponed[name]["dovetail-not-before"]
    assert not list(read(node, topics.dead))


def test_a_postponed_job_comes_back_with_its_attempts_and_has_one_outcome(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T12: by way of the timeline, until it succeeds or has no attempts left."""
    monkeypatch.setattr(team, "HOLD_MS_MAX", 50)

    def stubborn(job: int) -> int:
        # The worker's process knows nothing of former lives; what a job needs is in its number.
        if job % 3 == 0:
            raise RuntimeError("never")
        if job % 3 == 1 and random.random() < 0.5:
            raise RuntimeError("perhaps later")
        return job

    pipeline = Pipeline(
        f"q{uuid.uuid4().hex[:8]}",
        Team("a", stubborn, attempts=4, backoff="100ms", backoff_max="200ms"),
    )
    topics = pipeline.topics()
    create_topics(pipeline, node.bootstrap)
    courier = Courier(pipeline.name, Brokers(node.bootstrap))
    courier.start()
    try:
        with FrontEnd(pipeline, node.bootstrap) as front:
            ids = front.submit_many(range(JOBS), [f"w{n}" for n in range(JOBS)])
            share = share_of(pipeline, "a", uuid.uuid4().hex)
            attempt = attempt_at(node, share)
            marks: dict[str, list[bytes]] = {}

            def all_ended() -> bool:
                marks.clear()
                for key, _, headers in read(node, topics.results):
                    if headers.get("dovetail-kind", b"") != b"postponed":
                        attempts = headers.get("dovetail-attempts", b"1")
                        marks.setdefault(key.decode(), []).append(attempts)
                return len(marks) == JOBS

            drive([attempt], all_ended)
            drive([attempt], lambda: committed(node, share) == count(node, topics.input))
            leave(attempt)
            outcomes = {one.id: one for one in front.results(idle_s=0.5)}
    finally:
        courier.stop()
    assert set(marks) == set(ids), "each job has an outcome"
    assert {len(one) for one in marks.values()} == {1}, "and only one"
    for job in range(JOBS):
        outcome = outcomes[f"w{job}"]
        if job % 3 == 0:
            assert (outcome.ok, outcome.attempts) == (False, 4)
        if job % 3 == 2:
            assert outcome.ok
    dead = Counter(key.decode() for key, _, _ in read(node, topics.dead))
    assert dead == Counter(name for name, one in outcomes.items() if not one.ok)
