"""The contract of every store of timelines.

A store keeps one timeline: messages, their leases, dead letters and schedules. `Stores` creates,
opens and removes them.

The one idea: a message has one time, `visible_ms`, at which it next changes hands, and a version.
A lease moves that time to the lease's end and raises the version, in one atomic change. So no
process has to end a lease: the message is simply due again, and whoever leases it next raises the
version, by which the former holder is refused.

    state     visible_ms     holder        goes to
    WAITING   in the future  none          DUE by itself; WAITING (move), gone (cancel)
    DUE       now or before  any           LEASED (lease); DEAD (lease: too many attempts)
    LEASED    in the future  a consumer    LEASED (extend, take up), gone (delete), WAITING or DEAD
                                           (release), DUE by itself when the lease ends
    DEAD      -              none          WAITING (replay), gone (trim)

Promises of every store:
- A command that returned is durable, and atomic item by item; preconditions are checked in the
  statement that changes the row, never before it.
- At most one live lease per message: two leases of one message never overlap in the store's time.
- Extend, release and delete succeed if and only if the version is the one that is stored. An ended
  lease that nobody took since is still the holder's: the version decides, not the clock.
- Of one order key at most one message is leased, and none before those with earlier times: if a
  message fails, it rests and those behind it wait. The others are *parked*: only inspection finds
  them, until the one before them is gone.
- A message that was due longer ago than its time to live is a dead letter, and is not leased.
- A named batch is stored once, however often it is sent, even across a restart.
- A message that is not due costs nothing but its space on disk.

Time is an argument, from the broker. Not here: who may lease what (`assignment`), when (`loader`),
and whether the broker's clock can be trusted (`health`).
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dovetail.timeline.engine.lives import Pace
from dovetail.timeline.engine.schedule import Firing, Schedule
from dovetail.timeline.message import (
    TIME_MS_MAX,
    BatchId,
    Counts,
    Extension,
    Handle,
    Inserted,
    Leased,
    MessageId,
    NewMessage,
    Release,
    Shown,
    Status,
    TimelineId,
)


@dataclass(frozen=True, slots=True)
class LeaseAsk:
    """Lease up to `limit` messages of some buckets to `consumer`, in order of time.

    Buckets are those from `low` to below `high`; with a `mask`, one byte for each of them, only
    those whose byte is 1. What is visible by `horizon_ms` is taken; of what lies ahead of now only
    what nobody holds, because a live lease is its holder's to the end. A lease lasts `lease_ms`
    from now or from the due time, whichever is later: it begins at delivery.
    """

    consumer: str
    low: int
    high: int
    horizon_ms: int
    limit: int
    lease_ms: int
    mask: bytes | None = None


@dataclass(frozen=True, slots=True)
class LeaseResult:
    """For each ask what was leased, and what else the store found."""

    leased: tuple[tuple[Leased, ...], ...]
    #: Messages that had their last attempt and are dead letters now.
    died: int
    #: When the next message after the latest horizon is visible; None if there is none. It may be
    #: given too early, never too late: a store need not know that a lease is gone by now.
    next_ms: int | None
    #: When the first lease ends that lies before that horizon, as exact; None if there is none.
    ends_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What upkeep removed."""

    dead: int
    batches: int


class Seen(NamedTuple):
    """What a look finds of a timeline; None where there is nothing."""

    #: When something is next to be leased, or may be; it may be past.
    first_ms: int | None
    #: The next time of a schedule.
    schedule_ms: int | None


class Looked(NamedTuple):
    """What a look finds."""

    #: The store's own clock.
    time_ms: int
    timelines: dict[TimelineId, Seen]


#: Looks at timelines at a time, in one statement for all of them.
Look = Callable[[Collection[TimelineId], int], Awaitable[Looked]]


class News(Protocol):
    """What brokers of other nodes do to the same stores: told by them, and looked for."""

    def following(
        self, hear: Callable[[TimelineId, int], None]
    ) -> AbstractAsyncContextManager[Look]:
        """Inside, what others `tell` is heard. Raises `Unavailable`, as the look does when nothing
        is heard any more."""
        ...

    async def tell(self, news: Mapping[TimelineId, int]) -> None:
        """Tells all others that something was stored, due then."""
        ...


