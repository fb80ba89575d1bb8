"""How late messages left, as a Prometheus histogram that counts a thousand at a time.

The library's own histogram takes one value at a time, under a lock, and was a third of the event
loop's work for a message. Here one pass counts a batch.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class LateHistogram(Collector):
    """Times by timeline; registered by whoever makes it."""

    def __init__(
        self, name: str, doc: str, *, bounds_s: Sequence[float], tags: Mapping[str, str]
    ) -> None:
        self._name = name
        self._doc = doc
        self._bounds_ms = [bound * 1000 for bound in bounds_s]
        self._edges = [*map(str, map(float, bounds_s)), "+Inf"]
        self._tags = dict(tags)
        self._counts: dict[str, list[int]] = {}
        self._sums_ms: dict[str, float] = {}

    def add(self, timeline: str, late_ms: Sequence[float]) -> None:
        """Counts values in milliseconds; what left early by less than its latency counts as 0."""
        counts = self._counts.setdefault(timeline, [0] * len(self._edges))
        bounds_ms = self._bounds_ms
        total_ms = 0.0
        for each_ms in late_ms:
            if each_ms > 0.0:
                total_ms += each_ms
                counts[bisect_left(bounds_ms, each_ms)] += 1
            else:
                counts[0] += 1
        self._sums_ms[timeline] = self._sums_ms.get(timeline, 0.0) + total_ms

    def totals(self) -> tuple[int, float]:
        """How many there were of all timelines, and the sum of their milliseconds."""
        return sum(map(sum, self._counts.values())), sum(self._sums_ms.values())

    def forget(self, timeline: str) -> None:
        self._counts.pop(timeline, None)
        self._sums_ms.pop(timeline, None)

    def describe(self) -> Iterator[HistogramMetricFamily]:
        yield self._family()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = self._family()
        for timeline, counts in self._counts.items():
            buckets = [
                (edge, float(count))
                for edge, count in zip(self._edges, accumulate(counts), strict=True)
            ]
            labels = [*self._tags.values(), timeline]
            family.add_metric(labels, buckets, sum_value=self._sums_ms[timeline] / 1000)
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._doc, labels=[*self._tags, "timeline"])
