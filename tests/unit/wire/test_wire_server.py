"""Listening: too many, too slow, too idle, and the end."""

import asyncio
import resource

import pytest
from tests.unit.wire.door import (
    LARGE,
    LARGE_BYTES,
    LATER,
    NOW,
    PIPELINED,
    clients,
    framed,
    opened_door,
    run,
    turns,
    until,
)

from dovetail.wire import server


@pytest.fixture(autouse=True)
def _swept_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SWEEP_MS", 10)


@pytest.mark.parametrize("data", [b"\0", b"\0\0\0\x64", b"\0\0\0\x64abc"])
def test_slow_frame_is_closed(loop: str, data: bytes) -> None:
    """R3: a frame that is not complete in time costs its sender the connection."""

    async def main() -> None:
        async with opened_door(frame_read_ms=50) as door:
            client = await door.connect()
            with clients(client):
                await client.send(data)
                assert await client.answer() is None
            assert door.violations == ["a frame was not complete after 50 ms"]

    run(loop, main)


def test_one_byte_now_and_then(loop: str) -> None:
    """R3: a byte now and then does not keep a frame alive."""

    async def main() -> None:
        async with opened_door(frame_read_ms=100) as door:
            client = await door.connect()
            with clients(client):
                await client.send((1000).to_bytes(4, "big"))
                with pytest.raises((ConnectionError, OSError)):
                    for _ in range(1000):
                        await client.send(b"x")
                        await asyncio.sleep(0.01)
            assert door.violations == ["a frame was not complete after 100 ms"]

    run(loop, main)


def test_a_new_frame_has_its_own_time(loop: str) -> None:
    """R3: a client whose reads always end inside the next frame's length is not a slow one."""

    async def main() -> None:
        async with opened_door(frame_read_ms=200) as door:
            client = await door.connect()
            with clients(client):
                frame = framed(NOW)
                await client.send(frame[:2])
                for _ in range(50):
                    await client.send(frame[2:] + frame[:2])
                    assert await client.answer() == NOW
                    await asyncio.sleep(0.01)
            assert not door.violations

    run(loop, main)


def test_idle_is_closed(loop: str) -> None:
    """R3: a connection on which nothing happens is closed, without being called a violation."""

    async def main() -> None:
        async with opened_door(idle_ms=50) as door:
            client = await door.connect()
            with clients(client):
                await client.send(framed(NOW))
                assert await client.answer() == NOW
                assert await client.answer() is None
            assert not door.violations

    run(loop, main)


@pytest.mark.parametrize("kind", [LATER, PIPELINED])
def test_waiting_for_an_answer_is_not_idle(loop: str, kind: bytes) -> None:
    """K7: a client that waits for us, as in a rebalance, is not idle however long it takes."""

    async def main() -> None:
        async with opened_door(idle_ms=200) as door:
            client = await door.connect()
            with clients(client):
                await client.send(framed(kind))
                await until(lambda: kind in door.waiting)
                await turns(500)
                door.complete(kind)
                assert await client.answer() == kind

    run(loop, main)


def test_not_reading_is_idle(loop: str) -> None:
    """R3: who asks and never reads is closed in the end, and its requests are let go."""

    async def main() -> None:
        async with opened_door(idle_ms=300) as door:
            client = await door.connect(receive_bytes=4096)
            with clients(client):
                await client.send(framed(LARGE) * 90)
                await until(lambda: len(door.begun) > 1)
                await door.gone()
            assert len(door.begun) < 90
            assert door.budget.bytes_taken == 0

    run(loop, main)


def test_connections_max(loop: str) -> None:
    """R3: one connection too many is closed at once; the others are served; room is found again."""

    async def main() -> None:
        async with opened_door(connections_max=3) as door:
            inside = [await door.connect() for _ in range(3)]
            with clients(*inside):
                outside = await door.connect()
                assert await outside.answer() is None
                outside.close()
                assert door.violations == ["more than 3 connections at once"]
                for client in inside:
                    await client.send(framed(NOW))
                    assert await client.answer() == NOW
                inside[0].close()
                await until(lambda: door.server.connection_count == 2)
                door.violations.clear()
                again = await door.connect()
                await again.send(framed(NOW))
                assert await again.answer() == NOW
                again.close()

    run(loop, main)


