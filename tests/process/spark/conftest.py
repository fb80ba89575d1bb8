"""Spark tables and topics, on a node and on a real Apache Kafka."""

from collections.abc import Iterator

import pytest
from tests.conftest import RunningNode
from tests.kafka_server import running_kafka

#: Retention and compaction look at once what they may delete.
_QUICK = {"log.cleaner.backoff.ms": "100", "log.initial.task.delay.ms": "100"}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a Kafka of this module listens."""
    with running_kafka(tmp_path_factory.mktemp("kafka"), _QUICK) as server:
        yield server.bootstrap


@pytest.fixture(params=["dovetail", "kafka"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The brokers: those of a node, or of Apache Kafka."""
    if request.param == "kafka":
        found: str = request.getfixturevalue("kafka")
        return found
    node: RunningNode = request.getfixturevalue("node")
    return node.bootstrap
