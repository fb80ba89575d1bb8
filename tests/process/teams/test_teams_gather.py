"""Gathering on a real node, without Spark: items of a job, in order, once."""

import json
import random
import uuid
from typing import Any

import pytest
from tests.conftest import RunningNode
from tests.process.teams.attempts import attempt_at, count, drive, kill, leave, read, share_of, step

from dovetail.teams import FrontEnd, GatheredItem, Pipeline, Team, cancel, create_topics
from dovetail.teams.tasks import gathers
from dovetail.teams.tasks.attempt import Share

pytestmark = pytest.mark.timeout(120)


def split(job: int) -> list[int]:
    return list(range(job))


def moody(item: int) -> int:
    if item == 3:
        raise RuntimeError("three is too many")
    return item * 10


def collect(items: list[GatheredItem]) -> list[Any]:
    return [one["result"] if one["ok"] else one["kind"] for one in items]


def pipeline_of(within: str = "1h", **more: Any) -> Pipeline:
    a, b = Team("a", split, **more), Team("b", moody, attempts=1)
    c = Team("c", collect)
    a.spray_to(b)
    b.gather_to(c, within=within)
    return Pipeline(f"g{uuid.uuid4().hex[:8]}", a, b, c)


def shares_of(pipeline: Pipeline) -> dict[str, Share]:
    found = {name: share_of(pipeline, name, uuid.uuid4().hex) for name in "abc"}
    found["gather"] = share_of(pipeline, "b", uuid.uuid4().hex, gathers=True)
    return found


def gathered(node: RunningNode, pipeline: Pipeline) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value, _ in read(node, pipeline.topics("c").results):
        assert key.decode() not in found, "once"
        found[key.decode()] = json.loads(value)
    return found


def test_the_items_of_a_job_come_together_in_order(node: RunningNode) -> None:
    """T18: failures are marked, a job without items is an empty list, and attempts that die over
    it at any step neither lose nor double one."""
    pipeline, chance = pipeline_of(), random.Random(18)
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit_many([2, 0, 5, 1], ["two", "none", "five", "one"])
    shares = shares_of(pipeline)
    attempts = {name: attempt_at(node, share) for name, share in shares.items()}
    for _ in range(4):
        for _ in range(chance.randrange(2, 25)):
            step(list(attempts.values()))
        name = chance.choice(sorted(shares))
        kill(attempts[name])
        attempts[name] = attempt_at(node, shares[name])
    drive(list(attempts.values()), lambda: count(node, pipeline.topics("c").results) == 4)
    for attempt in attempts.values():
        leave(attempt)
    assert gathered(node, pipeline) == {
        "two": [0, 10],
        "none": [],
        "five": [0, 10, 20, "exception", 40],
        "one": [0],
    }
    assert pipeline.ends("a") == ["c"]


def test_what_has_not_ended_in_time_is_missing(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T18, T17: the time is over, and an item was cancelled; what comes later changes nothing."""
    monkeypatch.setattr(gathers, "SLACK_MS", 200)
    pipeline = pipeline_of("4s")
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit(3, "three")
        front.submit(2, "two")
    cancel(pipeline.name, "two/0", node.bootstrap)
    shares = shares_of(pipeline)
    a, c, gather = (attempt_at(node, shares[name]) for name in ("a", "c", "gather"))
    drive([a, c, gather], lambda: count(node, pipeline.topics("b").input) == 5)
    drive([a, c, gather], lambda: count(node, pipeline.topics("c").results) == 2)
    assert gathered(node, pipeline) == {"three": ["missing"] * 3, "two": ["missing"] * 2}
    b = attempt_at(node, shares["b"])
    drive([a, b, c, gather], lambda: count(node, pipeline.gather_topic("b")) == 7)
    leave(gather)
    again = attempt_at(node, shares["gather"])
    for _ in range(10):
        step([again, c])
    assert count(node, pipeline.topics("c").input) == 2
    for attempt in (a, b, c, again):
        leave(attempt)
