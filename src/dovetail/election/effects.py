"""The effects of an election, which `member` performs in order."""

from dataclasses import dataclass

from dovetail.election.fold import Record
from dovetail.election.identifiers import NO_TERM, MemberName, Term
from dovetail.election.messages import Message


@dataclass(frozen=True, slots=True)
class Vote:
    """What must be on disk before it is said: the last term that was voted in, and for whom."""

    term: Term = NO_TERM
    candidate: MemberName | None = None


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the vote to disk and sync it before any effect behind this one."""

    vote: Vote


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a member."""

    to: MemberName
    message: Message


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the message that caused this."""

    message: Message


@dataclass(frozen=True, slots=True)
class Append:
    """Append a record to the shared log, and report to `on_appended` what became of it."""

    record: Record


@dataclass(frozen=True, slots=True)
class Renew:
    """Append a report of the leader that commits nothing: a ping through the log."""

    term: Term
    received: dict[int, int]
    busy: bool


@dataclass(frozen=True, slots=True)
class Campaign:
    """Try to take the coordinator's lease, with a term that is at least this."""

    term_min: Term


@dataclass(frozen=True, slots=True)
class Release:
    """Give the coordinator's lease back."""


@dataclass(frozen=True, slots=True)
class Lead:
    """This member leads from now on."""

    term: Term


@dataclass(frozen=True, slots=True)
class StepDown:
    """This member no longer leads."""

    term: Term
    reason: str


Effect = Persist | Send | Reply | Append | Renew | Campaign | Release | Lead | StepDown
