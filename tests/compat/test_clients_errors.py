"""What a client says when the broker refuses: its own error for the protocol's code."""

from collections.abc import Callable

import pytest
from tests.compat.drivers.base import ClientError, Driver, Message, wait_for
from tests.compat.drivers.registry import CLIENTS, Feature, clients, connect
from tests.compat.server import TopicMaker

#: Above the 1 MiB that a broker takes, below what the drivers let their clients send.
TOO_LARGE_BYTES = 3 * 1024 * 1024


@pytest.mark.parametrize("name", list(CLIENTS))
def test_unknown_topic_is_reported_when_topics_are_not_made_by_themselves(
    name: str, strict_bootstrap: str, new_name: Callable[[], str]
) -> None:
    """K1, K5: with automatic creation off, producing to an unknown topic fails and makes none."""
    driver, topic = connect(name, strict_bootstrap), new_name()
    try:
        with pytest.raises(ClientError) as caught:
            driver.produce(topic, [Message(b"lost")], timeout_s=2)
        assert caught.value.name == "UNKNOWN_TOPIC_OR_PARTITION", caught.value
        assert topic not in driver.topics()
    finally:
        driver.close()


@clients(Feature.TOPICS)
def test_topic_that_exists_is_not_created_again(driver: Driver, topic_maker: TopicMaker) -> None:
    """K3: creating a topic twice is refused, and the first one stays as it was."""
    topic = topic_maker(partitions=2)
    with pytest.raises(ClientError) as caught:
        driver.create_topic(topic, partitions=3)
    assert caught.value.name == "TOPIC_ALREADY_EXISTS"
    assert driver.topics()[topic] == 2


@clients(Feature.TOPICS)
def test_invalid_number_of_partitions_is_refused(
    driver: Driver, topic_maker: TopicMaker, new_name: Callable[[], str]
) -> None:
    """K3: no topic has zero partitions, and partitions cannot be taken away."""
    topic = new_name()
    with pytest.raises(ClientError) as caught:
        driver.create_topic(topic, partitions=0)
    assert caught.value.name == "INVALID_PARTITIONS"
    assert topic not in driver.topics()
    topic = topic_maker(partitions=3)
    with pytest.raises(ClientError) as caught:
        driver.add_partitions(topic, 2)
    assert caught.value.name == "INVALID_PARTITIONS"
    assert driver.topics()[topic] == 3


@clients()
def test_message_too_large_is_refused_and_the_next_is_taken(
    driver: Driver, topic_maker: TopicMaker
) -> None:
    """K1, K2: a batch above the limit is refused by name, and nothing of it is stored."""
    topic = topic_maker()
    with pytest.raises(ClientError) as caught:
        driver.produce(topic, [Message(bytes(TOO_LARGE_BYTES))])
    assert caught.value.name == "MESSAGE_TOO_LARGE"
    driver.produce(topic, [Message(b"small")])
    assert [(r.offset, r.value) for r in driver.read(topic, 1)] == [(0, b"small")]


@clients(Feature.DELETE_GROUP)
def test_group_with_members_is_not_deleted(driver: Driver, topic_maker: TopicMaker) -> None:
    """K3, K7: deleting a group in use is refused."""
    topic = topic_maker()
    group = f"{topic}-group"
    member = driver.member(group, topic)
    try:
        wait_for("the member has all", lambda: member.partitions() == {0})
        with pytest.raises(ClientError, match=r"(?i)non.?empty.?group"):
            driver.delete_group(group)
    finally:
        member.close()
