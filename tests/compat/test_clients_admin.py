"""Administration through the clients' own admin calls, each seen by the others."""

from collections.abc import Callable

from tests.compat.drivers.base import Driver, GroupView, Message, wait_for
from tests.compat.drivers.registry import Feature, clients, names
from tests.compat.server import Connect, TopicMaker


@clients(Feature.TOPICS)
def test_topic_is_created_grown_and_deleted(
    driver: Driver, connect: Connect, new_name: Callable[[], str]
) -> None:
    """K3: create, describe, add partitions, delete, and create again under the same name."""
    topic, other = new_name(), connect("kcat")
    driver.create_topic(topic, partitions=2)
    wait_for("topic is listed", lambda: driver.topics().get(topic) == 2)
    assert other.topics().get(topic) == 2
    driver.produce(topic, [Message(b"old", partition=1)])
    driver.add_partitions(topic, 5)
    wait_for("topic has grown", lambda: driver.topics().get(topic) == 5)
    driver.produce(topic, [Message(b"new", partition=4)])
    assert [r.value for r in driver.read(topic, 1, partition=1)] == [b"old"]
    assert [r.value for r in driver.read(topic, 1, partition=4)] == [b"new"]
    driver.delete_topic(topic)
    wait_for("topic is gone", lambda: topic not in driver.topics())
    assert topic not in other.topics()
    driver.create_topic(topic, partitions=1)
    wait_for("topic is back", lambda: driver.topics().get(topic) == 1)
    driver.produce(topic, [Message(b"fresh")])
    assert [(r.offset, r.value) for r in driver.read(topic, 1)] == [(0, b"fresh")]


@clients()
def test_cluster_is_described_with_the_address_in_use(driver: Driver, bootstrap: str) -> None:
    """K3: every client sees the broker under the address it can connect to."""
    view = driver.cluster()
    assert view.addresses == {bootstrap}
    assert view.controller_known


@clients(Feature.CONFIGS)
def test_topic_settings_are_described_and_altered(
    driver: Driver, connect: Connect, new_name: Callable[[], str]
) -> None:
    """K3: retention is set at creation and later, and every client reads the same value."""
    topic = new_name()
    driver.create_topic(topic, config={"retention.ms": "3600000"})
    wait_for("topic is listed", lambda: topic in driver.topics())
    assert driver.config(topic)["retention.ms"] == "3600000"
    wanted = {"retention.ms": "7200000", "retention.bytes": "1000000"}
    driver.set_config(topic, wanted)

    def altered(reader: Driver) -> bool:
        found = reader.config(topic)
        return {name: found[name] for name in wanted} == wanted

    wait_for("the new settings", lambda: altered(driver))
    for reader in names(Feature.CONFIGS):
        assert altered(connect(reader)), reader


@clients(Feature.GROUPS)
def test_group_is_listed_and_described(
    driver: Driver, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K3, K7: a group is stable while it has a member, and empty with its positions after."""
    topic, group = topic_maker(partitions=2), new_name()
    driver.produce(topic, [Message(b"one")])
    member = driver.member(group, topic)
    try:
        wait_for("the member has all", lambda: member.partitions() == {0, 1})
        assert group in driver.groups()
        assert driver.group(group) == GroupView("stable", 1)
    finally:
        member.close()
    driver.consume_group(group, topic, 1)
    wait_for("the group is empty", lambda: driver.group(group) == GroupView("empty", 0))
    assert group in driver.groups()


@clients(Feature.OFFSETS)
def test_group_positions_are_listed_and_altered(
    driver: Driver, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K3, K7: positions can be set for a group without members, and it starts there."""
    topic, group = topic_maker(partitions=2), new_name()
    driver.produce(topic, [Message(b"%d" % number) for number in range(6)])
    driver.consume_group(group, topic, 1)
    assert driver.committed(group, topic, [0, 1]) == {0: 1}
    driver.set_committed(group, topic, {0: 4, 1: 0})
    assert driver.committed(group, topic, [0, 1]) == {0: 4, 1: 0}
    assert [r.value for r in driver.consume_group(group, topic, 2)] == [b"4", b"5"]


@clients(Feature.DELETE_GROUP)
def test_group_is_deleted_with_its_positions(
    driver: Driver, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K3: a deleted group is not listed, and starts at the beginning when it comes back."""
    topic, group = topic_maker(), new_name()
    driver.produce(topic, [Message(b"0"), Message(b"1")])
    driver.consume_group(group, topic, 2)
    assert group in driver.groups()
    driver.delete_group(group)
    assert group not in driver.groups()
    assert driver.committed(group, topic, [0]) == {}
    assert [r.value for r in driver.consume_group(group, topic, 1)] == [b"0"]


@clients(Feature.DELETE_RECORDS)
def test_records_below_an_offset_are_deleted(driver: Driver, topic_maker: TopicMaker) -> None:
    """K3: after delete-records the log begins at the offset given, inside a batch too."""
    topic = topic_maker()
    driver.produce(topic, [Message(b"%d" % number) for number in range(10)])
    driver.delete_records(topic, 0, 7)
    assert [r.offset for r in driver.read(topic, 3)] == [7, 8, 9]
    assert [r.offset for r in driver.read(topic, 3, start=2, reset="earliest")] == [7, 8, 9]
