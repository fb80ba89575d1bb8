"""F61: a page of metrics costs what has changed, and is the page that the library would write."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from dovetail.exposition import render
from dovetail.log.compaction.compactor import CompactionReport
from dovetail.node.metrics import LogCollector

OPEN = "application/openmetrics-text; version=1.0.0"


def _partition(name: str, end: int) -> Any:
    return SimpleNamespace(name=name, log_start=1, high_watermark=end, payload_bytes=7, term=2)


def _registry(partitions: list[Any]) -> CollectorRegistry:
    log = SimpleNamespace(partitions=lambda: partitions, broken=dict, rolls_failed=0)
    groups = SimpleNamespace(positions=list, groups=list)
    compactor = SimpleNamespace(report=CompactionReport())
    registry = CollectorRegistry()
    Counter("dovetail_requests", "Requests.", registry=registry).inc(3)
    shares = SimpleNamespace(keepers=list, counted=list)
    given = (log, groups, shares, None, compactor)
    registry.register(LogCollector(*cast("tuple[Any, Any, Any, None, Any]", given)))
    return registry


@pytest.mark.parametrize("accept", ["", OPEN])
def test_both_formats_hold_all_series_and_follow_changes(accept: str) -> None:
    partitions = [_partition("a-b-0", 5), _partition("a-b-1", 9)]
    registry = _registry(partitions)

    def ends() -> dict[str, float]:
        page, _ = render(registry, accept)
        families = list((parse_open if accept else parse)(page.decode()))
        assert "dovetail_requests" in {family.name for family in families}
        found = next(f for f in families if f.name == "dovetail_partition_end_offset")
        assert {sample.labels["topic"] for sample in found.samples} == {"a-b"}
        return {sample.labels["partition"]: sample.value for sample in found.samples}

    assert ends() == {"0": 5, "1": 9}
    partitions[1].high_watermark = 10
    assert ends() == {"0": 5, "1": 10}
    del partitions[0]
    assert ends() == {"1": 10}
