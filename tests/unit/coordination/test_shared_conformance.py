"""The conformance suite on a coordinator that another process shares, over real connections."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from tests.unit.coordination.conformance import CoordinatorConformance
from tests.unit.coordination.driving import CoordinatorFactory, open_file
from tests.unit.coordination.sharing import sharing

from dovetail.coordination import Coordinator
from dovetail.coordination.shared import SharedCoordinator


class TestShared(CoordinatorConformance):
    """Each call of the factory opens a new file, shares it and connects."""

    lease_ttl_ms: ClassVar[int] = 600

    @pytest.fixture
    def coordinator_factory(self, tmp_path: Path) -> CoordinatorFactory:
        numbers = itertools.count()

        @asynccontextmanager
        async def open_new() -> AsyncIterator[Coordinator]:
            path = tmp_path / f"coordination-{next(numbers)}.db"
            async with (
                await open_file(path) as embedded,
                sharing(embedded) as node,
                await SharedCoordinator.open(node.address, client_id="test") as coordinator,
            ):
                yield coordinator

        return open_new
