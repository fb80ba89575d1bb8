"""Fetch sessions: ids, epochs, what is told, and who is evicted."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from dovetail.foreign import TOPIC_CHARACTERS_MAX
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.handlers import fetch_sessions
from dovetail.kafka.handlers.fetch_sessions import EVICT_MS, FetchSessions, Key, Session


class Calling:
    """A partition, as far as a session knows it."""

    def __init__(self) -> None:
        self.on_confirmed: set[Callable[[], None]] = set()

    def confirm(self) -> None:
        for wake in tuple(self.on_confirmed):
            wake()


def named(*numbers: int, topic: str = "t", offset: int = 0) -> tuple[m.FetchRequestTopic, ...]:
    wanted = tuple(
        m.FetchRequestPartition(partition=n, fetch_offset=offset, partition_max_bytes=1)
        for n in numbers
    )
    return (m.FetchRequestTopic(topic=topic, partitions=wanted),) if numbers else ()


def request(
    session: int, epoch: int, *numbers: int, forgotten: tuple[int, ...] = (), offset: int = 0
) -> m.FetchRequest:
    gone = m.FetchRequestForgottenTopic(topic="t", partitions=forgotten)
    return m.FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        session_id=session,
        session_epoch=epoch,
        topics=named(*numbers, offset=offset),
        forgotten_topics_data=(gone,) if forgotten else (),
    )


def answer(number: int, end: int, *, records: bytes = b"", code: int = 0) -> Any:
    return m.FetchResponsePartition(
        partition_index=number,
        error_code=code,
        high_watermark=end,
        log_start_offset=0,
        records=(records,) if records else (),
    )


def begun(sessions: FetchSessions, asked: m.FetchRequest, now_ms: float = 0.0) -> Session:
    found = sessions.begin(asked, by_id=False, now_ms=now_ms)
    assert isinstance(found, Session)
    return found


def pending(session: Session) -> list[int]:
    return [p.partition for topic in session.topics() for p in topic.partitions]


def key(number: int) -> Key:
    return Key("t", bytes(16), number)


@pytest.fixture
def sessions() -> FetchSessions:
    numbers = count(1)
    return FetchSessions(lambda: next(numbers))


def test_a_session_names_what_changed(sessions: FetchSessions) -> None:
    """K13 (KIP-227): the first answer names all, later ones what is new; errors every time."""
    first = begun(sessions, request(0, 0, 0, 1, 2))
    assert pending(first) == [0, 1, 2]
    assert all(first.tells(key(n), answer(n, 5)) for n in range(3))

    again = begun(sessions, request(first.id, 1))
    assert again is first
    assert not again.tells(key(0), answer(0, 5))
    assert again.tells(key(0), answer(0, 6))
    assert again.tells(key(1), answer(1, 5, records=b"x"))
    for _ in range(2):
        assert again.tells(key(2), answer(2, -1, code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert again.tells(key(2), answer(2, 5))


def test_who_got_records_comes_last_and_who_is_idle_not_at_all(sessions: FetchSessions) -> None:
    """K13: a large partition does not keep the others from being read; an idle one costs nothing
    until it calls, and calls once."""
    session = begun(sessions, request(0, 0, 0, 1, 2))
    begun(sessions, request(session.id, 1))
    session.tells(key(0), answer(0, 5, records=b"x"))
    assert pending(session) == [1, 2, 0]

    partition: Any = Calling()
    session.watch(key(2), partition, idle=True)
    session.watch(key(1), partition, idle=False)
    assert pending(session) == [1, 0]
    session.woken.clear()
    partition.confirm()
    assert session.woken.is_set()
    assert pending(session) == [1, 0, 2]
    assert not partition.on_confirmed


def test_partitions_are_named_moved_and_forgotten(sessions: FetchSessions) -> None:
    """K13: a request that moves one position reads that one, from there."""
    session = begun(sessions, request(0, 0, 0, 1))
    partition: Any = Calling()
    for number in (0, 1):
        session.watch(key(number), partition, idle=True)
    begun(sessions, request(session.id, 1, 1, 7, offset=9))
    assert [p.fetch_offset for t in session.topics() for p in t.partitions] == [9, 9]
    begun(sessions, request(session.id, 2, forgotten=(0, 1, 7, 99)))
    assert not session.cached
    assert not partition.on_confirmed


def test_what_is_named_and_forgotten_at_once_is_forgotten(sessions: FetchSessions) -> None:
    """F88: as Kafka 4.3 has it, whether the session knew the partition or not."""
    session = begun(sessions, request(0, 0, 0, 1))
    begun(sessions, request(session.id, 1, 1, 2, forgotten=(1, 2)))
    assert pending(session) == [0]


def test_wrong_numbers_have_their_errors(sessions: FetchSessions) -> None:
    """K13: an unknown session, an old epoch, ids in a session of names; -1 ends a session."""
    session = begun(sessions, request(0, 0, 0))
    begin = sessions.begin
    for asked, by_id, code in (
        (request(77, 1), False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (request(session.id, 2), False, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (request(session.id, 1), True, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
        (request(-1, -7), False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ):
        assert begin(asked, by_id=by_id, now_ms=0) is code
    begun(sessions, request(session.id, 1))
    assert begin(request(session.id, 1), by_id=False, now_ms=0) is (
        ErrorCode.INVALID_FETCH_SESSION_EPOCH
    )
    assert begin(request(session.id, -1, 0), by_id=False, now_ms=0) is None
    assert len(sessions) == 0


def test_epochs_begin_again_at_one(sessions: FetchSessions) -> None:
    """K13: behind the largest 32-bit number comes 1; 0 would be another session."""
    session = begun(sessions, request(0, 0, 0))
    session.epoch = 2**31 - 1
    begun(sessions, request(session.id, 2**31 - 1))
    assert session.epoch == 1


def test_eviction(sessions: FetchSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """K13, R3: as Kafka: an unused session goes for any, a small old one for a larger one."""
    monkeypatch.setattr(fetch_sessions, "SESSIONS_MAX", 2)
    small, large = (begun(sessions, request(0, 0, *range(size))) for size in (1, 3))
    assert sessions.begin(request(0, 0, *range(9)), by_id=False, now_ms=EVICT_MS) is None

    later = EVICT_MS + 1.0
    for session in (small, large):
        begun(sessions, request(session.id, 1), later)
    assert sessions.begin(request(0, 0, 0), by_id=False, now_ms=later) is None
    begun(sessions, request(0, 0, 0, 1), later)
    assert sessions.begin(request(small.id, 2), by_id=False, now_ms=later) is (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )
    begun(sessions, request(0, 0, 0), 2 * later + 1)
    assert len(sessions) == 2


def test_partitions_in_sessions_are_bounded(
    sessions: FetchSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3: a session that grows too far ends, and its consumer names everything again."""
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 5)
    session = begun(sessions, request(0, 0, 0, 1))
    assert sessions.begin(request(0, 0, *range(4)), by_id=False, now_ms=0) is None
    found = sessions.begin(request(session.id, 1, *range(10, 20)), by_id=False, now_ms=0)
    assert found is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    begun(sessions, request(0, 0, *range(5)))