class TimelineStore(Protocol):
    """The store of one timeline; see the module. Every method may raise `Unavailable`, and those
    that change something `Uncertain`, when the answer was lost."""

    #: Whether a message with an order key was met here: what is done with one may free another.
    ordered: bool

    # Producers

    async def insert(
        self,
        messages: Sequence[NewMessage],
        *,
        buckets: Sequence[int],
        now_ms: int,
        batch: BatchId | None = None,
        refused: Mapping[int, Status] | None = None,
    ) -> list[Inserted]:
        """Stores messages, each in its bucket. A key that is taken gives `EXISTS`.

        All messages of an order key must have the same bucket. `refused` are those of the batch
        that the broker did not take, by their place in it: they are among the outcomes, and with
        them among those of a batch that comes again, whatever the broker would say by then.
        """
        ...

    async def cancel(self, ids: Sequence[MessageId], *, now_ms: int) -> list[Status]:
        """Removes messages that nobody holds."""
        ...

    async def move(self, moves: Sequence[tuple[MessageId, int]], *, now_ms: int) -> list[Status]:
        """Gives messages that nobody holds another due time."""
        ...

    async def purge(self, *, now_ms: int, limit: int) -> int:
        """Removes up to so many messages that nobody holds; how many."""
        ...

    # Consumers

    async def lease(
        self,
        asks: Sequence[LeaseAsk],
        *,
        now_ms: int,
        attempts_max: int,
        pace: Pace | None = None,
    ) -> LeaseResult:
        """Leases what the asks name, one ask after another, in one change, within the `pace`."""
        ...

    async def extend(self, extensions: Sequence[Extension]) -> list[Status]:
        """Moves the ends of leases."""
        ...

    async def release(
        self, releases: Sequence[Release], *, now_ms: int, attempts_max: int
    ) -> list[Status]:
        """Gives messages back. `DEAD` if that was the last attempt."""
        ...

    async def delete(self, handles: Sequence[Handle], *, now_ms: int = 0) -> list[Status]:
        """Removes messages that are done; their keys may stay taken for a while from now on."""
        ...

    async def take_up(
        self, consumer: str, *, known: Collection[Handle], now_ms: int, limit: int
    ) -> list[Leased]:
        """Takes up live leases of a consumer that it does not know of, for one that has restarted.

        Each gets the next version and stays what it is otherwise: whoever else had it in hand for
        this consumer, such as a broker that has not pushed it, can no longer give it back.
        """
        ...

    # Whoever looks

    async def look_up(self, ids: Sequence[MessageId], *, now_ms: int) -> list[Shown | None]: ...

    async def look_up_keys(self, keys: Sequence[str], *, now_ms: int) -> list[Shown | None]: ...

    async def peek(self, *, now_ms: int, limit: int) -> list[Shown]:
        """The next messages by the time at which they change hands."""
        ...

    async def walk(self, *, after: MessageId, limit: int, dead: bool, now_ms: int) -> list[Shown]:
        """Messages, or dead letters, with ids above `after` in order of their ids, without their
        bodies: of a page of large ones there may be more than memory."""
        ...

    async def counts(self, *, now_ms: int) -> Counts: ...

    async def histogram(self, edges_ms: Sequence[int]) -> list[int]:
        """How many messages become visible between each edge and the next; the edges ascend."""
        ...

    # Dead letters

    async def dead(self, *, after: MessageId, limit: int) -> list[Shown]:
        """Dead letters with ids above `after`, in order of their ids."""
        ...

    async def replay(self, ids: Sequence[MessageId], *, due_ms: int) -> list[Status]:
        """Makes messages of dead letters, with no attempts and a new version."""
        ...

    async def drop_dead(self, ids: Sequence[MessageId]) -> list[Status]:
        """Removes dead letters for good."""
        ...

    # Schedules

    async def put_schedule(self, schedule: Schedule) -> None:
        """Stores a schedule, in place of the one of the same name; if that has the same times
        (`cron`, `zone`, `every_ms`), it goes on where that is."""
        ...

    async def drop_schedule(self, name: str) -> bool:
        """Removes a schedule; False if there is none of this name."""
        ...

    async def schedules(self, *, before_ms: int = TIME_MS_MAX) -> list[Schedule]:
        """All schedules, by name, or those whose next time is before then: few of many."""
        ...

    async def fire(self, firings: Sequence[Firing], *, now_ms: int) -> list[bool]:
        """Inserts the message of a schedule and moves it on, if it is where the firing says.

        False if somebody else has fired or changed it.
        """
        ...

    # Upkeep

    def heard(self, due_ms: int) -> None:
        """Something is queued that is due then, here or by another broker."""
        ...

    async def trim(self, *, dead_max: int, batches_before_ms: int) -> Trimmed:
        """Removes the oldest dead letters above the limit, and names of old batches."""
        ...

    async def time_ms(self) -> int:
        """The store's own clock."""
        ...

    async def close(self) -> None: ...


class Stores(Protocol):
    """Where timelines are kept."""

    @property
    def news(self) -> News | None:
        """What brokers of other nodes do to the same stores; None if there are none."""
        ...

    async def provision(self, timeline: TimelineId, label: bytes = b"") -> None:
        """Makes the place of a timeline; no error if it is there.

        `label` says what it is, where it can be found by another cluster (`adopted`).
        """
        ...

    async def adopted(self) -> dict[TimelineId, bytes]:
        """The timelines of a lost cluster that an operator gave to this one, with their labels;
        none after `adoption_done`."""
        ...

    async def adoption_done(self) -> None: ...

    async def open(self, timeline: TimelineId) -> TimelineStore:
        """Opens what was provisioned. Raises `NotFound`."""
        ...

    async def drop(self, timeline: TimelineId) -> None:
        """Removes a timeline with everything in it; no error if it is not there."""
        ...

    async def existing(self) -> set[TimelineId]: ...

    async def close(self) -> None: ...
