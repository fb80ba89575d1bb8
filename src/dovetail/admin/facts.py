"""Gathers the facts for `attention.py`, as a client of the cluster.

Groups, pipelines and dead letters of topics come over Kafka's protocol, so any Kafka has them.
Callers that can reach timelines and nodes add those facts by `with_timelines` and `Facts` itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dovetail.admin.attention import Facts
from dovetail.admin.dead.letter import DeadSource
from dovetail.admin.dead.topics import DeadTopics
from dovetail.admin.groups import Group, list_groups
from dovetail.admin.pipelines import Pipeline, PipelineReports
from dovetail.admin.topics import topic_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from dovetail.admin.kafka import Kafka
    from dovetail.admin.timelines import TimelineSummary


class KafkaFacts:
    """What a Kafka client sees; remembers what it read of reports, for the next look."""

    def __init__(self, wall_ms: "Callable[[], int]") -> None:
        self._pipelines = PipelineReports(wall_ms)
        self._dead = DeadTopics(self._pipelines)

    def look(self, kafka: "Kafka") -> "tuple[list[Group], list[Pipeline], list[DeadSource]]":
        """Groups, pipelines, and topics with dead letters. Raises `Unreachable`."""
        groups, pipelines = list_groups(kafka), self._pipelines.list(kafka)
        names = self._dead.candidates(kafka, list(kafka.metadata().topics))
        dead = self._dead.look(kafka, topic_ids(kafka, names), None, 0).sources if names else []
        return groups, pipelines, dead


def with_timelines(facts: Facts, timelines: "Sequence[TimelineSummary]") -> Facts:
    """The facts, and those of timelines."""
    dead = [DeadSource("timeline", one.timeline, one.dead) for one in timelines if one.dead]
    return replace(facts, timelines=timelines, dead=[*facts.dead, *dead])
