"""Shared streams: members, leader, term, lag and elections, from the shared log.

Every environment of a log is folded as its members fold it (`election/fold.py`). This module never
writes to a log. It imports the election room when the first log is read, so that a node without
shared streams need not load it.
"""

import threading
from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from dovetail.admin.feed import Feed
from dovetail.admin.groups import lag_of, lag_sum
from dovetail.admin.positions import bounds_of
from dovetail.admin.records import ReadLimits, Record, last_spans, read
from dovetail.clock import Clock
from dovetail.errors import NotFound, TopicUnknown

if TYPE_CHECKING:
    from dovetail.admin.kafka import Kafka
    from dovetail.election.fold import LogState
    from dovetail.election.shared_log import LogFollower
    from dovetail.settings.stream import SharedStreamSettings

#: Logs whose state is remembered.
_LOGS_MAX = 200


class StreamMember(Struct, frozen=True):
    """A member; `counted` if it makes up the cluster now."""

    member: str
    counted: bool
    leads: bool
    heard_s_ago: float
    challenged: bool


class StreamPosition(Struct, frozen=True):
    """How far the stream is in a partition of its source."""

    partition: int
    committed: int | None
    end: int | None
    lag: int | None


class Election(Struct, frozen=True):
    """A claim that counted."""

    term: int
    leader: str
    at: str
    at_ms: int


class Stream(Struct, frozen=True):
    """One environment of a shared log."""

    log: str
    environment: str
    leader: str | None
    term: int
    leader_heard_s_ago: float | None
    source: str | None
    lag: int | None
    members: list[StreamMember]
    positions: list[StreamPosition]
    elections: list[Election]


class _Log:
    """What was read of one log so far."""

    def __init__(self, topic: str, clock: Clock, settings: "SharedStreamSettings") -> None:
        self._clock = clock
        self._settings = settings
        self.feed = Feed(topic)
        self.followers: dict[str, LogFollower] = {}

    def take(self, records: list[Record], *, opening: bool) -> None:
        from dovetail.election.fold import decode_record
        from dovetail.election.shared_log import LogFollower

        if opening:
            self.followers = {}
        for record in records:
            name = (record.key or b"").decode(errors="replace")
            said = decode_record(record.value or b"") if self._signed(name, record) else None
            if name not in self.followers and said is not None:
                follower = self.followers[name] = LogFollower(self._clock)
                follower.index_next = 0 if opening else record.offset
            for environment, follower in self.followers.items():
                mine = said if environment == name else None
                follower.take(record.offset, mine, record.timestamp_ms)

        if opening:
            for follower in self.followers.values():
                follower.close_gap()

    def _signed(self, environment: str, record: Record) -> bool:
        """Whether a member has signed it, where the secret of our own environment is known."""
        from dovetail.election.signature import SIGNATURE_HEADER, RecordSigner

        settings = self._settings
        ours = settings.shared_secret and environment == settings.environment_identifier
        if not ours or settings.log_signatures == "optional":
            return True
        signer = RecordSigner(settings.shared_secret.encode(), "")
        return bool(
            signer.mark_of(environment, record.value or b"", record.header(SIGNATURE_HEADER))
        )


class Streams:
    """The shared logs of a cluster; each look reads only what is new. Safe between threads."""

    def __init__(self, clock: Clock, settings: "SharedStreamSettings") -> None:
        """`settings` say after how long a member does not count any more."""
        self._clock = clock
        self._settings = settings
        self._logs: OrderedDict[str, _Log] = OrderedDict()
        self._turn = threading.Lock()

    def of_log(self, kafka: "Kafka", log: str) -> list[Stream]:
        """Every environment of a log by name; none if the topic is not a shared log.

        Raises `TopicUnknown`, `Unavailable`.
        """
        with self._turn:
            states = self._states(kafka, log)
            return [self._shown(kafka, log, name, state) for name, state in sorted(states.items())]

    def one(self, kafka: "Kafka", log: str, environment: str | None) -> Stream:
        """One environment, or the only one. Raises `NotFound`, `TopicUnknown`, `Unavailable`."""
        found = {stream.environment: stream for stream in self.of_log(kafka, log)}
        if environment is None and len(found) == 1:
            (environment,) = found
        if environment is None or environment not in found:
            there = f"it has {', '.join(found)}" if found else "it is not a shared log"
            raise NotFound(f"topic {log!r} has no environment {environment!r}; {there}")
        return found[environment]

    def _states(self, kafka: "Kafka", topic: str) -> "dict[str, LogState]":
        if topic not in self._logs and not _looks_like_one(kafka, topic):
            return {}
        log = self._logs.setdefault(topic, _Log(topic, self._clock, self._settings))
        self._logs.move_to_end(topic)
        while len(self._logs) > _LOGS_MAX:
            self._logs.popitem(last=False)

        found = log.feed.read(kafka)
        if found is None:
            raise TopicUnknown(f"no topic {topic!r}, or its leader does not answer")
        records, anew = found
        log.take(records, opening=anew)
        return {name: follower.state for name, follower in log.followers.items()}

    def _shown(self, kafka: "Kafka", log: str, environment: str, state: "LogState") -> Stream:
        from dovetail.election.election import GRACE_TIMEOUTS

        now_ms = self._clock.monotonic_ms()
        counted = set(
            state.counted(
                now_ms=now_ms,
                interval_ms=self._settings.participant_write_interval_millis,
                grace_ms=GRACE_TIMEOUTS * self._settings.timeout_ms,
            )
        )
        members = [
            StreamMember(
                member=name,
                counted=name in counted,
                leads=name == state.leader,
                heard_s_ago=_ago(heard.moment.monotonic_ms, now_ms),
                challenged=heard.challenged_ms is not None,
            )
            for name, heard in state.members()
        ]
        positions = _positions(kafka, state)

        return Stream(
            log=log,
            environment=environment,
            leader=state.leader,
            term=state.term,
            leader_heard_s_ago=_ago(state.leader_heard_ms, now_ms) if state.leader else None,
            source=state.source,
            lag=lag_sum((position.committed, position.lag) for position in positions),
            members=members,
            positions=positions,
            elections=[
                Election(past.term, past.member, _iso(past.wall_ms), past.wall_ms)
                for past in reversed(state.elections)
            ],
        )


def _looks_like_one(kafka: "Kafka", topic: str) -> bool:
    """Whether the last record is one of a shared log; a large other topic is not read."""
    from dovetail.election.fold import decode_record

    bounds = bounds_of(kafka, [(topic, 0)])
    if not bounds:
        raise TopicUnknown(f"no topic {topic!r}, or its leader does not answer")
    reading = read(kafka, topic, last_spans(bounds, 1), ReadLimits(scan=1))
    return any(decode_record(record.value or b"") for record in reading.records)


def _positions(kafka: "Kafka", state: "LogState") -> list[StreamPosition]:
    """What is committed, and how far the source has gone since."""
    committed = state.position or {}
    metadata = kafka.metadata()
    source = state.source or ""
    places = metadata.partitions(source)
    bounds = bounds_of(kafka, places, metadata=metadata)

    rows = []
    for number in sorted({*committed, *(number for _, number in places)}):
        bound = bounds.get((source, number))
        at, end = committed.get(number), None if bound is None else bound.end
        rows.append(StreamPosition(number, at, end, lag_of(committed=at, end=end)))
    return rows


def _ago(then_ms: float, now_ms: float) -> float:
    return round((now_ms - then_ms) / 1000, 1)


def _iso(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
