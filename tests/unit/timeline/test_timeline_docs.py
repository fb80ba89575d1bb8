"""docs/timeline.md speaks of things that are there."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from dovetail.timeline.config import TimelineConfig
from dovetail.timeline.engine.health import Degradation
from dovetail.timeline.metrics import TimelineMetrics

DOC = Path(__file__).parents[3] / "docs" / "timeline.md"


def test_every_metric_in_the_document_exists() -> None:
    """B17: the page names series that are there; docs/metrics.md has all of them."""
    registry = CollectorRegistry()
    TimelineMetrics(registry, {"stage": "test"})
    there = {
        metric.name + ("_total" if metric.type == "counter" else "")
        for metric in registry.collect()
    }
    assert set(re.findall(r"dovetail_timeline_\w+", DOC.read_text())) <= there


def test_settings_and_degradations_in_the_document_exist() -> None:
    """B16, B11: what can be tuned, and what can go wrong."""
    text = DOC.read_text()
    for name in TimelineConfig.__struct_fields__:
        assert f"`{name}`" in text or name == "dealer", name
    for degradation in Degradation:
        assert f"| `{degradation.value}` |" in text
