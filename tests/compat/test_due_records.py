"""Records that are due later, from every foreign client that can send a header."""

import time

import pytest
from tests.compat.drivers.base import ClientError, Driver, Message
from tests.compat.drivers.registry import clients
from tests.compat.server import Connect, TopicMaker

pytestmark = pytest.mark.usefixtures("node_only")

DELAY_MS = 1_200


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@clients()
def test_a_record_appears_when_it_is_due(driver: Driver, topic_maker: TopicMaker) -> None:
    """K11: not before, once, in order of due times, with its key, value and headers."""
    # A client that takes longer than the delay to begin gets a longer one.
    for delay_ms in (DELAY_MS, 5 * DELAY_MS, 25 * DELAY_MS):
        topic = topic_maker(dovetail_due="true", message_timestamp_type="LogAppendTime")
        began_ms = now_ms()
        due = str(began_ms + delay_ms).encode()
        later = str(2 * delay_ms).encode()
        driver.produce(
            topic,
            [
                Message(b"last", key=b"k", headers=(("dovetail-delay", later), ("h", b"1"))),
                Message(b"now", key=b"k"),
                Message(b"due", key=b"k", headers=(("dovetail-due", due),)),
                Message(b"past", headers=(("dovetail-due", b"1"),)),
            ],
        )
        if now_ms() < began_ms + delay_ms:
            break
    assert [record.value for record in driver.read(topic, 2)] == [b"now", b"past"]

    found = driver.read(topic, 4)
    assert [record.value for record in found] == [b"now", b"past", b"due", b"last"]
    first, second = found[2], found[3]
    assert first.timestamp_ms >= began_ms + delay_ms
    assert second.timestamp_ms >= began_ms + 2 * delay_ms
    assert (first.key, second.key) == (b"k", b"k")
    assert [name for name, _ in first.headers] == ["dovetail-due-id"]
    assert second.headers[0] == ("h", b"1")


def test_an_idempotent_producer_goes_on(connect: Connect, topic_maker: TopicMaker) -> None:
    """K11, K4: batches of which all or some records wait are stored once, and nothing is a gap."""
    topic = topic_maker(dovetail_due="true")
    driver = connect("confluent")
    header = (("dovetail-delay", b"500ms"),)
    for number in range(6):
        headers = header if number % 3 else ()
        driver.produce(topic, [Message(b"%d" % number, headers=headers)], idempotent=True)
    messages = [Message(b"m%d" % n, headers=header if n % 2 else ()) for n in range(10)]
    for codec in driver.codecs:
        driver.produce(topic, messages, idempotent=True, codec=codec)
    found = [record.value for record in driver.read(topic, 6 + 10 * len(driver.codecs))]
    assert sorted(found, key=str) == sorted(
        [b"%d" % n for n in range(6)] + [b"m%d" % n for n in range(10)] * len(driver.codecs),
        key=str,
    )


@pytest.mark.parametrize(
    "headers",
    [
        (("dovetail-due", b"tomorrow"),),
        (("dovetail-due", b""),),
        (("dovetail-due", b"-5"),),
        (("dovetail-due", b"\xff\xfe"),),
        (("dovetail-due", b"99999999999999999"),),
        (("dovetail-delay", b"5x"),),
        (("dovetail-due", b"1"), ("dovetail-delay", b"1")),
        (("dovetail-delay", b"1h"), ("dovetail-key", b"")),
        (("dovetail-delay", b"1h"), ("dovetail-key", b"a\0b")),
    ],
)
def test_a_time_that_cannot_be_is_refused(
    connect: Connect, topic_maker: TopicMaker, headers: tuple[tuple[str, bytes], ...]
) -> None:
    """K11, R3, R6: with Kafka's INVALID_RECORD, and nothing of the batch is stored."""
    topic = topic_maker(dovetail_due="true")
    driver = connect("confluent")
    with pytest.raises(ClientError, match="INVALID_RECORD"):
        driver.produce(topic, [Message(b"bad", headers=headers)])
    driver.produce(topic, [Message(b"good")])
    assert [record.value for record in driver.read(topic, 1)] == [b"good"]


def test_without_the_setting_a_header_is_a_header(
    connect: Connect, topic_maker: TopicMaker
) -> None:
    """K11: other topics store records as they came."""
    topic, driver = topic_maker(), connect("confluent")
    headers = (("dovetail-delay", b"1h"),)
    driver.produce(topic, [Message(b"x", headers=headers)])
    assert driver.read(topic, 1)[0].headers == headers
