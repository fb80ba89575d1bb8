"""The doing half of `top`: knocks at three doors, each with what it keeps open between looks."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from dovetail.cli.top.picture import Look, Part, Row
from dovetail.errors import DovetailError, NotFound

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from dovetail.cli.node_http import NodeHttp
    from dovetail.cli.options import Target
    from dovetail.timeline.frames import Described

Looks = dict[Part, Look]


class KafkaDoor:
    """Topics and groups; keeps its client while it answers."""

    def __init__(self, target: "Target") -> None:
        self._target = target
        self._admin: AdminClient | None = None

    def look(self) -> Looks:
        from dovetail.cli.client import check_reachable, client_config
        from dovetail.cli.lag import read_groups

        parts: tuple[Part, ...] = ("topics", "groups")
        try:
            # librdkafka waits for its timeout where a plain connection fails at once.
            check_reachable(self._target)
            if self._admin is None:
                from confluent_kafka.admin import AdminClient

                self._admin = AdminClient(client_config(self._target))
            topics = self._topics(self._admin)
            groups = tuple(
                {
                    "group": found.group,
                    "state": found.state,
                    "members": found.members,
                    "lag": found.lag,
                    "topics": ", ".join(found.topics),
                }
                for found in read_groups(self._target, self._admin)
            )
        except DovetailError as error:
            self._admin = None
            return dict.fromkeys(parts, _trouble(error))
        now_s = time.monotonic()
        return {"topics": Look(now_s, topics), "groups": Look(now_s, groups)}

    def _topics(self, admin: "AdminClient") -> tuple[Row, ...]:
        from dovetail.cli.client import bounds_of, is_internal, partitions_of, topics_metadata

        metadata = topics_metadata(admin, self._target)
        served = {
            (name, number)
            for name, topic in metadata.topics.items()
            for number, partition in topic.partitions.items()
            if partition.leader in metadata.brokers
        }
        bounds = bounds_of(admin, self._target, sorted(served))
        rows = []
        for name, topic in sorted(metadata.topics.items()):
            places = partitions_of(topic)
            known = [bounds[place] for place in places if place in bounds]
            rows.append(
                {
                    "topic": name,
                    "partitions": len(places),
                    "records": sum(end - first for first, end in known),
                    "end": sum(end for _, end in known),
                    "no leader": len(places) - len(known),
                    "internal": is_internal(name),
                }
            )
        return tuple(rows)


class TimelineDoor:
    """Timelines, by the same requests that their clients use."""

    def __init__(self, target: "Target") -> None:
        self._target = target

    def look(self) -> Looks:
        from dovetail.cli.timeline_client import connect_to, run

        async def ask() -> tuple[Row, ...]:
            async with connect_to(self._target) as node:
                rows = []
                for name, state in await node.timelines():
                    if state == "ready":
                        rows.append(_timeline(await node.timeline(name).describe()))
                return tuple(rows)

        try:
            return {"timelines": Look(time.monotonic(), run(self._target, ask()))}
        except DovetailError as error:
            return {"timelines": _trouble(error)}


def _timeline(found: "Described") -> Row:
    counts, signals = found.counts, found.signals
    return {
        "timeline": found.timeline,
        "waiting": counts.waiting,
        "due": counts.due,
        "leased": counts.leased,
        "dead": counts.dead,
        "in/s": round(signals.arrivals, 1),
        "done/s": round(signals.done, 1),
        "late p99 ms": round(found.late_ms_p99, 1),
    }


class HttpDoor:
    """Nodes, streams and pipelines, from any node that serves HTTP."""

    def __init__(self, node: "NodeHttp", *, limit_s: float) -> None:
        self._node = node
        self._limit_s = limit_s

    def look(self) -> Looks:
        from dovetail.cli.node_http import get_json

        asked: dict[Part, tuple[str, Callable[[Any], list[Row]]]] = {
            "nodes": ("/v1/cluster", lambda told: [_node(node) for node in told["nodes"]]),
            "streams": ("/v1/streams", lambda told: [_stream(one) for one in told["streams"]]),
            "pipelines": (
                "/v1/pipelines",
                lambda told: [_pipeline(one) for one in told["pipelines"]],
            ),
        }
        looks: Looks = {}
        for part, (path, read) in asked.items():
            try:
                told = get_json(self._node, path, limit_s=self._limit_s)
                looks[part] = Look(time.monotonic(), tuple(read(told)))
            except NotFound as error:
                looks[part] = _trouble(error)
            except DovetailError as error:
                # Nobody is there for the others either, and each try costs its time.
                return {**looks, **dict.fromkeys(set(asked) - set(looks), _trouble(error))}
        return looks


def _node(told: dict[str, Any]) -> Row:
    return {
        "node": told["name"],
        "roles": ", ".join(told["roles"]),
        "health": told["health"],
        "partitions": told["partitions"],
        "stored": told["stored_bytes"],
        "answers ms": told["latency_ms"],
        "reasons": "; ".join(told["reasons"]),
    }


def _stream(told: dict[str, Any]) -> Row:
    shown = {name: told.get(name) for name in ("environment", "leader", "term", "members", "lag")}
    return {"stream": told["log"], **shown}


def _pipeline(told: dict[str, Any]) -> Row:
    shown = {name: told.get(name) for name in ("state", "teams", "lag", "failures", "dead")}
    return {"pipeline": told["pipeline"], "works/s": told.get("works_per_s"), **shown}


def _trouble(error: DovetailError) -> Look:
    return Look(time.monotonic(), trouble=str(error).partition("\n")[0])


class Looker:
    """Knocks at all doors at once."""

    def __init__(self, target: "Target", node: "NodeHttp | None") -> None:
        """Without `node`, nobody is asked over HTTP."""
        self._doors: list[KafkaDoor | TimelineDoor | HttpDoor] = [
            KafkaDoor(target),
            TimelineDoor(target),
        ]
        if node is not None:
            self._doors.append(HttpDoor(node, limit_s=target.timeout_s))
        self._pool = ThreadPoolExecutor(len(self._doors), thread_name_prefix="top")

    def look(self) -> Looks:
        """What all of them say now; takes as long as the slowest, at most its timeout."""
        looks: Looks = {}
        for asked in [self._pool.submit(door.look) for door in self._doors]:
            looks |= asked.result()
        return looks

    def close(self) -> None:
        """Does not wait for doors that are slow."""
        self._pool.shutdown(wait=False, cancel_futures=True)
