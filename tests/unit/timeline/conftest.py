"""Fixtures of the timeline's unit tests."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.database_servers import PostgresServer
from tests.unit.timeline.store_conformance import NOW_MS

from dovetail.clock import SystemClock
from dovetail.coordination import Coordinator, EmbeddedCoordinator
from dovetail.timeline.message import TimelineId
from dovetail.timeline.stores.memory import MemoryStores
from dovetail.timeline.stores.protocol import Stores, TimelineStore

#: Timelines of tests that share a database.
numbers = itertools.count(1_000)


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    """In memory, unless a suite says otherwise."""
    yield MemoryStores(lambda: NOW_MS)


@pytest.fixture
async def store(stores: Stores) -> AsyncIterator[TimelineStore]:
    """A timeline of the test's own."""
    number = TimelineId(next(numbers))
    await stores.provision(number)
    opened = await stores.open(number)
    yield opened
    await opened.close()
    await stores.drop(number)


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[Coordinator]:
    """In a file of the test's own."""
    opened = await EmbeddedCoordinator.open(tmp_path / "c.sqlite", clock=SystemClock())
    yield opened
    await opened.close()


@pytest.fixture
def dsn(postgres_server: PostgresServer) -> str:
    """A database of the test's own, where its module has none for all."""
    return postgres_server.create_database().dsn
