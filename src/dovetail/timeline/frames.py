"""The calls of timelines: their messages, keys and limits. `wire/calls.py` is their codec.

Pushing: a consumer keeps `Consume` requests outstanding, each with the number of messages that it
can take; the broker answers one when something is due. Answers leave in the order of the requests,
so a consumer has one connection for these alone, and another for its commands.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

from dovetail.foreign import Key
from dovetail.timeline.config import Name, TimelineConfig
from dovetail.timeline.engine.where import SelectAction, Where
from dovetail.timeline.message import (
    BATCH_MAX,
    BatchId,
    Counts,
    Extension,
    Handle,
    Inserted,
    Leased,
    MessageId,
    NewMessage,
    Number,
    Priority,
    Release,
    Shown,
    Status,
    TimeMs,
)
from dovetail.wire.calls import TIMELINE_KEYS, Answer, CallTable, Request

#: Longest time that a request for messages waits: less than a proxy's patience with a silent line.
WAIT_MS_MAX: Final = 30_000

#: Largest body of a request: as much as a frame can have. `TimelineConfig` bounds each message.
REQUEST_BODY_BYTES_MAX: Final = 2**31 - 1

_Session = Annotated[int, Meta(ge=1, le=2**63 - 1)]
_Limit = Annotated[int, Meta(ge=1, le=BATCH_MAX)]
_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Ids = Annotated[list[Annotated[MessageId, Meta(ge=0, le=2**63 - 1)]], Meta(max_length=BATCH_MAX)]


# Timelines


class Create(Request, frozen=True):
    """Make a timeline."""

    timeline: Name
    config: TimelineConfig


SettingValue = str | int | bool


class Alter(Request, frozen=True):
    """Change settings of a timeline that is in use; the others stay as they are."""

    timeline: Name
    settings: dict[str, SettingValue]


class Purge(Request, frozen=True):
    """Remove up to so many messages that nobody holds, the first to be due first."""

    timeline: Name
    limit: _Limit


class Purged(Answer, frozen=True):
    """So many were removed; fewer than were asked for if that were all."""

    count: int


class Drop(Request, frozen=True):
    """Delete a timeline with everything in it; answered as soon as nobody can use it any more."""

    timeline: Name


class Done(Answer, frozen=True):
    """It is done."""


class ListTimelines(Request, frozen=True):
    """Which timelines are there?"""


class Listed(Answer, frozen=True):
    """Names with their states: creating, ready or deleting."""

    timelines: list[tuple[str, str]]


class Describe(Request, frozen=True):
    """How is a timeline?"""

    timeline: Name


class ConsumerState(Struct, array_like=True, frozen=True):
    """A consumer, as the broker sees it."""

    id: str
    rack: str
    buckets: int
    credit: int
    latency_ms: float
    leased: int
    lease_ms: int


class Signals(Struct, array_like=True, frozen=True):
    """What clients need to react: load now, load to come, and how the broker is."""

    backlog: int
    #: Messages a second that came in, and that were done, of late.
    arrivals: float
    done: float
    #: Messages that become due in this window and each of the next ones.
    windows: list[int]
    consumers: int
    consumers_suggested: int
    condition: str
    reasons: list[str]
    #: A broker that serves better, as host:port; empty if this one does.
    better: str = ""
    #: Consumers that could take messages and get none.
    idle: int = 0


class Described(Answer, frozen=True):
    """Settings, messages by state, consumers; lateness of the last deliveries in milliseconds."""

    timeline: str
    config: TimelineConfig
    counts: Counts
    signals: Signals
    consumers: list[ConsumerState]
    #: -1 if nothing was delivered of late.
    late_ms_p50: float
    late_ms_p99: float


class Cluster(Request, frozen=True):
    """Which brokers are there, and which is best for a timeline?"""

    timeline: str = ""


class BrokerState(Struct, array_like=True, frozen=True):
    """A broker, as the others know it."""

    name: str
    address: str
    roles: list[str]
    version: str
    condition: str
    reasons: list[str]
    timelines: list[str]
    consumers: int
    #: Part of one processor that it needs.
    load: float = 0.0
    #: Milliseconds to it and back, for whoever answers; None for itself, or if it did not answer.
    latency_ms: float | None = None


class ClusterState(Answer, frozen=True):
    """Brokers, the best one for the timeline that was asked about first."""

    brokers: list[BrokerState]


# Sessions


class Open(Request, frozen=True):
    """Become a producer or a consumer of a timeline. `lease_ms` 0 means a producer.

    `instance` tells a consumer that comes back from another one under the same id; 0 if unknown.
    """

    timeline: Name
    client: Key
    rack: Annotated[str, Meta(max_length=255)] = ""
    lease_ms: _Count = 0
    instance: Number = 0


class Opened(Answer, frozen=True):
    """The number to show with every request."""

    session: _Session
    config: TimelineConfig


class Close(Request, frozen=True):
    """Stop; what was pushed and not answered is the sender's business."""

    session: _Session


class Pause(Request, frozen=True):
    """Push nothing more: what waits for messages is answered with none, and the session stays."""

    session: _Session


class Report(Request, frozen=True):
    """How a client is: what it did since the last report, and its clock against ours.

    `latency_ms` is the time from here to there; `offset_ms` their clock less ours; `free` is how
    many messages a consumer's handlers could begin with now.
    """

    session: _Session
    handled: _Count
    failed: _Count
    busy: bool
    latency_ms: float
    offset_ms: float
    uncertain_ms: float
    free: _Count = 0


