"""Records to columns and back: compiled where the installation found a compiler, else in Python.

Measured on 2 cores with other work running, messages of 100 bytes in batches of 1000, a second:
decoding 9.1 million compiled and 0.19 million in Python; confluent-kafka's `consume(10000)` with
all fields, fetch included, 0.25 to 0.5 million. Encoding 11 million compiled, 0.17 million in
Python. (`python -m bench.pipeline --only records` measures it anew.)
"""

from dovetail.pipeline import _plain_records as plain

try:
    from dovetail.pipeline import _records
except ImportError:
    COMPILED = False
    decode, encode, assign, group = plain.decode, plain.encode, plain.assign, plain.group
else:
    COMPILED = True
    decode, encode, assign, group = (
        _records.decode,
        _records.encode,
        _records.assign,
        _records.group,
    )

__all__ = ["COMPILED", "assign", "decode", "encode", "group"]
