"""Attempts that die at any step, or work beside each other: one outcome for each job.

Without Spark, on a real node, with a function that decides differently every time.
"""

import json
import os
import random
import time
import uuid
from collections import Counter
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
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
from dovetail.kafka.client.client import LATEST, client_of
from dovetail.teams import FrontEnd, Pipeline, Team, create_topics
from dovetail.teams.chains.chain import ChainBroken
from dovetail.teams.tasks.attempt import Share

JOBS = 60


def moody(job: int) -> dict[str, int]:
    if random.random() < 0.3:
        raise RuntimeError("not in the mood")
    return {"job": job, "total": random.randrange(2), "mood": random.randrange(10**9)}


def moods() -> Pipeline:
    a, b, c = (
        Team(name, work, attempts=1) for name, work in (("a", moody), ("b", dict), ("c", dict))
    )
    a.route_to(lambda result: result["total"] > 0, b, c)
    return Pipeline(f"m{uuid.uuid4().hex[:8]}", a, b, c)


def prepared(node: RunningNode) -> tuple[Pipeline, list[str], Share]:
    """A pipeline with jobs, each submitted twice."""
    pipeline = moods()
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front:
        ids = front.submit_many(range(JOBS))
        front.submit_many(range(JOBS), ids)
    return pipeline, list(ids), share_of(pipeline, "a", uuid.uuid4().hex)


def check_moods(node: RunningNode, pipeline: Pipeline, ids: list[str]) -> None:
    """Each job has one outcome, and what follows from it agrees with it."""
    topics = {name: pipeline.topics(name) for name in pipeline.teams}
    outcomes = {
        key.decode(): (value, headers) for key, value, headers in read(node, topics["a"].results)
    }
    assert Counter(key.decode() for key, _, _ in read(node, topics["a"].results)) == Counter(ids)
    dead = Counter(key.decode() for key, _, _ in read(node, topics["a"].dead))
    failed = [name for name, (value, _) in outcomes.items() if value is None]
    assert dead == Counter(failed), "a dead letter for each failure mark, and no other"
    for name, holds in (("b", True), ("c", False)):
        rows = [(key.decode(), json.loads(v)) for key, v, _ in read(node, topics[name].input)]
        told = {
            key: result
            for key, (value, _) in outcomes.items()
            if value is not None and ((result := json.loads(value))["total"] > 0) is holds
        }
        assert dict(rows) == told, "what was forwarded is the stored result, not another mood"
        assert len(rows) == len(told)


@pytest.mark.parametrize("seed", range(3))
def test_attempts_that_die_at_any_step_give_each_job_one_outcome(
    node: RunningNode, seed: int
) -> None:
    """T5, T4: nothing is doubled or lost, and what follows agrees with what is stored."""
    rng = random.Random(seed)
    pipeline, ids, share = prepared(node)
    for _ in range(4):
        attempt = attempt_at(node, share)
        for _ in range(rng.randrange(4, 60)):
            step([attempt])
        kill(attempt)
    last = attempt_at(node, share)
    drive([last], lambda: committed(node, share) == 2 * JOBS)
    leave(last)
    check_moods(node, pipeline, ids)


@pytest.mark.parametrize("seed", range(3))
def test_attempts_at_the_same_time_give_each_job_one_outcome(node: RunningNode, seed: int) -> None:
    """T2, T5: a paused master's task has run its functions and written some rows; when it wakes
    up, others have decided otherwise. It adds neither outcomes, nor jobs, nor dead letters."""
    rng = random.Random(seed)
    pipeline, ids, share = prepared(node)
    attempts = [attempt_at(node, share) for _ in range(3)]
    for _ in range(150):
        # One of them works, the others sleep.
        chosen = rng.choice(attempts)
        for _ in range(rng.choice((1, 3, 10))):
            step([chosen], wait_s=0.01)
    drive(attempts, lambda: committed(node, share) == 2 * JOBS)
    for attempt in attempts:
        leave(attempt)
    check_moods(node, pipeline, ids)


