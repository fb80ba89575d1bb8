"""The codecs of record batches: none, gzip, snappy, lz4, zstd.

Foreign data is decompressed into bounded memory, so that a bomb stops at a limit.
"""

from types import ModuleType

import cramjam

from dovetail.buffers import Buffer
from dovetail.errors import InvalidBatch, InvalidInput

#: Names as in Kafka's settings, by the number in the batch's attributes.
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

#: A batch that inflates to more is refused: brokers take 1 MiB by default, and a bomb stops here.
INFLATED_BYTES_MAX = 64 * 1024 * 1024

#: What does not say its size is tried in ever larger room, from this much on.
_ROOM_BYTES_MIN = 1024 * 1024
_ROOM_GROWTH = 8

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
#: Behind the magic: two version numbers of four bytes.
_XERIAL_HEADER_BYTES = 16


def codec_number(name: str) -> int:
    """The number of a codec. Raises `InvalidInput`."""
    if name not in CODECS:
        raise InvalidInput(f"compression {name!r} is unknown; choose one of {', '.join(CODECS)}")
    return CODECS.index(name)


def inflate(data: Buffer, codec: int) -> Buffer:
    """The plain records of a batch. Raises `InvalidBatch` for what does not inflate, or too far."""
    if codec == 0:
        return data
    if codec >= len(CODECS):
        raise InvalidBatch(f"compression codec {codec} is unknown")
    try:
        if codec == 2:
            return _inflate_snappy(bytes(data))
        return _inflate_stream(_module(codec), bytes(data))
    except (cramjam.DecompressionError, ValueError) as error:
        raise InvalidBatch(
            f"cannot decompress a batch as {CODECS[codec]}, or it has more than "
            f"{INFLATED_BYTES_MAX} bytes: {error}"
        ) from error


def deflate(data: bytes, codec: int, level: int | None = None) -> bytes:
    """The records of a batch, compressed; snappy has no levels."""
    if codec == 0:
        return data
    if codec == 2:
        return bytes(cramjam.snappy.compress_raw(data))
    if codec == 3:
        # Java's client reads independent blocks only; linked ones are the library's default.
        compressor = cramjam.lz4.Compressor(level=level, block_linked=False)
        compressor.compress(data)
        return bytes(compressor.finish())
    return bytes(_module(codec).compress(data, level))


def _module(codec: int) -> ModuleType:
    modules: dict[int, ModuleType] = {1: cramjam.gzip, 3: cramjam.lz4, 4: cramjam.zstd}
    return modules[codec]


def _inflate_stream(codec: ModuleType, data: bytes) -> Buffer:
    size = min(max(len(data) * _ROOM_GROWTH, _ROOM_BYTES_MIN), INFLATED_BYTES_MAX)
    while True:
        room = bytearray(size)
        try:
            return memoryview(room)[: codec.decompress_into(data, room)]
        except cramjam.DecompressionError:
            if size == INFLATED_BYTES_MAX:
                raise
        size = min(size * _ROOM_GROWTH, INFLATED_BYTES_MAX)


def _inflate_snappy(data: bytes) -> bytes:
    """Snappy, plain or in the blocks that Java clients write."""
    if not data.startswith(_XERIAL_MAGIC):
        return _inflate_block(data, INFLATED_BYTES_MAX)
    plain, at = bytearray(), _XERIAL_HEADER_BYTES
    while at + 4 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        plain += _inflate_block(data[at + 4 : at + 4 + length], INFLATED_BYTES_MAX - len(plain))
        at += 4 + length
    return bytes(plain)


def _inflate_block(block: bytes, bytes_max: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > bytes_max:
        raise InvalidBatch(f"a batch decompresses to more than {INFLATED_BYTES_MAX} bytes")
    return bytes(cramjam.snappy.decompress_raw(block))
