"""Recurring schedules: messages that a timeline creates by itself; pure.

A schedule says when (`cron` in a time zone, or `every` so many milliseconds) and what. Its next
time is stored with it. Firing is one change in the store: the message is inserted, due at that
time, and the schedule advances, if its next time is still the one that the broker read. So each
time fires once, however many brokers try, and whichever of them dies in between.

A schedule that is put again, as by every deployment, continues where it is unless its times change.

Of the times that passed while no broker ran, only the latest fires, at once. A message that was due
at 03:00 and was missed is wanted; a hundred of them are not.

The present is an argument.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from dovetail.errors import InvalidInput
from dovetail.foreign import KEY_CHARACTERS_MAX
from dovetail.timeline.message import NewMessage

#: Shortest distance of two firings: below, it is a loop, and belongs into the consumer.
EVERY_MS_MIN: Final = 100
#: As far as a message may be due ahead by default; a longer interval is usually a wrong unit.
EVERY_MS_MAX: Final = 10 * 366 * 86_400_000
_HOUR_MS: Final = 3_600_000
#: How far back the latest missed time is looked for, step by step: the first step that finds one
#: has few to look through, because the step before it found none.
_LOOK_BACK_MS: Final = (_HOUR_MS, 24 * _HOUR_MS, 31 * 24 * _HOUR_MS)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Either `cron` (five fields, in `zone`) or `every_ms`, counted from `start_ms`."""

    name: str
    body: bytes
    next_ms: int
    headers: bytes = b""
    cron: str = ""
    zone: str = "UTC"
    every_ms: int = 0
    start_ms: int = 0
    priority: int = 0

    @property
    def times(self) -> tuple[str, str, int]:
        """What says when it fires."""
        return self.cron, self.zone, self.every_ms


@dataclass(frozen=True, slots=True)
class Firing:
    """One time of one schedule: from `next_ms` as it was read to the one that follows."""

    name: str
    expected_ms: int
    following_ms: int
    message: NewMessage
    bucket: int


def new_schedule(
    name: str,
    body: bytes,
    *,
    now_ms: int,
    cron: str = "",
    zone: str = "UTC",
    every_ms: int = 0,
    headers: bytes = b"",
    priority: int = 0,
) -> Schedule:
    """A schedule that was checked, with its first time. Raises `InvalidInput`."""
    if not 0 < len(name.encode()) <= KEY_CHARACTERS_MAX:
        raise InvalidInput(
            f"a schedule's name has 1 to {KEY_CHARACTERS_MAX} bytes, this one {name!r}"
        )
    if bool(cron) == bool(every_ms):
        raise InvalidInput(f"schedule {name!r} needs either cron or every, and not both")
    if every_ms and every_ms < EVERY_MS_MIN:
        raise InvalidInput(
            f"schedule {name!r}: every {every_ms} ms is too often; {EVERY_MS_MIN} ms is the least"
        )
    if every_ms > EVERY_MS_MAX:
        raise InvalidInput(
            f"schedule {name!r}: every {every_ms} ms is too seldom; {EVERY_MS_MAX} ms is the most"
        )
    draft = Schedule(name, body, 0, headers, cron, zone, every_ms, now_ms, priority)
    return replace(draft, next_ms=next_after(draft, now_ms))


def next_after(schedule: Schedule, time_ms: int) -> int:
    """The first time of the schedule after `time_ms`. Raises `InvalidInput` if there is none."""
    if schedule.every_ms:
        steps = max(0, time_ms - schedule.start_ms) // schedule.every_ms + 1
        return schedule.start_ms + steps * schedule.every_ms
    return next(_cron_times(schedule, time_ms))


def firing_at(schedule: Schedule, *, now_ms: int, bucket: int) -> Firing:
    """What to fire for a schedule whose next time has come, or is about to."""
    due_ms = _latest_missed(schedule, now_ms)
    following_ms = next_after(schedule, due_ms)
    message = NewMessage(due_ms, schedule.body, schedule.headers, None, schedule.priority)
    return Firing(schedule.name, schedule.next_ms, following_ms, message, bucket)


def _latest_missed(schedule: Schedule, now_ms: int) -> int:
    """The schedule's next time, or the latest of those that have passed since."""
    latest_ms = schedule.next_ms
    if latest_ms > now_ms:
        return latest_ms
    if schedule.every_ms:
        return latest_ms + (now_ms - latest_ms) // schedule.every_ms * schedule.every_ms
    for back_ms in _LOOK_BACK_MS:
        start_ms = max(schedule.next_ms, now_ms - back_ms)
        for time_ms in _cron_times(schedule, start_ms):
            if time_ms > now_ms:
                break
            latest_ms = time_ms
        if latest_ms > schedule.next_ms:
            break
    return latest_ms


def _cron_times(schedule: Schedule, after_ms: int) -> Iterator[int]:
    try:
        zone = ZoneInfo(schedule.zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise InvalidInput(
            f"schedule {schedule.name!r}: no time zone {schedule.zone!r}; "
            "write it like Europe/Vienna or UTC"
        ) from error

    after = datetime.fromtimestamp(after_ms / 1000, UTC).astimezone(zone)
    try:
        times = CronSim(schedule.cron, after)
    except CronSimError as error:
        raise InvalidInput(
            f"schedule {schedule.name!r}: {schedule.cron!r} is not a cron line ({error}); "
            "write minute hour day month weekday, such as '0 3 * * MON'"
        ) from error

    try:
        for moment in times:
            yield round(moment.timestamp() * 1000)
    except CronSimError as error:
        raise InvalidInput(f"schedule {schedule.name!r}: {error}") from error
    raise InvalidInput(f"schedule {schedule.name!r}: {schedule.cron!r} never comes")
