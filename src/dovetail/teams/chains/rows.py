"""Rows of a chain: the records that one attempt writes and another finds, as batches; pure.

A row belongs to a job and has a name: `""` is the job's outcome, `>0`, `>1`, ... are the jobs that
follow from it, `!` is a dead letter, `~` the job's next life, `+` its end as an item. Place and
name together are the row's id, in the header `dovetail-id`: `<input partition>-<offset of the
job><name>`. An attempt that reads a row back knows from its id which job it belongs to, whichever
attempt wrote it.

The compiled encoder of Spark's tables encodes rows, whole batches at a time.
"""

import re
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dovetail.errors import InvalidBatch
from dovetail.kafka.client.client import Partition
from dovetail.kafka.client.producer import EncodedBatch
from dovetail.record_batch import SEQUENCE_END, seal
from dovetail.spark import records
from dovetail.spark.decoder import BatchView
from dovetail.spark.exactly_once import ID_HEADER
from dovetail.spark.objects import column_of, found_in, headers_column_of
from dovetail.teams.envelope import Header

#: Of a record batch; brokers take 1 MiB by default, with a header of 61 bytes.
BATCH_BYTES = 950_000
#: Rows encoded at once; more gain nothing, and each is compared when it is read back.
BATCH_ROWS = 10_000

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
    rows: Sequence[Row], *, partition: int, producer_id: int, sequence: int, now_ms: int
) -> EncodedBatch:
    """One batch of as many of the rows as fit, in order; `partition` is that of the input.

    They have the time of now and never the job's: brokers forget producers by it.
    """
    given = _first(rows)
    lists = [
        ((ID_HEADER, b"%d-%d%b" % (partition, row.job, row.name)), *row.headers) for row in given
    ]
    body, count, base_ms, ms_max = records.encode(
        column_of([row.key for row in given]),
        column_of([row.value for row in given]),
        headers_column_of(lists),
        None,
        now_ms,
        array("i", range(len(given))).tobytes(),
        0,
        BATCH_BYTES,
    )
    data = seal(
        body,
        count,
        base_timestamp=base_ms,
        timestamp_max=ms_max,
        producer_id=producer_id,
        producer_epoch=0,
        sequence=sequence % SEQUENCE_END,
    )
    return EncodedBatch(data, sequence, count)


def _first(rows: Sequence[Row]) -> Sequence[Row]:
    """At least as many of the rows as fit into a batch, and not many more."""
    size = 0
    for number, row in enumerate(rows[:BATCH_ROWS]):
        size += len(row.key) + len(row.value or b"")
        if size > BATCH_BYTES:
            return rows[: number + 1]
    return rows[:BATCH_ROWS]


def decode_rows(batch: BatchView, place: Partition) -> list[Row]:
    """The rows of a batch that some attempt of the chain wrote. Raises `InvalidBatch`."""
    return [_row(one.key or b"", one.value, one.headers) for one in found_in([batch], place)]


def _row(key: bytes, value: bytes | None, headers: Iterable[Header]) -> Row:
    (name, row_id), *others = headers
    found = _ROW_ID.match(row_id)
    if name != ID_HEADER or found is None:
        raise InvalidBatch(f"a row of a team has the id {row_id!r} in its first header {name!r}")
    return Row(int(found[1]), row_id[found.end() :], key, value, tuple(others))
