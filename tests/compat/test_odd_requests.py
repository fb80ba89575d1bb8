"""What a broker says to requests that no good client sends; green on Apache Kafka 4.3 too."""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.compat.raw import RawClient
from tests.compat.server import TopicMaker

from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.record_batch import TRANSACTIONAL, NewRecord, build_batch

WAIT_S = 60.0
_LATER = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
}


@pytest.fixture
def raw(bootstrap: str) -> Iterator[RawClient]:
    with RawClient(bootstrap) as client:
        for kind in (0, 1):  # On Kafka the first question makes the coordinator.
            client.ask(m.FindCoordinatorRequest(key_type=kind, coordinator_keys=("any",)))
        yield client


def asked(client: RawClient, request: Any, version: int | None = None) -> Any:
    """The answer, when it is not to come again."""
    deadline = time.monotonic() + WAIT_S
    while True:
        answer = client.ask(request, version)
        if answer.error_code not in _LATER or time.monotonic() > deadline:
            return answer
        time.sleep(0.05)


def asked_for_row(
    client: RawClient, request: Any, version: int | None, row: Callable[[Any], Any]
) -> ErrorCode:
    """The code of one row, when it is not to come again."""
    deadline = time.monotonic() + WAIT_S
    while True:
        code = ErrorCode(row(client.ask(request, version)).error_code)
        if code not in _LATER or time.monotonic() > deadline:
            return code


_JOINS = {"rebalance_timeout_ms": 5000, "topic_partitions": (), "subscribed_topic_names": ("t",)}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, ErrorCode.NONE),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "nonesuch"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "(?=x)y"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": ""}, ErrorCode.NONE),
        ({"subscribed_topic_regex": "(?i)ATT.*"}, ErrorCode.NONE),
        ({"subscribed_topic_regex": r"\Qatt.\E.*"}, ErrorCode.NONE),
        ({"subscribed_topic_regex": "att-[[:alnum:]]+"}, ErrorCode.NONE),
    ],
    ids=str,
)
def test_heartbeats(
    raw: RawClient, new_name: Callable[[], str], changes: dict[str, Any], code: ErrorCode
) -> None:
    """K9, F88: a member that joins a group of the new protocol."""
    wanted = {"group_id": new_name(), "member_id": "a", "member_epoch": 0, **_JOINS, **changes}
    answer = asked(raw, m.ConsumerGroupHeartbeatRequest(**wanted))
    assert ErrorCode(answer.error_code) is code


def test_a_static_member_twice(raw: RawClient, new_name: Callable[[], str]) -> None:
    """K9: the second is refused until the first has left for a while; then the first is fenced."""
    group = new_name()

    def beat(member: str, epoch: int, **changes: Any) -> Any:
        wanted = {"group_id": group, "member_id": member, "member_epoch": epoch, **changes}
        return asked(raw, m.ConsumerGroupHeartbeatRequest(**wanted, instance_id="one"))

    assert beat("a", 0, **_JOINS).error_code == ErrorCode.NONE
    assert beat("b", 0, **_JOINS).error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    for _ in range(2):
        left = beat("a", -2)
        assert (left.error_code, left.member_epoch) == (ErrorCode.NONE, -2)
    taken = beat("b", 0, **_JOINS)
    assert taken.error_code == ErrorCode.NONE
    assert beat("a", taken.member_epoch).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert beat("b", taken.member_epoch + 7).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def begin(
    client: RawClient,
    name: str,
    producer_id: int = -1,
    epoch: int = -1,
    *,
    timeout_ms: int = 60_000,
) -> Any:
    return asked(
        client,
        m.InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        ),
    )


