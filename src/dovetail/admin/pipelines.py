"""Pipelines: what their drivers report, read from the topic of reports.

`teams/report.py` defines the record: one partition, the key is the pipeline (`pipeline#driver` for
a standby), the value a JSON document that replaces all before it. `Reports` folds these records
into one answer for each pipeline; the command line and the console show the same:

- The newest report of a key counts. Of two drivers that both claim to lead, the one with the
  higher term does, unless it stopped or fell silent.
- A driver reports at least every ten seconds while it lives. After three missed reports its
  pipeline is `silent`: the driver may be dead, or cut off.
- A standby that stopped, or that has led since, is no longer a standby. A pipeline that has no
  leader now is known by its standbys.
- If teams have separate masters, every driver reports all teams under its own key. Each team is
  shown as reported by the driver that leads it under the highest term.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from dovetail.admin.feed import Feed
from dovetail.admin.positions import Bounds, Position, resolve
from dovetail.admin.records import NewRecord, write
from dovetail.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from dovetail.admin.kafka import Kafka

#: The topic, and the longest time between two reports, of `teams/report.py`, which takes long to
#: import; a test compares them.
TOPIC = "dovetail.pipelines"
SILENT_MS = 30_000
#: How `teams` names the topic of cancels, and its limits of what a cancel says.
CANCELS = ".cancels"
JOB_ID_BYTES_MAX = 512
REASON_CHARACTERS_MAX = 500
#: A report names a job by so much of its id.
JOB_ID_CHARACTERS = 80
#: How an address of web pages begins.
_WEB = ("http://", "https://")
#: How far back a first look goes; pipelines that ended before are history.
LOOK_BACK_MS = 24 * 3_600_000
#: Records of a first look; a driver writes at most one a second.
_SCAN_MAX = 50_000
#: Pipelines and standbys that are remembered.
_KEYS_MAX = 1_000


class JobReport(Struct, frozen=True):
    """A job that runs and says how far it is."""

    #: Cut off after `JOB_ID_CHARACTERS` characters.
    id: str
    part: float = 0.0
    text: str = ""
    #: When a report first named it, without a report in between that did not.
    first_ms: int | None = None


class TeamReport(Struct, frozen=True):
    """A team, as its driver reports it."""

    team: str
    state: str = "starting"
    workers: int = 0
    input: str = ""
    results: str = ""
    dead: str = ""
    lag: int | None = None
    jobs_per_s: float | None = None
    jobs_total: int | None = None
    failures: int = 0
    dead_letters: int | None = None
    last_error: str = ""
    jobs: list[JobReport] = []
    term: int = 0
    #: Its master, where teams have masters of their own.
    driver: str = ""


class Edge(Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """A connection from a team to a team."""

    source: str
    target: str
    how: str = "pipe"


class Report(Struct, frozen=True):
    """A pipeline, as its driver reports it."""

    pipeline: str
    state: str = "running"
    driver: str = ""
    term: int | None = None
    #: What masters are elected for: `pipeline`, or `team`.
    masters: str = "pipeline"
    started_ms: int | None = None
    at_ms: int | None = None
    #: The address of Spark's own pages, where they are on.
    ui: str | None = None
    edges: list[Edge] = []
    teams: list[TeamReport] = []


class Pipeline(Report, frozen=True, kw_only=True):
    """A pipeline now: the report that counts, how old it is, and the drivers that stand by.

    `state` is `silent` where the last report is too old.
    """

    reported_ms: int
    silent_ms: int
    standbys: list[str]

    @property
    def lag(self) -> int | None:
        """Of all teams; None if one of them does not know."""
        return _sum([team.lag for team in self.teams])

    @property
    def dead_letters(self) -> int | None:
        """Of all teams; None if one of them does not know."""
        return _sum([team.dead_letters for team in self.teams])


def _sum(values: list[int | None]) -> int | None:
    """The sum; None if one of them is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


@dataclass(frozen=True, slots=True)
class _Kept:
    report: Report
    reported_ms: int

    def silent_ms(self, now_ms: int) -> int:
        return max(0, now_ms - self.reported_ms)

    def state(self, now_ms: int) -> str:
        ended = self.report.state in ("stopped", "failed")
        return self.report.state if ended or self.silent_ms(now_ms) <= SILENT_MS else "silent"


@dataclass(slots=True)
class Reports:
    """The newest reports by key. Pure."""

    _kept: dict[str, _Kept] = field(default_factory=dict)

    def take(self, key: bytes | None, value: bytes | None, *, at_ms: int) -> None:
        """Takes one record, in the order of the topic; what is not a report is passed over."""
        try:
            report = msgspec.json.decode(value or b"", type=Report)
        except msgspec.DecodeError:
            return
        if report.ui is not None and not report.ui.startswith(_WEB):
            # It becomes a link, and one of another kind could run as a script.
            report = msgspec.structs.replace(report, ui=None)
        name = (key or report.pipeline.encode()).decode(errors="replace")
        if name == report.pipeline and self._is_of_an_older_leader(report, at_ms):
            return
        if len(self._kept) < _KEYS_MAX or name in self._kept:
            known = self._kept.get(name)
            aged = _aged(report, None if known is None else known.report, at_ms)
            self._kept[name] = _Kept(aged, at_ms)

    def _is_of_an_older_leader(self, report: Report, at_ms: int) -> bool:
        known = self._kept.get(report.pipeline)
        if known is None or known.state(at_ms) in ("stopped", "silent"):
            return False
        return (report.term or 0) < (known.report.term or 0)

    def pipelines(self, *, now_ms: int) -> list[Pipeline]:
        """All pipelines by name."""
        names = sorted({kept.report.pipeline for kept in self._kept.values()})
        return [self._pipeline(name, now_ms) for name in names]

    def _pipeline(self, name: str, now_ms: int) -> Pipeline:
        leader = self._kept.get(name)
        others = [
            kept
            for key, kept in sorted(self._kept.items())
            if key != name and kept.report.pipeline == name
        ]
        live = [kept for kept in others if kept.state(now_ms) not in ("stopped", "silent")]
        standbys = [kept.report.driver for kept in live if not _led_since(kept, leader)]
        by_team = [kept for kept in live if kept.report.masters == "team"]
        if by_team and (leader is None or leader.state(now_ms) in ("stopped", "silent")):
            return _of_teams(by_team, now_ms)

        counts = leader or max(others, key=lambda kept: kept.reported_ms)
        fields = msgspec.structs.asdict(counts.report)
        return Pipeline(
            **(fields | {"state": counts.state(now_ms)}),
            reported_ms=counts.reported_ms,
            silent_ms=counts.silent_ms(now_ms),
            standbys=sorted(standbys),
        )


