"""The conformance suite on the embedded coordinator."""

from pathlib import Path
from typing import ClassVar

import pytest
from tests.unit.coordination.conformance import CoordinatorConformance
from tests.unit.coordination.driving import CoordinatorFactory, new_files


class TestEmbedded(CoordinatorConformance):
    """Each call of the factory opens a new file."""

    lease_ttl_ms: ClassVar[int] = 600

    @pytest.fixture
    def coordinator_factory(self, tmp_path: Path) -> CoordinatorFactory:
        return new_files(tmp_path)
