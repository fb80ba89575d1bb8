"""A real Apache Kafka for tests. Without Java, Maven or the jars they skip, and fail in CI."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.peers import kafka
from bench.peers.kafka import KafkaServer
from bench.peers.server import PeerMissing

__all__ = ["KafkaServer", "running_kafka"]


@contextmanager
def running_kafka(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[KafkaServer]:
    """A broker for the time of the block."""
    try:
        with kafka.running(folder, settings or {}) as server:
            yield server
    except PeerMissing as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
