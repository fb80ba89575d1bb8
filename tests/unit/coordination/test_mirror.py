"""A mirror of a prefix: what it tells, in which order, and what it must never tell."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.unit.coordination.driving import DEADLINE_S, put

from dovetail.clock import SystemClock
from dovetail.coordination import Delete, EmbeddedCoordinator, EmbeddedLimits, KeyValue, Revision
from dovetail.coordination import mirror as mirrors
from dovetail.coordination.mirror import Mirror
from dovetail.coordination.protocol import Snapshot, WatchEvent
from dovetail.errors import CoordinationDown, WatchGap


class Told:
    """What a mirror told, and the state that follows from it."""

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {}
        self.heard: list[tuple[str, bytes | None, int]] = []
        self.settled = 0
        self._changed = asyncio.Event()

    def apply(self, key: str, value: bytes | None, revision: Revision) -> None:
        self.heard.append((key, value, revision))
        if value is None:
            del self.keys[key]
        else:
            self.keys[key] = value

    def settle(self) -> None:
        self.settled += 1
        self._changed.set()

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not done():
                self._changed.clear()
                await self._changed.wait()

    def check_order(self) -> None:
        """Each key's revisions rise."""
        last: dict[str, int] = {}
        for key, _, revision in self.heard:
            assert revision >= last.get(key, 0), f"{key} went back: {self.heard}"
            last[key] = revision


Error = type[Exception]


