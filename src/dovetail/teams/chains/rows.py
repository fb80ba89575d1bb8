"""Rows of a chain: the records that one attempt writes and another finds, as batches; pure.

A row belongs to a job and has a name: `""` is the job's outcome, `>0`, `>1`, ... are the jobs that
follow from it, `!` is a dead letter, `~` the job's next life, `+` its end as an item. Place and
name together are the row's id, in the header `dovetail-id`: `<input partition>-<offset of the
job><name>`. An attempt that reads a row back knows from its id which job it belongs to, whichever
attempt wrote it.

Compiled code encodes rows, whole batches at a time.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from dovetail.errors import InvalidBatch
from dovetail.kafka.client.client import Partition
from dovetail.kafka.client.producer import EncodedBatch
from dovetail.record_batch import SEQUENCE_END, seal
from dovetail.spark import records
from dovetail.spark.decoder import BatchView
from dovetail.spark.exactly_once import ID_HEADER
from dovetail.spark.objects import found_in
from dovetail.teams.envelope import Header

#: Of a record batch; brokers take 1 MiB by default, with a header of 61 bytes.
BATCH_BYTES = 950_000
#: Rows encoded at once; more gain nothing, and each is compared when it is read back.
BATCH_ROWS = 10_000

_ID_NAME = ID_HEADER.encode()
OUTCOME, DEAD, POSTPONED_LIFE, GATHERED = b"", b"!", b"~", b"+"

#: The input partition and the offset in an id; the name follows.
_ROW_ID = re.compile(rb"[^-]*-([0-9]+)")


class Row(NamedTuple):
    """A record of a chain; its headers are without the id."""

    #: The offset of the job that it belongs to.
    job: int
    name: bytes
    key: bytes
    value: bytes | None
    headers: tuple[Header, ...] = ()

    def says_the_same(self, other: "Row") -> bool:
        """Whether both have the same content."""
        return self.value == other.value and self.headers == other.headers


def follow_name(number: int) -> bytes:
    """The name of the row for the job that follows as number so and so."""
    return b">%d" % number


def encode_rows(
    rows: list[Row],
    *,
    partition: int,
    producer_id: int,
    sequence: int,
    now_ms: int,
    bytes_max: int = BATCH_BYTES,
) -> EncodedBatch:
    """One batch of as many of the rows as fit, in order, and of one at least; `partition` is that
    of the input.

    They have the time of now and never the job's: brokers forget producers by it.
    """
    body, count = records.encode_rows(rows, _ID_NAME, b"%d-" % partition, BATCH_ROWS, bytes_max)
    data = seal(
        body,
        count,
        base_timestamp=now_ms,
        timestamp_max=now_ms,
        producer_id=producer_id,
        producer_epoch=0,
        sequence=sequence % SEQUENCE_END,
    )
    return EncodedBatch(data, sequence, count)


def batch_bytes(row: Row) -> int:
    """The size of a batch that holds this row alone."""
    return len(encode_rows([row], partition=2**31, producer_id=0, sequence=0, now_ms=0).data)


def decode_rows(batch: BatchView, place: Partition) -> list[Row]:
    """The rows of a batch that some attempt of the chain wrote. Raises `InvalidBatch`."""
    return [_row(one.key or b"", one.value, one.headers) for one in found_in([batch], place)]


def _row(key: bytes, value: bytes | None, headers: Iterable[Header]) -> Row:
    (name, row_id), *others = headers
    found = _ROW_ID.match(row_id)
    if name != ID_HEADER or found is None:
        raise InvalidBatch(f"a row of a team has the id {row_id!r} in its first header {name!r}")
    return Row(int(found[1]), row_id[found.end() :], key, value, tuple(others))
