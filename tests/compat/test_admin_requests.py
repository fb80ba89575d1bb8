"""Admin requests that Python's clients do not send, and quotas that hold."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from tests.compat.raw import RawClient
from tests.compat.server import TopicMaker

from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.record_batch import encode_batch

_WAIT_S = 60.0
_LATER = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


@pytest.fixture
def raw(bootstrap: str) -> Iterator[RawClient]:
    with RawClient(bootstrap) as client:
        yield client


def set_quota(raw: RawClient, client_id: str, key: str, value: float | None) -> None:
    op = m.AlterClientQuotasRequestOp(key=key, value=value or 0.0, remove=value is None)
    entity = m.AlterClientQuotasRequestEntity(entity_type="client-id", entity_name=client_id)
    entry = m.AlterClientQuotasRequestEntry(entity=(entity,), ops=(op,))
    answer = raw.ask(m.AlterClientQuotasRequest(entries=(entry,), validate_only=False))
    assert answer.entries[0].error_code == ErrorCode.NONE, answer


def test_a_producer_is_slowed_to_its_quota(
    raw: RawClient, bootstrap: str, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K13: the client is told how long it waits, and gets no more than its rate and a burst."""
    topic, client_id = topic_maker(), new_name()
    set_quota(raw, client_id, "producer_byte_rate", 40_000.0)
    told: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "throttle_cb": lambda event: told.append(event.throttle_time),
            "linger.ms": 0,
            "batch.num.messages": 1,
        }
    )
    began = time.monotonic()
    for _ in range(10):
        producer.produce(topic, bytes(10_000))
    assert producer.flush(30) == 0
    # 100 KB at 40 KB/s, of which a second's may come at once, and the last one is not waited for.
    assert time.monotonic() - began >= 0.9
    producer.poll(0)
    assert told and max(told) > 0

    set_quota(raw, client_id, "producer_byte_rate", None)
    began = time.monotonic()
    producer.produce(topic, bytes(10_000))
    assert producer.flush(30) == 0


@pytest.mark.usefixtures("node_only")
def test_a_busy_client_waits(raw: RawClient, bootstrap: str, new_name: Callable[[], str]) -> None:
    """K13: the time that the broker works for it counts, whatever it asks."""
    client_id = new_name()
    set_quota(raw, client_id, "request_percentage", 0.1)
    with RawClient(bootstrap, client_id) as busy:
        asked = m.MetadataRequest(topics=())
        assert any(busy.ask(asked).throttle_time_ms for _ in range(200))
    set_quota(raw, client_id, "request_percentage", None)


@pytest.mark.usefixtures("node_only")
def test_settings_say_where_they_come_from(
    raw: RawClient, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K12, K13: a topic's own value before the broker's default; groups and brokers have theirs."""
    topic = topic_maker(retention_ms="5000")

    def described(kind: int, name: str, *keys: str) -> Any:
        wanted = m.DescribeConfigsRequestResource(
            resource_type=kind, resource_name=name, configuration_keys=keys or None
        )
        (found,) = raw.ask(
            m.DescribeConfigsRequest(resources=(wanted,), include_synonyms=True)
        ).results
        assert found.error_code == ErrorCode.NONE, found
        return {one.name: one for one in found.configs}

    own = described(2, topic, "retention.ms", "segment.ms")
    assert [(s.name, s.source) for s in own["retention.ms"].synonyms] == [
        ("retention.ms", 1),
        ("log.retention.ms", 5),
    ]
    assert [s.name for s in own["segment.ms"].synonyms] == ["log.roll.ms"]
    assert described(32, new_name()).keys() >= {
        "consumer.heartbeat.interval.ms",
        "consumer.session.timeout.ms",
        "share.record.lock.duration.ms",
    }
    assert described(4, "", "num.partitions")["num.partitions"].value == "1"


def test_a_group_has_its_own_interval(raw: RawClient, new_name: Callable[[], str]) -> None:
    """K9, K12: `consumer.heartbeat.interval.ms` of one group, which its members are told with the
    next heartbeat; others keep the broker's. Green on Apache Kafka 4.3 too."""
    names = [new_name(), new_name()]

    def intervals() -> list[int]:
        found = []
        for name in names:
            joins = {"rebalance_timeout_ms": 5000, "topic_partitions": ()}
            beat = m.ConsumerGroupHeartbeatRequest(
                group_id=name,
                member_id="a",
                member_epoch=0,
                subscribed_topic_names=("t",),
                **joins,  # type: ignore[arg-type]
            )
            deadline = time.monotonic() + _WAIT_S
            while (answer := raw.ask(beat)).error_code in _LATER:
                assert time.monotonic() < deadline, answer
            assert answer.error_code == ErrorCode.NONE, answer
            found.append(answer.heartbeat_interval_ms)
        return found

    before = intervals()
    own = m.IncrementalAlterConfigsRequestConfig(
        name="consumer.heartbeat.interval.ms", config_operation=0, value="7000"
    )
    resource = m.IncrementalAlterConfigsRequestResource(
        resource_type=32, resource_name=names[0], configs=(own,)
    )
    altered = raw.ask(m.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False))
    assert altered.responses[0].error_code == ErrorCode.NONE, altered
    deadline = time.monotonic() + _WAIT_S
    while (after := intervals()) != [7000, before[1]]:
        assert time.monotonic() < deadline, after