class Script:
    """A service whose answers are written down: snapshots to be read, and events to be watched."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot | Error] = []
        self.events: asyncio.Queue[tuple[WatchEvent, ...] | Error] = asyncio.Queue()
        self.watched_after: list[int] = []

    async def range(self, prefix: str) -> Snapshot:
        await asyncio.sleep(0)
        found = self.snapshots.pop(0)
        if isinstance(found, type):
            raise found("scripted")
        return found

    @contextlib.asynccontextmanager
    async def watch(
        self, prefix: str, *, after: Revision
    ) -> AsyncIterator[AsyncIterator[tuple[WatchEvent, ...]]]:
        self.watched_after.append(after)

        async def events() -> AsyncIterator[tuple[WatchEvent, ...]]:
            while True:
                found = await self.events.get()
                if isinstance(found, type):
                    raise found("scripted")
                yield found

        yield events()


def snapshot(revision: int, **keys: int) -> Snapshot:
    """Keys with their revisions; the value of a key says its revision."""
    items = tuple(
        KeyValue(f"/x/{key}", b"%d" % at, Revision(at), Revision(at))
        for key, at in sorted(keys.items())
    )
    return Snapshot(Revision(revision), items)


def event(revision: int, **keys: bytes | None) -> tuple[WatchEvent, ...]:
    return tuple(WatchEvent(f"/x/{key}", value, Revision(revision)) for key, value in keys.items())


class Bench:
    def __init__(self) -> None:
        self.script, self.told = Script(), Told()
        self.mirror = Mirror(
            self.script,  # type: ignore[arg-type]
            "/x/",
            apply=self.told.apply,
            settled=self.told.settle,
        )

    async def start(self, *snapshots: Snapshot | Error) -> None:
        self.script.snapshots += snapshots
        await self.mirror.start()

    async def tell(self, *told: tuple[WatchEvent, ...]) -> None:
        """Returns when the mirror has heard all of it."""
        goal = self.told.settled + len(told)
        for events in told:
            self.script.events.put_nowait(events)
        await self.told.until(lambda: self.told.settled >= goal)

    async def fail(self, error: Error, *snapshots: Snapshot | Error) -> None:
        """The watch ends, and everything is read again; returns when that has worked."""
        goal = self.told.settled + 1
        self.script.snapshots += snapshots
        self.script.events.put_nowait(error)
        await self.told.until(lambda: self.told.settled >= goal)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(mirrors, "RETRY_MS", 1)
    made = Bench()
    yield made
    await made.mirror.stop()
    made.told.check_order()


async def test_it_reads_and_then_follows(bench: Bench) -> None:
    """L1: each set of changes that belong together is told whole, then settled once."""
    await bench.start(snapshot(5, a=3, b=5))
    assert bench.told.keys == {"/x/a": b"3", "/x/b": b"5"}
    assert bench.told.settled == 1
    await bench.tell(event(6, a=b"6", c=b"6"), event(8, b=None))
    assert bench.told.keys == {"/x/a": b"6", "/x/c": b"6"}
    assert bench.told.settled == 3
    assert bench.script.watched_after == [5]


async def test_after_a_gap_what_is_gone_is_told_too(bench: Bench) -> None:
    """L1: a gap hides deletions as well as writes; both are found by reading again."""
    await bench.start(snapshot(5, a=3, b=5, c=4))
    await bench.fail(WatchGap, snapshot(20, a=3, c=18, d=11))
    assert bench.told.keys == {"/x/a": b"3", "/x/c": b"18", "/x/d": b"11"}
    assert ("/x/b", None, 20) in bench.told.heard
    assert bench.script.watched_after == [5, 20]


async def test_it_outlives_a_service_that_is_away(bench: Bench) -> None:
    """L1: the view stays as it was, and is brought up to date when the service answers."""
    await bench.start(snapshot(5, a=3))
    bench.script.snapshots.append(CoordinationDown)
    bench.script.events.put_nowait(CoordinationDown)
    await bench.tell(event(9, b=b"9"))
    assert bench.told.keys == {"/x/a": b"3", "/x/b": b"9"}
    assert bench.script.watched_after == [5, 5], "what was missed is told by the next watch"
    await bench.fail(CoordinationDown, snapshot(12, a=3))
    assert bench.told.keys == {"/x/a": b"3"}


async def test_it_does_not_start_without_the_service(bench: Bench) -> None:
    """L1: nobody acts on a view that was never read."""
    bench.script.snapshots = [CoordinationDown]
    with pytest.raises(CoordinationDown):
        await bench.mirror.start()
    assert bench.told.heard == []


async def test_own_changes_are_known_at_once(bench: Bench) -> None:
    """L3: and what the watch says of the time before them changes nothing."""
    await bench.start(snapshot(5, a=3, b=4))
    bench.mirror.note("/x/a", b"mine", Revision(9))
    bench.mirror.note("/x/b", None, Revision(10))
    assert bench.told.keys == {"/x/a": b"mine"}
    await bench.tell(event(7, a=b"old"), event(8, b=b"old"))
    assert bench.told.keys == {"/x/a": b"mine"}
    await bench.tell(event(9, a=b"mine"), event(10, b=None), event(11, b=b"new"))
    assert bench.told.keys == {"/x/a": b"mine", "/x/b": b"new"}


async def test_a_late_answer_does_not_bring_back_what_is_gone(bench: Bench) -> None:
    """L8, B4: the watch was faster than the answer to our own change; the topic is deleted."""
    await bench.start(snapshot(5))
    await bench.tell(event(6, a=b"created"), event(8, a=None))
    bench.mirror.note("/x/a", b"created", Revision(6))
    assert bench.told.keys == {}
    bench.mirror.note("/x/a", None, Revision(8))
    await bench.tell(event(9, a=b"again"))
    assert bench.told.keys == {"/x/a": b"again"}


async def test_own_removals_are_not_remembered_for_ever(bench: Bench) -> None:
    """L8: topic ids never come back, so what is kept for each removed key would only grow."""
    await bench.start(snapshot(5, **{f"k{n}": 3 for n in range(50)}))
    for n in range(50):
        bench.mirror.note(f"/x/k{n}", None, Revision(10 + n))
    await bench.tell(*(event(10 + n, **{f"k{n}": None}) for n in range(25)))
    assert len(bench.mirror._removed) == 25
    await bench.fail(WatchGap, snapshot(100))
    assert len(bench.mirror._removed) == 0
    bench.mirror.note("/x/k7", None, Revision(17))
    assert len(bench.mirror._removed) == 0


async def test_a_snapshot_that_is_older_than_our_own_change(bench: Bench) -> None:
    """L3: it was read before and arrives after; what we noted stays."""
    await bench.start(snapshot(5, a=3))
    bench.mirror.note("/x/b", b"mine", Revision(12))
    bench.mirror.note("/x/a", None, Revision(13))
    await bench.fail(WatchGap, snapshot(11, a=3))
    assert bench.told.keys == {"/x/b": b"mine"}
    await bench.tell(event(12, b=b"mine"), event(13, a=None))
    assert bench.told.keys == {"/x/b": b"mine"}


async def test_it_catches_up_with_what_the_watch_has_not_told(bench: Bench) -> None:
    """L9: what is there and what is gone, at once; the watch comes later and takes nothing back."""
    await bench.start(snapshot(5, a=3, b=4, c=5))
    bench.script.snapshots.append(snapshot(12, a=9, c=5, d=11))
    await bench.mirror.catch_up()
    assert bench.told.keys == {"/x/a": b"9", "/x/c": b"5", "/x/d": b"11"}
    assert bench.told.settled == 2
    await bench.tell(event(6, a=b"6"), event(7, b=b"7"), event(8, b=None), event(9, a=b"9"))
    assert bench.told.keys == {"/x/a": b"9", "/x/c": b"5", "/x/d": b"11"}
    await bench.tell(event(11, d=b"11"), event(13, b=b"13"))
    assert bench.told.keys == {"/x/a": b"9", "/x/b": b"13", "/x/c": b"5", "/x/d": b"11"}


async def test_a_catch_up_that_the_watch_overtook(bench: Bench) -> None:
    """L9: its answer was late; what was told since stays."""
    await bench.start(snapshot(5, a=3))
    await bench.tell(event(8, a=None), event(9, b=b"9"))
    bench.script.snapshots.append(snapshot(7, a=3))
    await bench.mirror.catch_up()
    assert bench.told.keys == {"/x/b": b"9"}


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[EmbeddedCoordinator]:
    limits = EmbeddedLimits(history_events_max=20)
    path = tmp_path / "coordination.db"
    opened = await EmbeddedCoordinator.open(path, clock=SystemClock(), limits=limits)
    async with opened:
        yield opened


async def test_on_a_real_service_with_many_writers(coordinator: EmbeddedCoordinator) -> None:
    """L1, L3: whoever writes, the mirror ends with what is stored; a history of 20 gives gaps."""
    told = Told()
    mirror = Mirror(coordinator, "/x/", apply=told.apply, settled=told.settle)
    await put(coordinator, "/x/0")
    await mirror.start()
    for at in range(40):
        writes = [put(coordinator, f"/x/{n % 7}", b"%d" % at) for n in range(at, at + 9)]
        await asyncio.gather(*writes, put(coordinator, f"/other/{at}"))
        key = f"/x/{at % 7}"
        if at % 3 == 0:
            outcome = await coordinator.transact([Delete(key)])
            mirror.note(key, None, outcome.revision)
        else:
            mirror.note(key, b"mine", await put(coordinator, key, b"mine"))
    await put(coordinator, "/x/end")
    await told.until(lambda: "/x/end" in told.keys)
    stored = await coordinator.range("/x/")
    assert told.keys == {item.key: item.value for item in stored.items}
    assert all(key.startswith("/x/") for key, _, _ in told.heard)
    told.check_order()
    await mirror.stop()
