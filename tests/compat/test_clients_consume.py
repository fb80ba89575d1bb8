"""Consuming by assignment: where a reader starts, and what happens outside the log."""

import pytest
from tests.compat.drivers.base import ClientError, Driver, Message, wait_for
from tests.compat.drivers.registry import Feature, clients
from tests.compat.server import Connect, TopicMaker

#: One message a second, from a fixed date on.
START_MS = 1_700_000_000_000


def numbered(count: int) -> list[Message]:
    return [
        Message(str(number).encode(), timestamp_ms=START_MS + number * 1000)
        for number in range(count)
    ]


@clients()
def test_reading_starts_at_the_beginning_or_at_an_offset(
    driver: Driver, topic_maker: TopicMaker
) -> None:
    """K1: by assignment, from the beginning and from any offset inside a batch."""
    topic = topic_maker()
    driver.produce(topic, numbered(10))
    assert [r.offset for r in driver.read(topic, 10)] == list(range(10))
    for start in (0, 1, 7, 9):
        records = driver.read(topic, 10 - start, start=start)
        assert [r.value for r in records] == [b"%d" % n for n in range(start, 10)]


@clients(Feature.CLIENT_TIMESTAMP)
def test_seek_by_time_finds_the_first_record_not_older(
    driver: Driver, topic_maker: TopicMaker
) -> None:
    """K1: a time between two records leads to the later one, also in a compressed batch."""
    topic = topic_maker()
    messages = numbered(12)
    driver.produce(topic, messages[:6], codec="gzip")
    driver.produce(topic, messages[6:])
    assert driver.offset_at(topic, 0, START_MS - 1) == 0
    assert driver.offset_at(topic, 0, START_MS + 3000) == 3
    assert driver.offset_at(topic, 0, START_MS + 3001) == 4
    assert driver.offset_at(topic, 0, START_MS + 8500) == 9
    records = driver.read(topic, 3, start=driver.offset_at(topic, 0, START_MS + 8500))
    assert [record.value for record in records] == [b"9", b"10", b"11"]


def test_kcat_seeks_by_time(topic_maker: TopicMaker, connect: Connect) -> None:
    """K1: kcat, which sets no timestamps, finds those that another client set."""
    topic = topic_maker()
    connect("confluent").produce(topic, numbered(5))
    kcat = connect("kcat")
    assert kcat.offset_at(topic, 0, START_MS + 1500) == 2
    assert kcat.offset_at(topic, 0, START_MS + 4001) in (None, 5)


@clients()
def test_reader_waits_at_the_end_for_what_comes(driver: Driver, topic_maker: TopicMaker) -> None:
    """K1: an offset at the end of the log is a place to wait, not an error."""
    topic = topic_maker()
    driver.produce(topic, numbered(2))
    member = driver.member(f"{topic}-group", topic)
    try:
        seen: list[bytes | None] = []

        def reached(count: int) -> bool:
            seen.extend(record.value for record in member.take())
            return len(seen) >= count

        wait_for("the first two", lambda: reached(2))
        driver.produce(topic, [Message(b"late")])
        wait_for("the late one", lambda: reached(3))
        assert seen == [b"0", b"1", b"late"]
    finally:
        member.close()


@clients()
def test_offset_out_of_range_resets_to_the_earliest(
    driver: Driver, topic_maker: TopicMaker
) -> None:
    """K1: a reader beyond the end with policy "earliest" goes on at the beginning."""
    topic = topic_maker()
    driver.produce(topic, numbered(3))
    records = driver.read(topic, 3, start=1000, reset="earliest")
    assert [record.offset for record in records] == [0, 1, 2]


@clients(Feature.RESET_ERROR)
def test_offset_out_of_range_is_an_error_without_a_policy(
    driver: Driver, topic_maker: TopicMaker
) -> None:
    """K1: with no policy the client reports the broker's "offset out of range"."""
    topic = topic_maker()
    driver.produce(topic, numbered(3))
    with pytest.raises(ClientError, match=r"(?i)offset.?out.?of.?range"):
        driver.read(topic, 1, start=1000, reset="none")
