"""The settings of one timeline, and the limits of each."""

import random
from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from dovetail.errors import InvalidInput
from dovetail.timeline.engine.assignment import DealerName
from dovetail.timeline.engine.lives import REST_MS_FIRST, REST_MS_LONGEST, Pace, backoff_ms
from dovetail.timeline.message import BACKOFF_MS_MAX, BUCKETS_MAX, TIME_MS_MAX

_SECOND_MS: Final = 1_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS

#: Longest name: it is part of keys, of metrics and of a person's memory.
NAME_CHARACTERS_MAX: Final = 100
_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
#: Nothing, a topic that is not one of ours, or a timeline.
_DEAD_TO: Final = (
    r"^(?:(?!__)(?!\.\.?\Z)[A-Za-z0-9._-]+|"
    rf"timeline:[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_CHARACTERS_MAX - 1}}})?\Z"
)

Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX, pattern=_NAME)]


class TimelineConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a timeline; they are stored with it."""

    #: Also the most consumers that are served at once. An assignment costs more with more of them.
    buckets: Annotated[int, Meta(ge=1, le=BUCKETS_MAX)] = 1_024
    dealer: DealerName = "racks"
    #: Shorter: new consumers are served sooner, and assignments are made more often. Below 50 ms,
    #: one of many consumers would not be made before the next one is due.
    window_ms: Annotated[int, Meta(ge=50, le=_HOUR_MS)] = _SECOND_MS
    #: A message that is overdue by this much is its backups' too (dealer `racks`).
    overtake_ms: Annotated[int, Meta(ge=10, le=_HOUR_MS)] = 500
    #: The attempt after which a message is a dead letter.
    attempts_max: Annotated[int, Meta(ge=1, le=10_000)] = 10
    #: Rest after the first failed attempt, doubled with each, and the longest.
    backoff_ms: Annotated[int, Meta(ge=1, le=BACKOFF_MS_MAX)] = REST_MS_FIRST
    backoff_ms_max: Annotated[int, Meta(ge=1, le=BACKOFF_MS_MAX)] = REST_MS_LONGEST
    #: A message is not handled later than that after its due time, but is a dead letter. 0: never
    #: too late.
    ttl_ms: Annotated[int, Meta(ge=0, le=TIME_MS_MAX)] = 0
    #: Messages a second, and messages in hand at once, for all consumers together; 0: no limit.
    pace_max: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    in_hand_max: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    #: Longest lease that a consumer may ask for; a dead one keeps its messages that long.
    lease_ms_max: Annotated[int, Meta(ge=_SECOND_MS, le=7 * _DAY_MS)] = _HOUR_MS
    #: Longest time that a handler may take without progress; it is cancelled then, and the attempt
    #: counts. 0: as long as it likes. A consumer can set a shorter one of its own.
    handling_ms_max: Annotated[int, Meta(ge=0, le=7 * _DAY_MS)] = 0
    #: Bytes of body and headers. Larger things belong into a file, and its name into a message.
    body_bytes_max: Annotated[int, Meta(ge=1, le=64 * 1024 * 1024)] = 1024 * 1024
    #: How far ahead a message may be due; a date beyond is usually seconds taken for milliseconds.
    ahead_ms_max: Annotated[int, Meta(ge=_SECOND_MS, le=TIME_MS_MAX)] = 10 * 366 * _DAY_MS
    #: Messages a second that one producer may send; 0: as many as it can.
    rate_max: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    #: Dead letters that are kept; beyond, the oldest go, unless they wait to go to `dead_to`.
    dead_max: Annotated[int, Meta(ge=0, le=10_000_000)] = 100_000
    #: Where dead letters go: a topic, or `timeline:NAME`. Empty: they stay.
    dead_to: Annotated[str, Meta(max_length=249, pattern=_DEAD_TO)] = ""
    #: While set, nothing is pushed; messages are stored as before, and what is held goes on.
    paused: bool = False
    #: The topic whose due records wait here. Nobody else stores or consumes messages of it.
    topic: Annotated[str, Meta(max_length=255)] = ""
    #: While most consumers can take nothing: `stop` pushes to nobody, for a backend behind all of
    #: them that has too much to do; `go_on` serves the idle, whose colleagues have long work.
    when_busy: Literal["go_on", "stop"] = "go_on"

    def rest_ms(self, attempt: int, rng: random.Random, own_ms: int = 0) -> int:
        """How long a message rests after a failed attempt; `own_ms` is its own first rest."""
        first_ms = own_ms or self.backoff_ms
        longest_ms = max(first_ms, self.backoff_ms_max)
        return backoff_ms(attempt, rng, first_ms=first_ms, longest_ms=longest_ms)

    @property
    def pace(self) -> Pace | None:
        """What all consumers together may have; None without a limit."""
        limited = self.pace_max or self.in_hand_max
        return Pace(self.pace_max, self.in_hand_max) if limited else None


#: Shortest lease. A consumer answers over a network, and the loader looks half a second ahead.
LEASE_MS_MIN: Final = _SECOND_MS
#: A lease is at least so many times as long as a broker's clock may be off. Two brokers then differ
#: by a fifth of it, and who holds it gives it up a quarter before its end (`client/leases.py`).
LEASE_DRIFTS_MIN: Final = 10


def shortest_lease_ms(drift_ms_max: int) -> int:
    """The shortest lease that brokers give whose clocks may be off by so much."""
    return max(LEASE_MS_MIN, LEASE_DRIFTS_MIN * drift_ms_max)


def check_name(name: str) -> str:
    """The name, if it is one. Raises `InvalidInput`."""
    try:
        return msgspec.convert(name, Name)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"{name[:200]!r} cannot name a timeline: use 1 to {NAME_CHARACTERS_MAX} letters, "
            "digits and . _ -, the first one a letter or a digit"
        ) from error


def altered(config: TimelineConfig, settings: Mapping[str, str | int | bool]) -> TimelineConfig:
    """The settings with these changed. Raises `InvalidInput`."""
    found = config_of({**msgspec.to_builtins(config), **settings})
    if found.buckets != config.buckets:
        raise InvalidInput("buckets are set when a timeline is created: each message is in one")
    return found


def config_of(settings: Mapping[str, str | int | bool]) -> TimelineConfig:
    """The settings by name, the rest as they are by default. Raises `InvalidInput`."""
    try:
        return msgspec.convert(settings, TimelineConfig, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(TimelineConfig.__struct_fields__)
        raise InvalidInput(f"{error}; the settings of a timeline are {known}") from error
