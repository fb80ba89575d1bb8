"""The backends that send directly, without a Kafka."""

import os
import threading
from typing import Any

import pytest
from tests.etcd_server import free_ports

from dovetail.errors import Uncertain
from dovetail.outbox import Message
from dovetail.outbox.backends import KafkaBackend

DEADLINE_S = 60.0


def nowhere(**more: Any) -> dict[str, Any]:
    """The settings of a client whose Kafka is not there."""
    return {"bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}", **more}


def test_an_idle_producer_reports_what_was_not_delivered() -> None:
    """F6: `on_error` is called though nobody publishes any more, also if it raises."""
    told: list[str] = []
    done = threading.Event()

    def on_error(topic: str, _reason: str) -> None:
        told.append(topic)
        if len(told) == 2:
            done.set()
        raise ValueError("a user's mistake")

    backend = KafkaBackend(nowhere(**{"message.timeout.ms": 100}), wait=False, on_error=on_error)
    backend.publish([Message("orders", b"1"), Message("orders", b"2")], None)
    assert done.wait(DEADLINE_S)
    backend.close()
    assert told == ["orders", "orders"]


def test_a_close_says_what_is_not_acknowledged() -> None:
    """F6: what may be lost is not lost silently."""
    backend = KafkaBackend(nowhere(), wait=False)
    backend.publish([Message("orders", b"1")], None)
    assert backend.flush(0.01) == 1
    with pytest.raises(Uncertain, match="1 messages were not acknowledged"):
        backend.close(0.01)
    backend.close()


class PretendedProducer:
    """Acknowledges everything, and counts questions about partitions."""

    def __init__(self) -> None:
        self.asked, self.partitions, self.sent = 0, 3, list[int]()
        self.error: str | None = None

    def list_topics(self, topic: str, timeout: float) -> Any:
        del timeout
        self.asked += 1
        known = type("Topic", (), {"partitions": dict.fromkeys(range(self.partitions))})
        return type("Topics", (), {"topics": {topic: known}})

    def produce(self, topic: str, *, partition: int, on_delivery: Any, **_: Any) -> None:
        self.sent.append(partition)
        on_delivery(self.error, type("Sent", (), {"topic": lambda _: topic})())

    def poll(self, _timeout_s: float) -> int:
        return 0


def test_partition_keys_do_not_cost_a_request_each() -> None:
    """F67: the number of partitions is asked for once, and again after an error."""
    backend, pretended = KafkaBackend({}, wait=True), PretendedProducer()
    backend._producer, backend._pid = pretended, os.getpid()
    backend.publish([Message("t", b"", partition_key=b"%d" % n) for n in range(300)], None)
    assert pretended.asked == 1
    assert set(pretended.sent) == {0, 1, 2}

    pretended.partitions, pretended.error = 1, "the partition is gone"
    with pytest.raises(Uncertain):
        backend.publish([Message("t", b"", partition_key=b"1")], None)
    pretended.error = None
    backend.publish([Message("t", b"", partition_key=b"%d" % n) for n in range(9)], None)
    assert pretended.asked == 2
    assert pretended.sent[-9:] == [0] * 9
