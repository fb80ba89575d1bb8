"""Brokers that call each other: the wires between them, and the trouble that these have.

Transactions and share groups have coordinators, so their simulations add calls between brokers to
the world of brokers and storage: lost, late, doubled, and answered by whoever runs under the number
by then.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Generic, TypeVar

from tests.sim.broker_clients import NoAnswer, ask, start
from tests.sim.broker_history import Author
from tests.sim.broker_world import World, repeatable
from tests.sim.brokers import Life
from tests.sim.processes import ProcessLoop, Wire, exchange
from tests.sim.storage_hosts import answer
from tests.sim.test_brokers_sim import cut, stir

from dovetail.errors import DovetailError, Unavailable
from dovetail.log.topic import TopicRecord

#: How long things go wrong.
FAULTS_S = 12.0
CALL_S = 1.5

Broker = TypeVar("Broker", bound=Life)
Wired = TypeVar("Wired", bound="WiredWorld[Any]")


class WiredWorld(World, Generic[Broker]):
    """Everybody, and a wire from each broker to each."""

    broker_class: type[Broker]
    topic: ClassVar[str]
    partitions: ClassVar[int]

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.focus = "all"
        self.between = {
            (one, other): Wire(self.rng) for one in self.numbers for other in self.numbers
        }
        #: Set in the end: no client begins anything any more.
        self.resting = False

    def new_life(self, author: Author) -> Life:
        life = self.broker_class.__new__(self.broker_class)
        life.world = self  # type: ignore[attr-defined]
        life.__init__(author, **self._surroundings(author))  # type: ignore[misc]
        return life

    def _on_topic(self, record: TopicRecord, before: TopicRecord | None) -> None:
        """Clients are not one for each partition."""

    def heal(self) -> None:
        super().heal()
        for wire in self.between.values():
            wire.heal()

    def brokers(self) -> list[Broker]:
        return [life for life in self.live_ones() if isinstance(life, self.broker_class)]

    async def begin(self) -> None:
        """Brokers, and the topic that everybody writes to, sooner or later."""
        asyncio.get_running_loop().set_exception_handler(self.failed)
        for number in self.numbers:
            self.start_broker(number)
        start(self.keep_brokers_up())
        while self.topic not in self.history.topics:
            await asyncio.sleep(0.1)
            for life in self.brokers()[:1]:
                assert life.log is not None
                create = life.log.create_topic(self.topic, partitions=self.partitions)
                with contextlib.suppress(DovetailError, NoAnswer):
                    await ask(life, lambda made=create: made, wait_s=3)  # type: ignore[misc]

    async def suffer(self) -> None:
        """Faults for a while, then none any more."""
        start(self._trouble())
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + FAULTS_S
        while loop.time() < ends_at:
            await asyncio.sleep(0.5)
            self.check_failure()
        self.heal()

    async def call(self, number: int, node: int, work: Callable[[Broker], Any]) -> Any:
        """What `node` answers to `number`.

        Raises:
            Unavailable: Nothing came back in time.
        """

        def serve(reply: Callable[[object], None]) -> None:
            there = self.newest(node)
            if isinstance(there, self.broker_class) and there.serves:
                life = there
                life.process.call(lambda: life.run(answer(lambda: work(life), reply)))

        if self.rng.random() < 0.15 and not self.calm:
            # It comes twice, and the second time when everybody has long gone on.
            self.later(self.rng.random() * 2, serve, lambda outcome: None)
        lost = Unavailable(f"broker {node} does not answer")
        return await exchange(self.between[number, node], serve, wait_s=CALL_S, lost=lost)

    async def _trouble(self) -> None:
        while not self.calm:
            await asyncio.sleep(self.rng.random() * 0.9)
            if self.calm:
                return
            life = self.newest(self.rng.choice(self.numbers))
            if life is not None and self.rng.random() < 0.25:
                self._cut_broker(life.author.number)
            else:
                stir(self)

    def _cut_broker(self, number: int) -> None:
        """A broker hears nothing of another one, or too late."""
        wires = [wire for pair, wire in self.between.items() if number in pair]
        cut(self, self.rng.choice(wires), "between brokers", 6)


def play_through(
    world_class: type[Wired], play: Callable[[Wired], Awaitable[None]], seed: int
) -> Wired:
    """The world of a seed, after it was played."""

    async def main() -> Wired:
        world = world_class(seed)
        with repeatable(world):
            await play(world)
        return world

    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
        return runner.run(main())
