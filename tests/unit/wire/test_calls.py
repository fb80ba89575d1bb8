"""Private calls over a connection: who is talked to, and who is waited for."""

import random
from dataclasses import replace

import pytest
from tests.unit.storage.remote.storage_door import QUICK, Door

from dovetail.errors import DovetailError, Unavailable
from dovetail.wire import Connection, Reply
from dovetail.wire.calls import HELLO_KEY, Welcome, answer_hello, decode_answer, greeting, hello
from dovetail.wire.peer import Peer


def _welcome(data: memoryview) -> Welcome | DovetailError:
    return decode_answer(Welcome, data)


class StartingNode:
    """A node that serves something after it was asked so often."""

    def __init__(self, asked_before: int) -> None:
        self.left = asked_before

    def __call__(self, connection: Connection, frame: memoryview) -> Reply:
        services = [] if self.left else ["storage"]
        self.left = max(0, self.left - 1)
        return answer_hello(frame, node="n", now_ms=0, services=services)


def peer_of(door: Door, service: str, call_ms_max: int) -> Peer:
    return Peer(
        "127.0.0.1",
        door.port,
        greeting=greeting(f"127.0.0.1:{door.port}", service),
        client_id="test",
        settings=replace(QUICK, call_ms_max=call_ms_max),
        rng=random.Random(1),
    )


async def test_a_node_that_starts_is_waited_for() -> None:
    """L4, B6: it does not serve yet; the call goes out as soon as it does."""
    door = Door(StartingNode(asked_before=3))
    await door.open()
    peer = peer_of(door, "storage", call_ms_max=20_000)
    assert (await peer.ask(hello(), _welcome)).services == ["storage"]
    assert door.keys == [HELLO_KEY] * 5
    await peer.close()
    await door.stop()


async def test_a_node_that_never_serves_it_is_an_error_that_says_so() -> None:
    """B6: nothing but the greeting is sent, and the call has not happened."""
    door = Door(StartingNode(asked_before=0))
    await door.open()
    peer = peer_of(door, "timelines", call_ms_max=150)
    with pytest.raises(Unavailable, match="serves no timelines"):
        await peer.ask(hello(), _welcome)
    await peer.close()
    await door.stop()
