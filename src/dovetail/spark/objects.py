"""Records as Python objects, without Arrow: for teams, which take each record by itself.

Cells of Arrow columns cost three times as much to get at, and Arrow loads pandas for the first of
them. What is malformed is refused as `decoder` refuses it.
"""

from typing import NamedTuple

from dovetail.kafka.client.client import Partition
from dovetail.spark import records
from dovetail.spark.decoder import OFFSET_END, BatchView, refused

Header = tuple[str, bytes]


class Found(NamedTuple):
    """A record as a fetch brought it."""

    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None
    #: A header without a value has an empty one.
    headers: tuple[Header, ...]


def found_in(
    batches: list[BatchView],
    partition: Partition,
    *,
    offset_min: int = 0,
    offset_end: int = OFFSET_END,
) -> list[Found]:
    """The records with `offset_min` <= offset < `offset_end`, in order. Raises `InvalidBatch`."""
    wanted = [batch for batch in batches if not batch.control]
    with refused(wanted, partition, offset_min):
        sections = [batch.section() for batch in wanted]
        return records.objects(sections, offset_min, offset_end, Found)
