"""Rows of a chain: the records that one attempt writes and another one finds, as batches. Pure.

A row belongs to a job and has a name: `""` is the job's outcome, `>0`, `>1`, ... are the jobs that
follow from it, `!` is a dead letter, `~` the job's next life, `+` its end as an item. Place and
name together are the row's id, in the header `dovetail-id`: `<input partition>-<offset of the
job><name>`. An attempt that reads a row back knows from its id which job it belongs to, whoever
wrote it.

Each row is encoded once, whole batches at a time, by the compiled encoder of Spark's tables.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from dovetail.errors import InvalidBatch
from dovetail.kafka.client.client import Partition
from dovetail.kafka.client.producer import EncodedBatch
from dovetail.spark.decoder import HEADERS_TYPE, BatchView, to_arrow
from dovetail.spark.encoder import Rows, encode_batches
from dovetail.spark.exactly_once import ID_HEADER
from dovetail.teams.envelope import Header

#: Of a record batch; brokers take 1 MiB by default, with a header of 61 bytes.
BATCH_BYTES = 950_000
#: Rows encoded at once; more gain nothing, and each is compared when it is read back.
BATCH_ROWS = 10_000

OUTCOME, DEAD, POSTPONED_LIFE, GATHERED = b"", b"!", b"~", b"+"

_COLUMNS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)


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
    given = rows[:BATCH_ROWS]
    names: list[str] = []
    contents: list[bytes] = []
    ends = [0]
    for row in given:
        names.append(ID_HEADER)
        contents.append(b"%d-%d%b" % (partition, row.job, row.name))
        for name, content in row.headers:
            names.append(name)
            contents.append(content)
        ends.append(len(names))

    pairs = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(contents, pa.binary())],
        fields=list(HEADERS_TYPE.value_type),
    )
    columns = [
        pa.array([row.key for row in given], pa.binary()),
        pa.array([row.value for row in given], pa.binary()),
        pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs).cast(HEADERS_TYPE),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=_COLUMNS)
    return next(
        encode_batches(
            Rows.of(batch),
            array("i", range(len(given))).tobytes(),
            codec=0,
            bytes_max=BATCH_BYTES,
            now_ms=now_ms,
            producer_id=producer_id,
            producer_epoch=0,
            sequence=sequence,
        )
    )


def decode_rows(batch: BatchView, place: Partition) -> list[Row]:
    """The rows of a batch that some attempt of the chain wrote. Raises `InvalidBatch`."""
    columns = to_arrow([batch], place, columns=_COLUMNS)
    cells = (columns.column(name).to_pylist() for name in ("key", "value", "headers"))
    return [
        _row(key or b"", value, [(pair["key"], pair["value"] or b"") for pair in pairs])
        for key, value, pairs in zip(*cells, strict=True)
    ]


def _row(key: bytes, value: bytes | None, headers: Iterable[Header]) -> Row:
    (name, row_id), *others = headers
    job, at = _number_in(row_id)
    if name != ID_HEADER or job < 0:
        raise InvalidBatch(f"a row of a team has the id {row_id!r} in its first header {name!r}")
    return Row(job, row_id[at:], key, value, tuple(others))


def _number_in(row_id: bytes) -> tuple[int, int]:
    """The offset in an id, and where the name behind it begins; -1 if there is none."""
    start = row_id.find(b"-") + 1
    end = start
    while end < len(row_id) and row_id[end : end + 1].isdigit():
        end += 1
    return (int(row_id[start:end]), end) if start and end > start else (-1, 0)
