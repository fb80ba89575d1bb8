"""The partition of a key, as common clients choose it.

A key stays in one partition only if all writers to the topic choose alike: librdkafka's default is
a CRC, the Java client's is murmur2.
"""

import struct
import zlib
from collections.abc import Callable
from functools import lru_cache

Partitioner = Callable[[bytes, int], int]


def crc32_partitioner(key: bytes, partitions: int) -> int:
    """As librdkafka's `consistent`, its default for messages with a key."""
    return zlib.crc32(key) % partitions


def murmur2_partitioner(key: bytes, partitions: int) -> int:
    """As the Java client's default."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


@lru_cache(maxsize=65_536)
def murmur2(key: bytes) -> int:
    """The hash by which Kafka's own clients choose a partition."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for (part,) in struct.iter_unpack("<I", key[:whole]):
        part = part * multiplier & mask
        part ^= part >> 24
        value = value * multiplier & mask ^ part * multiplier & mask

    rest = key[whole:]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * multiplier & mask
    value = (value ^ value >> 13) * multiplier & mask
    return value ^ value >> 15


PARTITIONERS: dict[str, Partitioner] = {
    "crc32": crc32_partitioner,
    "murmur2": murmur2_partitioner,
}
