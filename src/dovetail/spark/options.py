"""The options of `format("dovetail")`: names and meanings as in Spark's Kafka source and sink.

Pure: strings in, a frozen object out, or `InvalidInput` that names the option, its value and what
to write instead. Options that contradict each other are refused, also where Spark's own source
silently prefers one; an unknown option is refused with the nearest known one.
"""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dovetail.compression import codec_number
from dovetail.errors import InvalidInput
from dovetail.kafka.client.brokers import LOGIN_OPTIONS, PREFIX, Brokers
from dovetail.kafka.client.client import EARLIEST, LATEST, Partition

_CHOICES = ("subscribe", "subscribePattern", "assign")
_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_ADDRESSES = ("kafka.bootstrap.servers", "bootstrap")
_CONNECTION = (*_ADDRESSES, *LOGIN_OPTIONS)
_READ = (
    *_CONNECTION,
    *_CHOICES,
    *_STARTS,
    *_ENDS,
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "kafka.group.id",
    "kafka.isolation.level",
)
#: The last three are for Spark itself, which hands them on.
_WRITE = (
    *_CONNECTION,
    "topic",
    "includeHeaders",
    "kafka.compression.type",
    "term",
    "idConflict",
    "queryName",
    "checkpointLocation",
    "path",
)

#: Offsets in JSON that stand for the first and the end, as Kafka has them.
_NAMED = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends.

    `everywhere` holds for partitions that `each` does not name: an offset (`EARLIEST`, `LATEST`)
    or, if `by_time`, milliseconds since the epoch.
    """

    by_time: bool = False
    everywhere: int | None = None
    each: Mapping[Partition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read; exactly one of `topics`, `pattern` and `assigned` is set."""

    brokers: Brokers
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[Partition, ...] = ()
    starting: Bound | None = None
    ending: Bound | None = None
    #: For a time after the last record: fail, or begin at the end.
    time_without_record: Literal["error", "latest"] = "error"
    rows_max: int | None = None
    partitions_min: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    #: Positions are committed to this group, for display only.
    group: str | None = None
    #: Whether records of open and of aborted transactions are left out.
    committed: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "ReadOptions":
        """From the options of `read` or `readStream`. Raises `InvalidInput`."""
        options = _Given(given, _READ)
        chosen = options.one_of(_CHOICES, needed="which topics to read")
        pattern = options.text("subscribePattern")
        if pattern is not None:
            options.check_pattern(pattern)
        isolation = options.choice("kafka.isolation.level", ("read_uncommitted", "read_committed"))
        strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"))

        return cls(
            brokers=options.brokers(),
            topics=options.names("subscribe") if chosen == "subscribe" else (),
            pattern=pattern,
            assigned=options.assigned() if chosen == "assign" else (),
            starting=options.bound(_STARTS),
            ending=options.bound(_ENDS),
            time_without_record="latest" if strategy == "latest" else "error",
            rows_max=options.number("maxOffsetsPerTrigger"),
            partitions_min=options.number("minPartitions"),
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            include_headers=options.flag("includeHeaders", default=False),
            group=options.text("kafka.group.id"),
            committed=isolation == "read_committed",
        )

    def check_streaming(self) -> None:
        """Raises `InvalidInput` for what a stream cannot have."""
        if self.ending is not None:
            raise InvalidInput("a stream has no end; leave endingOffsets and endingTimestamp out")

    def check_batch(self) -> None:
        """Raises `InvalidInput` for what a batch cannot have."""
        if self.starting is not None and not self.starting.by_time:
            offsets = (self.starting.everywhere, *self.starting.each.values())
            if LATEST in offsets:
                raise InvalidInput("a batch that starts at the latest offset has nothing to read")
        if self.ending is not None and not self.ending.by_time:
            offsets = (self.ending.everywhere, *self.ending.each.values())
            if EARLIEST in offsets:
                raise InvalidInput("a batch that ends at the earliest offset has nothing to read")
        if self.rows_max is not None:
            raise InvalidInput("maxOffsetsPerTrigger is for streams; a batch has no trigger")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where and how to write."""

    brokers: Brokers
    #: For all rows; None: each row names its own in the column `topic`.
    topic: str | None = None
    codec: int = 0
    #: The term of the master that runs the query; None: there is no election.
    term: int | None = None
    #: By id: whether a task fails if a stored row has another value, so that its next run can
    #: continue from that row. Otherwise the stored row silently stays.
    conflicts_fail: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "WriteOptions":
        """From the options of `write` or `writeStream`. Raises `InvalidInput`."""
        options = _Given(given, _WRITE)
        options.flag("includeHeaders", default=True)
        return cls(
            brokers=options.brokers(),
            topic=options.text("topic"),
            codec=codec_number(options.text("kafka.compression.type") or "none"),
            term=options.number("term", least=0),
            conflicts_fail=options.choice("idConflict", ("keep", "fail")) == "fail",
        )


class _Given:
    """Options as they came, by names without regard to case."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        spelled = {name.lower(): name for name in known}
        for name in self._given:
            if name not in spelled:
                near = difflib.get_close_matches(name, spelled, n=1)
                hint = f" (did you mean {spelled[near[0]]!r}?)" if near else ""
                raise InvalidInput(
                    f"option {name!r} is not known{hint}. Known options: {', '.join(known)}"
                )

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        if value is not None and not value.strip():
            raise InvalidInput(f"option {name!r} is empty; give it a value or leave it out")
        return value

    def choice(self, name: str, allowed: tuple[str, ...]) -> str | None:
        value = self.text(name)
        if value is not None and value not in allowed:
            raise InvalidInput(f"option {name!r} is {value!r}; it can be {' or '.join(allowed)}")
        return value

    def number(self, name: str, *, least: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"\d{1,18}", value) or int(value) < least:
            raise InvalidInput(f"option {name!r} is {value!r}; it must be a number from {least} on")
        return int(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidInput(f"option {name!r} is {value!r}; it must be true or false")
        return value.lower() == "true"

    def one_of(self, names: tuple[str, ...], *, needed: str | None = None) -> str | None:
        """Which of several options is given. Raises `InvalidInput` for two, or a missing one."""
        there = [name for name in names if self.text(name) is not None]
        if len(there) > 1:
            raise InvalidInput(f"{' and '.join(there)} contradict each other; give one of them")
        if not there and needed:
            raise InvalidInput(f"no option says {needed}; give one of {', '.join(names)}")
        return there[0] if there else None

    def brokers(self) -> Brokers:
        address = self.one_of(_ADDRESSES, needed="where the brokers are")
        given = {name: self.text(name) for name in LOGIN_OPTIONS}
        settings = {name.removeprefix(PREFIX): text for name, text in given.items() if text}
        return Brokers.at(self.text(address or "") or "", settings)

    def names(self, name: str) -> tuple[str, ...]:
        listed = tuple(part.strip() for part in (self.text(name) or "").split(","))
        if not all(listed):
            raise InvalidInput(f"option {name!r} names an empty topic: {self.text(name)!r}")
        return listed

    def check_pattern(self, pattern: str) -> None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidInput(
                f"option 'subscribePattern' is {pattern!r}, not a regular expression: {error}"
            ) from error

    def assigned(self) -> tuple[Partition, ...]:
        """From JSON such as {"topic": [0, 1]}."""
        found = self._json("assign", '{"orders": [0, 1]}')
        partitions = []
        for topic, numbers in found.items():
            if not isinstance(numbers, list) or not all(_is_partition(n) for n in numbers):
                raise InvalidInput(
                    f"option 'assign' gives {topic!r} {numbers!r}; write a list of partitions"
                )
            partitions += [(topic, number) for number in numbers]
        if not partitions:
            raise InvalidInput("option 'assign' names no partition; write {\"orders\": [0, 1]}")
        return tuple(partitions)

    def bound(self, names: tuple[str, ...]) -> Bound | None:
        """From one of the three options that name a position."""
        chosen = self.one_of(names)
        if chosen is None:
            return None
        offsets, moment, _ = names
        if chosen == moment:
            return Bound(by_time=True, everywhere=self.number(chosen, least=0))
        value = self.text(chosen) or ""
        if chosen == offsets and value.lower() in _NAMED:
            return Bound(everywhere=_NAMED[value.lower()])

        by_time = chosen != offsets
        example = '{"orders": {"0": 1700000000000}}' if by_time else '{"orders": {"0": 23}}'
        each: dict[Partition, int] = {}
        for topic, positions in self._json(chosen, example).items():
            for number, position in (positions if isinstance(positions, dict) else {}).items():
                least = 0 if by_time else EARLIEST
                if not (number.isdigit() and _is_whole(position) and position >= least):
                    raise InvalidInput(
                        f"option {chosen!r} has {position!r} for partition {number!r} of "
                        f"{topic!r}; write {example}"
                    )
                each[topic, int(number)] = position

        if not each:
            raise InvalidInput(f"option {chosen!r} names no partition; write {example}")
        return Bound(by_time=by_time, each=each)

    def _json(self, name: str, example: str) -> dict[str, object]:
        value = self.text(name) or ""
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            offsets = name in ("startingOffsets", "endingOffsets")
            words = " or ".join(_NAMED) + ", or " if offsets else ""
            raise InvalidInput(f"option {name!r} is {value!r}; write {words}JSON such as {example}")
        return found


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_partition(value: object) -> bool:
    return isinstance(value, int) and _is_whole(value) and value >= 0
