"""Measures the coordination service as a node sees it: latency and failures of each call.

`MeasuredCoordinator` is a `Coordinator` that forwards everything and measures the calls that have
an answer. It counts the bytes of keys and values in both directions, watched changes included, but
not the overhead of the service's own protocol.
"""

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Self, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram

from dovetail.coordination import (
    Change,
    Coordinator,
    KeyValue,
    LeaseId,
    Outcome,
    Put,
    Revision,
    Snapshot,
    Unchanged,
    WatchEvent,
)
from dovetail.errors import LeaseLost, Unavailable, Uncertain

#: Seconds: from memory (embedded) to a service that is about to be given up.
_BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)

_OPS = ("get", "range", "transact", "grant", "keep_alive", "revoke")

Result = TypeVar("Result")


class CoordinationMetrics:
    """The series of one node's coordination service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        seconds = Histogram(
            "dovetail_coordination_seconds",
            "Time from a question to coordination to its answer.",
            ["op"],
            buckets=_BUCKETS,
            registry=registry,
        )
        errors = Counter(
            "dovetail_coordination_errors",
            "Questions to coordination that it did not answer.",
            ["op"],
            registry=registry,
        )
        moved = Counter(
            "dovetail_coordination_bytes",
            "Bytes of keys and values from and to coordination.",
            ["direction"],
            registry=registry,
        )
        self.seconds = {op: seconds.labels(op) for op in _OPS}
        self.errors = {op: errors.labels(op) for op in _OPS}
        self.bytes_in, self.bytes_out = moved.labels("in"), moved.labels("out")


class MeasuredCoordinator:
    """See the module."""

    def __init__(self, inner: Coordinator, metrics: CoordinationMetrics) -> None:
        self._inner = inner
        self._metrics = metrics

    async def get(self, key: str) -> KeyValue | None:
        found = await self._timed("get", self._inner.get(key))
        if found is not None:
            self._metrics.bytes_in.inc(len(found.key) + len(found.value))
        return found

    async def range(self, prefix: str) -> Snapshot:
        found = await self._timed("range", self._inner.range(prefix))
        self._metrics.bytes_in.inc(sum(len(item.key) + len(item.value) for item in found.items))
        return found

    async def transact(
        self, changes: Sequence[Change], *, conditions: Sequence[Unchanged] = ()
    ) -> Outcome:
        self._metrics.bytes_out.inc(
            sum(
                len(each.key) + len(each.value if isinstance(each, Put) else b"")
                for each in changes
            )
        )
        return await self._timed("transact", self._inner.transact(changes, conditions=conditions))

    @asynccontextmanager
    async def watch(
        self, prefix: str, *, after: Revision
    ) -> AsyncIterator[AsyncIterator[tuple[WatchEvent, ...]]]:
        async with self._inner.watch(prefix, after=after) as changes:
            yield _Counted(changes, self._metrics)

    async def grant(self, *, ttl_ms: int) -> LeaseId:
        return await self._timed("grant", self._inner.grant(ttl_ms=ttl_ms))

    async def keep_alive(self, lease: LeaseId) -> None:
        await self._timed("keep_alive", self._inner.keep_alive(lease))

    async def revoke(self, lease: LeaseId) -> None:
        await self._timed("revoke", self._inner.revoke(lease))

    async def close(self) -> None:
        await self._inner.close()

    async def _timed(self, op: str, asked: Awaitable[Result]) -> Result:
        # A loop's own time stands still while it works, and counts milliseconds.
        began_s = perf_counter()
        try:
            return await asked
        except LeaseLost:
            # That is an answer.
            raise
        except (Unavailable, Uncertain):
            self._metrics.errors[op].inc()
            raise
        finally:
            self._metrics.seconds[op].observe(perf_counter() - began_s)


class _Counted:
    """A watch whose bytes are counted; it holds nothing, so a reader may be cancelled and go on."""

    def __init__(
        self, changes: AsyncIterator[tuple[WatchEvent, ...]], metrics: CoordinationMetrics
    ) -> None:
        self._changes = changes
        self._metrics = metrics

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[WatchEvent, ...]:
        events = await anext(self._changes)
        self._metrics.bytes_in.inc(sum(len(each.key) + len(each.value or b"") for each in events))
        return events
