"""The budget: bytes are taken before memory is, and come back however a connection ends."""

import asyncio
import gc
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.wire.door import (
    CHANGE,
    DEADLINE_S,
    DEFECT,
    HELD,
    LARGE,
    LARGE_BYTES,
    LATER,
    LOOPS,
    NOW,
    PIPELINED,
    SILENT,
    WRONG,
    Client,
    Door,
    clients,
    framed,
    opened_door,
    run,
    turns,
    until,
)

from dovetail.errors import ProtocolViolation
from dovetail.wire.budget import SMALL_BYTES_MAX, ByteBudget
from dovetail.wire.connection import SCRATCH_BYTES, STEP_BYTES

_MIB = 1 << 20
_BIG = 4 * _MIB


def announced(size: int) -> bytes:
    """The beginning of a frame of this size."""
    return size.to_bytes(4, "big") + NOW


def begun(size: int) -> bytes:
    """So much of a frame of this size that it is charged, and not all of it."""
    return announced(size) + bytes(SCRATCH_BYTES)


def test_bytes_are_taken_as_they_arrive(loop: str) -> None:
    """F41: an announced frame costs nothing; it is charged, and takes memory, as its bytes come."""

    async def main() -> None:
        async with opened_door(frame_bytes_max=100 * _MIB) as door:
            client = await door.connect()
            with clients(client):
                gc.collect()
                tracemalloc.start()
                await client.send(announced(100 * _MIB))
                await turns(3)
                assert door.budget.bytes_taken == 0
                await client.send(bytes(SCRATCH_BYTES))
                await until(lambda: door.budget.bytes_taken == STEP_BYTES)
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                assert peak < _MIB
                await client.send(bytes(STEP_BYTES))
                await until(lambda: door.budget.bytes_taken == 2 * STEP_BYTES)

    run(loop, main)


def test_who_announces_and_sends_nothing_delays_nobody(loop: str) -> None:
    """F41: large frames do not wait for bytes that others have announced and not sent."""

    async def main() -> None:
        async with opened_door(bytes_max=_BIG) as door:
            announcing = [await door.connect() for _ in range(8)]
            client = await door.connect()
            with clients(client, *announcing):
                for size, one in zip([_BIG, SMALL_BYTES_MAX] * 4, announcing, strict=True):
                    await one.send(announced(size))
                await until(lambda: door.bytes_in == 8 * 5)
                for size in (_BIG, _MIB, 1000):
                    sending = asyncio.create_task(client.send(framed(NOW + bytes(size))))
                    assert await client.answer() == NOW + bytes(size)
                    await sending

    run(loop, main)


def test_frames_that_are_half_there_do_not_wait_for_each_other(loop: str) -> None:
    """F41: when unfinished frames fill the budget, one after another is read to its end."""
    frames = [NOW + bytes([number]) * (_BIG - 1) for number in range(5)]

    async def main() -> None:
        async with opened_door(bytes_max=_BIG) as door:
            made = [await door.connect() for _ in frames]
            with clients(*made):
                halves = [framed(frame) for frame in frames]
                sending = [
                    asyncio.create_task(client.send(half[: STEP_BYTES + 4]))
                    for client, half in zip(made, halves, strict=True)
                ]
                await until(lambda: door.budget.bytes_taken >= STEP_BYTES)
                await turns()
                sending += [
                    asyncio.create_task(_send_after(first, client, half[STEP_BYTES + 4 :]))
                    for first, client, half in zip(sending, made, halves, strict=True)
                ]
                for client, frame in zip(made, frames, strict=True):
                    assert await client.answer() == frame
                await asyncio.gather(*sending)

    run(loop, main)


async def _send_after(first: "asyncio.Task[None]", client: Client, data: bytes) -> None:
    await first
    await client.send(data)


def test_waiting_in_line(loop: str) -> None:
    """R3: without bytes left a client waits, unread, and is let in when they come back."""

    async def main() -> None:
        async with opened_door(bytes_max=_BIG) as door:
            holder, waiter = await door.connect(), await door.connect()
            with clients(holder, waiter):
                await holder.send(framed(PIPELINED + bytes(_BIG - 1)))
                await until(lambda: len(door.begun) == 1)
                assert door.budget.bytes_taken == _BIG
                frame = NOW + bytes(_MIB)
                before = door.bytes_in
                sending = asyncio.create_task(waiter.send(framed(frame)))
                await until(lambda: door.bytes_in > before)
                await turns()
                assert door.bytes_in - before <= 64 * 1024
                assert len(door.begun) == 1
                holder.close()
                assert await waiter.answer() == frame
                await sending

    run(loop, main)


