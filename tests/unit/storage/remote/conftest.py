"""Every test of this folder runs on both loops: the node has uvloop, its users may not."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

# Lets a failed assertion in the conformance suite show its values.
pytest.register_assert_rewrite("tests.unit.storage.remote.storage_conformance")


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
