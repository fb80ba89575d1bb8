"""The doing half of `top`: asks three sources, each with what it keeps open between looks.

What needs attention follows from their answers (`admin/attention.py`).
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any

from dovetail.admin.attention import Attention, Facts, Finding
from dovetail.admin.facts import KafkaFacts, with_timelines
from dovetail.admin.groups import Group
from dovetail.admin.node_http import NodeHttp, get
from dovetail.admin.pipelines import Pipeline
from dovetail.admin.timelines import TimelineSummary, list_timelines
from dovetail.admin.topics import list_topics
from dovetail.cli.options import Target
from dovetail.cli.timeline_client import ask
from dovetail.cli.top.picture import Look, Part, Row
from dovetail.console.nouns.streams import StreamList, StreamRow
from dovetail.errors import DovetailError, NotFound
from dovetail.node.overseer import ClusterReport, NodeReport

Looks = dict[Part, Look]


class KafkaSource:
    """Topics, groups and pipelines; keeps its client while it answers."""

    def __init__(self, target: Target) -> None:
        self._kafka = target.kafka()
        self._facts = KafkaFacts(_now_ms)
        #: Of the last look.
        self.facts = Facts()

    def look(self) -> Looks:
        self.facts = Facts()
        parts: tuple[Part, ...] = ("topics", "groups", "pipelines")
        try:
            # librdkafka waits for its timeout where a plain connection fails at once.
            self._kafka.check()
            topics = self._topics()
            groups, pipelines, dead = self._facts.look(self._kafka)
        except DovetailError as error:
            self._kafka.close()
            return dict.fromkeys(parts, _trouble(error))

        self.facts = Facts(groups=groups, pipelines=pipelines, dead=dead)
        rows = (topics, [_group(one) for one in groups], [_pipeline(one) for one in pipelines])
        at_s = time.monotonic()
        return {part: Look(at_s, tuple(found)) for part, found in zip(parts, rows, strict=True)}

    def _topics(self) -> list[Row]:
        return [
            {
                "topic": found.topic,
                "partitions": found.partitions,
                "records": found.records,
                "end": found.end,
                "no leader": found.without_leader,
                "internal": found.internal,
            }
            for found in list_topics(self._kafka, internal=True)
        ]


def _group(found: Group) -> Row:
    return {
        "group": found.group,
        "state": found.state,
        "members": found.members,
        "lag": found.lag,
        "topics": ", ".join(found.topics),
    }


def _pipeline(found: Pipeline) -> Row:
    return {
        "pipeline": found.pipeline,
        "state": found.state,
        "teams": len(found.teams),
        "lag": found.lag,
        "jobs/s": round(sum(team.jobs_per_s or 0.0 for team in found.teams), 1),
        "failures": sum(team.failures for team in found.teams),
        "dead": found.dead_letters,
    }


class TimelineSource:
    """Timelines, by the same requests that their clients use."""

    def __init__(self, target: Target) -> None:
        self._target = target
        #: Of the last look.
        self.found: list[TimelineSummary] = []

    def look(self) -> Looks:
        self.found = []
        try:
            found = self.found = ask(self._target, list_timelines)
        except DovetailError as error:
            return {"timelines": _trouble(error)}
        rows = tuple(_timeline(one) for one in found if one.state == "ready")
        return {"timelines": Look(time.monotonic(), rows)}


def _timeline(found: TimelineSummary) -> Row:
    return {
        "timeline": found.timeline,
        "waiting": found.waiting,
        "due": found.due,
        "leased": found.leased,
        "dead": found.dead,
        "in/s": round(found.arrivals_per_s or 0.0, 1),
        "done/s": round(found.done_per_s or 0.0, 1),
        "late p99 ms": None if found.late_ms_p99 is None else round(found.late_ms_p99, 1),
    }


class HttpSource:
    """Nodes and streams, from any node that serves HTTP."""

    def __init__(self, node: NodeHttp, *, limit_s: float) -> None:
        self._node = node
        self._limit_s = limit_s
        #: Of the last look.
        self.cluster = ClusterReport([], [], 0)

    def look(self) -> Looks:
        self.cluster = ClusterReport([], [], 0)
        asked: dict[Part, Callable[[], list[Row]]] = {
            "nodes": self._nodes,
            "streams": lambda: [
                _stream(one) for one in self._get("/v1/streams", StreamList).streams
            ],
        }
        looks: Looks = {}
        for part, read in asked.items():
            try:
                looks[part] = Look(time.monotonic(), tuple(read()))
            except NotFound as error:
                looks[part] = _trouble(error)
            except DovetailError as error:
                # The node does not answer the other question either, and each try costs its time.
                return {**looks, **dict.fromkeys(set(asked) - set(looks), _trouble(error))}
        return looks

    def _nodes(self) -> list[Row]:
        self.cluster = self._get("/v1/cluster", ClusterReport)
        return [_node(one) for one in self.cluster.nodes]

    def _get(self, path: str, answer: Any) -> Any:
        return get(self._node, path, answer, limit_s=self._limit_s)


def _node(found: NodeReport) -> Row:
    return {
        "node": found.name,
        "roles": ", ".join(found.roles),
        "health": found.health,
        "partitions": found.partitions,
        "stored": found.stored_bytes,
        "answers ms": found.latency_ms,
        "reasons": "; ".join(found.reasons),
    }


def _stream(found: StreamRow) -> Row:
    return {
        "stream": found.log,
        "environment": found.environment,
        "leader": found.leader,
        "term": found.term,
        "members": found.members,
        "lag": found.lag,
    }


def _finding(found: Finding, *, rank: int) -> Row:
    since = None
    if found.since_ms is not None:
        since = datetime.fromtimestamp(found.since_ms / 1000).astimezone().isoformat(" ", "seconds")
    return {
        "grade": found.grade,
        "where": f"{found.noun} {found.where}",
        "needs attention": found.what,
        "since": since,
        "do": found.todo,
        "rank": rank,
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _trouble(error: DovetailError) -> Look:
    return Look(time.monotonic(), trouble=str(error).partition("\n")[0])


class Looker:
    """Asks all sources at once."""

    def __init__(self, target: Target, node: NodeHttp | None) -> None:
        """Without `node`, nobody is asked over HTTP."""
        self._kafka, self._timelines = KafkaSource(target), TimelineSource(target)
        self._http = None if node is None else HttpSource(node, limit_s=target.timeout_s)
        self._attention = Attention()
        self._pool = ThreadPoolExecutor(3, thread_name_prefix="top")

    def look(self) -> Looks:
        """What all of them answer now; takes as long as the slowest, at most its timeout."""
        sources = [source for source in (self._kafka, self._timelines, self._http) if source]
        looks: Looks = {}
        for asked in [self._pool.submit(source.look) for source in sources]:
            looks |= asked.result()
        return looks | {"attention": self._look_for_trouble()}

    def _look_for_trouble(self) -> Look:
        facts = with_timelines(self._kafka.facts, self._timelines.found)
        if self._http is not None:
            cluster = self._http.cluster
            facts = replace(
                facts,
                nodes=cluster.nodes,
                missing=cluster.missing,
                partitions_without_owner=cluster.partitions_without_owner,
            )
        found = self._attention.look(facts, now_ms=_now_ms())
        rows = [_finding(one, rank=len(found) - at) for at, one in enumerate(found)]
        return Look(time.monotonic(), tuple(rows))

    def close(self) -> None:
        """Does not wait for sources that are slow."""
        self._pool.shutdown(wait=False, cancel_futures=True)
