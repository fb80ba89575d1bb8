"""Share sessions: a member names its partitions once to each broker that it fetches from; pure.

A session belongs to a member of a group. A request of epoch 0 opens it; each further request has
the next epoch, so that a lost or doubled request is noticed; -1 closes it and releases what the
member has acquired. So does the end of the connection that opened it: a member that dies holds
nothing up. A broker limits the number of sessions and of their partitions: one that was
not used for long is evicted. If all are in use, a session of the client with the most gives way to
a client with fewer, so that one client cannot take them all; its member then opens a new session or
is refused.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from dovetail.kafka.codec.error_codes import ErrorCode

OPENS = 0
CLOSES = -1

#: Kafka's limit.
SESSIONS_MAX = 2_000
#: A session that was silent for so long makes room for a new one: its locks ended long ago.
_IDLE_MS = 120_000

#: Partitions of one session, each of which is looked at with every request, and of all together.
SESSION_PARTITIONS_MAX = 10_000
PARTITIONS_MAX = 200_000

_EPOCH_MAX = 2**31 - 1


class Key(NamedTuple):
    """A partition by the id of its topic."""

    topic_id: bytes
    number: int


@dataclass(slots=True)
class Session:
    """What a member fetches from here."""

    group_id: str
    member_id: str
    #: Who opened it: the user, or where nobody logs in the address.
    owner: str = ""
    epoch: int = 1
    used_ms: float = 0.0
    #: In the order in which they are looked at.
    partitions: dict[Key, None] = field(default_factory=dict)
    #: Called when the session is over, however.
    on_end: Callable[[], None] = lambda: None

    def update(self, named: Iterable[Key], forgotten: Iterable[Key]) -> None:
        """Adds and removes partitions."""
        for key in named:
            self.partitions.setdefault(key)
        for key in forgotten:
            self.partitions.pop(key, None)

    def turn(self) -> list[Key]:
        """The partitions; the first is another each time, so that all get their turn."""
        keys = [*self.partitions]
        if len(keys) > 1:
            first = keys[0]
            del self.partitions[first]
            self.partitions[first] = None
        return keys


class ShareSessions:
    """The sessions of one broker."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._max = sessions_max
        self._sessions: OrderedDict[tuple[str, str], Session] = OrderedDict()

    def begin(
        self, group_id: str, member_id: str, epoch: int, *, owner: str, now_ms: float
    ) -> Session | ErrorCode:
        """The session that a request is part of; one that closes is forgotten."""
        key = (group_id, member_id)
        if epoch == OPENS:
            self._end(key)
            if len(self._sessions) >= self._max and not self._make_room(owner, now_ms):
                return ErrorCode.SHARE_SESSION_LIMIT_REACHED
            made = self._sessions[key] = Session(group_id, member_id, owner, used_ms=now_ms)
            return made

        found = self._sessions.get(key)
        if found is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch == CLOSES:
            self._end(key)
            return found
        if epoch != found.epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        found.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        found.used_ms = now_ms
        self._sessions.move_to_end(key)
        return found

    def _make_room(self, owner: str, now_ms: float) -> bool:
        """Ends a session that is idle, or one of a client that has more than `owner` would have."""
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms >= _IDLE_MS:
            self._end(next(iter(self._sessions)))
            return True
        counts = Counter(session.owner for session in self._sessions.values())
        most, count = counts.most_common(1)[0]
        if counts[owner] + 1 >= count:
            return False
        self._end_oldest_of(most)
        return True

    def _end_oldest_of(self, owner: str) -> None:
        key = next(key for key, session in self._sessions.items() if session.owner == owner)
        self._end(key)

    def update(self, session: Session, named: Iterable[Key], forgotten: Iterable[Key]) -> ErrorCode:
        """Adds and removes partitions of a session; one with too many ends."""
        session.update(named, forgotten)
        if len(session.partitions) <= SESSION_PARTITIONS_MAX:
            while sum(len(each.partitions) for each in self._sessions.values()) > PARTITIONS_MAX:
                most = self._owner_of_most_partitions()
                if most == session.owner:
                    break
                self._end_oldest_of(most)
            else:
                return ErrorCode.NONE
        self.end(session)
        return ErrorCode.SHARE_SESSION_LIMIT_REACHED

    def _owner_of_most_partitions(self) -> str:
        counts: Counter[str] = Counter()
        for session in self._sessions.values():
            counts[session.owner] += len(session.partitions)
        return counts.most_common(1)[0][0]

    def end(self, session: Session) -> bool:
        """Forgets a session; False if it is forgotten already, maybe for another of its member."""
        key = (session.group_id, session.member_id)
        if self._sessions.get(key) is not session:
            return False
        self._end(key)
        return True

    def _end(self, key: tuple[str, str]) -> None:
        ended = self._sessions.pop(key, None)
        if ended is not None:
            ended.on_end()

    def uses(self, group_id: str, partition: Key) -> bool:
        """Whether a session of this group has the partition."""
        return any(
            session.group_id == group_id and partition in session.partitions
            for session in self._sessions.values()
        )

    def __len__(self) -> int:
        return len(self._sessions)
