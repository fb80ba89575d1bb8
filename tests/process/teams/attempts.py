"""Attempts at the partitions of a team on a real node, without Spark: driven step by step."""

import select
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.conftest import RunningNode

from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import LATEST, KafkaClient, client_of
from dovetail.spark.decoder import COLUMNS_WITH_HEADERS, to_arrow
from dovetail.spark.fetching import fetch
from dovetail.teams.chains.lane import clock_s
from dovetail.teams.graph import Pipeline
from dovetail.teams.tasks.attempt import Share
from dovetail.teams.tasks.cancel_log import CancelLog
from dovetail.teams.tasks.gathering import Gathering
from dovetail.teams.tasks.serving import Serving

#: A machine that runs other tests beside this one.
STEP_S_MAX = 60.0


def share_of(pipeline: Pipeline, team: str, chain: str, *, number: int = 0, **more: Any) -> Share:
    """One partition of a team."""
    [stage] = [one for one in pipeline.stages() if one.team == team]
    given = {"size": 1, "copy": None, "delays": pipeline.has_delays, "term": 0, **more}
    return Share(stage, chain, stage.workers, number, **given)


def attempt_at(node: RunningNode, share: Share) -> Serving | Gathering:
    """An attempt with connections of its own."""
    brokers = Brokers(node.bootstrap)
    client, committing = KafkaClient(brokers), KafkaClient(brokers)
    cancels = CancelLog(client, share.stage.pipeline)
    try:
        if share.gathers:
            cancels.close()
            return Gathering(share, client, committing=committing)
        return Serving(share, client, committing=committing, cancels=cancels)
    except BaseException:
        for one in (cancels, client, committing):
            one.close()
        raise


def step(attempts: Sequence[Serving | Gathering], *, wait_s: float = 0.2) -> None:
    """One step of each, when something has come for one of them."""
    descriptors = [one for attempt in attempts for one in attempt.filenos()]
    due_s = min(attempt.due_s(clock_s()) for attempt in attempts) - clock_s()
    ready, _, _ = select.select(descriptors, [], [], min(max(0.0, due_s), wait_s))
    for attempt in attempts:
        attempt.step(clock_s(), set(ready))


def drive(attempts: Sequence[Serving | Gathering], until: Callable[[], bool]) -> None:
    """Steps, until something holds."""
    deadline = time.monotonic() + STEP_S_MAX
    while not until():
        assert time.monotonic() < deadline, "it does not come to an end"
        step(attempts)


def leave(attempt: Serving | Gathering) -> None:
    """It ends as a task that is told to."""
    attempt.close()
    if isinstance(attempt, Serving):
        attempt._cancels.close()
    attempt._client.close()
    attempt._committing.close()


def kill(attempt: Serving | Gathering) -> None:
    """It is gone in the middle of what it did: nothing is committed or waited for."""
    if isinstance(attempt, Serving):
        attempt._crew.close()
        attempt._cancels.close()
    attempt._client.close()
    attempt._committing.close()
    for lane in attempt._lanes.values():
        for connection in (lane._connection, lane._reader._connection):
            if connection is not None:
                connection.close()
    attempt._input.drop()
    attempt._commits.close()


def committed(node: RunningNode, share: Share) -> int:
    """The position of the last snapshot; -1 if there is none."""
    stored = client_of(Brokers(node.bootstrap)).committed(share.group)
    return stored.get(share.input, (-1, ""))[0]


def count(node: RunningNode, topic: str) -> int:
    """Records in a topic."""
    client = client_of(Brokers(node.bootstrap))
    places = [(topic, number) for number in client.partitions([topic])[topic]]
    return sum(client.offsets(dict.fromkeys(places, LATEST)).values())


def read(node: RunningNode, topic: str) -> Iterator[tuple[bytes, Any, dict[str, bytes]]]:
    """Key, value and headers of each record of a topic."""
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
