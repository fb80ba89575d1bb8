"""Idempotent producers whose answer is lost, and node restarts in between."""

import json

import pytest
from confluent_kafka import Producer
from tests.compat.drivers.base import CALL_SECONDS_MAX, Driver, Message, wait_for
from tests.compat.drivers.registry import CLIENTS, connect
from tests.compat.server import Proxied, new_topic

VALUES = [b"%d" % number for number in range(5)]


def stored(reader: Driver, topic: str) -> list[bytes | None]:
    """All that the topic holds: a last message marks the end."""
    reader.produce(topic, [Message(b"end")])
    values: list[bytes | None] = []
    while b"end" not in values:
        values += [record.value for record in reader.read(topic, 1, start=len(values))]
    return values[:-1]


@pytest.mark.parametrize("name", list(CLIENTS))
def test_batch_whose_answer_was_lost_is_stored_once(name: str, proxied: Proxied) -> None:
    """K4: the client sends the same batch again, and the broker stores it once."""
    driver = connect(name, proxied.proxy.address)
    try:
        topic = new_topic(connect("confluent", proxied.proxy.address), 1, {})
        proxied.proxy.lose_answers(2)
        driver.produce(topic, [Message(value) for value in VALUES], idempotent=True)
        assert proxied.proxy.answers_lost == 2
        assert proxied.proxy.produce_requests >= 3
        assert stored(driver, topic) == VALUES
    finally:
        driver.close()


def test_without_idempotence_the_lost_answer_makes_a_duplicate(proxied: Proxied) -> None:
    """K4: the counter-test: the proxy forces a retry that only idempotence makes harmless."""
    driver = connect("confluent", proxied.proxy.address)
    topic = new_topic(driver, 1, {})
    proxied.proxy.lose_answers(1)
    driver.produce(topic, [Message(value) for value in VALUES], idempotent=False)
    assert proxied.proxy.answers_lost == 1
    assert stored(driver, topic) == VALUES * 2


@pytest.mark.parametrize("name", list(CLIENTS))
@pytest.mark.usefixtures("node_only")
def test_batch_is_stored_once_across_a_killed_node(name: str, proxied: Proxied) -> None:
    """K4: the node is killed after it stored the batch; after its restart it knows the batch."""
    node = proxied.node
    assert node is not None

    def restart() -> None:
        node.kill()
        node.start()

    driver = connect(name, proxied.proxy.address)
    try:
        topic = new_topic(connect("confluent", proxied.proxy.address), 1, {})
        proxied.proxy.lose_answers(1, on_lost=restart)
        driver.produce(topic, [Message(value) for value in VALUES], idempotent=True)
        assert proxied.proxy.answers_lost == 1
        assert stored(driver, topic) == VALUES
    finally:
        driver.close()


@pytest.mark.parametrize("known", [True, False], ids=["known before", "new"])
@pytest.mark.usefixtures("node_only")
def test_who_is_ahead_of_a_new_owner_keeps_its_epoch(known: bool, proxied: Proxied) -> None:
    """K4: the first batch is refused, the second reaches an owner that has just begun.

    A new epoch would be one on all partitions, and what waits for answers elsewhere sent anew.
    """
    node = proxied.node
    assert node is not None
    admin = connect("confluent", proxied.proxy.address)
    topic = new_topic(admin, 1, {})
    epochs: list[int] = []
    producer = Producer(
        {
            "bootstrap.servers": proxied.proxy.address,
            "enable.idempotence": True,
            "batch.num.messages": 1,
            "linger.ms": 0,
            "statistics.interval.ms": 50,
            "log_level": 0,
            "stats_cb": lambda text: epochs.append(json.loads(text)["eos"]["producer_epoch"]),
        }
    )
    before = VALUES[:1] if known else []
    for value in before:
        producer.produce(topic, value)
        assert producer.flush(CALL_SECONDS_MAX) == 0
    node.kill()
    node.start()
    proxied.proxy.refuse_next()
    for value in VALUES[len(before) :]:
        producer.produce(topic, value)
    assert producer.flush(CALL_SECONDS_MAX) == 0
    assert proxied.proxy.refused == 1
    epochs.clear()
    wait_for("statistics", lambda: producer.poll(0.1) >= 0 and bool(epochs))
    assert epochs[-1] == 0
    assert stored(admin, topic) == VALUES
