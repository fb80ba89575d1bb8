"""Fetch sessions (KIP-227): a consumer names its partitions once, then only what changes.

A session remembers which partitions a consumer reads and from where. Its requests name the
partitions whose position moved or that are no longer read; its answers hold those with records, an
error, or another end. So an idle consumer of a thousand partitions sends and gets a few bytes.

    request                     session
    epoch -1                    none; one that is named ends
    epoch 0                     a new one, if there is room (`id` 0 if not); one that is named ends
    epoch n                     the named one, which must expect n; then it expects n + 1

A partition is *pending* when there may be news of it: it was just named, or has data that the
consumer did not get yet. One that was read to its end is skipped until it signals (`watch`), so
that a fetch costs what has changed and not what is read.

Sessions live in memory. After a restart or an eviction, a consumer learns that its session is
unknown and names everything again. The rules of eviction are Kafka's: a session can go that was not
used for two minutes, or that is older than that and smaller than the new one.

Pure but for the callbacks; time is an argument.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from dovetail.foreign import TOPIC_CHARACTERS_MAX
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.codec.schema import ZERO_UUID
from dovetail.log.partition import Partition

#: Sessions that are kept; Kafka's limit.
SESSIONS_MAX = 1000

#: Partitions in all sessions; each takes some 500 bytes.
PARTITIONS_MAX = 200_000

#: A session that was not used for so long may go for any other.
EVICT_MS = 120_000

NO_SESSION = 0
NO_EPOCH = -1
_NEW = 0
_EPOCH_MAX = (1 << 31) - 1


class Key(NamedTuple):
    """A partition as requests name it: by the name of its topic, or from version 13 by its id."""

    topic: str
    topic_id: bytes
    partition: int


@dataclass(slots=True)
class _Cached:
    wanted: m.FetchRequestPartition
    #: The high watermark and the start that the consumer was last told; None: tell it anyway.
    told: tuple[int, int, int] | None = None
    #: The partition that calls when there is something new, and how.
    watched: tuple[Partition, Callable[[], None]] | None = None


@dataclass(slots=True)
class Session:
    """What one consumer reads."""

    id: int
    by_id: bool
    created_ms: float
    used_ms: float
    epoch: int = 1
    cached: dict[Key, _Cached] = field(default_factory=dict)
    pending: OrderedDict[Key, None] = field(default_factory=OrderedDict)
    #: Whether the next answer names every partition: clients check that the first one does.
    fresh: bool = True
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def name(self, topics: Iterable[m.FetchRequestTopic]) -> None:
        """Takes up the partitions that a request names."""
        for topic in topics:
            for wanted in topic.partitions:
                key = Key(topic.topic, topic.topic_id, wanted.partition)
                known = self.cached.get(key)
                if known is None:
                    self.cached[key] = _Cached(wanted)
                else:
                    known.wanted = wanted
                self.pending[key] = None

    def forget(self, topics: Iterable[m.FetchRequestForgottenTopic]) -> None:
        """Drops partitions that are read no more."""
        for topic in topics:
            for number in topic.partitions:
                key = Key(topic.topic, topic.topic_id, number)
                self._unwatch(key)
                self.cached.pop(key, None)
                self.pending.pop(key, None)

    def look_everywhere(self) -> None:
        """Every partition has something to tell."""
        for key in self.cached:
            self._unwatch(key)
            self.pending[key] = None
        self.woken.set()

    def look_at(self, key: Key) -> None:
        """The partition came or went, so it has something to tell."""
        if key in self.cached:
            self._call(key)

    def topics(self) -> tuple[m.FetchRequestTopic, ...]:
        """The pending partitions as a request names them; who got nothing last comes first."""
        found: dict[tuple[str, bytes], list[m.FetchRequestPartition]] = {}
        for key in self.cached if self.fresh else self.pending:
            found.setdefault((key.topic, key.topic_id), []).append(self.cached[key].wanted)
        return tuple(
            m.FetchRequestTopic(topic=topic, topic_id=topic_id, partitions=tuple(wanted))
            for (topic, topic_id), wanted in found.items()
        )

    def watch(self, key: Key, partition: Partition, *, idle: bool) -> None:
        """Is called when there is something new; until then an idle partition is skipped."""
        cached = self.cached.get(key)
        if cached is None:
            return
        if cached.watched is None:
            call = partial(self._call, key)
            cached.watched = (partition, call)
            partition.on_confirmed.add(call)
        if idle:
            self.pending.pop(key, None)

    def _call(self, key: Key) -> None:
        self._unwatch(key)
        self.pending[key] = None
        self.woken.set()

    def _unwatch(self, key: Key) -> None:
        cached = self.cached.get(key)
        if cached is not None and cached.watched is not None:
            watched, call = cached.watched
            watched.on_confirmed.discard(call)
            cached.watched = None

    def tells(self, key: Key, answer: m.FetchResponsePartition) -> bool:
        """Whether an answer has to name this partition; what it names is remembered."""
        cached = self.cached.get(key)
        if cached is None:
            return True
        if answer.records:
            self.pending[key] = None
            self.pending.move_to_end(key)
        elif answer.error_code != ErrorCode.NONE:
            cached.told = None
            return True
        now = (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset)
        changed = cached.told != now
        cached.told = now
        return changed or self.fresh or bool(answer.records)

    def end(self) -> None:
        """Nobody calls it any more, also if a request of it still waits."""
        for key in self.cached:
            self._unwatch(key)
        self.cached.clear()
        self.pending.clear()


def _hard_to_guess() -> int:
    return 1 + secrets.randbelow((1 << 31) - 1)


def _has_long_names(request: m.FetchRequest) -> bool:
    """Whether it names topics that cannot exist, and are not worth their memory."""
    return any(len(topic.topic) > TOPIC_CHARACTERS_MAX for topic in request.topics)


class FetchSessions:
    """The sessions of one broker."""

    def __init__(self, new_id: Callable[[], int] = _hard_to_guess) -> None:
        """`new_id` gives numbers from 1 to 2^31 - 1."""
        self._new_id = new_id
        #: By the time of their last use, the oldest first.
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        #: Partitions in all of them.
        self._partitions = 0
        #: The topic's id of each partition that is served here.
        self._ids: dict[tuple[str, int], bytes] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, request: m.FetchRequest, *, by_id: bool, now_ms: float
    ) -> Session | ErrorCode | None:
        """The session of a request, None if it has none, or what is wrong with it."""
        if request.session_epoch in (NO_EPOCH, _NEW):
            self._remove(request.session_id)
            return self._open(request, by_id, now_ms) if request.session_epoch == _NEW else None

        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.by_id != by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if session.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH

        session.epoch = session.epoch % _EPOCH_MAX + 1
        session.used_ms = now_ms
        session.fresh = False
        self._sessions.move_to_end(session.id)
        self._partitions -= len(session.cached)
        # A partition that is named and forgotten at once is forgotten, as with Kafka.
        session.name(request.topics)
        session.forget(request.forgotten_topics_data)
        self._partitions += len(session.cached)
        if self._partitions > PARTITIONS_MAX or _has_long_names(request):
            self._remove(session.id)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return session

    def came(self, name: str, topic_id: bytes, number: int) -> None:
        """This broker serves the partition from now on."""
        self._ids[name, number] = topic_id
        self._look_at(name, topic_id, number)

    def went(self, name: str, number: int) -> None:
        """This broker serves the partition no more."""
        self._look_at(name, self._ids.pop((name, number), ZERO_UUID), number)

    def _look_at(self, name: str, topic_id: bytes, number: int) -> None:
        """Who reads the partition is told; others are left alone.

        A broker that takes a thousand partitions over would else look a thousand times through
        everything that everybody reads.
        """
        by_name, by_id = Key(name, ZERO_UUID, number), Key("", topic_id, number)
        for session in self._sessions.values():
            session.look_at(by_id if session.by_id else by_name)

    def _open(self, request: m.FetchRequest, by_id: bool, now_ms: float) -> Session | None:
        size = sum(len(topic.partitions) for topic in request.topics)
        if not size or _has_long_names(request) or not self._make_room(size, now_ms):
            return None
        number = self._new_id()
        while number in self._sessions:
            number = self._new_id()
        session = self._sessions[number] = Session(number, by_id, now_ms, now_ms)
        session.name(request.topics)
        self._partitions += len(session.cached)
        return session

    def _make_room(self, size: int, now_ms: float) -> bool:
        """Evicts at most one session; says whether there is room now."""
        if len(self._sessions) >= SESSIONS_MAX:
            oldest = next(iter(self._sessions.values()))
            old = [s for s in self._sessions.values() if now_ms - s.created_ms > EVICT_MS]
            smallest = min(old, key=lambda s: len(s.cached), default=None)
            if now_ms - oldest.used_ms > EVICT_MS:
                self._remove(oldest.id)
            elif smallest is not None and len(smallest.cached) < size:
                self._remove(smallest.id)
            else:
                return False
        return self._partitions + size <= PARTITIONS_MAX

    def _remove(self, number: int) -> None:
        session = self._sessions.pop(number, None)
        if session is not None:
            self._partitions -= len(session.cached)
            session.end()
