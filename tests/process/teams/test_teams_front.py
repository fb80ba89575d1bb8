"""The front end and a node that goes away: what was acknowledged is there, once."""

import threading
import uuid
from collections import Counter

import pytest
from tests.conftest import RunningNode
from tests.process.teams.test_teams_again import read

from dovetail.errors import InvalidInput, Uncertain
from dovetail.teams import FrontEnd, Pipeline, Team, create_topics


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
