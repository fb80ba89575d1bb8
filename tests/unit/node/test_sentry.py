"""The sentry against real sockets."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from dovetail.coordination import Coordinator, LeaseId
from dovetail.coordination.membership import Member, Membership
from dovetail.errors import Unavailable
from dovetail.node.sentry import RETRY_MS, Sentry
from dovetail.storage.identity import lock_folder


class OneOther:
    """A membership with one other node in it."""

    def __init__(self, port: int) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.other = Member(2, "127.0.0.1", port, ("storage",), "1", incarnation="first", lease=77)

    def members(self) -> dict[int, Member]:
        return {2: self.other}


class Revoked:
    """A coordination service that is only asked to end leases."""

    def __init__(self) -> None:
        self.lease: asyncio.Future[LeaseId] = asyncio.get_running_loop().create_future()

    async def revoke(self, lease: LeaseId) -> None:
        self.lease.set_result(lease)


async def test_a_process_that_is_gone_loses_its_lease_at_once() -> None:
    """L1: its connections break and new ones are refused; the lease need not be waited for."""
    connected = asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        connected.set()
        await reader.read()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    membership, coordination = OneOther(server.sockets[0].getsockname()[1]), Revoked()
    sentry = Sentry(cast(Membership, membership), cast(Coordinator, coordination), node_id=1)
    sentry.start()
    async with asyncio.timeout(60):
        await connected.wait()
        server.close()
        for writer in writers:
            writer.transport.abort()
        assert await coordination.lease == 77
    await sentry.stop()


async def test_a_node_that_is_full_is_not_hammered() -> None:
    """R3: one that takes connections and drops them lives, and is asked now and then."""
    asked = 0
    enough = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.transport.abort()
        if asked == 3:
            enough.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    membership, coordination = OneOther(server.sockets[0].getsockname()[1]), Revoked()
    sentry = Sentry(cast(Membership, membership), cast(Coordinator, coordination), node_id=1)
    started = asyncio.get_running_loop().time()
    sentry.start()
    async with asyncio.timeout(60):
        await enough.wait()
    assert asyncio.get_running_loop().time() - started > 1.9 * RETRY_MS / 1000
    assert not coordination.lease.done()
    await sentry.stop()
    server.close()


def test_ledgers_belong_to_one_process(tmp_path: Path) -> None:
    """L6: a second one would cut the first one's newest segment."""
    let_go = lock_folder(tmp_path / "ledgers")
    with pytest.raises(Unavailable, match="another process"):
        lock_folder(tmp_path / "ledgers")
    let_go()
    lock_folder(tmp_path / "ledgers")()
