"""The ends of every setting, taken from the models that check them (R8).

node_settings()     numbers of the node's settings, with their smallest and largest value
topic_settings()    numbers of a topic's settings, as Kafka bounds them
LIMITS              limits that the documents name: what is at the limit, and what is beyond it
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dovetail.foreign import TOPIC_CHARACTERS_MAX, check_topic
from dovetail.log.topic import PARTITIONS_MAX, check_partitions
from dovetail.log.topic_settings import CONFIG_KEYS, ConfigKey, ConfigType
from dovetail.settings.reference import bounds_of
from dovetail.settings.sections import Settings

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Ends:
    """A setting that is a number; None where it has no bound."""

    name: str
    smallest: Any
    largest: Any

    def __str__(self) -> str:
        return self.name

    def fits(self, value: float) -> bool:
        return (self.smallest is None or value >= self.smallest) and (
            self.largest is None or value <= self.largest
        )

    def tried(self) -> Iterator[float]:
        """The values at and beyond the ends, and those that are special so often."""
        step = 0.01 if isinstance(self.smallest, float) else 1
        yield from (-1, 0, 1, 2**31, 2**63, 2**64, -(2**63) - 1)
        for end in (self.smallest, self.largest):
            if end is not None:
                yield from (end - step, end, end + step)


def node_settings() -> list[Ends]:
    """The numbers among the settings of a node and its companions."""
    found = []
    for section, about in Settings.model_fields.items():
        for name, field in type(about.default).model_fields.items():
            if isinstance(field.default, int | float) and not isinstance(field.default, bool):
                bounds = bounds_of(field)
                found.append(Ends(f"{section}.{name}", bounds.get("ge"), bounds.get("le")))
    return found


def topic_settings() -> list[Ends]:
    """The numbers among the settings of a topic."""
    kinds = (ConfigType.INT, ConfigType.LONG)
    return [
        Ends(name, key.lowest, min(key.highest, _widest(key)))
        for name, key in CONFIG_KEYS.items()
        if key.type in kinds
    ]


def _widest(key: ConfigKey) -> int:
    return _INT_MAX if key.type is ConfigType.INT else _LONG_MAX


#: By name: the check, what passes it, what does not.
LIMITS = {
    "topic name": (
        check_topic,
        ["a", "a" * TOPIC_CHARACTERS_MAX, "..."],
        ["", ".", "..", "a" * (TOPIC_CHARACTERS_MAX + 1), "ü", "a\0", "\ud800", "a/b", "a b"],
    ),
    "partitions": (check_partitions, [1, PARTITIONS_MAX], [-1, 0, PARTITIONS_MAX + 1, 2**31]),
}