def test_partitions_are_described_page_by_page(raw: RawClient, topic_maker: TopicMaker) -> None:
    """K13: every partition once, whatever the page; a topic that is not there has its error."""
    topics = sorted(topic_maker(partitions=n) for n in (3, 2))
    wanted = [m.DescribeTopicPartitionsRequestTopic(name=name) for name in (*topics, "zz.none")]
    seen: list[tuple[str, int]] = []
    cursor = None
    for _ in range(10):
        answer = raw.ask(
            m.DescribeTopicPartitionsRequest(
                topics=tuple(wanted), response_partition_limit=2, cursor=cursor
            )
        )
        for topic in answer.topics:
            seen += [(topic.name, p.partition_index) for p in topic.partitions]
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert topic.error_code == (unknown if topic.name == "zz.none" else ErrorCode.NONE)
        found = answer.next_cursor
        if found is None:
            break
        cursor = m.DescribeTopicPartitionsRequestCursor(
            topic_name=found.topic_name, partition_index=found.partition_index
        )
    assert len(seen) == len(set(seen)) == 5


def test_positions_by_topic_id(
    raw: RawClient, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K7, K13: OffsetCommit and OffsetFetch 10 name topics by id; an unknown id is told."""
    topic, group = topic_maker(), new_name()
    metadata = raw.ask(m.MetadataRequest(topics=(m.MetadataRequestTopic(name=topic),)))
    known, unknown = metadata.topics[0].topic_id, bytes(range(16))
    raw_group = _await_coordinator(raw, group)
    assert raw_group == ErrorCode.NONE
    position = m.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=7, committed_metadata=None
    )
    answer = raw.ask(
        m.OffsetCommitRequest(
            group_id=group,
            member_id="",
            topics=tuple(
                m.OffsetCommitRequestTopic(topic_id=each, partitions=(position,))
                for each in (known, unknown)
            ),
        )
    )
    codes = {t.topic_id: t.partitions[0].error_code for t in answer.topics}
    assert codes == {known: ErrorCode.NONE, unknown: ErrorCode.UNKNOWN_TOPIC_ID}

    for wanted in (
        (m.OffsetFetchRequestTopic(topic_id=known, partition_indexes=(0,)),),
        None,
    ):
        asked = m.OffsetFetchRequestGroup(group_id=group, topics=wanted)
        (found,) = raw.ask(m.OffsetFetchRequest(groups=(asked,))).groups
        assert [(t.topic_id, t.partitions[0].committed_offset) for t in found.topics] == [
            (known, 7)
        ]


def test_produce_by_topic_id(raw: RawClient, topic_maker: TopicMaker, bootstrap: str) -> None:
    """K1, K13: Produce 13 names topics by id, and stores nothing in one that was made anew."""
    topic = topic_maker()
    asked = m.MetadataRequest(topics=(m.MetadataRequestTopic(name=topic),))
    known, unknown = raw.ask(asked).topics[0].topic_id, bytes(range(16))

    def write(*topic_ids: bytes, partition: int = 0) -> dict[bytes, tuple[int, int]]:
        batch = bytes(encode_batch([(None, b"x")], timestamp=1))
        answer = raw.ask(
            m.ProduceRequest(
                acks=-1,
                timeout_ms=30_000,
                topic_data=tuple(
                    m.ProduceRequestTopic(
                        topic_id=each,
                        partition_data=(m.ProduceRequestPartition(index=partition, records=batch),),
                    )
                    for each in topic_ids
                ),
            ),
            13,
        )
        rows = [(one.topic_id, one.partition_responses[0]) for one in answer.responses]
        return {topic_id: (row.error_code, row.base_offset) for topic_id, row in rows}

    refused = (int(ErrorCode.UNKNOWN_TOPIC_ID), -1)
    assert write(known, unknown) == {known: (0, 0), unknown: refused}
    assert write(b"\0" * 16) == {b"\0" * 16: refused}
    missing = (int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), -1)
    assert write(known, partition=7) == {known: missing}

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(60)
    for _ in range(200):
        made = admin.create_topics([NewTopic(topic, 1)])[topic]
        if made.exception(60) is None:
            break
        time.sleep(0.05)
    assert made.exception(60) is None
    assert write(known) == {known: refused}


@pytest.mark.parametrize(
    ("pattern", "ids"),
    [
        (None, ["a.one", "a.two", "b"]),
        ("", ["a.one", "a.two", "b"]),
        (r"a\..*", ["a.one", "a.two"]),
        ("one", []),
        ("b|a.one", ["a.one", "b"]),
        ("(", None),
    ],
)
def test_transactions_are_listed_by_a_pattern(
    raw: RawClient, bootstrap: str, new_name: Callable[[], str], pattern: str | None, ids: Any
) -> None:
    """K8, K13: ListTransactions 2; an expression matches a whole id, and a wrong one is told."""
    prefix = "listed."
    for name in ("a.one", "a.two", "b"):
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": prefix + name})
        producer.init_transactions(60)
    asked = prefix + pattern.replace("|", f"|{prefix}") if pattern else pattern
    request = m.ListTransactionsRequest(
        state_filters=(), producer_id_filters=(), transactional_id_pattern=asked
    )
    answer = raw.ask(request, 2)
    if ids is None:
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        return
    assert answer.error_code == ErrorCode.NONE
    found = [one.transactional_id for one in answer.transaction_states]
    listed = sorted(name for name in found if name.startswith(prefix))
    assert listed == [prefix + name for name in ids]


def _await_coordinator(raw: RawClient, group: str) -> int:
    for _ in range(200):
        answer = raw.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=(group,)))
        if answer.coordinators[0].error_code == ErrorCode.NONE:
            break
        time.sleep(0.05)
    code: int = answer.coordinators[0].error_code
    return code


def test_admin_requests_with_odd_input_get_an_error_and_not_a_closed_connection(
    raw: RawClient, topic_maker: TopicMaker
) -> None:
    """K13, F88: unknown names, negative numbers and NUL are answered in Kafka's words."""
    topic, odd = topic_maker(), "a\0\N{SNOWMAN}"
    election = m.ElectLeadersRequestTopic(topic=topic, partitions=(-1, 0, 2**31 - 1))
    strange = m.ElectLeadersRequestTopic(topic=odd, partitions=(0,))
    answer = raw.ask(m.ElectLeadersRequest(election_type=0, topic_partitions=(election, strange)))
    codes = {
        (t.topic, p.partition_id): p.error_code
        for t in answer.replica_election_results
        for p in t.partition_result
    }
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {
        (topic, -1): unknown,
        (topic, 0): ErrorCode.ELECTION_NOT_NEEDED,
        (topic, 2**31 - 1): unknown,
        (odd, 0): unknown,
    }

    component = m.DescribeClientQuotasRequestComponent(entity_type=odd, match_type=9, match=None)
    answer = raw.ask(m.DescribeClientQuotasRequest(components=(component,), strict=True))
    assert answer.error_code != ErrorCode.NONE

    wanted = m.DescribeLogDirsRequestTopic(topic=odd, partitions=(-1,))
    answer = raw.ask(m.DescribeLogDirsRequest(topics=(wanted,)))
    assert all(not result.topics for result in answer.results)
    for version in range(3):
        part = m.DescribeQuorumRequestPartition(partition_index=-1)
        about = m.DescribeQuorumRequestTopic(topic_name=odd, partitions=(part,))
        raw.ask(m.DescribeQuorumRequest(topics=(about,)), version)


def test_a_consumer_of_many_partitions_names_them_once(
    raw: RawClient, bootstrap: str, topic_maker: TopicMaker
) -> None:
    """K13 (KIP-227): the first answer names all, an idle one nothing, and a record its own."""
    topic = topic_maker(partitions=50)
    wanted = tuple(
        m.FetchRequestPartition(partition=n, fetch_offset=0, partition_max_bytes=1 << 20)
        for n in range(50)
    )

    def ask(session: int, epoch: int, partitions: tuple[Any, ...], wait_ms: int = 0) -> Any:
        named = (m.FetchRequestTopic(topic=topic, partitions=partitions),) if partitions else ()
        return raw.ask(
            m.FetchRequest(
                max_wait_ms=wait_ms,
                min_bytes=1,
                session_id=session,
                session_epoch=epoch,
                topics=named,
            ),
            12,
        )

    first = ask(0, 0, wanted, 10)
    assert first.session_id > 0
    assert len(first.responses[0].partitions) == 50
    assert ask(first.session_id, 1, (), 10).responses == ()

    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"news", partition=33)
    assert producer.flush(30) == 0
    found = ask(first.session_id, 2, (), 5000)
    ((news,),) = (t.partitions for t in found.responses)
    assert (news.partition_index, news.high_watermark) == (33, 1)
    assert b"news" in b"".join(news.records)

    # It has that record now, and waits for the next one, which comes while it waits.
    moved = m.FetchRequestPartition(partition=33, fetch_offset=1, partition_max_bytes=1 << 20)
    assert ask(first.session_id, 3, (moved,), 10).responses == ()
    timer = threading.Timer(
        0.2, lambda: (producer.produce(topic, b"x", partition=7), producer.flush(9))
    )
    timer.start()
    found = ask(first.session_id, 4, (), 10_000)
    timer.join()
    assert [p.partition_index for t in found.responses for p in t.partitions] == [7]
    assert ask(first.session_id, 4, ()).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert ask(first.session_id + 1, 1, ()).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_an_unknown_id_is_told_in_every_version(bootstrap: str, version: int) -> None:
    """K1, F88: also in those whose answers have no room for a topic without a name."""
    wanted = m.MetadataRequestTopic(name=None, topic_id=b"\x07" * 16)
    with RawClient(bootstrap) as client:
        answer = client.ask(m.MetadataRequest(topics=(wanted,)), version)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.UNKNOWN_TOPIC_ID]


@pytest.mark.usefixtures("node_only")
def test_a_broker_shows_its_rack_and_serves_consumers_of_any(
    node_factory: Callable[..., Any], new_name: Callable[[], str]
) -> None:
    """L16: Metadata and DescribeCluster tell it; a consumer of another rack reads from the leader,
    as it does from Kafka unless a replica selector is configured there."""
    bootstrap, topic = node_factory(node_rack="zone-a").bootstrap, new_name()
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"here")
    assert producer.flush(30) == 0

    with RawClient(bootstrap) as raw:
        (broker,) = raw.ask(m.MetadataRequest(topics=())).brokers
        (described,) = raw.ask(
            m.DescribeClusterRequest(include_cluster_authorized_operations=False)
        ).brokers
        assert broker.rack == described.rack == "zone-a"

    given = {"bootstrap.servers": bootstrap, "group.id": topic, "client.rack": "zone-b"}
    reader = Consumer(given)
    reader.assign([TopicPartition(topic, 0, 0)])
    found = reader.poll(30)
    reader.close()
    assert found is not None
    assert found.value() == b"here"
