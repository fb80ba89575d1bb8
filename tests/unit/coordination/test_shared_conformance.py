"""The conformance suite on a coordinator that another process shares, over real connections."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from tests.unit.coordination.conformance import CoordinatorConformance
from tests.unit.coordination.driving import CoordinatorFactory, new_files
from tests.unit.coordination.sharing import sharing

from dovetail.coordination import Coordinator, EmbeddedCoordinator
from dovetail.coordination.shared import SharedCoordinator


@asynccontextmanager
async def _shared(embedded: EmbeddedCoordinator) -> AsyncIterator[Coordinator]:
    async with (
        sharing(embedded) as node,
        await SharedCoordinator.open(node.address, client_id="test") as coordinator,
    ):
        yield coordinator


class TestShared(CoordinatorConformance):
    """Each call of the factory opens a new file, shares it and connects."""

    lease_ttl_ms: ClassVar[int] = 600

    @pytest.fixture
    def coordinator_factory(self, tmp_path: Path) -> CoordinatorFactory:
        return new_files(tmp_path, _shared)
