"""Whether the records of a batch match its header (F13); compiled if there was a compiler.

A checksum proves that a batch arrived as it was sent, not that it can be read: readers that meet
garbage stop there. So a broker checks each record once, on arrival, as Kafka does. Measured in one
process, batches of 1,000 records of 100 bytes: 8 µs compiled, 3 % of what a broker spends on such a
batch; 4 ms in Python.
"""

from dovetail.buffers import Buffer
from dovetail.compression import inflate
from dovetail.errors import InvalidBatch
from dovetail.record_batch import CODEC_MASK, HEADER_BYTES, BatchHeader, read_varint


def plain_check(data: Buffer, start: int, count: int) -> None:
    """Raises `ValueError` unless `count` whole records fill `data` from `start` on.

    Their offsets follow each other from 0, lengths fit their record, and nothing is left over.
    """
    view = bytes(memoryview(data)[start:])
    at = 0
    for number in range(count):
        try:
            length, at = read_varint(view, at)
            if length < 1 or at + length > len(view):
                raise ValueError("it is longer than its batch")
            _check_record(view[at : at + length], number)
        except (ValueError, InvalidBatch) as error:
            raise ValueError(f"record {number}: {error}") from None
        at += length
    if at != len(view):
        raise ValueError(f"record {count}: bytes follow the last one")


def _check_record(record: bytes, number: int) -> None:
    _, at = read_varint(record, 1)
    offset_delta, at = read_varint(record, at)
    if offset_delta != number:
        raise ValueError("its offset does not follow the one before it")
    at = _skip(record, _skip(record, at))

    headers, at = read_varint(record, at)
    if headers < 0:
        raise ValueError("its count of headers is none")
    for _ in range(headers):
        at = _skip(record, _skip(record, at, least=0))
    if at != len(record):
        raise ValueError("it is longer than its fields")


def _skip(record: bytes, at: int, *, least: int = -1) -> int:
    length, at = read_varint(record, at)
    if length < least or at + length > len(record):
        raise ValueError("a field is longer than the record")
    return at + max(length, 0)


def plain_first_keyless(data: Buffer, start: int, count: int) -> int:
    """The number of the first of some whole records that has no key; -1 if all have one."""
    view = bytes(memoryview(data)[start:])
    at = 0
    for number in range(count):
        length, at = read_varint(view, at)
        _, key_at = read_varint(view, at + 1)
        _, key_at = read_varint(view, key_at)
        if read_varint(view, key_at)[0] < 0:
            return number
        at += length
    return -1


try:
    from dovetail._record_check import first_keyless
except ImportError:
    first_keyless = plain_first_keyless

try:
    from dovetail._record_check import check
except ImportError:
    check = plain_check
    COMPILED = False
else:
    COMPILED = True


def check_records(batch: memoryview, header: BatchHeader, *, keyed: bool = False) -> None:
    """Raises `InvalidBatch` unless the records are whole; a compressed batch is inflated for it.

    With `keyed`, as topics that are compacted ask for, also unless each of them has a key.
    """
    codec = header.attributes & CODEC_MASK
    data: Buffer = inflate(batch[HEADER_BYTES:], codec) if codec else batch
    try:
        check(data, start := 0 if codec else HEADER_BYTES, header.record_count)
    except ValueError as error:
        raise InvalidBatch(f"the batch holds a malformed record: {error}") from error
    if keyed and (number := first_keyless(data, start, header.record_count)) >= 0:
        raise InvalidBatch(
            f"record {number} of the batch has no key, and the topic is compacted "
            "(cleanup.policy=compact): give each record a key"
        )