def test_topics_that_grow_meanwhile_give_no_job_a_second_outcome(node: RunningNode) -> None:
    """T5: the results topic and those that follow get partitions while attempts die and others
    sleep; outcomes stay in the partitions that the chain began with, and are there once."""
    rng = random.Random(7)
    pipeline, ids, share = prepared(node)
    sleeper = attempt_at(node, share)
    drive([sleeper], lambda: count(node, pipeline.topics("a").results) >= 5)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    grown = [pipeline.topics("a").results, pipeline.topics("a").dead, pipeline.topics("b").input]
    for size in (3, 7):
        for future in admin.create_partitions([NewPartitions(one, size) for one in grown]).values():
            future.result(30)
        for _ in range(2):
            attempt = attempt_at(node, share)
            for _ in range(rng.randrange(4, 60)):
                step([attempt])
            kill(attempt)
    attempts = [sleeper, attempt_at(node, share)]
    drive(attempts, lambda: committed(node, share) == 2 * JOBS)
    for one in attempts:
        leave(one)
    check_moods(node, pipeline, ids)

    used = client_of(Brokers(node.bootstrap)).offsets(
        {(pipeline.topics("a").results, number): LATEST for number in range(7)}
    )
    assert [number for (_, number), end in used.items() if end] == [0]


def mischief(job: int) -> int | bytes:
    """What a function can do, by number."""
    match job:
        case 1:
            raise ValueError("one is too many")
        case 2:
            os._exit(7)
        case 3:
            while True:
                pass
        case 4:
            # The system gives the memory when it is touched, and nobody does.
            return bytes(2**30)
    return job


def test_poison_is_on_the_topics_with_its_reason(node: RunningNode) -> None:
    """T6, T5: exception, exit, endless loop, 1 GB result: a failure mark and a dead letter with
    reason, attempts, traceback and the job; the neighbours' results are there."""
    team = Team("a", mischief, attempts=2, backoff="1ms", timeout="1s")
    pipeline = Pipeline(f"x{uuid.uuid4().hex[:8]}", team)
    create_topics(pipeline, node.bootstrap)
    topics = pipeline.topics()
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit_many(range(12), [str(n) for n in range(12)])
    share = share_of(pipeline, "a", uuid.uuid4().hex)
    attempt = attempt_at(node, share)
    drive([attempt], lambda: committed(node, share) == 12)
    leave(attempt)
    results = {key.decode(): value for key, value, _ in read(node, topics.results)}
    poison = {"1": "too many", "2": "exit code 7", "3": "1000 ms", "4": "1073741824"}
    assert results == {str(n): None if str(n) in poison else b"%d" % n for n in range(12)}
    letters = {key.decode(): (value, told) for key, value, told in read(node, topics.dead)}
    kinds = {name: told["dovetail-kind"].decode() for name, (_, told) in letters.items()}
    assert kinds == {"1": "exception", "2": "crash", "3": "timeout", "4": "result-too-large"}
    for name, (job, told) in letters.items():
        assert job == name.encode()
        assert poison[name] in told["dovetail-reason"].decode()
        assert told["dovetail-attempts"] == b"2"
    assert "in mischief" in letters["1"][1]["dovetail-traceback"].decode()


