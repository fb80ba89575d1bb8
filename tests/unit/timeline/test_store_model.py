"""Every store against the simple one in memory, command by command, in any order.

A machine makes commands; each is given to both stores, and every answer must be the same: ids,
versions, outcomes, what is leased to whom, what is dead. `MODEL_EXAMPLES` sets how many runs are
tried (default 25 for each store; `make sim` gives more).
"""

import asyncio
import itertools
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace
from tests.database_servers import PostgresServer
from tests.unit.timeline.store_conformance import NOW_MS

from dovetail.timeline.engine.lives import Pace
from dovetail.timeline.engine.schedule import firing_at, new_schedule
from dovetail.timeline.message import (
    BatchId,
    Extension,
    Handle,
    KeyRule,
    Life,
    MessageId,
    NewMessage,
    OnTaken,
    Release,
    TimelineId,
    Version,
)
from dovetail.timeline.stores.memory import MemoryStores
from dovetail.timeline.stores.postgres_database import PostgresStores
from dovetail.timeline.stores.protocol import LeaseAsk, Stores, TimelineStore
from dovetail.timeline.stores.sqlite import SqliteStores

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "25"))
BUCKETS = 8
ATTEMPTS_MAX = 2
SPAN_MS = 20

numbers = itertools.count(1)

