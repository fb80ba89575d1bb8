"""The client side of frames against a plain socket: cutting, matching, limits, backoff."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.unit.storage.remote.storage_door import DEADLINE_S, QUICK, until

from dovetail.errors import DovetailError, Unavailable, Uncertain
from dovetail.wire.peer import Greeting, Peer, PeerSettings, Request

GREETING_KEY = 1


def framed(correlation_id: int, content: bytes) -> bytes:
    return (4 + len(content)).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + content


class Plain:
    """A server whose bytes the test chooses."""

    def __init__(self) -> None:
        self.accepted = self.open = 0
        self.writer: asyncio.StreamWriter
        #: Correlation ids and bodies of what came after the greeting.
        self.came: list[tuple[int, bytes]] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open += 1
        self.writer = writer
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(length)
                key = int.from_bytes(frame[:2], "big")
                correlation_id = int.from_bytes(frame[4:8], "big")
                assert frame[8:14] == b"\0\4test"
                if key == GREETING_KEY:
                    writer.write(framed(correlation_id, b"welcome"))
                else:
                    self.came.append((correlation_id, frame[14:]))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            await closed(writer)
            self.open -= 1


async def closed(writer: asyncio.StreamWriter) -> None:
    """Closes, and waits for it."""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def peered(settings: PeerSettings = QUICK) -> AsyncIterator[tuple[Plain, Peer]]:
    plain = Plain()
    server = await asyncio.start_server(plain.accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    greeting = Greeting(
        Request(GREETING_KEY, 0, [b"hello"], Unavailable),
        lambda answer: None if bytes(answer) == b"welcome" else Unavailable("not welcome"),
    )
    peer = Peer(
        "127.0.0.1",
        port,
        greeting=greeting,
        client_id="test",
        settings=settings,
        rng=random.Random(1),
    )
    yield plain, peer
    await peer.close()
    await until(lambda: plain.open == 0)
    server.close()
    await server.wait_closed()


def ask(peer: Peer, body: bytes) -> "asyncio.Task[bytes]":
    def decode(answer: memoryview) -> bytes | DovetailError:
        return bytes(answer)

    request = Request(2, 3, [body[:1], body[1:]], Uncertain)
    return asyncio.ensure_future(peer.ask(request, decode))


async def within(answer: Awaitable[bytes]) -> bytes:
    return await asyncio.wait_for(answer, DEADLINE_S)


async def test_answers_are_cut_wherever_the_bytes_are_split() -> None:
    """R3: two answers, split at every place, and one that is larger than the scratch buffer."""
    large = bytes(range(256)) * 1000
    async with peered() as (plain, peer):
        for split in range(1, 30):
            first, second = ask(peer, b"one"), ask(peer, b"two")
            await until(lambda: len(plain.came) == 2)
            (one, _), (two, _) = plain.came
            plain.came.clear()
            data = framed(one, b"ONE") + framed(two, b"the second" if split % 2 else large)
            plain.writer.write(data[:split])
            await asyncio.sleep(0.001)  # So that the parts are likely to be read apart.
            plain.writer.write(data[split:])
            assert await within(first) == b"ONE"
            assert await within(second) == (b"the second" if split % 2 else large)
        assert plain.accepted == 1
        assert peer.bytes_in_flight == 0


async def test_answers_may_come_in_any_order() -> None:
    """R3: an answer belongs to the request whose correlation id it has."""
    async with peered() as (plain, peer):
        asked = [ask(peer, b"%d" % n) for n in range(20)]
        await until(lambda: len(plain.came) == 20)
        for correlation_id, body in random.Random(1).sample(plain.came, 20):
            plain.writer.write(framed(correlation_id, body * 2))
        assert [await within(one) for one in asked] == [b"%d" % n * 2 for n in range(20)]


async def test_a_caller_that_has_gone_harms_nobody() -> None:
    """R3: its answer is dropped, and its bytes are given back."""
    async with peered() as (plain, peer):
        gone, stays = ask(peer, b"gone"), ask(peer, b"stays")
        await until(lambda: len(plain.came) == 2)
        gone.cancel()
        for correlation_id, body in plain.came:
            plain.writer.write(framed(correlation_id, body))
        assert await within(stays) == b"stays"
        assert gone.cancelled()
        assert peer.bytes_in_flight == 0


@pytest.mark.parametrize("length", [0, 3, 1001, 2**31 - 1, -1])
async def test_the_length_of_an_answer_is_checked_first(length: int) -> None:
    """R3: on the side of the client too."""
    async with peered(replace(QUICK, answer_bytes_max=1000)) as (plain, peer):
        asked = ask(peer, b"one")
        await until(lambda: bool(plain.came))
        plain.writer.write(length.to_bytes(4, "big", signed=True))
        with pytest.raises(Uncertain, match=f"an answer of {length} bytes"):
            await within(asked)
        assert not peer.connected


async def test_attempts_are_paced() -> None:
    """R3: a node that closes every connection is tried ever more seldom, not in a tight loop."""
    attempts: list[float] = []
    loop = asyncio.get_running_loop()

    async def slam(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.append(loop.time())
        await closed(writer)

    server = await asyncio.start_server(slam, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    peer = Peer(
        "127.0.0.1",
        port,
        greeting=Greeting(Request(GREETING_KEY, 0, [b"hello"], Unavailable), lambda _: None),
        client_id="test",
        settings=PeerSettings(call_ms_max=400, backoff_ms_min=10, backoff_ms_max=100),
        rng=random.Random(1),
    )
    with pytest.raises(Unavailable, match="within 400 ms"):
        await within(ask(peer, b"one"))
    gaps = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert all(gap >= 0.004 for gap in gaps)
    assert 3 <= len(attempts) <= 16
    await peer.close()
    server.close()
    await server.wait_closed()


async def test_a_call_from_an_answer_is_made() -> None:
    """R3: whoever is told may ask again at once, also when told of a broken connection."""
    async with peered() as (plain, peer):
        told: list[str] = []
        request = Request(2, 3, [b"x"], Uncertain)

        def again(then: Callable[[], None]) -> None:
            def on_error(error: DovetailError) -> None:
                told.append(type(error).__name__)
                then()

            peer.call(request, on_answer=lambda _: then(), on_error=on_error)

        again(lambda: again(lambda: told.append("done")))
        await until(lambda: len(plain.came) == 1)
        plain.writer.transport.abort()
        await until(lambda: len(plain.came) == 2)
        plain.writer.write(framed(plain.came[1][0], b""))
        await until(lambda: "done" in told)
        assert told == ["Uncertain", "done"]
        assert plain.accepted == 2


async def test_who_does_not_listen_is_not_waited_for_long() -> None:
    """R3: a process that is gone refuses connections; who has others to ask is told soon."""
    settings = replace(QUICK, call_ms_max=60_000, refused_ms_max=50)
    server = await asyncio.start_server(Plain().accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    peer = Peer(
        "127.0.0.1",
        port,
        greeting=Greeting(Request(GREETING_KEY, 0, [b"hello"], Unavailable), lambda _: None),
        client_id="test",
        settings=settings,
        rng=random.Random(1),
    )
    for _ in range(2):
        with pytest.raises(Unavailable, match="ConnectionRefused"):
            await within(ask(peer, b"one"))
    back = Plain()
    server = await asyncio.start_server(back.accept, "127.0.0.1", port)
    answer = ask(peer, b"two")
    await until(lambda: len(back.came) == 1)
    back.writer.write(framed(back.came[0][0], b"here"))
    assert await within(answer) == b"here"
    await peer.close()
    await until(lambda: back.open == 0)
    server.close()
    await server.wait_closed()