def test_partitions_that_come_and_go_are_looked_at(sessions: FetchSessions) -> None:
    """K13, L13: an idle one that goes to another broker is told, though nothing was confirmed."""
    session = begun(sessions, request(0, 0, 0, 1))
    begun(sessions, request(session.id, 1))
    partition, other = Calling(), Calling()
    for number, watched in enumerate((partition, other)):
        session.watch(key(number), watched, idle=True)  # type: ignore[arg-type]
    for change in (sessions.came, sessions.went):
        session.woken.clear()
        change(*(("t", b"i" * 16, 0) if change == sessions.came else ("t", 0)))
        assert session.woken.is_set()
        assert pending(session) == [0]
        session.watch(key(0), partition, idle=True)  # type: ignore[arg-type]
    sessions.went("t", 0)
    assert not partition.on_confirmed


def test_a_partition_that_goes_is_told_by_its_id_too(sessions: FetchSessions) -> None:
    """K13, L13: from version 13 on requests name topics by ids, and listeners know names."""
    topic = m.FetchRequestTopic(topic_id=b"i" * 16, partitions=named(0)[0].partitions)
    session = sessions.begin(replace(request(0, 0, 0), topics=(topic,)), by_id=True, now_ms=0)
    assert isinstance(session, Session)
    sessions.came("t", b"i" * 16, 0)
    session.pending.clear()
    sessions.went("t", 0)
    assert [*session.pending] == [Key("", b"i" * 16, 0)]


def test_who_reads_others_is_left_alone(sessions: FetchSessions) -> None:
    """F61: partitions that come and go cost a session nothing if it does not read them."""
    session = begun(sessions, request(0, 0, *range(100)))
    session.pending.clear()
    session.woken.clear()
    for number in range(100, 200):
        sessions.came("t", b"i" * 16, number)
        sessions.went("u", number)
    assert not session.pending
    assert not session.woken.is_set()


def test_a_session_that_has_ended_is_called_by_nobody(sessions: FetchSessions) -> None:
    """R3: its last request may still wait; what it does then must not keep the session for ever."""
    session = begun(sessions, request(0, 0, 0, 1))
    partition: Any = Calling()
    session.watch(key(0), partition, idle=True)
    begun(sessions, request(session.id, 0, 0))
    session.watch(key(0), partition, idle=True)
    session.watch(key(1), partition, idle=False)
    assert not partition.on_confirmed
    assert not session.topics()


def test_names_that_no_topic_has_are_not_remembered(sessions: FetchSessions) -> None:
    """R3: a session holds as much as its partitions are counted for, whatever they are called."""
    long = "t" * (TOPIC_CHARACTERS_MAX + 1)
    asked = replace(request(0, 0, 0), topics=named(0, topic=long))
    assert sessions.begin(asked, by_id=False, now_ms=0) is None
    session = begun(sessions, request(0, 0, 0))
    more = replace(request(session.id, 1), topics=named(0, topic=long))
    found = sessions.begin(more, by_id=False, now_ms=0)
    assert found is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 0
