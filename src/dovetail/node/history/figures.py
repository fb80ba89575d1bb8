"""Figures of a node over an hour. Pure.

Samples come at their own times. Whoever asks gets equal steps, which begin at multiples of their
length, so that a chart moves on without changing its shape. A step without a sample is None.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final, Literal

#: How the samples of a step become one value: a flow is their mean; of a level the highest is
#: kept, so that no peak is lost.
Way = Literal["mean", "highest"]

FIGURES: Final[Mapping[str, Way]] = {
    "records_in_per_s": "mean",
    "records_out_per_s": "mean",
    "bytes_in_per_s": "mean",
    "bytes_out_per_s": "mean",
    "errors_per_s": "mean",
    "lag": "highest",
    "due": "highest",
    "overdue_ms": "highest",
    "late_ms": "highest",
    "processor": "mean",
    "memory_bytes": "highest",
    "connections": "highest",
    "loop_delay_ms": "highest",
}

#: What is kept.
SPAN_MS: Final = 3_600_000


class Figures:
    """Samples of all figures; the oldest go."""

    def __init__(self, *, every_ms: int) -> None:
        """`every_ms`: the shortest time between two samples."""
        size = SPAN_MS // every_ms + 1
        self._times: deque[int] = deque(maxlen=size)
        self._values: dict[str, deque[float | None]] = {
            name: deque(maxlen=size) for name in FIGURES
        }

    def add(self, values: Mapping[str, float | None], *, at_ms: int) -> None:
        """Takes a sample; a figure that it does not name is unknown. A clock that went back
        begins anew."""
        if self._times and at_ms < self._times[-1]:
            self._times.clear()
            for column in self._values.values():
                column.clear()
        self._times.append(at_ms)
        for name, column in self._values.items():
            column.append(values.get(name))

    def last(self, name: str) -> float | None:
        """The newest value."""
        column = self._values[name]
        return column[-1] if column else None

    def steps(self, *, now_ms: int, step_ms: int) -> tuple[int, dict[str, list[float | None]]]:
        """When the first of the steps of the last hour begins, and each figure's value in each."""
        count = SPAN_MS // step_ms
        first = now_ms // step_ms - count + 1
        places = [at_ms // step_ms - first for at_ms in self._times]
        return first * step_ms, {
            name: _stepped(places, column, count, FIGURES[name])
            for name, column in self._values.items()
        }


def _stepped(
    places: list[int], column: deque[float | None], count: int, way: Way
) -> list[float | None]:
    found: list[list[float]] = [[] for _ in range(count)]
    for place, value in zip(places, column, strict=True):
        if value is not None and 0 <= place < count:
            found[place].append(value)
    if way == "highest":
        return [max(values) if values else None for values in found]
    return [sum(values) / len(values) if values else None for values in found]
