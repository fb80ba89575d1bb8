"""Options as given: texts under case-insensitive names, each parsed by its type.

Pure but for the environment, where secrets may be (`kafka.sasl.password.env` names a variable). An
option that cannot be parsed raises `InvalidInput` with its name, its value and what to write.
"""

import json
import os
import re
from collections.abc import Mapping
from typing import Literal

from dovetail.errors import InvalidInput
from dovetail.kafka.client.brokers import PREFIX, Brokers
from dovetail.kafka.client.client import EARLIEST, LATEST, USUAL_MANNERS, Manners, Partition
from dovetail.kafka.client.java_security import SECURITY, login_settings
from dovetail.logging import get_logger
from dovetail.spark.offsets import Bound
from dovetail.spark.option_list import BY_NAME, FROM_ENVIRONMENT, look_up

ADDRESSES = ("kafka.bootstrap.servers", "bootstrap")
#: Offsets in JSON that stand for the first and the end, as Kafka has them.
_NAMED = {"earliest": EARLIEST, "latest": LATEST}

#: Spark's units of time; without one it is milliseconds.
_MS_OF_UNIT = {
    **{"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000},
    **{"h": 3_600_000, "d": 86_400_000},
}
#: The largest number of 32 bits.
_INT_MAX = (1 << 31) - 1

_log = get_logger("spark")
#: Options of no effect of which this process has told.
_told: set[str] = set()


class GivenOptions:
    """The options of one side; `both_sides`: those of a table of the catalog.

    Raises `InvalidInput` for one that is not known, not supported, or of the other side.
    """

    def __init__(
        self, given: Mapping[str, str], side: Literal["read", "write"], *, both_sides: bool
    ) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        for name in self._given:
            option = look_up(name, side, both_sides=both_sides)
            if option.kind == "idle" and option.name not in _told:
                _told.add(option.name)
                _log.warning("an option has no effect here", option=option.name, why=option.text)

    def text(self, name: str, *, may_be_empty: bool = False) -> str | None:
        value = self._given.get(name.lower())
        if value is None and BY_NAME[name.lower()].secret:
            value = self._from_environment(name + FROM_ENVIRONMENT)
        if value is not None and not value.strip() and not may_be_empty:
            raise InvalidInput(f"option {name!r} is empty; give it a value or leave it out")
        return value

    def _from_environment(self, name: str) -> str | None:
        variable = self._given.get(name.lower())
        if variable is None:
            return None
        if variable not in os.environ:
            raise InvalidInput(
                f"option {name!r} names the environment variable {variable!r}, which the driver "
                "does not have"
            )
        return os.environ[variable]

    def choice(self, name: str, allowed: tuple[str, ...]) -> str | None:
        value = self.text(name)
        if value is not None and value not in allowed:
            raise InvalidInput(f"option {name!r} is {value!r}; it can be {' or '.join(allowed)}")
        return value

    def number(self, name: str, *, least: int = 1, most: int | None = None) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        fits = re.fullmatch(r"-?\d{1,18}", value) and int(value) >= least
        if not fits or (most is not None and int(value) > most):
            range_of = f"from {least} on" if most is None else f"from {least} to {most}"
            raise InvalidInput(f"option {name!r} is {value!r}; it must be a number {range_of}")
        return int(value)

    def size(self, name: str, *, least: int = 1) -> int | None:
        """A number that has room in 32 bits, as Kafka's sizes and time-outs have."""
        return self.number(name, least=least, most=_INT_MAX)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidInput(f"option {name!r} is {value!r}; it must be true or false")
        return value.lower() == "true"

    def none_of(self, names: tuple[str, ...]) -> bool:
        """Whether none of several options is given."""
        return not any(name.lower() in self._given for name in names)

    def one_of(self, names: tuple[str, ...], *, needed: str | None = None) -> str | None:
        """Which of several options is given. Raises `InvalidInput` for two, or a missing one."""
        there = [name for name in names if self.text(name) is not None]
        if len(there) > 1:
            raise InvalidInput(f"{' and '.join(there)} contradict each other; give one of them")
        if not there and needed:
            raise InvalidInput(f"no option says {needed}; give one of {', '.join(names)}")
        return there[0] if there else None

    def milliseconds(self, name: str) -> int | None:
        """From `15m`, `30s` or a number of milliseconds, as Spark writes times."""
        value = self.text(name)
        if value is None:
            return None
        found = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", value.strip().lower())
        if found is None or found[2] not in _MS_OF_UNIT:
            raise InvalidInput(f"option {name!r} is {value!r}; write 500ms, 30s, 15m or 2h")
        return int(found[1]) * _MS_OF_UNIT[found[2]]

    def brokers(self) -> Brokers:
        address = self.one_of(ADDRESSES, needed="where the brokers are")
        found = {name: self.text(PREFIX + name, may_be_empty=True) for name in SECURITY}
        given = {name: text for name, text in found.items() if text is not None}
        return Brokers.at(self.text(address or "") or "", login_settings(given))

    def manners(self, *, give_up: str) -> Manners:
        """How the client waits; `give_up` is the option that says when a request is given up."""
        usual = USUAL_MANNERS
        timeout_ms = self.size(give_up)
        request_ms = self.size("kafka.request.timeout.ms")
        connect_ms = self.size("kafka.socket.connection.setup.timeout.ms")
        return Manners(
            client_id=self.text("kafka.client.id") or usual.client_id,
            timeout_s=usual.timeout_s if timeout_ms is None else timeout_ms / 1000,
            request_s=usual.request_s if request_ms is None else request_ms / 1000,
            connect_s=usual.connect_s if connect_ms is None else connect_ms / 1000,
        )

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