def test_a_record_that_fills_its_batch_stops_no_team(node: RunningNode) -> None:
    """R3, T5: its dead letter, with the reason and a traceback, was too large for any topic."""

    def work(job: str) -> str:
        if len(job) > 1:
            raise ValueError("y" * 1_000)
        return job

    pipeline = Pipeline(f"f{uuid.uuid4().hex[:8]}", Team("a", work, attempts=1))
    create_topics(pipeline, node.bootstrap)
    topics = pipeline.topics()
    producer = Producer({"bootstrap.servers": node.bootstrap, "message.max.bytes": 2**21})
    full = b'"%s"' % (b"x" * 1_048_400)
    for key, value in (
        (b"full", full),
        (b"k" * 900_000, b'"%s"' % (b"x" * 148_000)),
        (b"a", b'"a"'),
    ):
        producer.produce(topics.input, key=key, value=value, partition=0)
    assert producer.flush(30) == 0
    share = share_of(pipeline, "a", uuid.uuid4().hex)
    attempt = attempt_at(node, share)
    drive([attempt], lambda: committed(node, share) == 3)
    leave(attempt)
    results = {key[:4]: value for key, value, _ in read(node, topics.results)}
    assert results == {b"full": None, b"kkkk": None, b"a": b'"a"'}
    letters = {key[:4]: (len(value), told) for key, value, told in read(node, topics.dead)}
    assert {key: size for key, (size, _) in letters.items()} == {
        b"full": len(full),
        b"kkkk": 148_002,
    }
    assert letters[b"kkkk"][1]["dovetail-kind"] == b"exception"


def test_the_results_of_others_are_there_while_a_job_takes_long(node: RunningNode) -> None:
    """T14, F70: two jobs never end; all others of their partition have outcomes meanwhile."""

    def work(job: int) -> int:
        while job in (3, 30):
            pass
        return job

    pipeline = Pipeline(f"l{uuid.uuid4().hex[:8]}", Team("a", work, timeout="1h"))
    create_topics(pipeline, node.bootstrap)
    topics = pipeline.topics()
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit_many(range(40))
    share = share_of(pipeline, "a", uuid.uuid4().hex)
    attempt = attempt_at(node, share)
    drive([attempt], lambda: count(node, topics.results) == 38)
    drive([attempt], lambda: committed(node, share) == 3)
    leave(attempt)


def test_jobs_without_ids_are_each_their_own(node: RunningNode) -> None:
    """T4: a foreign producer that sets no key loses nothing."""
    pipeline = Pipeline(f"k{uuid.uuid4().hex[:8]}", Team("a", int))
    create_topics(pipeline, node.bootstrap)
    topics = pipeline.topics()
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for _ in range(3):
        producer.produce(topics.input, value=b"1")
    assert producer.flush(30) == 0
    attempt = attempt_at(node, share_of(pipeline, "a", uuid.uuid4().hex))
    drive([attempt], lambda: count(node, topics.results) == 3)
    leave(attempt)
    keys = [key for key, _, _ in read(node, topics.results)]
    assert keys == [f"{topics.input}-0-{n}".encode() for n in range(3)]


def test_a_partition_without_jobs_wakes_its_task_once_a_second(node: RunningNode) -> None:
    """T15: an idle team costs next to nothing; nothing is due that is not done."""
    pipeline = Pipeline(f"i{uuid.uuid4().hex[:8]}", Team("a", int))
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit(1)
    share = share_of(pipeline, "a", uuid.uuid4().hex)
    attempt = attempt_at(node, share)
    drive([attempt], lambda: committed(node, share) == 1)
    begin, steps = time.monotonic(), 0
    while time.monotonic() - begin < 2:
        step([attempt], wait_s=1.0)
        steps += 1
    leave(attempt)
    assert steps < 20


def test_positions_that_the_broker_forgot_are_in_the_checkpoint(node: RunningNode) -> None:
    """T5: the group is gone and an older copy of it serves; without one the team refuses."""
    pipeline, ids, share = prepared(node)
    attempt = attempt_at(node, share)
    drive([attempt], lambda: committed(node, share) >= 5)
    copy = client_of(Brokers(node.bootstrap)).committed(share.group)
    drive([attempt], lambda: committed(node, share) == 2 * JOBS)
    leave(attempt)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for future in admin.delete_consumer_groups([share.group]).values():
        future.result(30)
    assert committed(node, share) == -1
    with pytest.raises(ChainBroken, match="are gone"):
        attempt_at(node, replace(share, copy={}))
    again = attempt_at(node, replace(share, copy=copy))
    drive([again], lambda: committed(node, share) == 2 * JOBS)
    leave(again)
    check_moods(node, pipeline, ids)
