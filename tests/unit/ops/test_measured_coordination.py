"""Measuring the coordination service changes nothing about it."""

from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar

import pytest
from prometheus_client import CollectorRegistry
from tests.unit.coordination.conformance import CoordinatorConformance
from tests.unit.coordination.driving import CoordinatorFactory, new_files, open_file

from dovetail.coordination import ABSENT, Put, Unchanged
from dovetail.errors import CoordinationDown, LeaseLost
from dovetail.node.measured import CoordinationMetrics, MeasuredCoordinator


class TestMeasured(CoordinatorConformance):
    """The whole conformance suite, through the measuring one."""

    lease_ttl_ms: ClassVar[int] = 600

    @pytest.fixture
    def coordinator_factory(self, tmp_path: Path) -> CoordinatorFactory:
        return new_files(
            tmp_path,
            lambda embedded: nullcontext(
                MeasuredCoordinator(embedded, CoordinationMetrics(CollectorRegistry()))
            ),
        )


async def test_time_errors_and_bytes_are_counted(tmp_path: Path) -> None:
    """B17: how far coordination is, what goes to it and comes from it, and how often it fails."""
    registry = CollectorRegistry()

    def value(name: str, **labels: str) -> float:
        return registry.get_sample_value(f"dovetail_coordination_{name}", labels) or 0.0

    async with await open_file(tmp_path / "one.db") as inner:
        coordinator = MeasuredCoordinator(inner, CoordinationMetrics(registry))
        before = (await coordinator.range("/")).revision
        wanted = [Unchanged("/a", ABSENT)]
        done = await coordinator.transact([Put("/a", b"12345")], conditions=wanted)
        assert done.applied
        assert value("bytes_total", direction="out") == len("/a12345")
        assert await coordinator.get("/a") is not None
        assert value("bytes_total", direction="in") == len("/a12345")
        async with coordinator.watch("/", after=before) as changes:
            await anext(changes)
        assert value("bytes_total", direction="in") == 2 * len("/a12345")
        assert value("seconds_count", op="transact") == 1
        assert value("seconds_sum", op="transact") > 0

        lease = await coordinator.grant(ttl_ms=60_000)
        await coordinator.revoke(lease)
        with pytest.raises(LeaseLost):
            await coordinator.keep_alive(lease)
        assert value("errors_total", op="keep_alive") == 0, "that is an answer"
    with pytest.raises(CoordinationDown):
        await coordinator.transact([Put("/a", b"")])
    assert value("errors_total", op="transact") == 1
