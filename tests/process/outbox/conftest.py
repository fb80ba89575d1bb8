"""A Kafka and a database for each test of the outbox."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import running_node
from tests.outbox_kit import new_database, new_topic, other_kafka


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Kafka that no test stops."""
    given = other_kafka()
    if given is not None:
        yield given
        return
    with running_node(tmp_path_factory.mktemp("outbox") / "node") as node:
        yield node.bootstrap


@pytest.fixture
def topic(kafka: str) -> str:
    """A new topic of three partitions."""
    return new_topic(kafka)


@pytest.fixture(params=["postgres", "maria", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database of each kind, with the tables."""
    return new_database(request.param, request.getfixturevalue, tmp_path)


@pytest.fixture
def postgres(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database on PostgreSQL, with the tables."""
    return new_database("postgres", request.getfixturevalue, tmp_path)


@pytest.fixture
def new_database_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Makes databases: one for each example of a property."""
    return lambda kind: new_database(kind, request.getfixturevalue, tmp_path)
