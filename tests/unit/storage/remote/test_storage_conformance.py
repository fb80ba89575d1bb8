"""The conformance suite on the local storage node, and on one behind a real socket."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from tests.unit.storage.remote.storage_conformance import StorageNodeConformance
from tests.unit.storage.remote.storage_door import open_local, remote, storage_door

from dovetail.storage import StorageNode


class TestLocal(StorageNodeConformance):
    """By direct call."""

    @pytest_asyncio.fixture
    async def node(self, tmp_path: Path) -> AsyncIterator[StorageNode]:
        local = open_local(tmp_path)
        yield local
        await local.close()


class TestRemote(StorageNodeConformance):
    """Through frames."""

    @pytest_asyncio.fixture
    async def node(self, tmp_path: Path) -> AsyncIterator[StorageNode]:
        async with storage_door(tmp_path) as door:
            async with remote(door) as node:
                yield node
            assert not door.violations
            assert not door.failures
