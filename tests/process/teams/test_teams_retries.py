"""Retries with a long backoff: through a timeline, on a real node, without Spark."""

import random
import time
import uuid
from collections import Counter

import pyarrow as pa
import pytest
from tests.conftest import RunningNode
from tests.process.teams.test_teams_again import Killed, attempt, read

from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import LATEST, client_of
from dovetail.spark.decoder import COLUMNS_WITH_HEADERS, to_arrow
from dovetail.spark.exactly_once import Attempt
from dovetail.spark.fetching import fetch
from dovetail.teams import FrontEnd, Pipeline, Team, create_topics, team
from dovetail.teams import task as team_task
from dovetail.teams.delays import Courier
from dovetail.teams.graph import delays_topic
from dovetail.teams.task import TeamTask

JOBS = 40


def moody(job: int) -> int:
    if random.random() < 0.5:
        raise RuntimeError("not in the mood")
    return job


def test_a_postponed_job_leaves_its_batch_and_nothing_is_decided_twice(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T12, T5: attempts die after any row; each job is done, given up or postponed, once.

    The backoff is ten minutes: a batch that waited for it would not end here.
    """
    pipeline = Pipeline(f"p{uuid.uuid4().hex[:8]}", Team("a", moody, attempts=2, backoff="10m"))
    topics = pipeline.topics()
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front:
        ids = front.submit_many(range(JOBS))
        who = Attempt(uuid.uuid4().hex, 0, 0)
        monkeypatch.setattr(team_task, "attempt_of_task", lambda: who)
        monkeypatch.setattr(team_task, "BATCH_JOBS", 15)
        task = TeamTask(pipeline.stages()[0], Brokers(node.bootstrap), uuid.uuid4().hex)
        given = batches(node, topics.input, 0)
        for rows_max in (7, 14, 7):
            with pytest.raises(Killed):
                attempt(node, task, who, given, rows_max)
        attempt(node, task, who, given, 10**9)
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
            task = TeamTask(pipeline.stages()[0], Brokers(node.bootstrap), uuid.uuid4().hex)
            query, number, position = uuid.uuid4().hex, 0, 0
            marks: dict[str, list[bytes]] = {}
            deadline = time.monotonic() + 60
            while len(marks) < JOBS and time.monotonic() < deadline:
                given = batches(node, topics.input, position)
                if not given:
                    time.sleep(0.02)
                    continue
                who = Attempt(query, number, 0)
                monkeypatch.setattr(team_task, "attempt_of_task", lambda who=who: who)
                attempt(node, task, who, given, 10**9)
                position += sum(batch.num_rows for batch in given)
                number += 1
                marks = {}
                for key, _, headers in read(node, topics.results):
                    kind = headers.get("dovetail-kind", b"")
                    if kind != b"postponed":
                        attempts = headers.get("dovetail-attempts", b"1")
                        marks.setdefault(key.decode(), []).append(attempts)
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


def batches(node: RunningNode, topic: str, start: int) -> list[pa.RecordBatch]:
    """What lies in the one partition of a topic, from an offset on."""
    client = client_of(Brokers(node.bootstrap))
    end = client.offsets({(topic, 0): LATEST})[topic, 0]
    return [
        to_arrow(
            fetched.batches,
            (topic, 0),
            offset_min=start,
            offset_end=end,
            columns=COLUMNS_WITH_HEADERS,
        )
        for fetched in fetch(client, (topic, 0), start, end)
    ]
