"""Consumer groups: shares, commits, restarts, members that go with and without a word."""

from collections.abc import Callable, Sequence

import pytest
from tests.compat.drivers.base import Driver, Member, Message, Record, wait_for
from tests.compat.drivers.kcat import KcatMember
from tests.compat.drivers.registry import CLIENTS, Feature, clients, names
from tests.compat.server import Connect, TopicMaker

PARTITIONS = 4
ALL = frozenset(range(PARTITIONS))


def shared(members: Sequence[Member]) -> bool:
    """Whether every partition has one owner, and every member has a share."""
    shares = [member.partitions() for member in members]
    return all(shares) and sorted(part for share in shares for part in share) == sorted(ALL)


def fill(driver: Driver, topic: str, count: int, partitions: int = 1) -> list[bytes]:
    values = [b"%d" % number for number in range(count)]
    messages = [Message(v, partition=n % partitions) for n, v in enumerate(values)]
    driver.produce(topic, sorted(messages, key=lambda message: message.partition))
    return values


def collect(members: Sequence[Member], count: int) -> list[Record]:
    """The first `count` records that these members read together."""
    records: list[Record] = []

    def enough() -> bool:
        for member in members:
            records.extend(member.take())
        return len(records) >= count

    wait_for(f"{count} records", enough)
    return records


@clients()
def test_two_members_share_and_the_last_one_gets_all(
    driver: Driver, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K1, K7: two members each end with a share; when one leaves, the other gets all."""
    topic, group = topic_maker(partitions=PARTITIONS), new_name()
    members = [driver.member(group, topic)]
    try:
        wait_for("the first has all", lambda: members[0].partitions() == ALL)
        members.append(driver.member(group, topic))
        wait_for("both have a share", lambda: shared(members))
        values = fill(driver, topic, 40, PARTITIONS)
        records = collect(members, 40)
        assert sorted(r.value or b"" for r in records) == sorted(values)
        members.pop(0).close()
        wait_for("the second has all", lambda: members[0].partitions() == ALL)
    finally:
        for member in members:
            member.close()


@clients()
def test_restarted_client_resumes_behind_its_commit(
    driver: Driver, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K1, K7: what was committed is not read again, what was not is."""
    topic, group = topic_maker(), new_name()
    values = fill(driver, topic, 10)
    first = driver.consume_group(group, topic, 6)
    rest = driver.consume_group(group, topic, 4)
    assert [record.value for record in first + rest] == values


@pytest.mark.parametrize("committer", list(CLIENTS))
def test_committed_offset_is_the_same_for_every_client(
    committer: str, connect: Connect, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K1, K7: the position that one client committed is seen, and used, by the others."""
    topic, group = topic_maker(), new_name()
    values = fill(connect("confluent"), topic, 12)
    read = connect(committer).consume_group(group, topic, 2)
    for reader in names(Feature.OFFSETS):
        assert connect(reader).committed(group, topic, [0]) == {0: 2}, reader
    for heir in CLIENTS:
        read += connect(heir).consume_group(group, topic, 2)
    assert [record.value for record in read] == values


def test_clients_of_different_make_share_one_group(
    connect: Connect, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K1, K7: librdkafka, aiokafka, kafka-python and kcat agree on "range" in one group."""
    topic, group = topic_maker(partitions=PARTITIONS), new_name()
    members: list[Member] = []
    try:
        for name in ("confluent", "aiokafka", "kafka-python", "kcat"):
            members.append(connect(name).member(group, topic))
            wait_for(f"{name} has a share", lambda: shared(members))
        values = fill(connect("confluent"), topic, 40, PARTITIONS)
        records = collect(members, 40)
        assert sorted(r.value or b"" for r in records) == sorted(values)
    finally:
        for member in members:
            member.close()


def test_member_that_dies_in_silence_loses_its_share(
    connect: Connect, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K7: after its session timeout a killed member's partitions go to the living one."""
    topic, group = topic_maker(partitions=PARTITIONS), new_name()
    survivor = connect("confluent").member(group, topic)
    victim = connect("kcat").member(group, topic)
    assert isinstance(victim, KcatMember)
    try:
        wait_for("both have a share", lambda: shared([survivor, victim]))
        victim.kill()
        wait_for("the survivor has all", lambda: survivor.partitions() == ALL)
    finally:
        survivor.close()


@clients(Feature.STATIC_MEMBER)
def test_static_member_returns_to_its_share_without_a_rebalance(
    driver: Driver, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K7: a static member that restarts within its session gets the same partitions back."""
    topic, group = topic_maker(partitions=PARTITIONS), new_name()
    members = [driver.member(group, topic, instance="one")]
    try:
        wait_for("the first has all", lambda: members[0].partitions() == ALL)
        members.append(driver.member(group, topic, instance="two"))
        wait_for("both have a share", lambda: shared(members))
        kept, share = members[0].partitions(), members[1].partitions()
        members.pop().close()
        members.append(driver.member(group, topic, instance="two"))
        wait_for("the second is back", lambda: members[1].partitions() == share)
        assert members[0].partitions() == kept
        fill(driver, topic, 8, PARTITIONS)
        assert len(collect(members, 8)) == 8
    finally:
        for member in members:
            member.close()