def test_a_producer_begins_anew_within_its_transaction(
    raw: RawClient, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K8: KIP-360; it goes on under the next epoch. Half an identity is refused."""
    topic, name = topic_maker(), new_name()
    first = begin(raw, name)
    assert first.error_code == ErrorCode.NONE
    add = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=first.producer_id,
        v3_and_below_producer_epoch=first.producer_epoch,
        v3_and_below_topics=(m.TransactionTopic(name=topic, partitions=(0,)),),
    )
    (row,) = raw.ask(add, 3).results_by_topic_v3_and_below[0].results_by_partition
    assert row.partition_error_code == ErrorCode.NONE

    for _ in range(2):  # Also if the answer was lost.
        again = begin(raw, name, first.producer_id, first.producer_epoch)
        assert again.error_code == ErrorCode.NONE
        assert again.producer_id == first.producer_id
        assert again.producer_epoch == first.producer_epoch + 1
    assert begin(raw, name, first.producer_id, -1).error_code == ErrorCode.INVALID_REQUEST
    assert begin(raw, name, -1, 0).error_code == ErrorCode.INVALID_REQUEST
    assert begin(raw, name, first.producer_id + 99, 0).error_code == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("version", [4, 5])
def test_a_producer_whose_transaction_timed_out_goes_on(
    raw: RawClient, topic_maker: TopicMaker, new_name: Callable[[], str], version: int
) -> None:
    """K8: KIP-588. It can do nothing more in that transaction; it begins anew under its identity,
    or with KIP-890 aborts, and has the next epoch. Another's beginning fences it for good."""
    topic, name = topic_maker(), new_name()
    first = begin(raw, name, timeout_ms=1000)
    who = (first.producer_id, first.producer_epoch)
    add = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=who[0],
        v3_and_below_producer_epoch=who[1],
        v3_and_below_topics=(m.TransactionTopic(name=topic, partitions=(0,)),),
    )
    (row,) = raw.ask(add, 3).results_by_topic_v3_and_below[0].results_by_partition
    assert row.partition_error_code == ErrorCode.NONE
    asks, deadline = m.DescribeTransactionsRequest(transactional_ids=(name,)), time.monotonic()
    while raw.ask(asks).transaction_states[0].transaction_state != "CompleteAbort":
        assert time.monotonic() < deadline + WAIT_S
        time.sleep(0.05)

    def end(commit: bool) -> tuple[ErrorCode, int]:
        answer = asked(
            raw,
            m.EndTxnRequest(
                transactional_id=name,
                producer_id=who[0],
                producer_epoch=who[1],
                committed=commit,
            ),
            version,
        )
        return ErrorCode(answer.error_code), answer.producer_epoch

    bumps = version == 5
    assert end(True)[0] is (ErrorCode.INVALID_TXN_STATE if bumps else ErrorCode.PRODUCER_FENCED)
    if bumps:
        assert end(False) == (ErrorCode.NONE, who[1] + 1)
    else:
        assert end(False)[0] is ErrorCode.PRODUCER_FENCED
    for _ in range(2):  # Also if the answer was lost.
        again = begin(raw, name, *who)
        assert (again.error_code, again.producer_epoch) == (ErrorCode.NONE, who[1] + 1)
    assert begin(raw, name).producer_epoch == who[1] + 2
    assert begin(raw, name, *who).error_code == ErrorCode.PRODUCER_FENCED


def position_of(
    topic: str, transactional_id: str, group: str, producer_id: int, epoch: int
) -> m.TxnOffsetCommitRequest:
    """A position of the group, in a transaction."""
    position = m.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=3, committed_metadata=None
    )
    return m.TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group,
        producer_id=producer_id,
        producer_epoch=epoch,
        topics=(m.TxnOffsetCommitRequestTopic(name=topic, partitions=(position,)),),
    )


