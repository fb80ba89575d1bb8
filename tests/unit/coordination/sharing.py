"""A node that shares its embedded coordination, without the rest of a node."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.unit.storage.remote.storage_door import Door

from dovetail.addresses import Address
from dovetail.coordination import EmbeddedCoordinator
from dovetail.coordination.service import CoordinationService
from dovetail.wire import Connection, Reply
from dovetail.wire import calls as wire_calls


class SharingNode(Door):
    """The listener of such a node; `kill` and `open` are a lost connection."""

    def __init__(self, embedded: EmbeddedCoordinator) -> None:
        service = CoordinationService(embedded)

        def dispatch(connection: Connection, frame: memoryview) -> Reply:
            if wire_calls.api_key_of(frame) == wire_calls.HELLO_KEY:
                return wire_calls.answer_hello(
                    frame, node="test", now_ms=0, services=["coordination"]
                )
            return service(connection, frame)

        super().__init__(dispatch)

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)


@asynccontextmanager
async def sharing(embedded: EmbeddedCoordinator) -> AsyncIterator[SharingNode]:
    """Shares a coordinator inside."""
    node = SharingNode(embedded)
    await node.open()
    try:
        yield node
    finally:
        await node.kill()
        assert not node.failures
