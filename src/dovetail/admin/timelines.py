"""Timelines: what waits, how late, with which consumer; look up, schedule, move, cancel messages.

The client of timelines is asynchronous, so these functions are too; each takes a connected client
(`dovetail.timeline.client.Dovetail`) or one timeline of it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from dovetail.errors import DovetailError, InvalidInput, NotFound, Refused
from dovetail.timeline.engine.schedule import Schedule, next_after
from dovetail.timeline.frames import ConsumerState, Described, ScheduleState
from dovetail.timeline.message import Leased, NewMessage, Shown, State, Status, decode_headers

if TYPE_CHECKING:
    from dovetail.timeline.client import Dovetail, Timeline

#: Messages that are looked at for who holds them, and shown of each consumer.
_HELD_LOOK_MAX = 1_000
_HELD_SHOWN_MAX = 20
#: Times of a schedule that are told.
_NEXT_TIMES = 3

_REFUSALS = {
    Status.TOO_LARGE: "the message is larger than the timeline takes (body_bytes_max)",
    Status.TOO_FAR: "the message is due later than the timeline takes (ahead_ms_max)",
}


class TimelineSummary(Struct, frozen=True):
    """A timeline in a list; counts are None unless it is ready."""

    timeline: str
    state: str
    waiting: int | None = None
    due: int | None = None
    leased: int | None = None
    dead: int | None = None
    consumers: int | None = None
    late_ms_p99: float | None = None
    arrivals_per_s: float | None = None
    done_per_s: float | None = None
    oldest_due_ms: int | None = None
    paused: bool = False


class Lateness(Struct, frozen=True):
    """How late the last deliveries were, in milliseconds; None if there were none."""

    p50: float | None
    p99: float | None


class ConsumerShown(ConsumerState, frozen=True, array_like=False):
    """A consumer, as its broker sees it."""


class ScheduleShown(ScheduleState, frozen=True, array_like=False):
    """A recurring schedule and its next times; fewer if it ends before."""

    next_times: list[int]


class HeldMessage(Struct, frozen=True):
    """A message that a consumer has leased."""

    id: int
    key: str | None
    attempts: int
    due_ms: int
    lease_end_ms: int


class Holder(Struct, frozen=True):
    """A consumer and the messages that it has in hand, those whose lease ends first in front."""

    consumer: str
    messages: int
    #: At most twenty of them.
    first: list[HeldMessage]


class Holders(Struct, frozen=True):
    """Who holds what; `complete` is false if there may be more than was looked at."""

    holders: list[Holder]
    complete: bool


class TimelineShown(Struct, frozen=True):
    """A timeline: messages by state, load, lateness, consumers, settings."""

    timeline: str
    waiting: int
    due: int
    leased: int
    dead: int
    consumers: int
    oldest_due_ms: int | None
    late_ms: Lateness
    arrivals_per_second: float
    done_per_second: float
    #: Messages that become due in this window and in each of the next ones.
    next_windows: list[int]
    window_ms: int
    consumers_suggested: int
    condition: str
    reasons: list[str]
    config: dict[str, int | str | bool]
    consumer_list: list[ConsumerShown]
    schedules: list[ScheduleShown]


async def list_timelines(client: "Dovetail") -> list[TimelineSummary]:
    """All timelines. Raises `Unavailable`."""
    rows = []
    for name, state in await client.timelines():
        if state != "ready":
            rows.append(TimelineSummary(name, state))
            continue
        try:
            found = await client.timeline(name).describe()
        except NotFound:
            # Deleted between the two questions.
            continue
        rows.append(_summary(state, found))
    return rows


def _summary(state: str, found: Described) -> TimelineSummary:
    return TimelineSummary(
        timeline=found.timeline,
        state=state,
        waiting=found.counts.waiting,
        due=found.counts.due,
        leased=found.counts.leased,
        dead=found.counts.dead,
        consumers=len(found.consumers),
        late_ms_p99=_known(found.late_ms_p99),
        arrivals_per_s=found.signals.arrivals,
        done_per_s=found.signals.done,
        oldest_due_ms=found.counts.oldest_due_ms or None,
        paused=found.config.paused,
    )


def _known(late_ms: float) -> float | None:
    return None if late_ms < 0 else late_ms


async def describe_timeline(timeline: "Timeline") -> TimelineShown:
    """One timeline. Raises `TopicUnknown`, `Unavailable`."""
    found = await timeline.describe()
    schedules = await timeline.schedules()
    counts, signals = found.counts, found.signals

    return TimelineShown(
        timeline=found.timeline,
        waiting=counts.waiting,
        due=counts.due,
        leased=counts.leased,
        dead=counts.dead,
        consumers=len(found.consumers),
        oldest_due_ms=counts.oldest_due_ms or None,
        late_ms=Lateness(_known(found.late_ms_p50), _known(found.late_ms_p99)),
        arrivals_per_second=signals.arrivals,
        done_per_second=signals.done,
        next_windows=signals.windows,
        window_ms=found.config.window_ms,
        consumers_suggested=signals.consumers_suggested,
        condition=signals.condition,
        reasons=signals.reasons,
        config=msgspec.to_builtins(found.config),
        consumer_list=msgspec.convert(found.consumers, list[ConsumerShown], from_attributes=True),
        schedules=[
            ScheduleShown(**msgspec.structs.asdict(one), next_times=_next_times(one))
            for one in schedules
        ],
    )


async def held_messages(timeline: "Timeline") -> Holders:
    """The messages that consumers have leased, by consumer. Raises `TopicUnknown`, `Unavailable`.

    Of the messages that change hands next, a thousand are looked at: more than that are leased at
    once only where consumers take very many.
    """
    found = await timeline.peek(_HELD_LOOK_MAX)
    return holders_of(found, complete=len(found) < _HELD_LOOK_MAX)


def holders_of(messages: Sequence[Shown], *, complete: bool) -> Holders:
    """Who has which of these messages."""
    by_consumer: dict[str, list[Shown]] = {}
    for message in messages:
        if message.state is State.LEASED:
            by_consumer.setdefault(message.holder or "", []).append(message)
    holders = []
    for consumer, held in sorted(by_consumer.items()):
        held.sort(key=lambda message: message.visible_ms)
        first = [
            HeldMessage(one.id, one.key, one.attempts, one.due_ms, one.visible_ms)
            for one in held[:_HELD_SHOWN_MAX]
        ]
        holders.append(Holder(consumer, len(held), first))
    return Holders(holders, complete)


def _next_times(state: ScheduleState) -> list[int]:
    """The next time of a schedule, and those that follow."""
    times = [state.next_ms]
    schedule = Schedule(
        state.name,
        b"",
        state.next_ms,
        cron=state.cron,
        zone=state.zone,
        every_ms=state.every_ms,
        start_ms=state.next_ms,
    )
    while len(times) < _NEXT_TIMES:
        try:
            times.append(next_after(schedule, times[-1]))
        except (InvalidInput, StopIteration):
            break
    return times


async def schedule_message(timeline: "Timeline", message: NewMessage) -> tuple[int, bool]:
    """Stores a message; its id, and whether it is new: a key in use names the message that has it.

    Raises `InvalidInput` if the timeline does not take it.
    """
    (outcome,) = await timeline.insert([message])
    if outcome.status not in (Status.OK, Status.EXISTS):
        raise InvalidInput(_refusal(outcome.status))
    return outcome.id, outcome.status is Status.OK


async def move_message(timeline: "Timeline", number: int, *, due_ms: int) -> Shown:
    """Gives a message another due time. Raises `Refused` while it is leased, `NotFound`."""
    check_status(await timeline.move(number, at=due_ms / 1000), number)
    (found,) = await timeline.look_up(number)
    if found is None:
        raise NotFound(f"message {number} moved and has been handled since")
    return found


async def cancel_message(timeline: "Timeline", number: int) -> None:
    """Removes a message for good. Raises `Refused` while it is leased, `NotFound`."""
    (status,) = await timeline.cancel(number)
    check_status(status, number)


def check_status(status: Status, number: int) -> None:
    """Raises what it means that a message was not changed."""
    if status is not Status.OK:
        raise _failure(status, number)


def _failure(status: Status, number: int) -> DovetailError:
    if status is Status.GONE:
        return NotFound(f"no message {number} waits; it is done, cancelled, or never existed")
    if status is Status.LEASED:
        return Refused(f"a consumer has leased message {number}; try again when the lease ends")
    return Refused(f"message {number}: {_refusal(status)}")


def _refusal(status: Status) -> str:
    return _REFUSALS.get(status, status.name.lower())


def headers_of(message: Shown | Leased) -> list[tuple[str, bytes | None]]:
    """The headers of a message; what another client wrote unreadably shows as it is."""
    try:
        return list(decode_headers(message.headers))
    except InvalidInput:
        return [("(unreadable)", message.headers)]
