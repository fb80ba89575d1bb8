"""How a job ends: with a result, as a dead letter with the reason, or cancelled; or is postponed.

    result        key: the id; value: the result in the team's codec; headers: parent, traceparent
    dead letter   key: the id; value: the payload as it came, so that copying it back is a replay;
                  headers: kind, reason, traceback, attempts, and those of the job
    cancelled     on the results topic: a failure mark like a dead letter's, without a dead letter
    postponed     on the results topic: an empty value; headers: kind, reason, attempts, not-before.
                  The job is tried again at that time; readers skip this record

All are bounded: a reason or a traceback is cut, and left out where the job fills a record. So a
dead letter can always be written, whatever a function raised: where a job's record has room for
nothing else, the letter is that record and no more. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from dovetail.errors import Refused
from dovetail.foreign import TOPIC_CHARACTERS_MAX
from dovetail.teams.codecs import Codec, codec_of
from dovetail.teams.envelope import (
    ATTEMPTS,
    ITEM,
    NOT_BEFORE,
    SINCE,
    TO,
    Header,
    Job,
    JobId,
    job_of,
)

KIND = "dovetail-kind"
REASON = "dovetail-reason"
TRACEBACK = "dovetail-traceback"

#: The kind of a job that is tried again later.
POSTPONED = b"postponed"

#: A reason is a sentence; a user's exception may contain a whole document.
REASON_CHARACTERS_MAX = 1_000
#: The end of a traceback matters most; 8 KiB hold some sixty frames.
TRACEBACK_CHARACTERS_MAX = 8_000
#: Kafka's message.max.bytes is 1,048,588 for a batch; keys, headers and framing need the rest.
RECORD_BYTES_MAX = 1_000_000
BATCH_BYTES_MAX = 1_048_588
#: So much of a key and a parent's id always has room beside a payload.
MARKS_BYTES_MAX = 24 * 1024
#: What frames a batch of one record, and each of its headers, at most.
_FRAME_BYTES, _HEADER_BYTES = 100, 8


class FailureKind(StrEnum):
    """Why a job did not end in a result."""

    EXCEPTION = "exception"
    REJECTED = "rejected"
    TIMEOUT = "timeout"
    CRASH = "crash"
    JOB_UNREADABLE = "job-unreadable"
    RESULT_UNWRITABLE = "result-unwritable"
    RESULT_TOO_LARGE = "result-too-large"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether trying again cannot help: the same bytes meet the same rule."""
        return self in (
            FailureKind.REJECTED,
            FailureKind.JOB_UNREADABLE,
            FailureKind.CANCELLED,
        )


class Reject(Exception):
    """Raised by a work function: this job can never be done; do not try again."""


