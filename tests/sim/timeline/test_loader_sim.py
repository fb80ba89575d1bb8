"""The loader in simulated time: consumers come, go, die, hang and wake; the store fails.

One thread, one seed, one history. Checked at every delivery: not early, nobody else's lease live,
the attempt counted right; at the end: everything handled. `tests/sim/seeds.py` has how many seeds.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest
from tests.sim.seeds import run_seeds

from dovetail.timeline.engine.assignment import DealerName, Member
from dovetail.timeline.engine.loader import NEVER_MS, Loader, Plan, Push
from dovetail.timeline.engine.window import Windows
from dovetail.timeline.message import Handle, Leased, MessageId, NewMessage, Release, Status
from dovetail.timeline.stores.memory import MemoryStore
from dovetail.timeline.stores.protocol import LeaseResult

BUCKETS = 64
WINDOW_MS = 200
LEASE_MS = 500
OVERTAKE_MS = 150
ATTEMPTS_MAX = 1_000
START_MS = 1_000_000
MESSAGES = 120

Result = TypeVar("Result")


def now(command: Coroutine[Any, Any, Result]) -> Result:
    """The result of a command of the store in memory, which never waits."""
    try:
        command.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("it waited")


@dataclass
class Consumer:
    """Handles what it gets after a while, unless it dies or hangs first."""

    member: Member
    dead: bool = False
    hanging: bool = False
    holds: list[Leased] = field(default_factory=list)


class World:
    """A broker and its consumers."""

    def __init__(self, seed: int, dealer: DealerName) -> None:
        self.rng = random.Random(seed)
        self.time_ms = START_MS
        self.store = MemoryStore(lambda: self.time_ms)
        windows = Windows(dealer, buckets=BUCKETS, window_ms=WINDOW_MS)
        self.loader = Loader(windows, overtake_ms=OVERTAKE_MS, poll_ms=0)
        self.consumers: dict[str, Consumer] = {}
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.live: dict[int, tuple[str, int]] = {}
        self.attempts: dict[int, int] = {}
        self.due: dict[int, int] = {}
        self.handled: set[int] = set()
        self.lateness: list[float] = []
        self.names = itertools.count()
        self.faults = True
        self.at(WINDOW_MS, self.window)

    def at(self, delay_ms: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.time_ms + delay_ms, next(self.order), event))

    # The broker

    def window(self) -> None:
        self.loader.on_window(self.loader.attendees(), now_ms=self.time_ms)
        self.at(self.loader.windows.ends_ms(self.time_ms) - self.time_ms, self.window)
        self.wake()

    def wake(self) -> None:
        if not self.loader.windows.assignment.members:
            self.loader.on_window(self.loader.attendees(), now_ms=self.time_ms)
        wake_ms = self.loader.wake_ms(now_ms=self.time_ms)
        if wake_ms < NEVER_MS:
            self.at(max(0, wake_ms - self.time_ms), self.lease)

    def lease(self) -> None:
        plan = self.loader.plan(now_ms=self.time_ms)
        if plan is None:
            return
        took_ms = self.rng.choice([1, 2, 3, 20 if self.faults else 3])
        if self.faults and self.rng.random() < 0.05:
            self.at(took_ms, lambda: self.fail(plan))
            return
        result = now(self.store.lease(plan.asks, now_ms=self.time_ms, attempts_max=ATTEMPTS_MAX))
        for ask, part in zip(plan.asks, result.leased, strict=True):
            for leased in part:
                self.leased(ask.consumer, leased)

        def answered() -> None:
            pushes = self.loader.on_leased(plan, result, took_ms=took_ms)
            for push in pushes:
                self.at(max(0, push.at_ms - self.time_ms), lambda push=push: self.push(push))
            self.wake()

        self.at(took_ms, answered)

    def fail(self, plan: Plan) -> None:
        self.loader.on_failed(plan, now_ms=self.time_ms)
        self.wake()

    def leased(self, consumer: str, leased: Leased) -> None:
        holder = self.live.get(leased.id)
        assert holder is None or holder[1] <= self.time_ms, f"{holder} still holds {leased.id}"
        self.live[leased.id] = (consumer, leased.until_ms)
        self.attempts[leased.id] = self.attempts.get(leased.id, 0) + 1
        assert leased.attempt == self.attempts[leased.id]

    def push(self, push: Push) -> None:
        message = push.message
        consumer = self.consumers.get(push.consumer)
        if consumer is None:
            # The broker knows that it is gone, and gives the message back.
            self.release(message.handle, counted=False)
            return
        assert self.time_ms >= self.due[message.id], "early"
        if message.attempt == 1:
            self.lateness.append(self.time_ms - self.due[message.id])
        consumer.holds.append(message)
        self.at(self.rng.randrange(1, 50), lambda: self.finish(consumer, message))

    def release(self, handle: Handle, *, counted: bool) -> None:
        item = Release(handle, self.time_ms, counted)
        (status,) = now(self.store.release([item], now_ms=self.time_ms, attempts_max=ATTEMPTS_MAX))
        if status is Status.OK:
            self.live.pop(handle.id, None)
            self.attempts[handle.id] -= 0 if counted else 1
            self.loader.on_inserted(self.time_ms)
            self.wake()

    # Consumers

    def come(self, name: str | None = None) -> None:
        identity = name or f"c{next(self.names)}"
        member = Member(identity, self.rng.choice("xyz"))
        self.consumers[identity] = Consumer(member)
        self.loader.join(member, lease_ms=LEASE_MS)
        self.loader.offer(identity, self.rng.choice([1, 3, 20]))
        self.wake()

    def finish(self, consumer: Consumer, message: Leased) -> None:
        if consumer.dead:
            return
        if consumer.hanging:
            self.at(100, lambda: self.finish(consumer, message))
            return
        consumer.holds.remove(message)
        if self.faults and self.rng.random() < 0.1:
            self.release(message.handle, counted=True)
        else:
            (status,) = now(self.store.delete([message.handle]))
            if status is Status.OK:
                assert message.id not in self.handled, "handled twice under a valid lease"
                self.handled.add(message.id)
        if consumer.member.id in self.consumers:
            self.loader.offer(consumer.member.id, self.loader.credit(consumer.member.id) + 1)
            self.wake()

    def trouble(self) -> None:
        if not self.faults:
            return
        living = list(self.consumers.values())
        kind = self.rng.choice(["come", "come", "die", "leave", "hang"])
        if kind == "come" and len(living) < 6:
            self.come()
        elif living and kind != "come":
            victim = self.rng.choice(living)
            if kind == "hang":
                victim.hanging = not victim.hanging
            else:
                victim.dead = kind == "die"
                del self.consumers[victim.member.id]
                self.loader.leave(victim.member.id)
        self.at(self.rng.randrange(20, 300), self.trouble)

    def insert(self, ahead_ms: int | None = None) -> None:
        if ahead_ms is None:
            ahead_ms = self.rng.choice([0, 5, 50, 400])
        due_ms = self.time_ms + ahead_ms
        (outcome,) = now(
            self.store.insert(
                [NewMessage(due_ms, b"")],
                buckets=[self.rng.randrange(BUCKETS)],
                now_ms=self.time_ms,
            )
        )
        self.due[outcome.id] = due_ms
        self.loader.on_inserted(due_ms)
        self.wake()

    def run(self, until_ms: float) -> None:
        while self.events and self.events[0][0] <= until_ms:
            at_ms, _, event = heapq.heappop(self.events)
            self.time_ms = int(max(self.time_ms, at_ms))
            event()
        self.time_ms = int(until_ms)


@pytest.mark.parametrize("dealer", ["ranges", "racks"])
def test_everything_is_handled_on_time_and_by_one(dealer: DealerName) -> None:
    """B7, B10, B11, B12, B13: whatever happens to consumers and the store, nothing is lost."""
    run_seeds(lambda seed: run(seed, dealer), least=30)


def run(seed: int, dealer: DealerName) -> None:
    world = World(seed, dealer)
    world.at(0, world.come)
    world.at(1, world.trouble)
    for _ in range(MESSAGES):
        world.at(world.rng.randrange(3_000), world.insert)
    world.run(START_MS + 3_500)

    world.faults = False
    for consumer in world.consumers.values():
        consumer.hanging = False
    world.come("the last one")
    world.run(START_MS + 10_000)

    assert world.handled == set(world.due), set(world.due) - world.handled
    counts = now(world.store.counts(now_ms=world.time_ms))
    assert (counts.waiting, counts.due, counts.leased) == (0, 0, 0)


def test_on_a_quiet_day_messages_are_on_time() -> None:
    """B7: late by no more than the way, with a store that needs three milliseconds."""
    world = World(7, "ranges")
    world.faults = False
    world.come()
    world.loader.offer("c0", 1_000)
    world.run(START_MS + 50)
    for at in range(500):
        world.at(at * 4, world.insert)
    world.run(START_MS + 5_000)
    ahead = [late for late in world.lateness if late <= 0]
    assert len(world.handled) == 500
    assert len(ahead) > len(world.lateness) * 0.6, "what was stored ahead leaves on the millisecond"
    assert max(world.lateness) <= 20


def test_a_slow_primary_is_overtaken_by_its_backup() -> None:
    """B10: a primary without credit keeps nobody waiting longer than `overtake_ms` and a look."""
    world = World(3, "racks")
    world.faults = False
    world.come("slow")
    world.come("fast")
    world.loader._consumers["slow"].member = Member("slow", "a")
    world.loader._consumers["fast"].member = Member("fast", "b")
    world.run(START_MS + WINDOW_MS + 1)
    world.loader.offer("slow", 0)
    world.loader.offer("fast", 1_000)
    begun_ms = world.time_ms
    for _ in range(40):
        world.insert(0)
    world.run(begun_ms + OVERTAKE_MS + OVERTAKE_MS // 2 + 60)
    assert len(world.handled) == 40


def test_a_whole_rack_goes_and_everything_due_is_served_in_the_same_window() -> None:
    """B10: by the backups in the racks that are left, long before a new assignment is made."""
    world = World(5, "racks")
    world.faults = False
    world.loader.windows = Windows("racks", buckets=BUCKETS, window_ms=60_000)
    for rack in "xyz":
        for number in range(3):
            name = f"{rack}{number}"
            world.consumers[name] = Consumer(Member(name, rack))
            world.loader.join(Member(name, rack), lease_ms=LEASE_MS)
            world.loader.offer(name, 1_000)
    world.wake()
    world.run(START_MS + 10)
    assert len(world.loader.windows.assignment.members) == 9
    for number in range(3):
        del world.consumers[f"x{number}"]
        world.loader.leave(f"x{number}")
    begun_ms = world.time_ms
    for _ in range(90):
        world.insert(0)
    lost = {m.id for m in world.loader.windows.assignment.members if m.rack == "x"}
    assert lost == {"x0", "x1", "x2"}, "the assignment of the window is still the old one"
    world.run(begun_ms + OVERTAKE_MS + OVERTAKE_MS // 2 + 60)
    assert len(world.handled) == 90


def test_ids_in_a_plan_are_those_of_consumers_with_credit() -> None:
    """B14: nobody is leased more than it said it can take."""
    world = World(1, "ranges")
    world.faults = False
    world.come("a")
    world.loader.offer("a", 2)
    for _ in range(5):
        world.insert(0)
    world.run(START_MS + 2)
    assert len(world.live) <= 2
    assert MessageId(1) in world.live


def _push_at_once(original: Any) -> Any:
    def on_leased(self: Loader, plan: Plan, result: LeaseResult, *, took_ms: float) -> list[Push]:
        pushes = original(self, plan, result, took_ms=took_ms)
        return [push._replace(at_ms=0.0) for push in pushes]

    return on_leased


def _forget_lease_ends(original: Any) -> Any:
    def on_leased(self: Loader, plan: Plan, result: LeaseResult, *, took_ms: float) -> list[Push]:
        blind = replace(result, ends_ms=None)
        found: list[Push] = original(self, plan, blind, took_ms=took_ms)
        return found

    return on_leased


def _forget_what_came_meanwhile(original: Any) -> Any:
    def on_leased(self: Loader, plan: Plan, result: LeaseResult, *, took_ms: float) -> list[Push]:
        self._stored_ms = NEVER_MS
        found: list[Push] = original(self, plan, result, took_ms=took_ms)
        return found

    return on_leased


@pytest.mark.parametrize("plant", [_push_at_once, _forget_lease_ends, _forget_what_came_meanwhile])
def test_planted_bugs_of_the_loader_are_found(
    plant: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: the simulation goes red when the loader pushes early, or loses a wake."""
    monkeypatch.setattr(Loader, "on_leased", plant(Loader.on_leased))
    with pytest.raises(AssertionError):
        for seed in range(60):
            run(seed, "ranges")
        quiet_message_is_found()


def quiet_message_is_found() -> None:
    """One message that is stored while a lease is under way, and nothing else ever happens."""
    world = World(1, "ranges")
    world.faults = False
    world.come("a")
    world.insert(0)
    world.at(0.5, lambda: world.insert(0))
    world.run(START_MS + 150)
    assert len(world.handled) == 2


def test_a_message_that_comes_while_a_lease_is_under_way_is_not_left_lying() -> None:
    """B12: though nothing else ever wakes the loader."""
    quiet_message_is_found()


@pytest.mark.parametrize("dealer", ["ranges", "racks"])
def test_a_lease_that_is_taken_ahead_of_its_end_is_found(
    dealer: DealerName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: the simulation goes red when the store gives away what somebody still holds."""
    monkeypatch.setattr("dovetail.timeline.stores._memory_row.Row.free", lambda self, now_ms: True)
    with pytest.raises(AssertionError, match="still holds"):
        for seed in range(60):
            run(seed, dealer)
