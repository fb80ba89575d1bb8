"""The front end and a node that goes away: what was acknowledged is there, once."""

import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Message, Producer
from tests.conftest import RunningNode
from tests.process.teams.test_teams_again import read

from dovetail.errors import InvalidInput, TopicUnknown, Uncertain
from dovetail.kafka.client.client import client_of
from dovetail.teams import FrontEnd, JobFailed, Pipeline, Team, create_topics
from dovetail.teams.codecs import Undecodable
from dovetail.teams.front.outcome_reader import CLOCKS_MS, Reader


def pipeline_of_one() -> Pipeline:
    return Pipeline(f"s{uuid.uuid4().hex[:8]}", Team("a", int))


def test_jobs_are_submitted_until_they_are_acknowledged(node: RunningNode) -> None:
    """T8: the node is killed while jobs are submitted; each is stored once when it returns, and
    one that may or may not be stored is told, and safe to submit again."""
    pipeline = pipeline_of_one()
    create_topics(pipeline, node.bootstrap)
    ids: list[str] = []
    under_way = threading.Event()

    def submit() -> None:
        with FrontEnd(pipeline, node.bootstrap, timeout_s=120) as front:
            for portion in range(40):
                ids.extend(front.submit_many(range(50)))
                if portion == 5:
                    under_way.set()

    submitting = threading.Thread(target=submit)
    submitting.start()
    assert under_way.wait(60)
    node.kill()
    node.start()
    submitting.join(120)
    assert len(ids) == 2_000
    topic = pipeline.topics().input
    assert Counter(key.decode() for key, _, _ in read(node, topic)) == Counter(ids)
    node.kill()
    with FrontEnd(pipeline, node.bootstrap, timeout_s=2) as front, pytest.raises(Uncertain):
        front.submit(1, "late")
    node.start()
    with FrontEnd(pipeline, node.bootstrap) as front:
        assert front.submit(1, "late") == "late"


def test_jobs_that_cannot_be_sent_are_refused(node: RunningNode) -> None:
    """T8: before anything of them is stored, with what is wrong."""
    pipeline = pipeline_of_one()
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front:
        with pytest.raises(InvalidInput, match="2 payloads and 1 ids"):
            front.submit_many([1, 2], ["one"])
        with pytest.raises(InvalidInput):
            front.submit_many([1, object()])
        assert not list(read(node, pipeline.topics().input))
        ids = front.submit_many([1, 2])
        assert len(set(ids)) == 2
        assert Counter(key.decode() for key, _, _ in read(node, pipeline.topics().input)) == (
            Counter(ids)
        )


#: Outcomes of two days ago, more than one fetch brings.
OLD, LONG_AGO_MS = 3_000, 2 * 24 * 3_600_000


class Workers:
    """Writes outcomes as a team does."""

    def __init__(self, node: RunningNode, pipeline: Pipeline) -> None:
        self._producer = Producer({"bootstrap.servers": node.bootstrap})
        self._topic = pipeline.topics().results

    def end(self, job_id: str, value: bytes | None, at_ms: int, *, kind: str | None = None) -> None:
        headers = [] if kind is None else [("dovetail-kind", kind.encode())]
        given = {"key": job_id.encode(), "value": value, "timestamp": at_ms, "headers": headers}
        self._producer.produce(self._topic, **given)

    def flush(self) -> None:
        assert self._producer.flush(30) == 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """What readers read."""
    seen: list[Message] = []
    poll = Reader.poll

    def counting(reader: Reader) -> list[Message]:
        found = poll(reader)
        seen.extend(found)
        return found

    monkeypatch.setattr(Reader, "poll", counting)
    return seen


def with_history(node: RunningNode) -> tuple[Pipeline, Workers]:
    """A pipeline with outcomes of long ago, one of them of an id that comes again."""
    pipeline = pipeline_of_one()
    create_topics(pipeline, node.bootstrap)
    workers = Workers(node, pipeline)
    now_ms = now()
    for number in range(OLD):
        name = "again" if number == 7 else f"old-{number}"
        workers.end(name, b"0", now_ms - LONG_AGO_MS)
    workers.flush()
    return pipeline, workers


def now() -> int:
    return time.time_ns() // 1_000_000


