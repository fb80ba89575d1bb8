"""A node under watch, for the tests of one module."""

from collections.abc import Iterator

import pytest
from tests.conftest import running_node
from tests.fuzz.hostile_client import Watch

#: Topics come into being only where a test creates them, so that what is there can be compared;
#: a frame has to be complete soon, so that a test need not wait for long.
_SETTINGS = {"log_topic_auto_create": "false", "kafka_frame_read_ms": "500"}


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    """Closed to strangers, with a known topic."""
    with running_node(tmp_path_factory.mktemp("listener") / "node", _SETTINGS) as node:
        yield Watch(node)
