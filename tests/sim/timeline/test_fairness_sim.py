"""Fairness in simulated time: several brokers on one store, long handlers, consumers that come.

Each consumer is at one broker, and tells it how many handlers could begin. Brokers learn of each
other's consumers late. Nobody helps at the end: what is checked all the time is that no message
that is due waits for longer than a second while any consumer, wherever, is idle.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.sim.seeds import run_seeds
from tests.sim.timeline.test_loader_sim import now

from dovetail.timeline.engine.assignment import DealerName, Member
from dovetail.timeline.engine.loader import NEVER_MS, Loader, Push
from dovetail.timeline.engine.window import Attendee, Windows
from dovetail.timeline.message import NewMessage, State
from dovetail.timeline.stores.memory import MemoryStore

BUCKETS = 32
START_MS = 1_000_000
RUN_MS = 20_000
LEASE_MS = 60_000
LOOK_MS = 50
WAIT_MS_MAX = 1_000
ATTEMPTS_MAX = 100


class Broker:
    """A loader, and what the other brokers know of it."""

    def __init__(self, dealer: DealerName) -> None:
        windows = Windows(dealer, buckets=BUCKETS, window_ms=1_000)
        self.loader = Loader(windows, overtake_ms=500, poll_ms=25)
        self.told: list[Attendee] = []


class World:
    """Brokers, their consumers, and one store."""

    def __init__(self, seed: int, dealer: DealerName) -> None:
        self.rng = random.Random(seed)
        self.time_ms = START_MS
        self.store = MemoryStore(lambda: self.time_ms)
        self.brokers = [Broker(dealer) for _ in range(3)]
        self.room: dict[str, int] = {}
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        #: For how long each due message has waited beside an idle consumer.
        self.beside_ms: dict[int, int] = {}
        self.handled = 0
        for broker in self.brokers:
            self.window(broker)
        self.look()

    def at(self, delay_ms: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.time_ms + delay_ms, next(self.order), event))

    def run(self) -> None:
        while self.events and self.events[0][0] <= START_MS + RUN_MS:
            at_ms, _, event = heapq.heappop(self.events)
            self.time_ms = int(max(self.time_ms, at_ms))
            event()

    # Brokers

    def window(self, broker: Broker) -> None:
        here = broker.loader.attendees()
        others = [a for other in self.brokers if other is not broker for a in other.told]
        broker.loader.on_window([*here, *others], now_ms=self.time_ms)
        self.at(self.rng.randrange(20, 200), lambda: setattr(broker, "told", here))
        ends_ms = broker.loader.windows.ends_ms(self.time_ms)
        self.at(ends_ms - self.time_ms, lambda: self.window(broker))
        self.wake(broker)

    def wake(self, broker: Broker) -> None:
        wake_ms = broker.loader.wake_ms(now_ms=self.time_ms)
        if wake_ms < NEVER_MS:
            self.at(max(0, wake_ms - self.time_ms), lambda: self.lease(broker))

    def lease(self, broker: Broker) -> None:
        plan = broker.loader.plan(now_ms=self.time_ms)
        if plan is None:
            return
        result = now(self.store.lease(plan.asks, now_ms=self.time_ms, attempts_max=ATTEMPTS_MAX))
        took_ms = self.rng.choice([1, 3, 30])

        def answered() -> None:
            for push in broker.loader.on_leased(plan, result, took_ms=took_ms):
                self.room[push.consumer] -= 1
                delay_ms = max(0, push.at_ms - self.time_ms)
                self.at(delay_ms, lambda push=push: self.handle(broker, push))
            self.wake(broker)

        self.at(took_ms, answered)

    # Consumers

    def come(self, name: str) -> None:
        broker = self.rng.choice(self.brokers)
        self.room[name] = self.rng.choice([1, 1, 3])
        broker.loader.join(Member(name, self.rng.choice("xy")), lease_ms=LEASE_MS)
        self.offer(broker, name)

    def offer(self, broker: Broker, name: str) -> None:
        broker.loader.offer(name, self.room[name])
        self.wake(broker)

    def handle(self, broker: Broker, push: Push) -> None:
        self.at(self.rng.choice([5, 20, 200, 5_000, 15_000]), lambda: self.finish(broker, push))

    def finish(self, broker: Broker, push: Push) -> None:
        now(self.store.delete([push.message.handle]))
        self.handled += 1
        self.room[push.consumer] += 1
        self.offer(broker, push.consumer)

    def insert(self) -> None:
        due_ms = self.time_ms + self.rng.choice([0, 0, 100])
        bucket = self.rng.randrange(BUCKETS)
        now(self.store.insert([NewMessage(due_ms, b"")], buckets=[bucket], now_ms=self.time_ms))
        broker = self.rng.choice(self.brokers)
        broker.loader.on_inserted(due_ms)
        self.wake(broker)

    # What must hold

    def look(self) -> None:
        idle = [name for name, room in self.room.items() if room > 0]
        shown = now(self.store.peek(now_ms=self.time_ms, limit=10_000))
        due = [message.id for message in shown if message.state is State.DUE]
        self.beside_ms = {i: self.beside_ms.get(i, 0) + LOOK_MS if idle else 0 for i in due}
        worst_ms = max(self.beside_ms.values(), default=0)
        assert worst_ms <= WAIT_MS_MAX, f"a message waited {worst_ms} ms beside {idle}"
        self.at(LOOK_MS, self.look)


def run(seed: int, dealer: DealerName) -> None:
    world = World(seed, dealer)
    for number in range(8):
        world.at(world.rng.choice([0, 0, 0, 3_000, 9_000]), lambda n=number: world.come(f"c{n}"))  # type: ignore[misc]
    for _ in range(60):
        world.at(world.rng.randrange(RUN_MS), world.insert)
    world.run()
    assert world.handled > 5


@pytest.mark.parametrize("dealer", ["ranges", "racks"])
def test_nothing_waits_for_a_second_beside_an_idle_consumer(dealer: DealerName) -> None:
    """B21, F30: whichever broker either is at, whatever the others do, and whoever came last."""
    run_seeds(lambda seed: run(seed, dealer), least=15)


def _nobody_helps(self: Loader, able: list[Any]) -> bool:
    return False


def _only_the_assigned(original: Any) -> Any:
    return lambda self: [each for each in original(self) if each.share is not None]


def test_planted_bugs_of_fairness_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: the simulation goes red without help between brokers, and when it comes too late."""
    planted: list[tuple[Any, str, Any]] = [
        (Loader, "_help_needed", _nobody_helps),
        (Loader, "_able", _only_the_assigned(Loader._able)),
    ]
    for owner, name, value in planted:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            with pytest.raises(AssertionError, match="waited"):
                for seed in range(40):
                    run(seed, "ranges")
    monkeypatch.setattr("dovetail.timeline.engine.loader.ANYBODY_MS", 1_200)
    with pytest.raises(AssertionError, match="waited"):
        for seed in range(40):
            run(seed, "ranges")