def test_ask_begins_where_its_job_was_accepted(node: RunningNode, counted: list[Message]) -> None:
    """F68, T8: not with all that the topics hold; a result of an id long forgotten is not taken."""
    pipeline, workers = with_history(node)
    with FrontEnd(pipeline, node.bootstrap) as front, ThreadPoolExecutor(1) as aside:
        asked = aside.submit(front.ask, 1, "again", timeout_s=60)
        topic = pipeline.topics().input
        while not list(read(node, topic)):
            assert not asked.done()
        workers.end("again", b"41", now())
        workers.flush()
        assert asked.result(60) == 41

        # Now the id is known, and its outcome is there already.
        assert front.ask(1, "again", timeout_s=60) == 41
        assert len(counted) < 50, "jobs of the last hour, and their outcomes"

        # A dead letter that was replayed: the later outcome counts.
        workers.end("again", None, now() + 1, kind="exception")
        workers.flush()
        with pytest.raises(JobFailed):
            front.ask(1, "again", timeout_s=60)
        workers.end("again", b"42", now() + 2)
        workers.flush()
        assert front.ask(1, "again", timeout_s=60) == 42


def test_results_begin_with_the_first_job_and_are_decoded(node: RunningNode) -> None:
    """F68, T8: of this front end; others on request. One that cannot be read stops nothing."""
    pipeline, workers = with_history(node)
    with FrontEnd(pipeline, node.bootstrap) as front:
        assert not list(front.results(follow=False)), "it has submitted nothing"
        coming = front.results(idle_s=60)
        front.submit(1, "one")
        workers.end("before", b"0", now() - 2 * CLOCKS_MS)
        workers.end("one", b"[1]", now())
        workers.end("odd", b"\xff", now())
        workers.flush()

        assert next(coming).id == "before", "it began when it was called"
        found = {one.id: one for one in front.results(follow=False)}
        assert found["one"].result == [1]
        with pytest.raises(Undecodable):
            _ = found["odd"].result
        assert not any(name.startswith("old") for name in found)
        assert len(list(front.results(since="earliest", follow=False))) == OLD + 3
        assert not list(front.results(since="latest", follow=False))
        late = {one.id for one in front.results(since=now() - CLOCKS_MS // 2, follow=False)}
        assert {"one", "odd"} <= late
        with pytest.raises(InvalidInput, match="'earliest', 'latest'"):
            front.results(since="yesterday")


def test_a_known_id_is_told(node: RunningNode) -> None:
    """F68, T4, T8: whoever submits can learn that the job is not done again."""
    pipeline = pipeline_of_one()
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front, FrontEnd(pipeline, node.bootstrap) as other:
        assert not front.is_repetition(front.submit(1, "x"))
        assert front.is_repetition(other.submit(1, "x"))
        assert not front.is_repetition(other.submit(1, "y"))
        assert not front.is_repetition(front.submit(1))
        first, second = front.submit_many([1, 2], ["z", "z"])
        assert not front.is_repetition(first)
        assert front.is_repetition(second)


def test_topics_that_are_not_there_are_told(node: RunningNode) -> None:
    """T8, U7: a reader of results does not wait for a topic that nobody made."""
    with (
        FrontEnd(pipeline_of_one(), node.bootstrap) as front,
        pytest.raises(TopicUnknown, match="start the pipeline, or create its topics"),
    ):
        front.results()


@pytest.mark.parametrize("way", ["submit", "ask"])
def test_who_submits_first_creates_topics_as_the_pipeline_would(
    node: RunningNode, way: str
) -> None:
    """T8, U7: a front end can begin before the driver; the input topic has a partition for each
    worker then too, not the one that a broker gives to a topic that it does not know."""
    pipeline = Pipeline(f"s{uuid.uuid4().hex[:8]}", Team("a", int, workers=3))
    with FrontEnd(pipeline, node.bootstrap) as front:
        if way == "submit":
            front.submit(1, "x")
        else:
            with pytest.raises(Uncertain, match="Is a master running"):
                front.ask(1, "x", timeout_s=0.5)
        there = client_of(front._brokers).partitions([pipeline.topics().input])
        assert len(there[pipeline.topics().input]) == 3
        assert not create_topics(pipeline, node.bootstrap)