def test_small_requests_pass_large_ones(loop: str) -> None:
    """R3: clients that begin large requests and do not end them do not hold up small ones."""

    async def main() -> None:
        async with opened_door(bytes_max=_BIG) as door:
            beginning = [await door.connect() for _ in range(4)]
            client = await door.connect()
            with clients(client, *beginning):
                for one in beginning:
                    await one.send(begun(_BIG))
                await until(lambda: door.budget.bytes_taken >= STEP_BYTES)
                await turns(3)
                for size in (1, 100, SMALL_BYTES_MAX - 1):
                    await client.send(framed(NOW + bytes(size)))
                    assert await client.answer() == NOW + bytes(size)

    run(loop, main)


def test_a_long_line_is_let_in(loop: str) -> None:
    """R3: hundreds that wait are let in by one that goes, though each makes room for the next."""
    count = 500
    frame = NOW + bytes(500)

    async def main() -> None:
        async with opened_door(bytes_max=8 * 1000) as door:
            holder = await door.connect()
            waiting = [await door.connect() for _ in range(count)]
            with clients(holder, *waiting):
                await holder.send(framed(PIPELINED + bytes(999)))
                await until(lambda: door.budget.bytes_taken > 0)
                for client in waiting:
                    await client.send(framed(frame))
                await until(lambda: door.bytes_in >= count * len(framed(frame)))
                assert len(door.begun) == 1
                holder.close()
                for client in waiting:
                    assert await client.answer() == frame
            assert not door.failures

    run(loop, main)


async def half_a_frame(door: Door, client: Client) -> None:
    await client.send(begun(_MIB))
    await until(lambda: door.budget.bytes_taken == _MIB)


async def half_a_length(door: Door, client: Client) -> None:
    before = door.bytes_in
    await client.send(b"\0\0")
    await until(lambda: door.bytes_in == before + 2)


async def queued(door: Door, client: Client) -> None:
    await client.send(framed(LATER) + framed(NOW) * 10 + begun(_MIB))
    await until(lambda: door.budget.bytes_taken == 1 + 10 + _MIB)


async def pipelined(door: Door, client: Client) -> None:
    await client.send(framed(PIPELINED + b"1") + framed(NOW) + framed(PIPELINED + b"2"))
    await until(lambda: len(door.begun) == 3)


async def coroutine(door: Door, client: Client) -> None:
    await client.send(framed(PIPELINED) + framed(LATER + bytes(_MIB)))
    await until(lambda: len(door.begun) == 2)


async def waiting_for_budget(door: Door, client: Client) -> None:
    await client.send(framed(PIPELINED + bytes(_BIG)) + begun(_MIB))
    await until(lambda: len(door.begun) == 1)
    await turns(3)
    # A client that is not read is not seen to go either, until its turn comes.
    asyncio.get_running_loop().call_later(0.02, _complete, *door.waiting.values())


async def not_reading(door: Door, client: Client) -> None:
    sending = asyncio.create_task(client.send(framed(LARGE) * 200))
    await until(lambda: len(door.begun) > 1)
    await turns()
    sending.cancel()


_STATES = [
    half_a_frame,
    half_a_length,
    queued,
    pipelined,
    coroutine,
    waiting_for_budget,
    not_reading,
]


@pytest.mark.parametrize("end", ["close", "reset", "violate", "stop"])
@pytest.mark.parametrize("state", _STATES, ids=lambda state: state.__name__)
def test_bytes_come_back(loop: str, state: object, end: str) -> None:
    """R3: in whatever state a connection ends, and whoever ends it, its bytes come back."""

    async def main() -> None:
        async with opened_door(bytes_max=_BIG) as door:
            client = await door.connect(receive_bytes=4096)
            with clients(client):
                await state(door, client)  # type: ignore[operator]
                if end == "close":
                    client.close()
                elif end == "reset":
                    client.reset()
                elif end == "violate":
                    for connection in tuple(door.server._connections):
                        connection.violate(ProtocolViolation("as asked"))
                else:
                    for waiting in door.waiting.values():
                        asyncio.get_running_loop().call_later(0.01, _complete, waiting)
                    await door.server.stop()
                await door.gone()
            assert door.budget.bytes_taken == 0

    run(loop, main)


def _complete(waiting: "asyncio.Future[object]") -> None:
    if not waiting.done():
        waiting.set_result(None)


def test_bytes_are_held_while_work_needs_them(loop: str) -> None:
    """R3: an answer, or the client's end, does not free bytes that are on their way to the disk."""
    frames = [HELD + bytes([number]) * 999 for number in range(2)]

    async def main() -> None:
        async with opened_door() as door:
            client = await door.connect()
            await client.send(b"".join(map(framed, frames)))
            await until(lambda: len(door.begun) == 2)
            door.complete(frames[0])
            assert await client.answer() == frames[0]
            assert door.budget.bytes_taken == 2000
            client.reset()
            await door.gone()
            assert door.budget.bytes_taken == 2000
            for frame, left in zip(frames, (1000, 0), strict=True):
                door.released[frame].set_result(None)
                await turns(2)
                assert door.budget.bytes_taken == left

    run(loop, main)


