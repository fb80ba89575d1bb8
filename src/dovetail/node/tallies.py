"""Counters and timers for the hot path; each costs one addition.

The Prometheus library's counters take a lock and several calls each. With five timers and a dozen
counters for one small message, that was a tenth of the event loop's work. These are plain numbers
that one thread adds to; a scrape turns them into series.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Tally(Collector):
    """A counter, by one label or by none."""

    def __init__(self, name: str, about: str, label: str | None = None) -> None:
        self._name, self._about = name, about
        self._labels = [] if label is None else [label]
        #: By the value of the label; "" where there is none.
        self.counts: dict[str, int] = {} if self._labels else {"": 0}

    def add(self, label: str, amount: int) -> None:
        """Counts on."""
        self.counts[label] = self.counts.get(label, 0) + amount

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._about, labels=self._labels)
        for label, count in [*self.counts.items()]:
            family.add_metric([label] if self._labels else [], count)
        yield family


class Times(Collector):
    """A histogram, by one label or by none."""

    def __init__(
        self, name: str, about: str, buckets: Sequence[float], label: str | None = None
    ) -> None:
        self._name, self._about = name, about
        self._labels = [] if label is None else [label]
        self._bounds = tuple(buckets)
        self._ends = [*map(floatToGoString, self._bounds), "+Inf"]
        #: By the value of the label: how many fell into each bucket, and their sum behind.
        self._rows: dict[str, list[float]] = {}
        if not self._labels:
            self._row("")

    def observe(self, label: str, value: float) -> None:
        """Counts one."""
        row = self._rows.get(label)
        if row is None:
            row = self._row(label)
        row[bisect_left(self._bounds, value)] += 1
        row[-1] += value

    def _row(self, label: str) -> list[float]:
        row = self._rows[label] = [0.0] * (len(self._bounds) + 2)
        return row

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._about, labels=self._labels)
        for label, row in [*self._rows.items()]:
            buckets = list(zip(self._ends, accumulate(row[:-1]), strict=True))
            family.add_metric([label] if self._labels else [], buckets, row[-1])
        yield family
