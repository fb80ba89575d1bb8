"""How far a stream is behind its topics, from what Spark reports of a query; pure.

Spark takes no metrics from a source in Python, and describes it by the name of its Java class. What
it does report are positions: where a micro-batch ended and where the topics ended then. From these
follow the topics' names and their lag.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.errors import Damaged
from dovetail.kafka.client.client import Partition
from dovetail.spark.offsets import from_document


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """One source of a query: a stream of topics."""

    topics: tuple[str, ...]
    #: Records that wait, by partition. None: Spark 4.0 and 4.1 do not report where topics end.
    behind: Mapping[Partition, int] | None
    rows: int
    rows_per_s: float

    @property
    def lag(self) -> int | None:
        """Records that wait in all partitions."""
        return None if self.behind is None else sum(self.behind.values())


def progress_of(reported: Mapping[str, Any] | None) -> list[SourceProgress]:
    """The sources that are topics, of `query.lastProgress` or of a listener's `event.progress`.

    Empty before the first micro-batch.
    """
    found = [_source(one) for one in (reported or {}).get("sources", ())]
    return [one for one in found if one is not None]


def _source(one: Mapping[str, Any]) -> SourceProgress | None:
    end, latest = _positions(one.get("endOffset")), _positions(one.get("latestOffset"))
    if end is None:
        return None
    behind = latest and {key: max(0, at - end.get(key, at)) for key, at in latest.items()}
    topics = tuple(sorted({topic for topic, _ in end}))
    rate = float(one.get("processedRowsPerSecond") or 0)
    return SourceProgress(topics, behind, int(one.get("numInputRows") or 0), rate)


def _positions(offsets: Any) -> dict[Partition, int] | None:
    """None for those of another kind of source."""
    try:
        found = json.loads(offsets) if isinstance(offsets, str) else offsets
        return from_document(found) or None
    except (ValueError, Damaged):
        return None
