"""What running pipelines tell: their graph and progress, from the topic that drivers write to.

The topic `dovetail.pipelines` has one partition; a record's key is the pipeline, its value a JSON
document that stands for all before it. A driver writes at least every ten seconds while it lives,
so one that was not heard of for longer is called silent: it may be dead, or cut off. What was read
once is remembered, and only what is new is read again.
"""

import asyncio

import msgspec
from msgspec import Struct

from dovetail.clock import Clock
from dovetail.console.kafka_link import KafkaLink
from dovetail.console.nouns.offsets import Position, bounds_of, resolve
from dovetail.console.nouns.records import Reader, ReadLimits, Record, Span

TOPIC = "dovetail.pipelines"
#: Three missed reports.
SILENT_MS = 30_000
#: How far back a first look goes; pipelines that ended before are history.
LOOK_BACK_MS = 6 * 3_600_000
#: Records of one look; a driver writes at most one a second.
_SCAN_MAX = 50_000
#: Pipelines that are remembered.
_PIPELINES_MAX = 1_000


class TeamTold(Struct, frozen=True):
    """A team, as its driver tells it."""

    team: str
    state: str = "starting"
    workers: int = 0
    input: str = ""
    results: str = ""
    dead: str = ""
    lag: int | None = None
    works: int | None = None
    works_per_s: float | None = None
    works_total: int | None = None
    batch: int | None = None
    batch_ms: int | None = None
    failures: int = 0
    dead_letters: int | None = None
    last_error: str = ""


class EdgeTold(Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """A way from a team to a team."""

    source: str
    target: str
    how: str = "pipe"


class PipelineTold(Struct, frozen=True):
    """A pipeline, as its driver tells it."""

    pipeline: str
    state: str = "running"
    driver: str = ""
    term: int | None = None
    started_ms: int | None = None
    at_ms: int | None = None
    edges: list[EdgeTold] = []
    teams: list[TeamTold] = []


class Heard(Struct, frozen=True):
    """A report and when it was stored."""

    told: PipelineTold
    told_ms: int


class PipelineFeed:
    """The last report of each pipeline."""

    def __init__(self, link: KafkaLink, reader: Reader, clock: Clock) -> None:
        self._link = link
        self._reader = reader
        self._clock = clock
        self._next: int | None = None
        self._heard: dict[str, Heard] = {}
        self._turn = asyncio.Lock()

    async def heard(self) -> dict[str, Heard]:
        """All pipelines that were heard of, by name. Raises `Unavailable`."""
        async with self._turn:
            bounds = (await bounds_of(self._link, [(TOPIC, 0)])).get((TOPIC, 0))
            if bounds is None:
                return dict(self._heard)
            if self._next is None or not bounds.first <= self._next <= bounds.end:
                since = Position("time", max(0, self._clock.wall_ms() - LOOK_BACK_MS))
                found = await resolve(self._link, since, {(TOPIC, 0): bounds})
                self._next = max(found[TOPIC, 0], bounds.end - _SCAN_MAX)
            span = Span(0, self._next, bounds.end)
            reading = await self._reader.read(TOPIC, [span], ReadLimits(scan=_SCAN_MAX))
            for record in reading.records:
                self._take(record)
            self._next = reading.next.get(0, self._next)
            return dict(self._heard)

    def _is_of_an_older_master(self, told: PipelineTold, told_ms: int) -> bool:
        """Of two drivers that both say they lead, the one with the higher term does."""
        known = self._heard.get(told.pipeline)
        if known is None or known.told.state == "stopped" or told_ms - known.told_ms > SILENT_MS:
            return False
        return (told.term or 0) < (known.told.term or 0)

    def _take(self, record: Record) -> None:
        try:
            told = msgspec.json.decode(record.value or b"", type=PipelineTold)
        except msgspec.DecodeError:
            # Not ours, or of a release to come; what was known before still stands.
            return
        key = (record.key or told.pipeline.encode()).decode(errors="replace")
        if key == told.pipeline and self._is_of_an_older_master(told, record.timestamp_ms):
            return
        if len(self._heard) < _PIPELINES_MAX or key in self._heard:
            self._heard[key] = Heard(told, record.timestamp_ms)
