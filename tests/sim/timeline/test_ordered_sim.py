"""Order keys by seed: what consumers see of them, on the store in memory and on SQLite.

Consumers lease, finish, fail, or die with their leases; messages come, are cancelled and are moved.
The books know only what was told to and by the store. Of each key, whoever is leased is alone, and
no message of the key that is there comes before it; in the end each was handled once.
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sim.seeds import run_seeds

from dovetail.timeline.message import (
    Handle,
    Leased,
    MessageId,
    NewMessage,
    Release,
    Status,
    TimelineId,
)
from dovetail.timeline.stores import _sqlite_statements
from dovetail.timeline.stores._memory_row import Row
from dovetail.timeline.stores.memory import MemoryStore, MemoryStores
from dovetail.timeline.stores.protocol import LeaseAsk, Stores, TimelineStore
from dovetail.timeline.stores.sqlite import SqliteStores

BUCKETS = {"a": 1, "b": 6, None: 3}
BEGIN_MS = 1_000_000
LEASE_MS = 50
ATTEMPTS_MAX = 1_000
STEPS = 60


class Books:
    """What is there, and what is in hand."""

    def __init__(self, store: TimelineStore, rng: random.Random) -> None:
        self.store, self.rng = store, rng
        self.now_ms = BEGIN_MS
        #: Of what is there: its order key, and its due time.
        self.there: dict[MessageId, tuple[str | None, int]] = {}
        #: Leases that were neither finished nor given back, with their ends.
        self.held: dict[MessageId, Leased] = {}
        self.handled: list[MessageId] = []

    async def step(self) -> None:
        kinds = (self.insert, self.insert, self.lease, self.lease, self.end, self.change)
        await self.rng.choice(kinds)()
        self.now_ms += self.rng.choice([0, 1, 5, 5, LEASE_MS])

    async def insert(self) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            key = self.rng.choice(["a", "a", "b", None])
            due_ms = self.now_ms + self.rng.randrange(-20, 20)
            message = NewMessage(due_ms, b"", order_key=key)
            (made,) = await self.store.insert([message], buckets=[BUCKETS[key]], now_ms=self.now_ms)
            self.there[made.id] = key, due_ms

    async def lease(self) -> None:
        limit = self.rng.randrange(1, 5)
        ask = LeaseAsk(self.rng.choice("xy"), 0, 8, self.now_ms, limit, LEASE_MS)
        found = await self.store.lease([ask], now_ms=self.now_ms, attempts_max=ATTEMPTS_MAX)
        for leased in found.leased[0]:
            self.check(leased)
        for leased in found.leased[0]:
            self.held[leased.id] = leased

    def check(self, leased: Leased) -> None:
        key, due_ms = self.there[leased.id]
        before = self.held.get(leased.id)
        assert before is None or before.until_ms <= self.now_ms, "a lease was given twice"
        if key is None:
            return
        others = [i for i, (other, _) in self.there.items() if other == key and i != leased.id]
        assert not [i for i in others if i in self.held], f"two of {key!r} are in hand"
        # Whoever was begun and died stays the first.
        if before is None:
            first = min((self.there[i][1], i) for i in [*others, leased.id])
            assert first == (due_ms, leased.id), f"{leased.id} went before {first[1]} of {key!r}"

    async def end(self) -> None:
        """Somebody finishes or fails; or nobody does, and the lease ends."""
        if not self.held:
            return
        leased = self.rng.choice(list(self.held.values()))
        handle = Handle(leased.id, leased.version)
        if self.rng.random() < 0.7:
            (status,) = await self.store.delete([handle], now_ms=self.now_ms)
            assert status is Status.OK
            del self.there[leased.id]
            self.handled.append(leased.id)
        elif self.rng.random() < 0.5:
            rest = Release(handle, self.now_ms + self.rng.randrange(30), reason="failed")
            (status,) = await self.store.release(
                [rest], now_ms=self.now_ms, attempts_max=ATTEMPTS_MAX
            )
            assert status is Status.OK
        else:
            return
        del self.held[leased.id]

    async def change(self) -> None:
        """An operator cancels or moves one that nobody has begun with."""
        free = [i for i in self.there if i not in self.held]
        if not free:
            return
        one = self.rng.choice(free)
        if self.rng.random() < 0.5:
            assert await self.store.cancel([one], now_ms=self.now_ms) == [Status.OK]
            del self.there[one]
        else:
            due_ms = self.now_ms + self.rng.randrange(30)
            assert await self.store.move([(one, due_ms)], now_ms=self.now_ms) == [Status.OK]
            self.there[one] = self.there[one][0], due_ms

    async def finish(self) -> None:
        """Nothing comes any more, and everything is handled."""
        for _ in range(len(self.there) * 20):
            if not self.there:
                return
            await self.lease()
            await self.end()
            self.now_ms += LEASE_MS
        raise AssertionError(f"{len(self.there)} messages are not handed out any more")


async def _run(seed: int, stores: Stores) -> None:
    rng = random.Random(seed)
    number = TimelineId(seed + 1)
    await stores.provision(number)
    store = await stores.open(number)
    books = Books(store, rng)
    for _ in range(STEPS):
        await books.step()
    await books.finish()
    assert len(set(books.handled)) == len(books.handled)
    await store.close()


def in_memory(seed: int) -> None:
    asyncio.run(_run(seed, MemoryStores(lambda: BEGIN_MS)))


def on_sqlite(folder: Path) -> Callable[[int], None]:
    async def run(seed: int) -> None:
        stores = SqliteStores(folder)
        try:
            await _run(seed, stores)
        finally:
            await stores.close()

    return lambda seed: asyncio.run(run(seed))


def test_messages_of_a_key_are_handled_one_at_a_time_in_order() -> None:
    """B24: whoever dies, fails, cancels or moves."""
    run_seeds(in_memory, least=20)


def test_the_same_on_sqlite(tmp_path: Path) -> None:
    """B24: the store that a node alone has."""
    for seed in range(5):
        on_sqlite(tmp_path / str(seed))(seed)


def _alone(original: Callable[[MemoryStore, Row], bool]) -> Any:
    """Forgets that one which is in hand comes before an earlier one that came later."""

    def behind(self: MemoryStore, row: Row) -> bool:
        return original(self, row) and not any(
            other.holder is not None and other.place > row.place for other in self._rows.values()
        )

    return behind


def test_planted_bugs_of_order_are_found_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1, B24: no order at all, order of arrival, and one in hand that is not waited for."""
    planted: list[tuple[Any, str, Any]] = [
        (MemoryStore, "_behind", lambda self, row: False),
        (Row, "place", property(lambda self: (0, self.id))),
        (MemoryStore, "_behind", _alone(MemoryStore._behind)),
    ]
    for owner, name, value in planted:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            with pytest.raises(AssertionError, match=r"in hand|went before"):
                for seed in range(40):
                    in_memory(seed)


def test_planted_bugs_of_order_are_found_on_sqlite(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """R1, B24: an earlier one that comes later does not go first, when it is moved or when it is
    stored; the one behind is forgotten."""
    unheld = "h.holder IS NULL"
    assert unheld in _sqlite_statements.UNLED
    by_arrival = _sqlite_statements.PARK.replace("ORDER BY due, id", "ORDER BY id")
    by_arrival_too = _sqlite_statements.UNPARK.replace("ORDER BY due, id", "ORDER BY id")
    planted = [
        {"PARK": by_arrival, "UNPARK": by_arrival_too},
        {"UNLED": _sqlite_statements.UNLED.replace(unheld, "0")},
        {"UNPARK": "SELECT 1 FROM json_each(?)"},
    ]
    for number, statements in enumerate(planted):
        with monkeypatch.context() as patch:
            for name, statement in statements.items():
                patch.setattr(_sqlite_statements, name, statement)
            with pytest.raises(AssertionError, match=r"went before|not handed out"):
                for seed in range(20):
                    on_sqlite(tmp_path / f"{number}-{seed}")(seed)
