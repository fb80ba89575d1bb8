"""The conformance suite on the embedded coordinator."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from tests.unit.coordination.conformance import CoordinatorConformance
from tests.unit.coordination.driving import CoordinatorFactory, open_file

from dovetail.coordination import Coordinator


class TestEmbedded(CoordinatorConformance):
    """Each call of the factory opens a new file."""

    lease_ttl_ms: ClassVar[int] = 600

    @pytest.fixture
    def coordinator_factory(self, tmp_path: Path) -> CoordinatorFactory:
        numbers = itertools.count()

        @asynccontextmanager
        async def open_new() -> AsyncIterator[Coordinator]:
            path = tmp_path / f"coordination-{next(numbers)}.db"
            async with await open_file(path) as coordinator:
                yield coordinator

        return open_new
