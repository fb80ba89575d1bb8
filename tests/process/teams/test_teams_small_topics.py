"""Topics that take smaller batches than Kafka's default: no job stops its team there."""

import uuid
from collections import Counter

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.conftest import RunningNode
from tests.process.teams.attempts import attempt_at, committed, drive, leave, read, share_of

from dovetail.teams import FrontEnd, Pipeline, Team, create_topics
from dovetail.teams.outcome import KIND, REASON
from dovetail.teams.topics import create

SMALL = 2_000


def doubled(size: int) -> str:
    return "x" * size


def small(node: RunningNode, *topics: str) -> None:
    """Creates topics that take a batch of 2,000 bytes."""
    config = {"max.message.bytes": str(SMALL)}
    wanted = [NewTopic(topic, 1, config=config) for topic in topics]
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    create(admin, wanted, timeout_s=30.0)


def test_many_rows_go_in_batches_that_the_topic_takes(node: RunningNode) -> None:
    """F20: each of the rows fits, and all of them in one batch do not."""
    pipeline = Pipeline(f"s{uuid.uuid4().hex[:8]}", Team("a", doubled))
    small(node, pipeline.topics().results)
    create_topics(pipeline, node.bootstrap)
    share = share_of(pipeline, "a", uuid.uuid4().hex)
    with FrontEnd(pipeline, node.bootstrap) as front:
        ids = front.submit_many([100] * 200)
        attempt = attempt_at(node, share)
        drive([attempt], lambda: committed(node, share) == len(ids))
        leave(attempt)
    found = list(read(node, pipeline.topics().results))
    assert Counter(key.decode() for key, _, _ in found) == Counter(ids)
    assert {value for _, value, _ in found} == {b'"%b"' % (b"x" * 100)}


def test_a_result_that_a_topic_does_not_take_is_a_dead_letter(node: RunningNode) -> None:
    """F20: on the results topic or on the input of the next team; its neighbours have results."""
    first, second = Team("a", doubled), Team("b", len)
    first.pipe_to(second)
    pipeline = Pipeline(f"s{uuid.uuid4().hex[:8]}", first, second)
    small(node, pipeline.topics("b").input)
    create_topics(pipeline, node.bootstrap)
    share = share_of(pipeline, "a", uuid.uuid4().hex)
    with FrontEnd(pipeline, node.bootstrap) as front:
        fits, large, last = front.submit_many([100, SMALL, 100], team="a")
        attempt = attempt_at(node, share)
        drive([attempt], lambda: committed(node, share) == 3)
        leave(attempt)

    found = {key.decode(): headers for key, _, headers in read(node, pipeline.topics("a").results)}
    assert KIND not in found[fits]
    assert KIND not in found[last]
    assert found[large][KIND] == b"result-too-large"
    assert f"{pipeline.topics('b').input!r}, which takes 2000" in found[large][REASON].decode()
    [(key, payload, _)] = read(node, pipeline.topics("a").dead)
    assert (key.decode(), payload) == (large, b"2000")
    assert {key.decode() for key, _, _ in read(node, pipeline.topics("b").input)} == {fits, last}