def test_bytes_of_a_request_that_outlives_its_client(loop: str) -> None:
    """F44: a change goes on when its client is gone; until it ends its bytes count."""
    frame = CHANGE + bytes(999)

    async def main() -> None:
        async with opened_door() as door:
            client = await door.connect()
            await client.send(framed(frame) + framed(NOW))
            await until(lambda: len(door.begun) == 1)
            client.reset()
            await door.gone()
            assert door.begun == [frame]
            assert door.budget.bytes_taken == 1000
            door.released[frame].set_result(None)
            await turns(2)
            assert door.budget.bytes_taken == 0

    run(loop, main)


def test_answers_that_nobody_reads(loop: str) -> None:
    """F42: what clients do not read is bounded for the node; who waits longest is closed."""

    async def main() -> None:
        async with opened_door(bytes_max=_MIB) as door:
            deaf = [await door.connect(receive_bytes=4096) for _ in range(20)]
            with clients(*deaf):
                for client in deaf:
                    await client.send(framed(LARGE) * 90)
                    await turns(3)
                    assert door.budget.answers.bytes_held <= _MIB
                await until(lambda: len(door.violations) > 3)
                assert set(door.violations) == {
                    "the client does not read its answers, and others need the room"
                }

                reader = await door.connect()
                with clients(reader):
                    await reader.send(framed(LARGE) * 20)
                    for _ in range(20):
                        assert await reader.answer() == bytes(LARGE_BYTES)
            await door.gone()
            assert door.budget.answers.bytes_held == 0

    run(loop, main)


_REQUESTS = st.tuples(
    st.sampled_from([NOW, PIPELINED, HELD, LATER, SILENT, WRONG, DEFECT]),
    st.sampled_from([0, 10, 900, 70_000]),
)
_SESSIONS = st.tuples(
    st.lists(_REQUESTS, max_size=8),
    st.sampled_from(["close", "reset", "half", "length", "garbage", "stay"]),
    st.booleans(),
)


@pytest.mark.parametrize("loop_name", sorted(LOOPS))
@settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(sessions=st.lists(_SESSIONS, min_size=1, max_size=6), bytes_max=st.integers(1, 100_000))
def test_any_sessions_leave_nothing(
    loop_name: str,
    sessions: list[tuple[list[tuple[bytes, int]], str, bool]],
    bytes_max: int,
) -> None:
    """R3: after any sessions whatever, every byte has come back."""

    async def session(
        door: Door, number: int, requests: list[tuple[bytes, int]], end: str, completes: bool
    ) -> None:
        client = await door.connect()
        with clients(client):
            data = b"".join(
                framed(kind + bytes([number, at]) + bytes(size))
                for at, (kind, size) in enumerate(requests)
            )
            tails = {"half": begun(_MIB), "length": b"\0", "garbage": b"\xff" * 9}
            sending = asyncio.create_task(client.send(data + tails.get(end, b"")))
            await turns(3)
            for frame in [f for f in door.waiting if f[1] == number] if completes else []:
                if not door.waiting[frame].done():
                    door.complete(frame)
            await turns(2)
            if end == "reset":
                client.reset()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def main() -> None:
        async with opened_door(bytes_max=bytes_max) as door:
            async with asyncio.TaskGroup() as group:
                for number, (requests, end, completes) in enumerate(sessions):
                    group.create_task(session(door, number, requests, end, completes))
            # Who waits for bytes is not read, so not seen to go: work ends until all are gone.
            async with asyncio.timeout(DEADLINE_S):
                while door.open:
                    for future in (*door.waiting.values(), *door.released.values()):
                        _complete(future)
                    await turns(1)
            await door.gone()
            held = sum(
                len(frame) for frame, released in door.released.items() if not released.done()
            )
            assert door.budget.bytes_taken == held

    run(loop_name, main)


def test_line_is_fair() -> None:
    """R3: bytes are granted in the order of asking; who leaves the line is passed over."""
    budget = ByteBudget(8 * 100)
    granted: list[str] = []
    assert budget.take("first", 100, lambda: None)
    for who, size in (("a", 60), ("b", 30), ("c", 10), ("d", 50)):
        assert not budget.take(who, size, lambda who=who: granted.append(who))
    budget.forget("b")
    budget.give_back(100)
    assert granted == ["a", "c"]
    budget.give_back(60)
    assert granted == ["a", "c", "d"]
    budget.give_back(50)
    budget.give_back(10)
    assert budget.bytes_taken == 0


def test_larger_than_everything() -> None:
    """R3: a request above the whole budget is let in alone, so it cannot wait for ever."""
    budget = ByteBudget(10)
    granted: list[int] = []
    assert budget.take("first", 1000, lambda: None)
    assert not budget.take("second", 2000, lambda: granted.append(2000))
    budget.give_back(1000)
    assert granted == [2000]
    assert budget.bytes_taken == 2000