times = st.integers(-SPAN_MS, SPAN_MS)
messages = st.builds(
    NewMessage,
    times,
    st.binary(max_size=3),
    st.just(b""),
    st.sampled_from([None, None, "a", "b"]),
    st.integers(0, 2),
    st.sampled_from([None, None, "o", "p"]),
    st.sampled_from([None, None, Life(1), Life(5, 7, SPAN_MS // 2)]),
    st.sampled_from(
        [None, None, KeyRule(OnTaken.REPLACE), KeyRule(OnTaken.EARLIER), KeyRule(hold_ms=SPAN_MS)]
    ),
)
paces = st.sampled_from([None, None, None, Pace(100, 0), Pace(0, 2), Pace(2_000, 3)])
picks = st.lists(st.integers(0, 30), min_size=1, max_size=4)


class StoreMachine(RuleBasedStateMachine):
    """Both stores, and what was seen of them."""

    open_stores: ClassVar[Callable[[], Awaitable[Stores]]]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.now_ms = NOW_MS
        self.handles: list[Handle] = [Handle(MessageId(1), Version(0))]
        self.batches = 0

    @initialize()
    def begin(self) -> None:
        self.runner.run(self._open())

    async def _open(self) -> None:
        self.stores = await type(self).open_stores()
        self.number = TimelineId(next(numbers))
        await self.stores.provision(self.number)
        self.real: TimelineStore = await self.stores.open(self.number)
        model = MemoryStores(lambda: self.now_ms)
        await model.provision(self.number)
        self.model: TimelineStore = await model.open(self.number)

    def teardown(self) -> None:
        if hasattr(self, "real"):
            self.runner.run(self._close())
        self.runner.close()

    async def _close(self) -> None:
        await self.real.close()
        await self.stores.drop(self.number)
        await self.stores.close()

    def both(self, command: Callable[[TimelineStore], Awaitable[Any]]) -> Any:
        found, expected = self.answers(command)
        assert found == expected
        return found

    def answers(self, command: Callable[[TimelineStore], Awaitable[Any]]) -> tuple[Any, Any]:
        async def run() -> tuple[Any, Any]:
            return await command(self.real), await command(self.model)

        return self.runner.run(run())

    def picked(self, at: list[int]) -> list[Handle]:
        """Handles that were seen, old ones among them; one for each message."""
        found = [self.handles[-1 - index % len(self.handles)] for index in at]
        return list({handle.id: handle for handle in found}.values())

    @rule(new=st.lists(messages, min_size=1, max_size=5), named=st.booleans(), data=st.data())
    def insert(self, new: list[Any], named: bool, data: st.DataObject) -> None:
        self.batches += 1
        batch = BatchId(1, data.draw(st.integers(max(1, self.batches - 2), self.batches)))
        sent = [replace(message, due_ms=self.now_ms + message.due_ms) for message in new]
        # All messages of an order key have the same bucket.
        buckets = [
            {"o": 1, "p": 6}.get(message.order_key or "", data.draw(st.integers(0, BUCKETS - 1)))
            for message in new
        ]
        outcomes = self.both(
            lambda store: store.insert(
                sent, buckets=buckets, now_ms=self.now_ms, batch=batch if named else None
            )
        )
        self.handles += [Handle(outcome.id, Version(0)) for outcome in outcomes]

    @rule(cut=st.integers(0, BUCKETS), limit=st.integers(1, 6), ahead=st.integers(0, 5), pace=paces)
    def lease(self, cut: int, limit: int, ahead: int, pace: Pace | None) -> None:
        horizon = self.now_ms + ahead
        odd = bytes(bucket % 2 for bucket in range(cut, BUCKETS))
        asks = [
            LeaseAsk("one", 0, cut, horizon, limit, SPAN_MS),
            LeaseAsk("two", cut, BUCKETS, horizon, limit, SPAN_MS + 1, odd),
        ]
        found, expected = self.answers(
            lambda store: store.lease(
                asks, now_ms=self.now_ms, attempts_max=ATTEMPTS_MAX, pace=pace
            )
        )
        assert (found.leased, found.died) == (expected.leased, expected.died)
        # A store may look too early, never too late.
        for name in ("next_ms", "ends_ms"):
            expected_ms, found_ms = getattr(expected, name), getattr(found, name)
            assert expected_ms is None or self.now_ms < found_ms <= expected_ms
        self.handles += [leased.handle for part in found.leased for leased in part]

    @rule(at=picks, by=st.integers(0, SPAN_MS))
    def extend(self, at: list[int], by: int) -> None:
        extensions = [Extension(handle, self.now_ms + by) for handle in self.picked(at)]
        self.both(lambda store: store.extend(extensions))

    @rule(at=picks, by=times, counted=st.booleans())
    def release(self, at: list[int], by: int, counted: bool) -> None:
        releases = [Release(handle, self.now_ms + by, counted, "why") for handle in self.picked(at)]
        self.both(
            lambda store: store.release(releases, now_ms=self.now_ms, attempts_max=ATTEMPTS_MAX)
        )

    @rule(at=picks)
    def delete(self, at: list[int]) -> None:
        handles = self.picked(at)
        self.both(lambda store: store.delete(handles, now_ms=self.now_ms))

    @rule(at=picks)
    def cancel(self, at: list[int]) -> None:
        ids = [handle.id for handle in self.picked(at)]
        self.both(lambda store: store.cancel(ids, now_ms=self.now_ms))

    @rule(at=picks, by=times)
    def move(self, at: list[int], by: int) -> None:
        moves = [(handle.id, self.now_ms + by) for handle in self.picked(at)]
        self.both(lambda store: store.move(moves, now_ms=self.now_ms))

    @rule(at=picks, by=times)
    def replay(self, at: list[int], by: int) -> None:
        ids = [handle.id for handle in self.picked(at)]
        self.both(lambda store: store.replay(ids, due_ms=self.now_ms + by))

    @rule(at=picks)
    def drop_dead(self, at: list[int]) -> None:
        ids = [handle.id for handle in self.picked(at)]
        self.both(lambda store: store.drop_dead(ids))

    @rule(dead_max=st.integers(0, 3))
    def trim(self, dead_max: int) -> None:
        self.both(lambda store: store.trim(dead_max=dead_max, batches_before_ms=0))

    @rule(name=st.sampled_from("xy"), every=st.integers(100, 120))
    def schedule(self, name: str, every: int) -> None:
        made = new_schedule(name, b"s", now_ms=self.now_ms, every_ms=every)
        self.both(lambda store: store.put_schedule(made))

    @rule(stale=st.booleans())
    def fire(self, stale: bool) -> None:
        for schedule in self.both(lambda store: store.schedules()):
            firing = firing_at(schedule, now_ms=schedule.next_ms, bucket=1)
            self.both(lambda store, one=firing: store.fire([one], now_ms=self.now_ms))
            if stale:
                again = self.both(lambda store, one=firing: store.fire([one], now_ms=self.now_ms))
                assert again == [False]

    @rule(by=st.integers(1, 2 * SPAN_MS))
    def time_goes_on(self, by: int) -> None:
        self.now_ms += by

    @invariant()
    def they_look_alike(self) -> None:
        if not hasattr(self, "real"):
            return
        self.both(lambda store: store.peek(now_ms=self.now_ms, limit=100))
        self.both(lambda store: store.counts(now_ms=self.now_ms))
        self.both(lambda store: store.dead(after=MessageId(0), limit=100))
        self.both(lambda store: store.look_up_keys(["a", "b"], now_ms=self.now_ms))
        edges = [self.now_ms + step for step in range(-SPAN_MS, SPAN_MS, 7)]
        self.both(lambda store: store.histogram(edges))

    @rule(consumer=st.sampled_from(["one", "two"]), at=picks, limit=st.integers(1, 4))
    def take_up(self, consumer: str, at: list[int], limit: int) -> None:
        known = set(self.picked(at))
        found = self.both(
            lambda store: store.take_up(consumer, known=known, now_ms=self.now_ms, limit=limit)
        )
        self.handles += [leased.handle for leased in found]


def run_against(open_stores: Callable[[], Awaitable[Stores]]) -> None:
    machine = type("Machine", (StoreMachine,), {"open_stores": staticmethod(open_stores)})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


def test_sqlite_does_what_the_model_does() -> None:
    """B13, B19, B20, B24, B25, B26: any sequence of commands has the same answers."""
    with tempfile.TemporaryDirectory(prefix="dovetail-model-") as folder:

        async def open_stores() -> Stores:
            return SqliteStores(Path(folder))

        run_against(open_stores)


@pytest.mark.timeout(0)
def test_postgres_does_what_the_model_does(postgres_server: PostgresServer) -> None:
    """B13, B19, B20: any sequence of commands has the same answers."""
    dsn = postgres_server.create_database().dsn

    async def open_stores() -> Stores:
        return await PostgresStores.connect(dsn)

    run_against(open_stores)