def test_a_defect_at_the_end_of_a_connection_leaves_nothing_behind(loop: str) -> None:
    """R5, R3: it is reported, and the connection's place is free."""

    async def main() -> None:
        reports: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))

        def defect() -> None:
            raise ZeroDivisionError("as asked")

        async with opened_door() as door:
            client = await door.connect()
            (connection,) = door.server.connections
            connection.on_lost.add(defect)
            client.close()
            await until(lambda: door.open == 0 and door.server.connection_count == 0)
            await until(lambda: len(reports) == 1)

    run(loop, main)


def test_files_are_left_for_the_storage(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R3: connections never take the last file handles, which the storage needs."""
    files = server.FILES_RESERVED * 2
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))

    async def main() -> None:
        async with opened_door(connections_max=100_000) as door:
            inside = [await door.connect() for _ in range(files - server.FILES_RESERVED)]
            with clients(*inside):
                assert not door.violations
                outside = await door.connect()
                assert await outside.answer() is None
                outside.close()
            assert door.violations == [f"more than {server.FILES_RESERVED} connections at once"]

    run(loop, main)


def test_stop_answers_what_is_pending(loop: str) -> None:
    """L4: a stop answers what is on its way to the disk, begins nothing new, and closes."""

    async def main() -> None:
        async with opened_door() as door:
            client, polling, idle = [await door.connect() for _ in range(3)]
            with clients(client, polling, idle):
                await client.send(framed(PIPELINED + b"1") + framed(PIPELINED + b"2"))
                await polling.send(framed(LATER) + framed(NOW + b"behind"))
                await until(lambda: len(door.begun) == 3)
                stopping = asyncio.create_task(door.server.stop())
                assert await idle.answer() is None
                assert await polling.answer() is None
                await client.send(framed(NOW + b"too late"))
                door.complete(PIPELINED + b"2")
                door.complete(PIPELINED + b"1")
                assert await client.answer() == PIPELINED + b"1"
                assert await client.answer() == PIPELINED + b"2"
                assert await client.answer() is None
                await stopping
            assert not {NOW + b"behind", NOW + b"too late"} & set(door.begun)
            assert door.open == 0
            assert not door.failures

    run(loop, main)


def test_stop_sends_what_was_answered(loop: str) -> None:
    """L4: an answer that was given but not yet sent still reaches its reader."""

    async def main() -> None:
        async with opened_door() as door:
            client = await door.connect(receive_bytes=4096)
            with clients(client):
                await client.send(framed(LARGE))
                await until(lambda: len(door.begun) == 1)
                stopping = asyncio.create_task(door.server.stop())
                await turns(3)
                answer = await client.answer()
                assert answer is not None
                assert len(answer) == LARGE_BYTES
                await stopping

    run(loop, main)


def test_stop_does_not_wait_for_ever(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R3: a client that does not read, and work that does not end, cannot keep the node alive."""
    monkeypatch.setattr(server, "STOP_MS_MAX", 50)

    async def main() -> None:
        async with opened_door() as door:
            stuck, deaf = await door.connect(), await door.connect(receive_bytes=4096)
            with clients(stuck, deaf):
                await stuck.send(framed(PIPELINED))
                await deaf.send(framed(LARGE) * 50)
                await until(lambda: PIPELINED in door.waiting and LARGE in door.begun)
                await turns()
                await door.server.stop()
                assert door.open == 0
                assert door.server.connection_count == 0

    run(loop, main)


def test_connection_that_comes_with_the_stop(loop: str) -> None:
    """R3: a connection that the system accepted before the stop does not outlive it."""

    async def main() -> None:
        async with opened_door() as door:
            made = asyncio.create_task(asyncio.open_connection("127.0.0.1", door.port))
            await asyncio.sleep(0)
            await door.server.stop()
            await turns()
            assert door.server.connection_count == 0
            try:
                reader, writer = await made
            except ConnectionError:
                return
            try:
                assert await reader.read() == b""
            except ConnectionError:
                pass
            writer.close()

    run(loop, main)
