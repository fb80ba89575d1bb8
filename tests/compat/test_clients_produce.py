"""Producing and reading back, with every client, every codec and every part of a record."""

import os

import pytest
from tests.compat.drivers.base import Driver, Message
from tests.compat.drivers.registry import CLIENTS, Feature, clients
from tests.compat.server import Connect, TopicMaker

#: librdkafka refuses values above 1,000,000 bytes by default; brokers take 1 MiB per batch.
NEAR_LIMIT_BYTES = 990_000


def sample(client: str, codec: str) -> list[Message]:
    """Messages that use what the client can express, marked with the codec."""
    features = CLIENTS[client].features
    mark = codec.encode()
    messages = [
        Message(mark + b" plain"),
        Message(mark + b" keyed", key=b"k"),
        Message(bytes(range(256)) * 8, key=b"\x00\xff\xfe"),
        Message(b"compressible " * 500, key=b"long"),
        Message(None, key=mark + b" tombstone"),
        Message(b"headers", key=b"h", headers=(("a", b"1"), ("a", b"2"), ("b", b""))),
    ]
    if Feature.EMPTY_VALUE in features:
        messages.append(Message(b"", key=b""))
    if Feature.NULL_HEADER in features:
        messages.append(Message(b"null header", headers=(("n", None), ("m", b"x"))))
    if Feature.CLIENT_TIMESTAMP in features:
        messages.append(Message(b"dated", key=b"t", timestamp_ms=1_600_000_000_123))
    return messages


@pytest.mark.parametrize("producer", list(CLIENTS))
def test_every_client_reads_what_one_client_wrote(
    producer: str, connect: Connect, topic_maker: TopicMaker
) -> None:
    """K1, K2: a batch of any codec is read by every client as it was written by any other."""
    topic, writer = topic_maker(), connect(producer)
    sent: list[tuple[str, Message]] = []
    for codec in writer.codecs:
        messages = sample(producer, codec)
        writer.produce(topic, messages, codec=codec)
        sent += [(codec, message) for message in messages]
    for name in CLIENTS:
        reader = connect(name)
        strange = (place for place, (codec, _) in enumerate(sent) if codec not in reader.codecs)
        readable = sent[: next(strange, len(sent))]
        records = reader.read(topic, len(readable))
        assert [r.offset for r in records] == list(range(len(readable))), name
        for (_, message), record in zip(readable, records, strict=True):
            assert record.content == (message.key, message.value, message.headers), name
            if message.timestamp_ms is not None:
                assert record.timestamp_ms == message.timestamp_ms, name


@clients()
def test_client_sets_a_timestamp_of_now_by_itself(
    driver: Driver, topic_maker: TopicMaker, now_ms: int
) -> None:
    """K1, K2: the timestamp of a record is the one that its client gave."""
    topic = topic_maker()
    driver.produce(topic, [Message(b"now")])
    (record,) = driver.read(topic, 1)
    assert abs(record.timestamp_ms - now_ms) < 60_000


@clients()
def test_message_near_the_size_limit_is_carried_unchanged(
    driver: Driver, topic_maker: TopicMaker
) -> None:
    """K1, K2: random bytes just below 1 MB arrive as they were sent, small neighbours too."""
    topic = topic_maker()
    big = os.urandom(NEAR_LIMIT_BYTES // 2).hex().encode()
    sent = [b"before", big, b"after"]
    for value in sent:
        driver.produce(topic, [Message(value)])
    assert [record.value for record in driver.read(topic, 3)] == sent


@clients()
@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_order_is_kept_in_each_partition(
    driver: Driver, idempotent: bool, topic_maker: TopicMaker
) -> None:
    """K1, K4: many batches to several partitions keep their order, each offset used once."""
    topic = topic_maker(partitions=3)
    values = [f"value {number:05d} ".encode() * 10 for number in range(900)]
    sent = [Message(value, partition=number % 3) for number, value in enumerate(values)]
    sent.sort(key=lambda message: message.partition)
    driver.produce(topic, sent, codec="gzip", idempotent=idempotent)
    for partition in range(3):
        records = driver.read(topic, 300, partition=partition)
        assert [record.value for record in records] == values[partition::3]
        assert [record.offset for record in records] == list(range(300))
