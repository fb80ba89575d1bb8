"""A micro-batch that is run again after a crash at any row: one outcome for each job.

Without Spark: the task's two halves, as Spark runs them, on a real node, with a function that
decides differently every time and an attempt that dies after any number of stored rows.
"""

import json
import os
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.conftest import RunningNode

from dovetail.errors import Uncertain
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import LATEST, client_of
from dovetail.spark.decoder import COLUMNS_WITH_HEADERS, to_arrow
from dovetail.spark.exactly_once import Attempt, group_of
from dovetail.spark.fetching import fetch
from dovetail.spark.options import WriteOptions
from dovetail.spark.writing import TaskWriter
from dovetail.teams import FrontEnd, Pipeline, Team, create_topics
from dovetail.teams import task as team_task
from dovetail.teams.task import TeamTask


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


def read(node: RunningNode, topic: str) -> Iterator[tuple[bytes, Any, dict[str, bytes]]]:
    client = client_of(Brokers(node.bootstrap))
    for number in client.partitions([topic])[topic]:
        end = client.offsets({(topic, number): LATEST})[topic, number]
        for fetched in fetch(client, (topic, number), 0, end):
            batch = to_arrow(
                fetched.batches, (topic, number), offset_end=end, columns=COLUMNS_WITH_HEADERS
            )
            for row in batch.to_pylist():
                headers = {pair["key"]: pair["value"] for pair in row["headers"] or ()}
                yield row["key"], row["value"], headers


def input_batches(node: RunningNode, topic: str, end: int) -> list[pa.RecordBatch]:
    return [
        to_arrow(fetched.batches, (topic, 0), offset_end=end, columns=COLUMNS_WITH_HEADERS)
        for fetched in fetch(client_of(Brokers(node.bootstrap)), (topic, 0), 0, end)
    ]


