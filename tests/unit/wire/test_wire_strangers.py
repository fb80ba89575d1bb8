"""Who has not logged in, or not even agreed on TLS: how many, how long, and who makes room."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator

import psutil
import pytest
from tests.process.access.certificates import Authority
from tests.unit.wire.door import NOW, Client, Door, clients, framed, opened_door, run, turns, until

from dovetail.wire import server


@pytest.fixture(autouse=True)
def _swept_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SWEEP_MS", 10)
    monkeypatch.setattr(server, "STRANGERS_MIN", 2)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> ssl.SSLContext:
    files = authority.issue("node")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    return context


@contextlib.contextmanager
def half_open(
    door: Door, count: int, beginning: bytes = b"\x16\x03\x01\x02\x00\x01"
) -> Iterator[list[socket.socket]]:
    """Connections that say a part of what TLS begins with."""
    made = []
    for number in range(count):
        one = socket.create_connection(("127.0.0.1", door.port))
        one.setblocking(False)
        one.send(beginning[: number % 3 * 3] or beginning[:1])
        made.append(one)
    try:
        yield made
    finally:
        for one in made:
            one.close()


async def served(door: Door, authority: Authority) -> bool:
    """Whether a client that agrees on TLS gets its answer."""
    context = ssl.create_default_context(cafile=authority.file)
    try:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", door.port, ssl=context, server_hostname="localhost"
        )
    except OSError:
        return False
    try:
        writer.write(framed(NOW))
        return await reader.readexactly(5) == framed(NOW)
    except (OSError, asyncio.IncompleteReadError):
        return False
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def test_handshakes_under_way_are_connections(
    loop: str, tls: ssl.SSLContext, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F50, R7: they fill `connections_max`; one that had its time makes room for who comes."""
    monkeypatch.setattr(server, "STRANGERS_MIN", 4)

    async def main() -> None:
        async with opened_door(tls, connections_max=4) as door:
            with half_open(door, 4):
                await until(lambda: door.server.connection_count == 4)
                assert not await served(door, authority)
                assert door.violations == ["more than 4 connections at once"]

                monkeypatch.setattr(server, "STRANGER_MS_MIN", 0)
                assert await served(door, authority)
                assert door.violations == ["more than 4 connections at once"] * 2
            await until(lambda: door.server.connection_count == 0)

    run(loop, main)


def test_a_handshake_has_its_time(
    loop: str, tls: ssl.SSLContext, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F50, R7: one that never ends, and one that is none, are closed, and leave no file open."""
    monkeypatch.setattr(server, "HANDSHAKE_S_MAX", 0.2)
    monkeypatch.setattr(server, "STRANGERS_MIN", 100)

    async def main() -> None:
        async with opened_door(tls) as door:
            assert await served(door, authority)
            await until(lambda: door.server.connection_count == 0)
            before = psutil.Process().num_fds()
            with half_open(door, 10) as made:
                made[0].send(b"GET / HTTP/1.1\r\n\r\n")
                await until(lambda: len(door.violations) == 10)
                assert all(why.startswith("no TLS handshake: ") for why in door.violations)
                await until(lambda: door.server.connection_count == 0)
            await until(lambda: psutil.Process().num_fds() == before)
            assert await served(door, authority)

    run(loop, main)


def test_a_stop_ends_handshakes(loop: str, tls: ssl.SSLContext) -> None:
    """F50, L4: they do not keep the node alive."""

    async def main() -> None:
        async with opened_door(tls) as door:
            with half_open(door, 2):
                await until(lambda: door.server.connection_count == 2)
                await door.server.stop()
                assert door.server.connection_count == 0

    run(loop, main)


def test_many_at_once_have_no_larger_share(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: each of a burst costs another stranger its place, not all of them the same one."""
    monkeypatch.setattr(server, "STRANGER_MS_MIN", 0)

    async def main() -> None:
        async with opened_door(connections_max=12) as door:
            door.guarded = True
            with half_open(door, 40, b"\0"):
                await until(lambda: len(door.violations) == 37)
                await until(lambda: door.server.connection_count == 3)

    run(loop, main)


def test_one_host_keeps_out_no_other(loop: str) -> None:
    """R7: strangers of one host that are all new leave a place for the client of another one."""

    async def main() -> None:
        async with opened_door(connections_max=12) as door:
            door.guarded = True
            with half_open(door, 3, b"\0"):
                await until(lambda: door.server.connection_count == 3)
                other = socket.create_connection(
                    ("127.0.0.1", door.port), source_address=("127.0.0.2", 0)
                )
                other.setblocking(False)
                client = Client(other)
                with clients(client):
                    await client.send(framed(NOW))
                    assert await client.answer() == NOW
                    assert len(door.violations) == 1

    run(loop, main)


def test_strangers_have_a_share(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: beyond it a new one is closed, or an old one, never a client that has logged in."""

    async def main() -> None:
        async with opened_door(connections_max=12) as door:
            door.guarded = True
            inside = [await door.connect() for _ in range(3)]
            with clients(*inside):
                logged_in = next(
                    one for one in door.server._connections if one.peer == inside[0].address
                )
                logged_in.admit()
                fourth = await door.connect()
                fifth = await door.connect()
                assert await fifth.answer() is None
                told = "more than 3 connections that have not logged in"
                assert door.violations == [told]

                monkeypatch.setattr(server, "STRANGER_MS_MIN", 0)
                sixth = Client(socket.create_connection(("127.0.0.1", door.port)))
                sixth._socket.setblocking(False)
                assert await inside[1].answer() is None
                for one in (inside[0], inside[2], fourth, sixth):
                    await one.send(framed(NOW))
                    assert await one.answer() == NOW
                for one in (fourth, fifth, sixth):
                    one.close()
            assert door.violations == [told] * 2

    run(loop, main)


def test_a_login_has_its_time(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: a stranger that talks for ever is closed; a client that has logged in is not."""
    monkeypatch.setattr(server, "LOGIN_MS_MAX", 100)

    async def main() -> None:
        async with opened_door() as door:
            door.guarded = True
            known, stranger = await door.connect(), await door.connect()
            with clients(known, stranger):
                for one in tuple(door.server._connections):
                    if one.peer == known.address:
                        one.admit()
                assert await stranger.answer() is None
                assert door.violations == ["no login within 100 ms"]
                await turns(200)
                await known.send(framed(NOW))
                assert await known.answer() == NOW

    run(loop, main)
