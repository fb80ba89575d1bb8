"""Lag of groups over an hour: of each group, and of each of its partitions. Pure.

Each series is a ring of 240 floats, about 1 KiB. There is room for a limited number of them: a
group's sum is kept before the partitions of any group, first come first served, and a series that
has had no value for an hour makes way. So a node with more groups than that still keeps the first
ones whole, and says how many it leaves out.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from dovetail.node.history.figures import SPAN_MS

#: Between two samples; a group's lag is looked at in minutes.
LAG_EVERY_MS: Final = 15_000
_SAMPLES: Final = SPAN_MS // LAG_EVERY_MS
#: Of groups, and of partitions of groups: 5 MiB in all.
GROUPS_MAX: Final = 1_000
PARTITIONS_MAX: Final = 4_000
_NOTHING: Final = array("f", [math.nan] * _SAMPLES)

#: Topic and number.
Place = tuple[str, int]
#: Of one partition; None if its end is not known.
Lag = tuple[Place, int | None]


class GroupLag(NamedTuple):
    """A group's lag over the last hour, oldest first; None is unknown."""

    total: list[float | None]
    partitions: Mapping[Place, list[float | None]]


class _Series:
    __slots__ = ("tick", "values")

    def __init__(self) -> None:
        self.values = array("f", _NOTHING)
        self.tick = 0


class Lags:
    """Lag of the groups of one node."""

    def __init__(self) -> None:
        self._tick = 0
        self._totals: dict[str, _Series] = {}
        self._parts: dict[str, dict[Place, _Series]] = {}
        self._parts_count = 0
        #: Series that found no room at the last sample.
        self.left_out = 0

    def begin(self) -> None:
        """A sample begins; `add` follows for each group."""
        self._tick += 1
        self.left_out = 0
        if self._tick % _SAMPLES == 0:
            self._drop_old()

    def add(self, group: str, lags: Sequence[Lag]) -> int | None:
        """Takes the lag of a group's partitions; returns their sum, if all of them are known."""
        known = [(place, lag) for place, lag in lags if lag is not None]
        for place, lag in known:
            series = self._part(group, place)
            if series is not None:
                self._put(series, lag)
        if not known or len(known) < len(lags):
            return None

        total = sum(lag for _, lag in known)
        series = self._totals.get(group)
        if series is None and len(self._totals) < GROUPS_MAX:
            series = self._totals[group] = _Series()
        if series is None:
            self.left_out += 1
        else:
            self._put(series, total)
        return total

    def _part(self, group: str, place: Place) -> _Series | None:
        """The series of a partition; None if there is no room for another one."""
        parts = self._parts.setdefault(group, {})
        if place not in parts:
            if self._parts_count >= PARTITIONS_MAX:
                self.left_out += 1
                return None
            parts[place] = _Series()
            self._parts_count += 1
        return parts[place]

    def of(self, group: str) -> GroupLag | None:
        """What is kept of a group; None if nothing is."""
        total = self._totals.get(group)
        parts = self._parts.get(group, {})
        if total is None and not parts:
            return None
        return GroupLag(
            [] if total is None else self._read(total),
            {place: self._read(series) for place, series in parts.items()},
        )

    def _put(self, series: _Series, value: int) -> None:
        # What was written an hour ago in between is not of this hour.
        behind = min(self._tick - series.tick, _SAMPLES)
        for back in range(1, behind):
            series.values[(self._tick - back) % _SAMPLES] = math.nan
        series.values[self._tick % _SAMPLES] = value
        series.tick = self._tick

    def _read(self, series: _Series) -> list[float | None]:
        if series.tick <= self._tick - _SAMPLES:
            return [None] * _SAMPLES
        found: list[float | None] = []
        for tick in range(self._tick - _SAMPLES + 1, self._tick + 1):
            value = series.values[tick % _SAMPLES] if tick <= series.tick else math.nan
            found.append(None if math.isnan(value) else value)
        return found

    def _drop_old(self) -> None:
        oldest = self._tick - _SAMPLES
        self._totals = {g: s for g, s in self._totals.items() if s.tick > oldest}
        kept = {
            group: {place: one for place, one in parts.items() if one.tick > oldest}
            for group, parts in self._parts.items()
        }
        self._parts = {group: parts for group, parts in kept.items() if parts}
        self._parts_count = sum(map(len, self._parts.values()))