def work_rows(task: TeamTask, given: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """What the task makes, in small portions."""
    return [rows.slice(start, 7) for rows in task(given) for start in range(0, rows.num_rows, 7)]


def writer_of(node: RunningNode, who: Attempt) -> TaskWriter:
    brokers = Brokers(node.bootstrap)
    options = WriteOptions(brokers, conflicts_fail=True)
    return TaskWriter(client_of(brokers), who, options, by_id=True)


class Killed(Exception):
    """The attempt ends here."""


def attempt(
    node: RunningNode, task: TeamTask, who: Attempt, given: list[pa.RecordBatch], rows_max: int
) -> None:
    """Runs the task and stores its rows in small portions, as far as `rows_max`."""
    writer = writer_of(node, who)
    stored = 0
    try:
        for rows in task(given):
            for start in range(0, rows.num_rows, 7):
                if stored >= rows_max:
                    raise Killed
                writer.write(rows.slice(start, 7))
                stored += 7
    finally:
        writer.close()


def prepared(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> tuple[Pipeline, list[str], Attempt, list[pa.RecordBatch]]:
    """A pipeline with jobs, each submitted twice, that are to be done in one task."""
    pipeline = moods()
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front:
        ids = front.submit_many(range(60))
        front.submit_many(range(60), ids)
    who = Attempt(uuid.uuid4().hex, 0, 0)
    monkeypatch.setattr(team_task, "attempt_of_task", lambda: who)
    monkeypatch.setattr(team_task, "BATCH_JOBS", 25)
    return pipeline, list(ids), who, input_batches(node, pipeline.topics("a").input, 120)


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


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_that_is_run_again_gives_each_job_one_outcome(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """T5, T4: attempts die after any row; nothing is doubled or lost, and what follows agrees."""
    rng = random.Random(seed)
    pipeline, ids, who, given = prepared(node, monkeypatch)
    task = TeamTask(pipeline.stages()[0], Brokers(node.bootstrap), uuid.uuid4().hex)
    for _ in range(4):
        with pytest.raises(Killed):
            attempt(node, task, who, given, rng.randrange(0, 40))
    attempt(node, task, who, given, 10**9)
    check_moods(node, pipeline, ids)


@pytest.mark.parametrize("seed", range(3))
def test_an_attempt_that_slept_does_not_follow_up_what_it_decided(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """T2, T5: a paused master's task has run its functions and written some rows; when it wakes
    up another one has finished, with other results. It adds neither jobs nor dead letters."""
    rng = random.Random(seed)
    pipeline, ids, who, given = prepared(node, monkeypatch)
    stage = pipeline.stages()[0]
    asleep = work_rows(TeamTask(stage, Brokers(node.bootstrap), "asleep"), given)
    writer = writer_of(node, who)
    awake_at = rng.randrange(8)
    for rows in asleep[:awake_at]:
        writer.write(rows)
    attempt(node, TeamTask(stage, Brokers(node.bootstrap), "successor"), who, given, 10**9)
    with pytest.raises(Uncertain, match="another attempt has stored other values"):
        for rows in asleep[awake_at:]:
            writer.write(rows)
    writer.close()
    check_moods(node, pipeline, ids)


def test_a_cache_that_is_behind_or_lost_is_rebuilt_from_the_log(node: RunningNode) -> None:
    """T4: another process of Spark, or a restarted one, comes to the same answer."""
    team = Team("a", int, remember="1h")
    pipeline = Pipeline(f"c{uuid.uuid4().hex[:8]}", team)
    create_topics(pipeline, node.bootstrap)
    topic = pipeline.topics().input
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit_many(range(10), [str(n) for n in range(10)])
        front.submit_many(range(15), [str(n) for n in range(15)])
    [table] = [pa.Table.from_batches(input_batches(node, topic, 25))]
    [batch] = table.combine_chunks().to_batches()
    task = TeamTask(pipeline.stages()[0], Brokers(node.bootstrap), uuid.uuid4().hex)

    def done(start: int, count: int) -> list[str]:
        return [
            key.decode()
            for rows in task([batch.slice(start, count)])
            for key in rows.column("key").to_pylist()
        ]

    late = [str(n) for n in range(10, 15)]
    team_task._caches.clear()
    assert done(10, 15) == late, "nothing is cached: the window is read"
    assert done(10, 15) == late, "the cache is ahead: the window is read again"
    team_task._caches.clear()
    assert done(0, 5) == [str(n) for n in range(5)]
    assert done(12, 13) == late, "the cache is behind: what lies between is read"


def test_a_cache_is_rebuilt_when_retention_was_faster(node: RunningNode) -> None:
    """T4: what a cache has missed is gone from the topic; the rest is read anew."""
    pipeline = Pipeline(f"r{uuid.uuid4().hex[:8]}", Team("a", int))
    create_topics(pipeline, node.bootstrap)
    topic = pipeline.topics().input
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit_many(range(10), [str(n) for n in range(10)])
        front.submit_many(range(10), [str(n) for n in range(5, 15)])
    batch = pa.Table.from_batches(input_batches(node, topic, 20)).combine_chunks().to_batches()[0]
    task = TeamTask(pipeline.stages()[0], Brokers(node.bootstrap), uuid.uuid4().hex)
    team_task._caches.clear()
    list(task([batch.slice(0, 2)]))
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    trimmed = admin.delete_records([TopicPartition(topic, 0, 7)])
    for future in trimmed.values():
        future.result(30)
    [rows] = list(task([batch.slice(10, 10)]))
    keys = [key.decode() for key in rows.column("key").to_pylist()]
    assert keys == ["5", "6", *(str(n) for n in range(10, 15))], "5 and 6 are not known any more"


def test_state_stays_flat_over_ten_times_the_time_to_live(node: RunningNode) -> None:
    """T4: micro-batch after micro-batch, each id twice: done once, and what a process remembers
    does not grow; an id that comes again after its time is done again."""
    remember_ms, batch, batches = 1_000, 100, 100
    pipeline = Pipeline(f"f{uuid.uuid4().hex[:8]}", Team("a", int, remember="1s"))
    topic = pipeline.topics().input
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    # With the producer's times, so that ten times to live pass in no time.
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    create_topics(pipeline, node.bootstrap)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    step_ms, first_ms = 2 * remember_ms // batch // 10, 1_700_000_000_000
    for number in range(batch * batches):
        # Every id comes twice in a row; "0" and "1" come back long after.
        key = f"{number // 2 % (batch * batches // 2 - 2)}"
        producer.produce(topic, key=key, value=b"1", timestamp=first_ms + number // 2 * step_ms)
        producer.poll(0)
    assert producer.flush(30) == 0
    span_ms = batch * batches // 2 * step_ms
    assert span_ms >= 10 * remember_ms
    given = pa.Table.from_batches(input_batches(node, topic, batch * batches)).combine_chunks()
    [records] = given.to_batches()
    task = TeamTask(pipeline.stages()[0], Brokers(node.bootstrap), uuid.uuid4().hex)
    team_task._caches.clear()
    done, sizes = Counter[str](), []
    for start in range(0, records.num_rows, batch):
        for rows in task([records.slice(start, batch)]):
            done.update(key.decode() for key in rows.column("key").to_pylist())
        [seen] = team_task._caches.values()
        sizes.append(len(seen))
    again = {"0", "1"}
    assert {key for key, count in done.items() if count == 2} == again
    assert done.total() == batch * batches // 2
    assert max(sizes) <= 2 * remember_ms // step_ms + batch
    assert max(sizes[batches // 2 :]) <= max(sizes[: batches // 2])


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


def test_poison_is_on_the_topics_with_its_reason(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T6, T5: exception, exit, endless loop, 1 GB result: a failure mark and a dead letter with
    reason, attempts, traceback and the job; the neighbours' results are there."""
    team = Team("a", mischief, attempts=2, backoff="1ms", timeout="1s")
    pipeline = Pipeline(f"x{uuid.uuid4().hex[:8]}", team)
    create_topics(pipeline, node.bootstrap)
    topics = pipeline.topics()
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit_many(range(12), [str(n) for n in range(12)])
    who = Attempt(uuid.uuid4().hex, 0, 0)
    monkeypatch.setattr(team_task, "attempt_of_task", lambda: who)
    task = TeamTask(pipeline.stages()[0], Brokers(node.bootstrap), uuid.uuid4().hex)
    attempt(node, task, who, input_batches(node, topics.input, 12), 10**9)
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


def test_jobs_without_ids_are_each_their_own(node: RunningNode) -> None:
    """T4: a foreign producer that sets no key loses nothing."""
    pipeline = Pipeline(f"k{uuid.uuid4().hex[:8]}", Team("a", int))
    create_topics(pipeline, node.bootstrap)
    topic = pipeline.topics().input
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for _ in range(3):
        producer.produce(topic, value=b"1")
    assert producer.flush(30) == 0
    task = TeamTask(pipeline.stages()[0], Brokers(node.bootstrap), uuid.uuid4().hex)
    [rows] = list(task(input_batches(node, topic, 3)))
    assert rows.column("key").to_pylist() == [f"{topic}-0-{n}".encode() for n in range(3)]


def test_the_group_of_the_sink_is_not_the_group_of_the_team() -> None:
    """T11: positions for display and positions for reading back do not mix."""
    assert group_of("dovetail.p.a") != moods().stages()[0].group
