"""The operator's Kafka client, without a cluster."""

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from dovetail.admin.kafka import Kafka, check_not_internal
from dovetail.errors import InvalidInput, TopicExists, TopicUnknown, Uncertain, Unreachable


def client(admin: Any = None, *, bootstrap: str = "h:1") -> Kafka:
    return Kafka(bootstrap, timeout_s=1.0, client_id="test", _admin=admin)


def metadata_of(leaders: dict[int, int]) -> Any:
    partitions = {n: SimpleNamespace(leader=leader, replicas=[1]) for n, leader in leaders.items()}
    return SimpleNamespace(
        brokers={1: SimpleNamespace(host="h", port=1)},
        topics={"orders": SimpleNamespace(partitions=partitions)},
    )


def test_a_leader_that_is_gone_is_none() -> None:
    """U4: a leader that is not a broker any more counts as none."""
    admin = SimpleNamespace(list_topics=lambda timeout: metadata_of({0: 1, 1: 2, 2: -1}))
    found = client(admin).metadata()
    assert found.without_leader == [("orders", 1), ("orders", 2)]
    assert found.partitions("orders", "none") == [("orders", 0), ("orders", 1), ("orders", 2)]
    with pytest.raises(TopicUnknown, match="did you mean 'orders'"):
        found.topic("order")


def test_every_address_is_tried() -> None:
    """F86: a list that begins with a dead broker is a list; if none answers, all are named."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client(bootstrap=f"127.0.0.1:1,127.0.0.1:{port}").check()
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1, 127\.0\.0\.1:2: connection refused"):
        client(bootstrap="127.0.0.1:1,127.0.0.1:2").check()
    with pytest.raises(InvalidInput, match="host:port"):
        client(bootstrap="nonsense:port").check()


def test_errors_say_what_they_mean() -> None:
    """R3, U7: silence is unreachable for a question and uncertain for a change."""

    def failing(code: int) -> Any:
        def action() -> None:
            raise KafkaException(KafkaError(code))

        return action

    kafka = client()
    with pytest.raises(TopicExists):
        kafka.call("creating", failing(KafkaError.TOPIC_ALREADY_EXISTS))
    with pytest.raises(Unreachable, match="asking: no answer from h:1 within 1 s"):
        kafka.call("asking", failing(KafkaError._TIMED_OUT))
    with pytest.raises(Uncertain, match="may or may not have happened"):
        kafka.call("creating", failing(KafkaError._TIMED_OUT), changes=True)


def test_nobody_changes_internal_topics() -> None:
    """R3: neither Dovetail's own nor Kafka's."""
    check_not_internal(["orders", "dovetail.pipelines"])
    for name in ("__dovetail_groups", "__consumer_offsets"):
        with pytest.raises(InvalidInput, match="internal"):
            check_not_internal(["orders", name])
