"""Which partitions and offsets the filters of a query leave; pure.

Spark passes a batch reader the filters that hold for every row (`pushFilters`, Spark 4.1 and later,
with `spark.sql.python.filterPushdown.enabled`), each about one column and constants:

    topic, partition   decide which partitions are read                                  exact
    offset             bounds the ranges; a list bounds them by its least and its most   exact,
                                                                                         a list not
    timestamp          a lower bound: the broker is asked for the first record at or     not exact
                       after it. Times need not rise with the offsets, so there is no
                       upper bound, and rows behind the first may be older

Spark does not evaluate exact filters again. It evaluates all others itself too, so a filter that is
not understood here costs only time.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from dovetail.kafka.client.client import Partition
from dovetail.spark.decoder import OFFSET_END

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: Spark's filters by the names of their classes, which 4.0 does not have.
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": lambda value, several: value in several,
    "StringStartsWith": lambda value, text: value.startswith(text),
    "StringEndsWith": lambda value, text: value.endswith(text),
    "StringContains": lambda value, text: text in value,
}
_LOWER_BOUNDS = ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual")
#: The columns that decide about whole partitions: where they are in its name, and their type.
_WHOLE: Mapping[str, tuple[int, type]] = {"topic": (0, str), "partition": (1, int)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A filter on one column that Spark sent."""

    column: str
    name: str
    value: Any
    negated: bool = False

    @classmethod
    def of(cls, given: Any) -> "Comparison | None":
        """None for what is not understood: another filter, a nested column, a null."""
        negated = type(given).__name__ == "Not"
        inner = given.child if negated else given
        name = type(inner).__name__
        if name not in _COMPARISONS or len(inner.attribute) != 1:
            return None
        values = inner.value if name == "In" else (inner.value,)
        # A comparison with null is neither true nor false; Spark knows what that means.
        if any(value is None for value in values):
            return None
        return cls(inner.attribute[0], name, inner.value, negated)

    @property
    def values(self) -> tuple[Any, ...]:
        """The constants: one, or those of a list."""
        return tuple(self.value) if self.name == "In" else (self.value,)

    def has(self, kind: type) -> bool:
        """Whether all constants are of a type; there is one at least."""
        return bool(self.values) and all(type(value) is kind for value in self.values)

    def holds(self, value: Any) -> bool:
        """Whether a value passes."""
        return _COMPARISONS[self.name](value, self.value) is not self.negated


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rows that the filters leave: partitions that pass, start <= offset < end, a time."""

    whole: tuple[Comparison, ...] = ()
    start: int = 0
    end: int = OFFSET_END
    since_ms: int | None = None

    def takes(self, partition: Partition) -> bool:
        """Whether any row of a partition can pass."""
        return all(one.holds(partition[_WHOLE[one.column][0]]) for one in self.whole)

    def within(
        self, start: Mapping[Partition, int], end: Mapping[Partition, int]
    ) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """The bounds of a batch, with what the filters leave of it."""
        taken = [key for key in end if self.takes(key)]
        ends = {key: min(end[key], self.end) for key in taken}
        return {key: max(start[key], self.start) for key in taken}, ends


EVERYTHING = Wanted()


def narrowed(filters: Iterable[Any]) -> tuple[Wanted, list[Any]]:
    """What the filters leave, and those that Spark still has to evaluate."""
    wanted, left = EVERYTHING, []
    for given in filters:
        one = Comparison.of(given)
        exact = False
        if one is not None:
            wanted, exact = _narrowed_by(wanted, one)
        if not exact:
            left.append(given)
    return wanted, left


def _narrowed_by(wanted: Wanted, one: Comparison) -> tuple[Wanted, bool]:
    """With one filter more, and whether that is all that it says."""
    if one.column in _WHOLE and one.has(_WHOLE[one.column][1]):
        return replace(wanted, whole=(*wanted.whole, one)), True
    if one.column == "offset" and one.has(int) and not one.negated:
        return _by_offset(wanted, one), one.name != "In"
    if one.column == "timestamp" and one.name in _LOWER_BOUNDS and not one.negated:
        return _by_time(wanted, one.value), False
    return wanted, False


def _by_offset(wanted: Wanted, one: Comparison) -> Wanted:
    least, most = min(one.values), max(one.values)
    starts = {"GreaterThan": least + 1, "LessThan": 0, "LessThanOrEqual": 0}
    ends = {"LessThan": most, "GreaterThan": OFFSET_END, "GreaterThanOrEqual": OFFSET_END}
    return replace(
        wanted,
        start=max(wanted.start, starts.get(one.name, least)),
        end=min(wanted.end, ends.get(one.name, most + 1)),
    )


def _by_time(wanted: Wanted, value: Any) -> Wanted:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return wanted
    since_ms = (value - _EPOCH) // timedelta(milliseconds=1)
    # Kafka has other meanings for negative times.
    if since_ms < 0:
        return wanted
    return replace(wanted, since_ms=max(since_ms, wanted.since_ms or 0))