def _encodable(text: str) -> str:
    """The text with lone surrogates written as escapes: a user's exception may hold any."""
    return text.encode(errors="backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt."""

    kind: FailureKind
    reason: str
    traceback: str = ""

    def bounded(self) -> "Failure":
        """The same with its texts cut to fit a record, and escaped where they are not Unicode."""
        trace = _encodable(self.traceback[-TRACEBACK_CHARACTERS_MAX - 1 :])
        if len(trace) > TRACEBACK_CHARACTERS_MAX:
            trace = "...\n" + trace[-TRACEBACK_CHARACTERS_MAX:]
        reason = _encodable(self.reason[:REASON_CHARACTERS_MAX])
        return Failure(self.kind, reason[:REASON_CHARACTERS_MAX], trace)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A job that was given up."""

    job: Job
    failure: Failure
    attempts: int

    def headers(self) -> list[Header]:
        """The headers of its record, as far as they fit beside the job."""
        failure, about = self.failure.bounded(), self._about()
        if room_beside(self.job, about) < 0:
            about = [(KIND, failure.kind.encode())]
        room = room_beside(self.job, about)
        if room < 0:
            return []
        about.append((REASON, failure.reason.encode(errors="replace")[:room]))
        trace = failure.traceback.encode(errors="replace")
        small = len(self.job.payload) + len(trace) < RECORD_BYTES_MAX
        if trace and small and len(trace) <= room_beside(self.job, about):
            about.append((TRACEBACK, trace))
        return about

    def mark(self) -> list[Header]:
        """The headers of the failure mark on the results topic, which has no payload."""
        reason = self.failure.bounded().reason.encode(errors="replace")
        return [*self._about(), (REASON, reason)]

    def _about(self) -> list[Header]:
        found = [one for one in self.job.headers() if one[0] not in (ATTEMPTS, SINCE, ITEM)]
        return [*found, (ATTEMPTS, b"%d" % self.attempts), (KIND, self.failure.kind.encode())]


def room_beside(job: Job, headers: Iterable[Header]) -> int:
    """Bytes for one more header in the record of a job with these ones; negative if they do not
    fit themselves."""
    used = sum(len(name) + len(value) + _HEADER_BYTES for name, value in headers)
    beside = _FRAME_BYTES + len(REASON) + _HEADER_BYTES
    return BATCH_BYTES_MAX - beside - len(job.key) - len(job.payload) - used


@dataclass(frozen=True, slots=True)
class Postponed:
    """A job that failed and is tried again later, by way of a timeline."""

    job: Job
    reason: str
    attempts: int
    not_before_ms: int

    def headers(self) -> list[Header]:
        """The headers of its record."""
        reason = self.reason[:REASON_CHARACTERS_MAX].encode(errors="replace")
        return [
            (ATTEMPTS, b"%d" % self.attempts),
            (NOT_BEFORE, b"%d" % self.not_before_ms),
            (KIND, POSTPONED),
            (REASON, reason),
        ]

    @property
    def fits(self) -> bool:
        """Whether the record of its next life, which says when and where it goes, can be stored."""
        later = self.next_job(since_ms=self.not_before_ms).headers()
        return room_beside(self.job, [*later, (TO, b"t" * TOPIC_CHARACTERS_MAX)]) >= 0

    def next_job(self, *, since_ms: int) -> Job:
        """The same job as it will come back, put off at a time."""
        return msgspec.structs.replace(
            self.job,
            attempts=self.attempts,
            not_before_ms=self.not_before_ms,
            since_ms=since_ms,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended, as its team's topics say."""

    team: str
    id: JobId
    parent: JobId | None
    #: The result as bytes; for a dead letter, the payload of the job.
    payload: bytes
    failure: Failure | None = None
    attempts: int = 1
    codec: Codec = field(default=codec_of("raw"), repr=False)

    @property
    def ok(self) -> bool:
        """Whether it is a result."""
        return self.failure is None

    @property
    def result(self) -> Any:
        """The result, decoded. Raises `JobFailed`, `Undecodable`."""
        if self.failure is not None:
            raise JobFailed(self)
        return self.codec.decoder()(self.payload)


class JobFailed(Refused):
    """The job that was asked for ended in dead letters."""

    def __init__(self, outcome: Outcome) -> None:
        assert outcome.failure is not None
        self.outcome = outcome
        failure: Failure = outcome.failure
        super().__init__(
            f"team {outcome.team!r} gave up job {outcome.id!r} after {outcome.attempts} attempts: "
            f"{failure.kind}: {failure.reason}"
        )


def outcome_of(
    team: str,
    *,
    dead: bool,
    place: str,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[Header] | None,
    codec: Codec | None = None,
) -> Outcome:
    """The outcome that a record of a results or dead-letter topic holds."""
    known = dict(headers or ())
    job = job_of(place=place, key=key, value=value, headers=known.items())
    codec = codec or codec_of("raw")
    if not dead:
        return Outcome(team, job.id, job.parent, job.payload, codec=codec)

    kind = known.get(KIND, b"").decode(errors="replace")
    failure = Failure(
        FailureKind(kind) if kind in set(FailureKind) else FailureKind.EXCEPTION,
        known.get(REASON, b"").decode(errors="replace"),
        known.get(TRACEBACK, b"").decode(errors="replace"),
    )
    return Outcome(team, job.id, job.parent, job.payload, failure, max(1, job.attempts), codec)
