"""Varints, tag sections and the errors of malformed frames.

The generated decoders read the common case inline and call this module for the rest. Nothing here
takes memory in proportion to a number that was read from the frame.
"""

import sys
import threading
from typing import Final

from dovetail.errors import ProtocolViolation

#: An unsigned varint is 32 bits wide: five bytes, of which the last holds four bits.
UVARINT_BYTES_MAX: Final = 5
UVARINT_MAX: Final = 0xFFFF_FFFF

#: Longest string that Kafka allows, also where the length is a varint.
STRING_BYTES_MAX: Final = 0x7FFF

#: A tagged field takes a byte for its tag and one for its size at least.
TAG_BYTES_MIN: Final = 2

#: Most tagged fields of one struct. Kafka has three; the rest is room for later versions.
TAGS_MAX: Final = 16

#: In front of a struct that may be null: a byte that says whether it is.
NULL_STRUCT: Final = b"\xff"
PRESENT_STRUCT: Final = b"\x01"

_SHORT: Final = tuple(bytes((number,)) for number in range(128))


class _Room(threading.local):
    """How many more elements the arrays of the frame that this thread decodes may have."""

    left = sys.maxsize


room: Final = _Room()


def read_uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """The number at `position`, and the position after it.

    Raises `ProtocolViolation` if it is wider than 32 bits, `IndexError` if the buffer ends in it.
    """
    value = 0
    for index in range(UVARINT_BYTES_MAX):
        byte = buffer[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value > UVARINT_MAX:
                break
            return value, position + index + 1
    raise ProtocolViolation(f"varint at byte {position} is wider than 32 bits")


def uvarint(value: int) -> bytes:
    """The bytes of an unsigned number."""
    if value < 0x80:
        return _SHORT[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_tag_count(where: str, buffer: memoryview, position: int, end: int) -> tuple[int, int]:
    """The number of tagged fields, checked against what remains, and the position after it."""
    count, position = read_uvarint(buffer, position)
    if count * TAG_BYTES_MIN > end - position:
        raise count_too_high(f"{where} tags", count, TAG_BYTES_MIN, end - position)
    if count > TAGS_MAX:
        raise ProtocolViolation(f"{where} has {count} tags, the most is {TAGS_MAX}")
    return count, position


def read_tag(where: str, buffer: memoryview, position: int, end: int) -> tuple[int, int, int]:
    """A tag, and where its value begins and ends."""
    tag, position = read_uvarint(buffer, position)
    size, position = read_uvarint(buffer, position)
    if size > end - position:
        raise length_wrong(f"{where} tag {tag}", size, end - position)
    return tag, position, position + size


def skip_tags(where: str, buffer: memoryview, position: int, end: int) -> int:
    """The position after a tag section of which nothing is known."""
    count, position = read_tag_count(where, buffer, position, end)
    for _ in range(count):
        _, _, position = read_tag(where, buffer, position, end)
    return position


def length_wrong(where: str, length: int, remaining: int) -> ProtocolViolation:
    """For a string or byte string that is null without leave, negative, or beyond the frame."""
    if length < 0:
        return ProtocolViolation(f"{where} has length {length}, which is not allowed here")
    return ProtocolViolation(f"{where} has length {length}, but only {remaining} bytes remain")


def count_wrong(where: str, count: int) -> ProtocolViolation:
    """For an array that is null without leave, or negative."""
    return ProtocolViolation(f"{where} has count {count}, which is not allowed here")


def count_too_high(
    where: str, count: int, element_bytes_min: int, remaining: int
) -> ProtocolViolation:
    """For an array that cannot fit into what remains of the frame."""
    return ProtocolViolation(
        f"{where} has count {count}, at least {element_bytes_min} bytes each, "
        f"but only {remaining} bytes remain"
    )


def too_many(where: str, count: int) -> ProtocolViolation:
    """For a request that would keep everybody else waiting."""
    return ProtocolViolation(
        f"{where} has count {count}, which is more than one request may ask for; ask in parts"
    )


def string_too_long(where: str, length: int) -> ProtocolViolation:
    """For a string that is longer than Kafka allows."""
    return ProtocolViolation(f"{where} has length {length}, the most is {STRING_BYTES_MAX}")


def tag_size_wrong(where: str, tag: int, size: int) -> ProtocolViolation:
    """For a tagged field whose value does not take the bytes of its length."""
    return ProtocolViolation(f"{where} tag {tag} is not the {size} bytes that it claims to be")
