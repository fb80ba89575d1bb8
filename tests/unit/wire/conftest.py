"""Every test of this folder runs on both loops: the node has uvloop, its users may not."""

import pytest
from tests.unit.wire.door import LOOPS


@pytest.fixture(params=sorted(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    """The name of the loop to run on."""
    return str(request.param)
