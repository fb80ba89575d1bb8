"""What the tests of this folder share."""

from pathlib import Path

import pytest

# Lets a failed assertion in the conformance suite show its values.
pytest.register_assert_rewrite(
    "tests.unit.coordination.conformance", "tests.unit.coordination.conformance_model"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a coordination file can be made."""
    return tmp_path / "coordination.db"
