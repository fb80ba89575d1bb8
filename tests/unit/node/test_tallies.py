"""Counts of the hot path become the series that the library would make of them."""

import random

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram

from dovetail.exposition import render
from dovetail.node.tallies import Tally, Times

OPEN = "application/openmetrics-text; version=1.0.0"
BUCKETS = (0.001, 0.5, 1, 5)


@pytest.mark.parametrize("accept", ["", OPEN])
@pytest.mark.parametrize("label", [None, "api"])
def test_the_page_is_that_of_the_library(accept: str, label: str | None) -> None:
    """F61: counters and histograms, with a label and without, before and after counting."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    names = [] if label is None else [label]
    tally, times = Tally("requests", "Requests.", label), Times("took", "Time.", BUCKETS, label)
    for collector in (tally, times):
        ours.register(collector)
    counter = Counter("requests", "Requests.", names, registry=theirs)
    histogram = Histogram("took", "Time.", names, buckets=BUCKETS, registry=theirs)
    assert render(ours, accept) == render(theirs, accept)

    rng = random.Random(1)
    for _ in range(50):
        name = rng.choice(["Produce", "Fetch"]) if label else ""
        seconds = rng.choice([0.0, 0.0005, 0.001, 0.25, 1.0, 5.0, 60.0])
        tally.add(name, 3)
        times.observe(name, seconds)
        (counter.labels(name) if label else counter).inc(3)
        (histogram.labels(name) if label else histogram).observe(seconds)
    assert render(ours, accept) == render(theirs, accept)
