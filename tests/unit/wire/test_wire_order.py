"""Answers: in the order of the requests, and what happens when there is none."""

import asyncio

from tests.unit.wire.door import (
    DEFECT,
    LARGE,
    LARGE_BYTES,
    LATER,
    NOW,
    PIPELINED,
    SILENT,
    WRONG,
    clients,
    framed,
    opened_door,
    run,
    turns,
    until,
)

from dovetail.wire.connection import QUEUE_MAX


def test_pipelined_answers_leave_in_order(loop: str) -> None:
    """K4: answers that are ready out of order leave in the order of the requests."""
    frames = [PIPELINED + b"1", NOW + b"2", PIPELINED + b"3", SILENT, PIPELINED + b"4"]

    async def main() -> None:
        async with opened_door() as door:
            client = await door.connect()
            with clients(client):
                await client.send(b"".join(map(framed, frames)))
                await until(lambda: len(door.begun) == len(frames))
                for ready in (frames[4], frames[2], frames[0]):
                    door.complete(ready)
                    await turns(2)
                answers = [await client.answer() for _ in range(4)]
                assert answers == [frames[0], frames[1], frames[2], frames[4]]

    run(loop, main)


def test_coroutine_blocks_its_connection_only(loop: str) -> None:
    """L7: a long poll holds up the requests behind it, and nobody else's."""

    async def main() -> None:
        async with opened_door() as door:
            one, other = await door.connect(), await door.connect()
            with clients(one, other):
                await one.send(framed(LATER + b"poll") + framed(NOW + b"behind"))
                await until(lambda: LATER + b"poll" in door.waiting)
                await other.send(framed(NOW + b"other"))
                assert await other.answer() == NOW + b"other"
                assert NOW + b"behind" not in door.begun
                door.complete(LATER + b"poll")
                assert await one.answer() == LATER + b"poll"
                assert await one.answer() == NOW + b"behind"

    run(loop, main)


def test_order_when_the_budget_lets_the_next_in(loop: str) -> None:
    """R3: a request that waited for the bytes of the one before it is answered after it."""
    frames = [kind + bytes(40) + bytes([n]) for n in range(8) for kind in (NOW, LATER, PIPELINED)]

    async def main() -> None:
        async with opened_door(bytes_max=8 * 50) as door:  # One frame at a time fits its lane.
            client = await door.connect()
            with clients(client):
                await client.send(b"".join(map(framed, frames)))
                for frame in frames:
                    if frame[:1] != NOW:
                        await until(lambda frame=frame: frame in door.waiting)
                        door.complete(frame)
                assert [await client.answer() for _ in frames] == frames

    run(loop, main)


def test_violation_and_defect(loop: str) -> None:
    """R3: a bad request and a defect of ours each cost one connection, and are told apart."""

    async def main() -> None:
        async with opened_door() as door:
            for kind in (WRONG, DEFECT):
                client = await door.connect()
                with clients(client):
                    await client.send(framed(kind) + framed(NOW + b"behind"))
                    assert await client.answer() is None
            await door.gone()
            assert door.violations == ["as asked"]
            assert [str(error) for error in door.failures] == ["as asked"]
            assert NOW + b"behind" not in door.begun
            assert door.budget.bytes_taken == 0

    run(loop, main)


def test_late_failures_close(loop: str) -> None:
    """R3: a reply that fails later, or is cancelled, closes; the next is never taken for it."""

    async def main() -> None:
        async with opened_door() as door:
            for kind in (PIPELINED, LATER):
                for fate in ("raise", "cancel"):
                    client = await door.connect()
                    frame = kind + fate.encode()
                    with clients(client):
                        await client.send(framed(frame) + framed(NOW + b"behind"))
                        await until(lambda frame=frame: frame in door.waiting)
                        if fate == "raise":
                            door.waiting[frame].set_exception(ValueError("later"))
                        else:
                            door.waiting[frame].cancel()
                        assert await client.answer() is None
            await door.gone()
            assert len(door.failures) == 4
            assert door.budget.bytes_taken == 0

    run(loop, main)


def test_failure_while_the_client_goes(loop: str) -> None:
    """R3: a coroutine that fails as its client goes is told by us, not by the loop as forgotten."""

    async def main() -> None:
        async with opened_door() as door:
            client = await door.connect()
            await client.send(framed(LATER))
            await until(lambda: LATER in door.waiting)
            door.clean_up = ValueError("while cleaning up")
            client.reset()
            await door.gone()
            assert [str(error) for error in door.failures] == ["while cleaning up"]

    run(loop, main)


def test_slow_reader(loop: str) -> None:
    """R3: who does not read is not served on; who then reads gets everything, in order."""
    count = QUEUE_MAX * 2

    async def main() -> None:
        async with opened_door() as door:
            client = await door.connect(receive_bytes=4096)
            with clients(client):
                sending = asyncio.create_task(client.send(framed(LARGE) * count + framed(NOW)))
                await until(lambda: len(door.begun) > 1)
                await turns()
                begun = len(door.begun)
                await turns()
                assert len(door.begun) == begun
                assert begun * LARGE_BYTES < 8 << 20  # What sockets take, and one answer.
                for _ in range(count):
                    answer = await client.answer()
                    assert answer is not None
                    assert len(answer) == LARGE_BYTES
                assert await client.answer() == NOW
                await sending

    run(loop, main)


def test_flood_of_requests_behind_a_long_poll(loop: str) -> None:
    """R3: requests behind one that waits are read up to a number, not to the end of memory."""
    count = 20_000

    async def main() -> None:
        async with opened_door() as door:
            client = await door.connect()
            with clients(client):
                await client.send(framed(LATER))
                await until(lambda: LATER in door.waiting)
                sending = asyncio.create_task(client.send(framed(NOW) * count))
                await turns()
                assert door.bytes_in < 2 * 64 * 1024
                assert door.budget.bytes_taken <= QUEUE_MAX
                door.complete(LATER)
                assert await client.answer() == LATER
                for _ in range(count):
                    assert await client.answer() == NOW
                await sending

    run(loop, main)


def test_flood_of_pipelined_requests(loop: str) -> None:
    """R3: pipelined requests are begun up to a number at once, and go on as they are answered."""
    frames = [PIPELINED + str(number).encode() for number in range(QUEUE_MAX * 3)]

    async def main() -> None:
        async with opened_door() as door:
            client = await door.connect()
            with clients(client):
                await client.send(b"".join(map(framed, frames)))
                await until(lambda: len(door.begun) == QUEUE_MAX)
                await turns(3)
                assert len(door.begun) == QUEUE_MAX
                for frame in frames:
                    await until(lambda frame=frame: frame in door.waiting)
                    door.complete(frame)
                assert [await client.answer() for _ in frames] == frames

    run(loop, main)


def test_a_client_over_its_quota_waits(loop: str) -> None:
    """K13: what it was answered leaves at once, its next request begins later; others go on."""

    async def main() -> None:
        async with opened_door() as door:
            one = await door.connect()
            await one.send(framed(NOW + b"first"))
            assert await one.answer() == NOW + b"first"
            (held,) = door.server._connections
            other = await door.connect()
            with clients(one, other):
                began = asyncio.get_running_loop().time()
                held.hold(50)
                held.hold(150)
                held.hold(1)
                await one.send(framed(NOW + b"second"))
                await other.send(framed(NOW + b"third"))
                assert await other.answer() == NOW + b"third"
                assert NOW + b"second" not in door.begun
                assert await one.answer() == NOW + b"second"
                assert asyncio.get_running_loop().time() - began >= 0.149

    run(loop, main)