class Reported(Answer, frozen=True):
    """What the client needs to react, and our time; `trusted` unless our clock is off."""

    signals: Signals
    now_ms: int
    trusted: bool = True


# Messages


class Insert(Request, frozen=True):
    """Store messages; under a name, once."""

    session: _Session
    messages: Annotated[list[NewMessage], Meta(max_length=BATCH_MAX)]
    batch: BatchId | None = None


class InsertedAll(Answer, frozen=True):
    """For each message its id, or why it was refused."""

    outcomes: list[Inserted]


class Consume(Request, frozen=True):
    """Push up to so many messages, when they are due; nothing if none is within `wait_ms`."""

    session: _Session
    limit: _Limit
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)]


class Pushed(Answer, frozen=True):
    """Messages, each with its lease."""

    messages: list[Leased]


class Extend(Request, frozen=True):
    """Move the ends of leases."""

    session: _Session
    extensions: Annotated[list[Extension], Meta(max_length=BATCH_MAX)]


class ReleaseAll(Request, frozen=True):
    """Give messages back."""

    session: _Session
    releases: Annotated[list[Release], Meta(max_length=BATCH_MAX)]


class Delete(Request, frozen=True):
    """Remove messages that are done."""

    session: _Session
    handles: Annotated[list[Handle], Meta(max_length=BATCH_MAX)]


class Statuses(Answer, frozen=True):
    """For each item what became of it."""

    statuses: list[Status]


class Held(Request, frozen=True):
    """Which leases does this consumer hold that it does not know of, from a former life under the
    same id or a session that broke? It takes them up, under a new version each."""

    session: _Session
    limit: _Limit
    known: Annotated[list[Handle], Meta(max_length=BATCH_MAX)]


# Looking


class LookUp(Request, frozen=True):
    """Messages by id, or by unique key."""

    timeline: Name
    ids: _Ids
    keys: Annotated[list[Key], Meta(max_length=BATCH_MAX)]


class Found(Answer, frozen=True):
    """For each id and key the message; None if it is not there."""

    messages: list[Shown | None]


class Cancel(Request, frozen=True):
    """Remove messages that nobody holds."""

    timeline: Name
    ids: _Ids


class Move(Request, frozen=True):
    """Give messages that nobody holds another due time."""

    timeline: Name
    moves: Annotated[list[tuple[Number, TimeMs]], Meta(max_length=BATCH_MAX)]


class Peek(Request, frozen=True):
    """The next messages."""

    timeline: Name
    limit: _Limit


class Dead(Request, frozen=True):
    """Dead letters with ids above `after`."""

    timeline: Name
    after: Number
    limit: _Limit


class Replay(Request, frozen=True):
    """Make messages of dead letters."""

    timeline: Name
    ids: _Ids


class DropDead(Request, frozen=True):
    """Remove dead letters for good."""

    timeline: Name
    ids: _Ids


class Select(Request, frozen=True):
    """Do something to messages, or dead letters, that fit a filter: of those with ids above
    `after`, as many as one request looks at. `preview` does nothing but count."""

    timeline: Name
    action: SelectAction
    where: Where
    after: Number = 0
    #: Of `preview`: dead letters, and not messages.
    dead: bool = False
    #: Of `move`.
    due_ms: TimeMs = 0


class Selected(Answer, frozen=True):
    """How many fit and how many were changed, of those up to the id `after`; ids of some of them.
    `more`: there are others behind."""

    matched: int
    done: int
    after: int
    more: bool
    ids: list[MessageId]


# Schedules


class PutSchedule(Request, frozen=True):
    """Make messages again and again; either `cron` or `every_ms`."""

    timeline: Name
    name: Key
    body: bytes
    headers: bytes = b""
    cron: Annotated[str, Meta(max_length=200)] = ""
    zone: Annotated[str, Meta(max_length=100)] = "UTC"
    #: `engine/schedule.py` says which of them can be.
    every_ms: TimeMs = 0
    priority: Priority = 0


class DropSchedule(Request, frozen=True):
    """Stop a schedule."""

    timeline: Name
    name: Key


class Schedules(Request, frozen=True):
    """Which schedules are there?"""

    timeline: Name


class ScheduleState(Struct, array_like=True, frozen=True):
    """A schedule and its next time."""

    name: str
    next_ms: int
    cron: str
    zone: str
    every_ms: int


class ScheduleList(Answer, frozen=True):
    """All schedules of a timeline."""

    schedules: list[ScheduleState]


#: A change of a key needs a new version of the calls.
CALLS: Final = CallTable(
    "timelines",
    TIMELINE_KEYS,
    {
        11_001: Create,
        11_002: Drop,
        11_003: ListTimelines,
        11_004: Describe,
        11_005: Open,
        11_006: Close,
        11_007: Insert,
        11_008: Consume,
        11_009: Extend,
        11_010: ReleaseAll,
        11_011: Delete,
        11_012: Report,
        11_013: Held,
        11_014: LookUp,
        11_015: Cancel,
        11_016: Move,
        11_017: Peek,
        11_018: Dead,
        11_019: Replay,
        11_020: PutSchedule,
        11_021: DropSchedule,
        11_022: Schedules,
        11_023: Cluster,
        11_024: Pause,
        11_025: DropDead,
        11_026: Alter,
        11_027: Purge,
        11_028: Select,
    },
    body_bytes_max=REQUEST_BODY_BYTES_MAX,
)
