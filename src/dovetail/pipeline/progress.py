"""How far the teams are: what Spark tells about a query, in the words of this project. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.pipeline.client import Partition
from dovetail.pipeline.offsets import from_document


@dataclass(frozen=True, slots=True)
class TeamProgress:
    """One team at a moment."""

    team: str
    state: str
    #: Micro-batches that were begun.
    batch: int
    #: Works that came in the last micro-batch.
    works: int
    works_per_s: float
    #: Works in the input topic behind the last micro-batch.
    lag: int
    batch_ms: int
    failures: int
    reason: str

    @property
    def cells(self) -> tuple[object, ...]:
        """A row of the table."""
        rate = round(self.works_per_s, 1)
        return (self.team, self.state, self.lag, rate, self.batch, self.batch_ms, self.reason)


COLUMNS = ("team", "state", "lag", "works/s", "batch", "batch ms", "last failure")


def progress_of(team: str, told: Any, *, failures: int = 0, reason: str = "") -> TeamProgress:
    """Of the last progress of a query, which is None until its first micro-batch is done."""
    first_line = reason.partition("\n")[0][:120]
    if told is None:
        state = "failing" if failures else "starting"
        return TeamProgress(team, state, 0, 0, 0.0, 0, 0, failures, first_line)
    sources: Iterable[Mapping[str, Any]] = told["sources"]
    lag = sum(lag_of(source.get("endOffset"), source.get("latestOffset")) for source in sources)
    duration_ms = int((told.get("durationMs") or {}).get("triggerExecution", 0))
    works = int(told.get("numInputRows") or 0)
    rate = float(told.get("processedRowsPerSecond") or 0.0)
    state = "failing" if failures else ("working" if works or lag else "idle")
    return TeamProgress(
        team, state, int(told["batchId"]), works, rate, lag, duration_ms, failures, first_line
    )


def ends_of(told: Any) -> dict[Partition, int]:
    """Where the last finished micro-batch ended, in every partition."""
    ends: dict[Partition, int] = {}
    for source in told["sources"]:
        ends |= _positions(source.get("endOffset"))
    return ends


def lag_of(end: Any, latest: Any) -> int:
    """Records between two positions, as a source tells them."""
    ends, ahead = _positions(end), _positions(latest)
    return sum(max(0, offset - ends.get(place, 0)) for place, offset in ahead.items())


def _positions(document: Any) -> dict[Partition, int]:
    if isinstance(document, str):
        document = json.loads(document)
    return from_document(document) if isinstance(document, Mapping) else {}
