"""Share groups' requests: sessions and their epochs, and what somebody without rights hears."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dovetail.access import Kind, Operation
from dovetail.clock import SystemClock
from dovetail.errors import Unavailable
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.share import acknowledge, fetch, groups, offsets
from dovetail.kafka.handlers.share.sessions import (
    CLOSES,
    OPENS,
    PARTITIONS_MAX,
    SESSION_PARTITIONS_MAX,
    Key,
    Session,
    ShareSessions,
)
from dovetail.log.groups.coordinator import GroupCoordinator
from dovetail.log.groups.types import GroupError, PartitionKey
from dovetail.log.share.calls import Looked

TOPIC = bytes(15) + b"\1"


class Only:
    """May do what is named, and nothing else."""

    principal = "mallory"

    def __init__(self, *may: tuple[Operation, Kind]) -> None:
        self.may = may

    def allows(self, operation: Operation, kind: Kind, name: str) -> bool:
        return (operation, kind) in self.may


class Metrics:
    """Counts nothing."""

    def error(self, api: str, code: str) -> None:
        """It is told to nobody."""


def backend() -> Backend:
    clock = SystemClock()
    made = SimpleNamespace(
        groups=SimpleNamespace(
            forbidden=GroupCoordinator.refusing(clock, GroupError.FORBIDDEN),
            of=lambda group_id: GroupCoordinator.refusing(clock, GroupError.NOT_COORDINATOR),
        ),
        log=SimpleNamespace(
            topic_by_id=lambda topic_id: SimpleNamespace(name="t", id=topic_id),
            topic=lambda name: SimpleNamespace(name=name, id="00" * 16, partitions=1),
        ),
        shares=SimpleNamespace(
            settings=SimpleNamespace(of=lambda group_id: SimpleNamespace(lock_ms=30_000))
        ),
        share_sessions=ShareSessions(),
        metrics=Metrics(),
        clock=clock,
    )
    return cast(Backend, made)


def call(*may: tuple[Operation, Kind], version: int = 2) -> Call:
    return Call(version, "client", "host", cast(Any, Only(*may)))


def share_fetch(epoch: int, **more: Any) -> m.ShareFetchRequest:
    given = {
        "group_id": "g",
        "member_id": "a",
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_records": 10,
        "batch_size": 10,
        "topics": (),
        "forgotten_topics_data": (),
        **more,
    }
    return m.ShareFetchRequest(share_session_epoch=epoch, **given)


def said(*kinds: int, first: int = 0, last: int = 0) -> tuple[m.ShareFetchRequestTopic, ...]:
    batch = m.ShareAcknowledgementBatch(
        first_offset=first, last_offset=last, acknowledge_types=kinds
    )
    partition = m.ShareFetchRequestPartition(partition_index=0, acknowledgement_batches=(batch,))
    return (m.ShareFetchRequestTopic(topic_id=TOPIC, partitions=(partition,)),)


READ_GROUP = (Operation.READ, Kind.GROUP)


async def test_what_no_rule_allows_is_refused() -> None:
    """K10: the group first, then the topic, as Kafka has it; nothing is looked at before."""
    node, nobody = backend(), call()
    beat = m.ShareGroupHeartbeatRequest(
        group_id="g", member_id="a", member_epoch=0, subscribed_topic_names=("t",)
    )
    code = (await groups.heartbeat(node, nobody, beat)).error_code
    assert code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    code = (await groups.heartbeat(node, call((Operation.DESCRIBE, Kind.TOPIC)), beat)).error_code
    assert code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    described = await groups.describe(
        node,
        nobody,
        m.ShareGroupDescribeRequest(group_ids=("g",), include_authorized_operations=False),
    )
    assert described.groups[0].error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert (await fetch.fetch(node, nobody, share_fetch(0))).error_code == (
        ErrorCode.GROUP_AUTHORIZATION_FAILED
    )
    asked = m.ShareAcknowledgeRequest(group_id="g", member_id="a", share_session_epoch=1, topics=())
    assert (await acknowledge.acknowledge(node, nobody, asked)).error_code == (
        ErrorCode.GROUP_AUTHORIZATION_FAILED
    )

    reader = call(READ_GROUP)
    partition = m.ShareFetchRequestPartition(partition_index=0)
    topics = (m.ShareFetchRequestTopic(topic_id=TOPIC, partitions=(partition,)),)
    found = await fetch.fetch(node, reader, share_fetch(0, topics=topics))
    row = found.responses[0].partitions[0]
    assert (row.error_code, row.acquired_records) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ())
    found = await fetch.fetch(node, reader, share_fetch(1, topics=said(1)))
    row = found.responses[0].partitions[0]
    assert row.acknowledge_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_offsets_want_rules() -> None:
    """K10: to describe, move and forget them."""
    node, nobody = backend(), call()
    group = m.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=None)
    shown = await offsets.describe_offsets(
        node, nobody, m.DescribeShareGroupOffsetsRequest(groups=(group,))
    )
    assert shown.groups[0].error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    moved = await offsets.alter_offsets(
        node, nobody, m.AlterShareGroupOffsetsRequest(group_id="g", topics=())
    )
    assert moved.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    forgotten = await offsets.delete_offsets(
        node, nobody, m.DeleteShareGroupOffsetsRequest(group_id="g", topics=())
    )
    assert forgotten.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (share_fetch(0, group_id=None), ErrorCode.INVALID_REQUEST),
        (share_fetch(0, member_id=""), ErrorCode.INVALID_REQUEST),
        (share_fetch(0, topics=said(1)), ErrorCode.INVALID_REQUEST),
        (share_fetch(1, topics=said(4)), ErrorCode.SHARE_SESSION_NOT_FOUND),
        (share_fetch(1), ErrorCode.SHARE_SESSION_NOT_FOUND),
        (share_fetch(-1), ErrorCode.SHARE_SESSION_NOT_FOUND),
        (share_fetch(-2), ErrorCode.SHARE_SESSION_NOT_FOUND),
    ],
)
async def test_what_no_client_sends_is_refused(request_: Any, code: ErrorCode) -> None:
    """K10: at once, and no session is made of it."""
    node = backend()
    assert (await fetch.fetch(node, call(READ_GROUP), request_)).error_code == code
    assert len(node.share_sessions) == 0


async def test_a_session_ends_with_the_connection_that_opened_it() -> None:
    """K10: what the member has is released at once; another session of it is left alone, and
    nothing is kept of one that has ended before."""
    node, released = backend(), []
    keeper = SimpleNamespace(release_all=released.append)
    cast(Any, node).shares.of = lambda *_: keeper
    reader = call(READ_GROUP, (Operation.READ, Kind.TOPIC))
    rows = (m.ShareFetchRequestPartition(partition_index=0),)
    topics = (m.ShareFetchRequestTopic(topic_id=TOPIC, partitions=rows),)
    first, second = (reader._replace(on_lost=set()) for _ in range(2))

    async def begins(line: Call) -> None:
        cast(Any, node).shares.let_go = lambda _: None
        opened = await fetch.fetch(node, line, share_fetch(0, topics=topics, max_records=0))
        assert opened.error_code == ErrorCode.NONE

    await begins(first)
    await begins(second)
    assert not first.on_lost
    (lost,) = second.on_lost or ()
    lost()
    assert released == ["a"]
    assert not len(node.share_sessions)
    assert not second.on_lost
    lost()
    assert released == ["a"]


def test_epochs_of_a_session_count_up() -> None:
    """K10: one that is lost or doubled is noticed; the largest is followed by 1."""
    sessions = ShareSessions()
    found = sessions.begin("g", "a", OPENS, owner="us", now_ms=0)
    assert isinstance(found, Session)
    assert sessions.begin("g", "a", 1, owner="us", now_ms=0) is found
    assert (
        sessions.begin("g", "a", 1, owner="us", now_ms=0) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    )
    assert sessions.begin("g", "b", 2, owner="us", now_ms=0) is ErrorCode.SHARE_SESSION_NOT_FOUND
    found.epoch = 2**31 - 1
    assert sessions.begin("g", "a", 2**31 - 1, owner="us", now_ms=0) is found
    assert sessions.begin("g", "a", 1, owner="us", now_ms=0) is found
    assert sessions.begin("g", "a", CLOSES, owner="us", now_ms=0) is found
    assert sessions.begin("g", "a", 2, owner="us", now_ms=0) is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_sessions_are_bounded_and_take_turns() -> None:
    """K10: a new one waits for an old one to be silent; each partition is first in its turn."""
    sessions = ShareSessions(2)
    for member in ("a", "b"):
        assert isinstance(sessions.begin("g", member, OPENS, owner="us", now_ms=0), Session)
    full = sessions.begin("g", "c", OPENS, owner="us", now_ms=1000)
    assert full is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    made = sessions.begin("g", "c", OPENS, owner="us", now_ms=200_000)
    assert isinstance(made, Session)
    assert len(sessions) == 2

    keys = [Key(TOPIC, number) for number in range(3)]
    made.update(keys, ())
    assert [made.turn()[0].number for _ in range(4)] == [0, 1, 2, 0]
    made.update((), keys[:2])
    assert made.turn() == keys[2:]
    assert sessions.uses("g", keys[2])
    assert not sessions.uses("h", keys[2])


def test_one_client_cannot_take_all_sessions() -> None:
    """K10, R8: who has the most of them, or of their partitions, gives way to who has fewer."""
    sessions = ShareSessions(10)
    for number in range(10):
        assert isinstance(sessions.begin("g", f"{number}", OPENS, owner="all", now_ms=0), Session)
    full = sessions.begin("g", "10", OPENS, owner="all", now_ms=1)
    assert full is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    for number in range(5):
        made = sessions.begin("h", f"{number}", OPENS, owner="other", now_ms=1)
        assert isinstance(made, Session) is (number < 5)
    full = sessions.begin("h", "5", OPENS, owner="other", now_ms=1)
    assert full is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    gone = sessions.begin("g", "0", 1, owner="all", now_ms=1)
    assert gone is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert isinstance(sessions.begin("g", "9", 1, owner="all", now_ms=1), Session)

    sessions = ShareSessions()
    keys = [Key(TOPIC, number) for number in range(SESSION_PARTITIONS_MAX)]
    for number in range(PARTITIONS_MAX // SESSION_PARTITIONS_MAX):
        made = sessions.begin("g", f"{number}", OPENS, owner="all", now_ms=0)
        assert isinstance(made, Session)
        assert sessions.update(made, keys, ()) is ErrorCode.NONE
    for owner, code in (
        ("other", ErrorCode.NONE),
        ("all", ErrorCode.SHARE_SESSION_LIMIT_REACHED),
    ):
        made = sessions.begin("h", owner, OPENS, owner=owner, now_ms=0)
        assert isinstance(made, Session)
        assert sessions.update(made, keys, ()) is code


async def test_a_new_session_begins_with_what_is_stored() -> None:
    """K10: a share that nobody uses is forgotten first: its group may have been moved since, while
    a member that died left it here."""
    node = backend()
    left: list[object] = []

    async def ready() -> None:
        raise Unavailable("far enough")

    keeper = SimpleNamespace(ready=ready)
    shares = cast(Any, node.shares)
    shares.of, shares.let_go = lambda *place: keeper, left.append
    partition = m.ShareFetchRequestPartition(partition_index=0)
    topics = (m.ShareFetchRequestTopic(topic_id=TOPIC, partitions=(partition,)),)
    reader = call(READ_GROUP, (Operation.READ, Kind.TOPIC))
    for epoch in (0, 1):
        await fetch.fetch(node, reader, share_fetch(epoch, topics=topics))
    assert left == [keeper]


async def test_who_has_not_logged_in_is_known_by_its_address() -> None:
    """K10, R8: all that come from there share what one client may have."""
    node = backend()
    answer = await fetch.fetch(node, Call(1, "client", "host"), share_fetch(0, max_records=0))
    assert answer.error_code == ErrorCode.NONE
    (session,) = node.share_sessions._sessions.values()
    assert session.owner == "host"


async def test_a_session_has_so_many_partitions_and_no_more() -> None:
    """K10, R8: topics that nobody has are kept too, request by request, and looked at each time."""
    node, reader = backend(), call(READ_GROUP)

    def topics(first: int) -> tuple[m.ShareFetchRequestTopic, ...]:
        numbers = range(first, first + SESSION_PARTITIONS_MAX)
        rows = tuple(m.ShareFetchRequestPartition(partition_index=number) for number in numbers)
        return (m.ShareFetchRequestTopic(topic_id=TOPIC, partitions=rows),)

    asked = share_fetch(0, topics=topics(0), max_records=0)
    assert (await fetch.fetch(node, reader, asked)).error_code == ErrorCode.NONE
    asked = share_fetch(1, topics=topics(1), max_records=0)
    refused = ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert (await fetch.fetch(node, reader, asked)).error_code == refused
    assert not len(node.share_sessions)


def test_all_sessions_have_so_many_partitions_and_no_more() -> None:
    """K10, R8: a member that comes when there is no room hears it."""
    sessions = ShareSessions()
    keys = [Key(TOPIC, number) for number in range(SESSION_PARTITIONS_MAX)]
    codes = []
    for number in range(PARTITIONS_MAX // SESSION_PARTITIONS_MAX + 1):
        session = sessions.begin("g", f"m{number}", OPENS, owner="us", now_ms=0)
        assert isinstance(session, Session)
        codes.append(sessions.update(session, keys, ()))
    assert codes[-2:] == [ErrorCode.NONE, ErrorCode.SHARE_SESSION_LIMIT_REACHED]


def test_what_is_said_twice_of_a_partition_is_heard() -> None:
    """K10: acknowledgements were dropped, and answered as if they had been taken."""
    twice = [(topic.topic_id, topic.partitions) for topic in (*said(1), *said(2, first=1, last=1))]
    assert acknowledge.said_of(twice) == {Key(TOPIC, 0): [(0, 0, (1,)), (1, 1, (2,))]}


async def test_a_group_is_not_moved_behind_the_end_of_a_log() -> None:
    """K10, R8: it would wait for records that may never come, and say nothing."""
    moved: dict[PartitionKey, tuple[str, int]] = {}

    async def move(group_id: str, starts: dict[PartitionKey, tuple[str, int]]) -> GroupError:
        moved.update(starts)
        return GroupError.NONE

    async def look(group_id: str, places: list[PartitionKey]) -> Looked:
        return Looked([10] * len(places), [None] * len(places), [()] * len(places))

    node = cast(Any, backend())
    node.groups.of = lambda group_id: SimpleNamespace(
        move_share=move, refusal=lambda group_id: GroupError.NONE
    )
    node.shares.look = look
    node.log.topic = lambda name: SimpleNamespace(name=name, id="00" * 16, partitions=3)
    rows = tuple(
        m.AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=start)
        for number, start in enumerate((10, 11, 2**63 - 1))
    )
    topics = (m.AlterShareGroupOffsetsRequestTopic(topic_name="t", partitions=rows),)
    asked = m.AlterShareGroupOffsetsRequest(group_id="g", topics=topics)
    reader = call(READ_GROUP, (Operation.READ, Kind.TOPIC))
    answer = await offsets.alter_offsets(node, reader, asked)
    codes = [row.error_code for row in answer.responses[0].partitions]
    refused = ErrorCode.OFFSET_OUT_OF_RANGE
    assert (answer.error_code, codes) == (0, [ErrorCode.NONE, refused, refused])
    assert moved == {PartitionKey("t", 0): ("00" * 16, 10)}