def _aged(report: Report, before: Report | None, at_ms: int) -> Report:
    """The report, whose jobs know since when they are named."""
    teams = () if before is None else before.teams
    first = {(team.team, job.id): job.first_ms for team in teams for job in team.jobs}
    aged = [
        msgspec.structs.replace(
            team,
            jobs=[
                msgspec.structs.replace(job, first_ms=first.get((team.team, job.id)) or at_ms)
                for job in team.jobs
            ],
        )
        for team in report.teams
    ]
    return msgspec.structs.replace(report, teams=aged)


def cancel_job(kafka: "Kafka", pipeline: str, job: str, *, reason: str = "") -> None:
    """Cancels a job of a pipeline, whatever it does; durable when it returns.

    Nobody knows here whether there is such a job: its outcome says what became of it. Raises
    `NotFound` for a pipeline that never ran, `InvalidInput`, `Uncertain`.
    """
    try:
        key = job.encode()
        value = reason.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"a job id and a reason are Unicode text: {error}") from error
    if not 0 < len(key) <= JOB_ID_BYTES_MAX:
        raise InvalidInput(f"a job id has 1 to {JOB_ID_BYTES_MAX} bytes, not {len(key)}")
    if len(reason) > REASON_CHARACTERS_MAX:
        raise InvalidInput(f"a reason has at most {REASON_CHARACTERS_MAX} characters")

    topic = f"{pipeline}{CANCELS}"
    if topic not in kafka.metadata().topics:
        raise NotFound(
            f"no pipeline {pipeline!r} takes cancels here: there is no topic {topic!r}, which its "
            "driver makes when it first runs"
        )
    write(kafka, [NewRecord(topic, key, value)])


def _of_teams(drivers: list[_Kept], now_ms: int) -> Pipeline:
    """A pipeline whose teams have masters of their own, by the drivers that report now."""
    newest = max(drivers, key=lambda kept: kept.reported_ms)
    led: dict[str, TeamReport] = {}
    for kept in sorted(drivers, key=lambda kept: kept.reported_ms):
        for team in kept.report.teams:
            known = led.get(team.team)
            if team.state != "standby" and (known is None or team.term >= known.term):
                led[team.team] = msgspec.structs.replace(team, driver=kept.report.driver)

    teams = [led.get(team.team, team) for team in newest.report.teams]
    masters = sorted({team.driver for team in led.values()})
    states = {kept.report.state for kept in drivers if kept.report.driver in masters}
    worst = [one for one in ("failed", "retrying", "running") if one in states]
    fields = msgspec.structs.asdict(newest.report) | {
        "state": worst[0] if worst else newest.report.state,
        "driver": ", ".join(masters) or newest.report.driver,
        "term": max((team.term for team in led.values()), default=0),
        "teams": teams,
    }
    return Pipeline(
        **fields,
        reported_ms=newest.reported_ms,
        silent_ms=newest.silent_ms(now_ms),
        standbys=sorted({kept.report.driver for kept in drivers} - set(masters)),
    )


def _led_since(standby: _Kept, leader: _Kept | None) -> bool:
    return (
        leader is not None
        and leader.report.driver == standby.report.driver
        and leader.reported_ms >= standby.reported_ms
    )


class PipelineReports:
    """The pipelines of a cluster; each look reads only what is new. Safe between threads."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._feed = Feed(TOPIC, start=self._start)
        self._reports = Reports()
        self._turn = threading.Lock()

    def list(self, kafka: "Kafka") -> "list[Pipeline]":
        """All pipelines of the last day, by name. Raises `Unavailable`."""
        with self._turn:
            found = self._feed.read(kafka)
            for record in () if found is None else found[0]:
                self._reports.take(record.key, record.value, at_ms=record.timestamp_ms)
            return self._reports.pipelines(now_ms=self._wall_ms())

    def one(self, kafka: "Kafka", name: str) -> Pipeline:
        """One pipeline. Raises `NotFound`, `Unavailable`."""
        for pipeline in self.list(kafka):
            if pipeline.pipeline == name:
                return pipeline
        raise NotFound(
            f"no driver has reported on a pipeline {name!r} within a day; is it running? "
            "(dovetail pipeline run)"
        )

    def _start(self, kafka: "Kafka", bounds: Bounds) -> int:
        since = Position("time", max(0, self._wall_ms() - LOOK_BACK_MS))
        found = resolve(kafka, since, {(TOPIC, 0): bounds})
        return max(found[TOPIC, 0], bounds.end - _SCAN_MAX)