def test_positions_of_a_producer_that_is_another(
    raw: RawClient, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K8, F88: the transactional id belongs to somebody else."""
    name = new_name()
    own = begin(raw, name)
    request = position_of(topic_maker(), name, new_name(), own.producer_id + 99, own.producer_epoch)
    found = asked_for_row(raw, request, None, lambda a: a.topics[0].partitions[0])
    assert found is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_positions_of_a_group_that_is_not_part(
    raw: RawClient,
    topic_maker: TopicMaker,
    new_name: Callable[[], str],
    version: int,
    code: ErrorCode,
) -> None:
    """K8, F88: who knows that it can abort is told to do so."""
    name = new_name()
    own = begin(raw, name)
    request = position_of(topic_maker(), name, new_name(), own.producer_id, own.producer_epoch)
    assert asked_for_row(raw, request, version, lambda a: a.topics[0].partitions[0]) is code


@pytest.mark.parametrize("version", [11, 12])
def test_a_batch_of_a_producer_that_is_another(
    raw: RawClient, topic_maker: TopicMaker, new_name: Callable[[], str], version: int
) -> None:
    """K8, F88: to abort would not help it: the transactional id is somebody else's, or nobody's."""
    own = begin(raw, new_name())
    batch = build_batch(
        [NewRecord(1, None, b"v")],
        producer_id=own.producer_id,
        producer_epoch=own.producer_epoch,
        sequence=0,
        attributes=TRANSACTIONAL,
    )
    data = m.ProduceRequestPartition(index=0, records=batch)
    request = m.ProduceRequest(
        transactional_id=new_name(),
        acks=-1,
        timeout_ms=30_000,
        topic_data=(m.ProduceRequestTopic(name=topic_maker(), partition_data=(data,)),),
    )
    found = asked_for_row(raw, request, version, lambda a: a.responses[0].partition_responses[0])
    assert found is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_acknowledgements_that_cannot_be_leave_the_session(
    raw: RawClient, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K10, F88: each is refused for its partition, and the next request of the session counts."""
    topic, group, member = topic_maker(), new_name(), str(uuid.uuid4())
    (known,) = raw.ask(m.MetadataRequest(topics=(m.MetadataRequestTopic(name=topic),))).topics
    joins = {"member_epoch": 0, "subscribed_topic_names": (topic,)}
    join = m.ShareGroupHeartbeatRequest(group_id=group, member_id=member, **joins)
    assert asked(raw, join).error_code == ErrorCode.NONE
    opened = m.ShareFetchRequest(
        group_id=group,
        member_id=member,
        share_session_epoch=0,
        max_wait_ms=0,
        min_bytes=0,
        max_records=1,
        batch_size=1,
        topics=(
            m.ShareFetchRequestTopic(
                topic_id=known.topic_id,
                partitions=(m.ShareFetchRequestPartition(partition_index=0),),
            ),
        ),
        forgotten_topics_data=(),
    )
    assert asked(raw, opened).error_code == ErrorCode.NONE

    accept, renew = 1, 4
    wrong, not_its_own = ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD_STATE
    said = [(6, 5, accept, wrong), (5, 5, 9, wrong), (5, 5, renew, wrong)]
    for epoch, (first, last, kind, code) in enumerate([*said, (5, 5, 1, not_its_own)], start=1):
        batch = m.ShareAcknowledgementBatch(
            first_offset=first, last_offset=last, acknowledge_types=(kind,)
        )
        partition = m.ShareAcknowledgeRequestPartition(
            partition_index=0, acknowledgement_batches=(batch,)
        )
        answer = raw.ask(
            m.ShareAcknowledgeRequest(
                group_id=group,
                member_id=member,
                share_session_epoch=epoch,
                topics=(
                    m.ShareAcknowledgeRequestTopic(
                        topic_id=known.topic_id, partitions=(partition,)
                    ),
                ),
            )
        )
        assert answer.error_code == ErrorCode.NONE, (first, last, kind)
        (row,) = answer.responses[0].partitions
        assert row.error_code == code, (first, last, kind)


def share_reader(client: RawClient, topic: str, group: str) -> Callable[[int], list[Any]]:
    """A new member of a share group; the argument is the epoch of its session."""
    (known,) = client.ask(m.MetadataRequest(topics=(m.MetadataRequestTopic(name=topic),))).topics
    member = str(uuid.uuid4())
    joins = {"member_epoch": 0, "subscribed_topic_names": (topic,)}
    join = m.ShareGroupHeartbeatRequest(group_id=group, member_id=member, **joins)
    assert asked(client, join).error_code == ErrorCode.NONE

    def fetch(epoch: int) -> list[Any]:
        rows = (m.ShareFetchRequestPartition(partition_index=0),)
        named = (m.ShareFetchRequestTopic(topic_id=known.topic_id, partitions=rows),)
        request = m.ShareFetchRequest(
            group_id=group,
            member_id=member,
            share_session_epoch=epoch,
            max_wait_ms=500 if epoch >= 0 else 0,
            min_bytes=1,
            max_records=9,
            batch_size=9,
            topics=named if epoch == 0 else (),
            forgotten_topics_data=(),
        )
        answer = asked(client, request)
        assert answer.error_code == ErrorCode.NONE
        rows = [row for one in answer.responses for row in one.partitions]
        return [(a.first_offset, a.delivery_count) for row in rows for a in row.acquired_records]

    return fetch


def test_a_member_that_ends_gives_back_what_it_has(
    raw: RawClient,
    bootstrap: str,
    topic_maker: TopicMaker,
    new_name: Callable[[], str],
) -> None:
    """K10: by closing its session or by losing its connection, at once and not when its lock ends.
    The delivery counts: a record on which every member fails is given up."""
    topic, group = topic_maker(), new_name()
    earliest = m.IncrementalAlterConfigsRequestConfig(
        name="share.auto.offset.reset", config_operation=0, value="earliest"
    )
    own = m.IncrementalAlterConfigsRequestResource(
        resource_type=32, resource_name=group, configs=(earliest,)
    )
    raw.ask(m.IncrementalAlterConfigsRequest(resources=(own,), validate_only=False))
    data = m.ProduceRequestPartition(index=0, records=build_batch([NewRecord(1, None, b"v")]))
    to = m.ProduceRequestTopic(name=topic, partition_data=(data,))
    write = m.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(to,))
    row = asked_for_row(raw, write, 11, lambda a: a.responses[0].partition_responses[0])
    assert row is ErrorCode.NONE

    begun = time.monotonic()
    for delivery in range(1, 6):
        with RawClient(bootstrap) as client:
            fetch = share_reader(client, topic, group)
            epoch, found = 0, fetch(0)
            while not found:
                assert time.monotonic() < begun + 25, f"delivery {delivery}"  # A lock has 30 s.
                epoch += 1
                found = fetch(epoch)
            assert found == [(0, delivery)]
            if delivery % 2:
                assert fetch(-1) == []
    fetch = share_reader(raw, topic, group)
    assert fetch(0) == fetch(1) == []


