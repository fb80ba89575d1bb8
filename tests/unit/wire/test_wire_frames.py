"""Bytes to frames: however they are split, and whatever lengths they claim."""

import pytest
from tests.unit.wire.door import NOW, clients, framed, opened_door, run, until

from dovetail.wire.connection import QUEUE_MAX


def test_split_at_every_byte(loop: str) -> None:
    """R3: two frames are read alike wherever the network splits them."""
    frames = [NOW + b"one", NOW + b"the second"]
    data = b"".join(map(framed, frames))

    async def main() -> None:
        async with opened_door() as door:
            client = await door.connect()
            with clients(client):
                for cut in range(1, len(data)):
                    before = door.bytes_in
                    await client.send(data[:cut])
                    await until(lambda before=before, cut=cut: door.bytes_in == before + cut)
                    await client.send(data[cut:])
                    assert [await client.answer(), await client.answer()] == frames

    run(loop, main)


def test_byte_by_byte(loop: str) -> None:
    """R3: a frame that comes one byte at a time is read like any other."""
    frame = NOW + b"slowly"

    async def main() -> None:
        async with opened_door() as door:
            client = await door.connect()
            with clients(client):
                for at, byte in enumerate(framed(frame)):
                    await client.send(bytes([byte]))
                    await until(lambda at=at: door.bytes_in == at + 1)
                assert await client.answer() == frame

    run(loop, main)


def test_many_frames_in_one_segment(loop: str) -> None:
    """R3: thousands of frames in one read are all answered, in order."""
    frames = [NOW + str(number).encode() for number in range(QUEUE_MAX * 30)]

    async def main() -> None:
        async with opened_door() as door:
            client = await door.connect()
            with clients(client):
                await client.send(b"".join(map(framed, frames)))
                assert [await client.answer() for _ in frames] == frames

    run(loop, main)


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 1 << 20, 5 << 20])
def test_large_frames(loop: str, size: int) -> None:
    """R3: frames beyond the scratch buffer arrive whole, with what follows them."""
    large = NOW + bytes(range(256)) * (size // 256) + b"!" * (size % 256)
    frames = [NOW + b"before", large, NOW + b"after", large]

    async def main() -> None:
        async with opened_door() as door:
            client = await door.connect()
            with clients(client):
                for frame in frames:
                    await client.send(framed(frame))
                    assert await client.answer() == frame

    run(loop, main)


@pytest.mark.parametrize("length", [0, -1, -(2**31), (8 << 20) + 1, 2**31 - 1])
def test_wrong_lengths(loop: str, length: int) -> None:
    """R3, U7: a length that is no length closes the connection, and takes no memory."""

    async def main() -> None:
        async with opened_door() as door:
            client = await door.connect()
            with clients(client):
                await client.send(length.to_bytes(4, "big", signed=True))
                assert await client.answer() is None
            assert door.violations == [f"a frame of {length} bytes is outside 1 to {8 << 20}"]
            await door.gone()
            assert door.budget.bytes_taken == 0

    run(loop, main)


def test_good_frames_before_a_wrong_length(loop: str) -> None:
    """R3: what stands before a wrong length in the same read does no harm."""

    async def main() -> None:
        async with opened_door() as door:
            client = await door.connect()
            with clients(client):
                await client.send(framed(NOW + b"good") + b"\xff\xff\xff\xff")
                await until(lambda: bool(door.violations))
            await door.gone()
            assert door.budget.bytes_taken == 0

    run(loop, main)


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"POST / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"OPTIONS * HTTP/1.1\r\n\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP"),
        (bytes.fromhex("1603010200010001fc0303"), "TLS"),
    ],
)
def test_other_protocols_get_a_hint(loop: str, data: bytes, hint: str) -> None:
    """U7: who speaks HTTP or TLS to this port is told so in the log."""

    async def main() -> None:
        async with opened_door() as door:
            client = await door.connect()
            with clients(client):
                await client.send(data)
                assert await client.answer() is None
            assert f"this looks like {hint}" in door.violations[0]

    run(loop, main)
