"""Records to columns and back: compiled if the installation found a compiler, else in Python.

Measured on 2 cores under load 7 to 9, messages of 100 bytes with a key, a second
(`python -m bench.pipeline --only records`): decoding 4.4 million compiled, 0.10 million in Python;
encoding 4.9 and 0.07 million. With the fetch from a node and the checksums: 3.8 million compiled,
where confluent-kafka's `consume(10000)` with all fields gives 0.24 million.
"""

from functools import cache

from dovetail.kafka.client import partitioner
from dovetail.logging import get_logger
from dovetail.spark import _plain_records as plain

try:
    from dovetail.spark import _records
except ImportError:
    COMPILED = False
    decode, encode = plain.decode, plain.encode
    objects, encode_rows = plain.objects, plain.encode_rows
    assign, group, murmur2 = plain.assign, plain.group, partitioner.murmur2
else:
    COMPILED = True
    decode, encode = _records.decode, _records.encode
    objects, encode_rows = _records.objects, _records.encode_rows
    assign, group, murmur2 = _records.assign, _records.group, _records.murmur2

__all__ = [
    "COMPILED",
    "assign",
    "decode",
    "encode",
    "encode_rows",
    "group",
    "murmur2",
    "objects",
    "warn_if_plain",
]

_log = get_logger("spark")


@cache
def warn_if_plain() -> None:
    """Warns once a process where the compiled decoder is missing: reading is 40 times slower."""
    if not COMPILED:
        _log.warning(
            "no compiled decoder of records: reading and writing topics is about 40 times slower",
            fix="install Dovetail from a wheel, or where a C compiler is; ship it as an archive",
        )