def test_a_topic_is_deleted_by_its_name_or_by_its_id(
    raw: RawClient, topic_maker: TopicMaker
) -> None:
    """K3, F88: a request that gives both, or neither, deletes nothing."""
    topic = topic_maker()
    asks = m.MetadataRequest(topics=(m.MetadataRequestTopic(name=topic),))
    known = raw.ask(asks).topics[0].topic_id
    for name, topic_id in ((topic, known), (topic, b"x" * 16), (None, bytes(16))):
        wanted = m.DeleteTopicsRequestTopic(name=name, topic_id=topic_id)
        (row,) = raw.ask(m.DeleteTopicsRequest(topics=(wanted,), timeout_ms=5000)).responses
        assert row.error_code == ErrorCode.INVALID_REQUEST
    assert raw.ask(asks).topics[0].topic_id == known


@pytest.mark.parametrize("epoch", [-1, 2**31 - 1])
def test_the_end_of_an_epoch_that_never_was(
    raw: RawClient, topic_maker: TopicMaker, epoch: int
) -> None:
    """K6, F88: it is not known; a client that asks with what it never heard of is not misled."""
    wanted = m.OffsetForLeaderEpochRequestPartition(partition=0, leader_epoch=epoch)
    topic = m.OffsetForLeaderEpochRequestTopic(topic=topic_maker(), partitions=(wanted,))
    answer = raw.ask(m.OffsetForLeaderEpochRequest(replica_id=-1, topics=(topic,)))
    (row,) = answer.topics[0].partitions
    assert (row.error_code, row.leader_epoch, row.end_offset) == (ErrorCode.NONE, -1, -1)


def test_positions_are_forgotten_in_partitions_that_there_are(
    raw: RawClient, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K3, F88: OffsetDelete; of others it is told, and the rest goes."""
    topic, group = topic_maker(), new_name()
    position = m.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    named = m.OffsetCommitRequestTopic(name=topic, partitions=(position,))
    commit = m.OffsetCommitRequest(group_id=group, member_id="", topics=(named,))
    deadline = time.monotonic() + WAIT_S
    while (code := raw.ask(commit, 9).topics[0].partitions[0].error_code) in _LATER:
        assert time.monotonic() < deadline
    assert code == ErrorCode.NONE

    numbers = tuple(m.OffsetDeleteRequestPartition(partition_index=n) for n in (0, 9))
    wanted = m.OffsetDeleteRequestTopic(name=topic, partitions=numbers)
    answer = raw.ask(m.OffsetDeleteRequest(group_id=group, topics=(wanted,)))
    found = {row.partition_index: row.error_code for row in answer.topics[0].partitions}
    assert found == {0: ErrorCode.NONE, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
