"""Clients that a thread keeps from task to task."""

import gc
import threading
import warnings
from typing import Protocol

from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import client_of


class Node(Protocol):
    """What the `node` fixture gives."""

    bootstrap: str


def test_a_thread_that_ends_closes_its_connections(node: Node) -> None:
    """T9: connections are kept per thread, and no longer than it lives."""

    def work() -> None:
        assert client_of(Brokers(node.bootstrap)).partitions(None) is not None
        assert client_of(Brokers(node.bootstrap)) is client_of(Brokers(node.bootstrap))

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        del thread
        gc.collect()
    assert [str(one.message) for one in told] == []
