"""The bytes in front of a payload of a schema registry; pure.

0x00                        magic
4 bytes, big-endian         the number of the schema
Protobuf only               which message of the schema: how many numbers, then each, as
                            zigzag varints; the first message, [0], is written as one 0x00
payload
"""

import struct
from collections.abc import Sequence

from dovetail.errors import InvalidInput

MAGIC = 0
_HEAD = struct.Struct(">bI")
HEAD_BYTES = _HEAD.size
#: Messages within messages; Protobuf's own compilers stop at far fewer.
_DEPTH_MAX = 100
#: Bytes of a varint of 64 bits.
_VARINT_BYTES_MAX = 10


def framed(schema_id: int, payload: bytes, *, message: Sequence[int] | None = None) -> bytes:
    """A payload with its head; `message` is for Protobuf. Raises `InvalidInput`."""
    if not 0 <= schema_id < 1 << 32:
        raise InvalidInput(f"schema {schema_id}; a registry numbers them from 0 to 2^32 - 1")
    return _HEAD.pack(MAGIC, schema_id) + message_prefix(message) + payload


def schema_id_of(data: bytes) -> int:
    """The number of the schema. Raises `InvalidInput` for bytes without a head."""
    if len(data) < HEAD_BYTES or data[0] != MAGIC:
        raise InvalidInput(
            f"{len(data)} bytes that begin with {bytes(data[:5]).hex() or 'nothing'} do not have a "
            "schema number in front: 00 and four bytes"
        )
    found: int = _HEAD.unpack_from(data)[1]
    return found


def message_prefix(message: Sequence[int] | None) -> bytes:
    """Which message of a Protobuf schema, as it is written; empty for other schemas."""
    if message is None:
        return b""
    if [*message] == [0]:
        return b"\x00"
    return b"".join(_varint(number << 1) for number in (len(message), *message))


def message_of(data: bytes) -> tuple[list[int], int]:
    """Which message of a Protobuf schema is in a framed payload, and where it begins.

    Raises `InvalidInput`.
    """
    schema_id_of(data)
    count, at = _read_varint(data, HEAD_BYTES)
    if not 0 <= count <= _DEPTH_MAX:
        raise InvalidInput(f"a Protobuf message {count} levels deep; {_DEPTH_MAX} are the most")
    found = []
    for _ in range(count):
        number, at = _read_varint(data, at)
        found.append(number)
    return found or [0], at


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint, and what is behind it. Raises `InvalidInput`."""
    value = 0
    for count, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + count + 1
    raise InvalidInput(f"the number at byte {at} of {len(data)} bytes does not end")
