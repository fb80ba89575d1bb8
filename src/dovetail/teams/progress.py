"""The position, lag and rate of each team, from what the broker reports; pure.

A team's position is that of its last snapshots: everything before it has ended. Without asking a
worker it gives the lag (the current end of the input topic at the broker, minus the position), the
jobs done (how far the position has moved), and the rate (the same over the last seconds).

States of a team, and of its pipeline:

    starting    its partitions are not served yet         running
    working     it has jobs                               running
    idle        it has none                               running
    retrying    its tasks failed and are restarted        retrying
    failed      its tasks failed too often                failed
    standby     another driver may be the master          waiting for election
"""

import base64
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from dovetail.kafka.client.client import Partition

#: A rate is over so many seconds: several snapshots, and no more than a person waits for.
RATE_WINDOW_S = 10.0
#: A last error is a line in a table; the log has the rest.
_ERROR_CHARACTERS_MAX = 300
#: Brokers keep 4,096 bytes beside a position; a note is a third longer than what it says.
NOTE_JOBS_MAX = 8
_NOTE_ID_CHARACTERS = 80
_NOTE_CHARACTERS_MAX = 3_500


class TeamState(StrEnum):
    """What a team is doing."""

    STARTING = "starting"
    WORKING = "working"
    IDLE = "idle"
    RETRYING = "retrying"
    FAILED = "failed"
    STANDBY = "standby"


class PipelineState(StrEnum):
    """What a driver is doing."""

    RUNNING = "running"
    RETRYING = "retrying"
    FAILED = "failed"
    WAITING = "waiting for election"
    STOPPED = "stopped"


class JobProgress(msgspec.Struct, frozen=True):
    """What a job that runs says of itself (`JobContext.progress`)."""

    id: str
    part: float
    text: str = ""


class Note(msgspec.Struct, frozen=True, array_like=True):
    """What a partition tells its driver, beside its snapshot."""

    jobs: list[JobProgress] = []
    trouble: str = ""

    def encoded(self) -> str:
        """As text without spaces, which fits beside a position."""
        jobs = [
            JobProgress(_plain(one.id)[:_NOTE_ID_CHARACTERS], one.part, _plain(one.text))
            for one in self.jobs[:NOTE_JOBS_MAX]
        ]
        while True:
            note = Note(jobs, _plain(self.trouble)[:_ERROR_CHARACTERS_MAX])
            text = base64.urlsafe_b64encode(msgspec.json.encode(note)).decode()
            if len(text) <= _NOTE_CHARACTERS_MAX or not jobs:
                return text
            jobs.pop()

    @classmethod
    def decoded(cls, text: str) -> "Note":
        """What is not a note says nothing."""
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(text), type=cls)
        except (ValueError, msgspec.MsgspecError):
            return cls()


@dataclass(frozen=True, slots=True)
class TeamProgress:
    """One team at a moment."""

    team: str
    state: TeamState
    #: Jobs in the input topic that have not ended; None: the broker did not answer.
    lag: int | None = None
    jobs_per_s: float = 0.0
    #: Since this driver became the master.
    jobs_total: int = 0
    #: How often its tasks failed since they last came forward.
    failures: int = 0
    #: Jobs given up since this driver became the master; None: the broker did not answer.
    dead_letters: int | None = None
    last_error: str = ""
    #: Some of the jobs that run and say how far they are.
    jobs: tuple[JobProgress, ...] = ()
    #: Of its master; 0: there is no election.
    term: int = 0


def _plain(text: str) -> str:
    """With lone surrogates, of ids that are not text, as escapes."""
    return text.encode(errors="backslashreplace").decode()


def pipeline_state(teams: Iterable[TeamProgress]) -> PipelineState:
    """The state of a master: its worst team decides."""
    states = {one.state for one in teams}
    if TeamState.FAILED in states:
        return PipelineState.FAILED
    return PipelineState.RETRYING if TeamState.RETRYING in states else PipelineState.RUNNING


def standby_teams(names: Iterable[str]) -> list[TeamProgress]:
    """The teams of a driver that is not the master."""
    return [TeamProgress(name, TeamState.STANDBY) for name in names]


@dataclass(slots=True)
class TeamMeter:
    """Measures one team while a driver runs it; the caller passes the time."""

    team: str
    #: Everything before it has ended.
    position: dict[Partition, int] = field(default_factory=dict)
    jobs_total: int = 0
    failures: int = 0
    failed: bool = False
    last_error: str = ""
    #: Whether its partitions are served.
    served: bool = False
    #: What its partitions told last.
    notes: dict[Partition, Note] = field(default_factory=dict)
    _first_dead: int | None = None
    _marks: deque[tuple[float, int]] = field(default_factory=deque)

    def start(self, position: Mapping[Partition, int], *, now_s: float) -> None:
        """It continues from `position`."""
        self.position = dict(position)
        self._marks.append((now_s, self.jobs_total))

    def moved(self, position: Mapping[Partition, int], *, now_s: float) -> bool:
        """Counts how far it has come; False if it is where it was."""
        # An attempt that slept may have committed an older snapshot.
        further = {k: at for k, at in position.items() if at > self.position.get(k, -1)}
        self.jobs_total += distance(self.position, further)
        self.position |= further
        if further:
            self._marks.append((now_s, self.jobs_total))
        return bool(further)

    def progress(
        self, *, now_s: float, ends: Mapping[Partition, int] | None, dead_end: int | None
    ) -> TeamProgress:
        """The team now, given the ends of its input and its dead letters; None if not known."""
        lag = None if ends is None else distance(self.position, ends)
        if self._first_dead is None:
            self._first_dead = dead_end
        dead = None if dead_end is None else dead_end - (self._first_dead or 0)
        per_s = self._per_s(now_s)
        trouble = next((one.trouble for one in self.notes.values() if one.trouble), "")

        return TeamProgress(
            team=self.team,
            state=self._state(lag, per_s),
            lag=lag,
            jobs_per_s=per_s,
            jobs_total=self.jobs_total,
            failures=self.failures,
            dead_letters=dead,
            last_error=(self.last_error or trouble).partition("\n")[0][:_ERROR_CHARACTERS_MAX],
            jobs=tuple(job for one in self.notes.values() for job in one.jobs)[:NOTE_JOBS_MAX],
        )

    def _state(self, lag: int | None, per_s: float) -> TeamState:
        if self.failed:
            return TeamState.FAILED
        if self.failures:
            return TeamState.RETRYING
        if not self.served and lag != 0:
            return TeamState.STARTING
        return TeamState.WORKING if lag or per_s else TeamState.IDLE

    def _per_s(self, now_s: float) -> float:
        marks = self._marks
        # The last mark before the window stays: it is where the window begins to count.
        while len(marks) > 1 and marks[1][0] <= now_s - RATE_WINDOW_S:
            marks.popleft()
        if not marks:
            return 0.0
        since_s, before = marks[0]
        span_s = min(now_s - since_s, RATE_WINDOW_S)
        return (self.jobs_total - before) / span_s if span_s > 0 else 0.0


def distance(start: Mapping[Partition, int], end: Mapping[Partition, int]) -> int:
    """Records between two positions; a partition without a start counts from offset 0."""
    return sum(max(0, offset - start.get(place, 0)) for place, offset in end.items())
