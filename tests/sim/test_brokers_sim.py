"""Brokers that share partitions under faults, seeded (see `brokers.py`).

Two phases to a run. First, faults: brokers crash, pause, are cut off from coordination (and go on
as zombies), from storage, one way or both, answers are lost and requests held, storage nodes lose
their power, topics are created, grown and deleted meanwhile, brokers leave and join. Then
everything heals, and within a budget every partition must have one owner, evenly, and work. All the
while every change of every record is checked (`broker_history.py`), and every acknowledged
and every read record (`broker_clients.py`).
"""

import asyncio
from collections.abc import Callable

from tests.sim.broker_clients import keep_asking, keep_reading, start
from tests.sim.broker_world import FOCUSES, World, repeatable
from tests.sim.brokers import Life
from tests.sim.processes import ProcessLoop, Wire, end_everything
from tests.sim.seeds import run_seeds

FAULTS_S = 12.0


def cut(world: World, wire: Wire, name: str, longest_s: float) -> None:
    """A wire fails one way or both, loses some, or holds all back; then it heals."""
    rng = world.rng
    kind = rng.choice(["both", "requests", "answers", "held", "lossy", "slow"])
    world.fault(f"{name}: {kind}")
    for way in (wire.requests, wire.answers):
        way.cut = kind == "both"
        way.held = kind == "held" and way is wire.requests
        way.loss = 0.2 if kind == "lossy" else 0.0
        way.delay_s = 0.6 if kind == "slow" else 0.002
    wire.requests.cut |= kind == "requests"
    wire.answers.cut |= kind == "answers"
    world.later(rng.random() * longest_s, wire.heal)


def crash(world: World, life: Life) -> None:
    world.fault("broker crashed")
    life.process.kill()


def pause(world: World, life: Life) -> None:
    world.fault("broker paused")
    life.process.pause()
    world.later(world.rng.random() * 6, life.process.wake)
    if world.rng.random() < (0.8 if world.focus == "twins" else 0.1):
        world.fault("broker started twice")
        world.later(world.rng.random(), world.start_another, life.author.number)


def stop(world: World, life: Life) -> None:
    if not life.leaving:
        world.fault("broker stopped")
        life.stop()


def cut_coordination(world: World, life: Life) -> None:
    wires = world.wires[life.author.number]
    cut(world, wires.calls, "coordination", 6)
    if world.rng.random() < 0.7:
        cut(world, wires.watches, "watches", 6)


def cut_watches(world: World, life: Life) -> None:
    cut(world, world.wires[life.author.number].watches, "watches", 6)


def cut_storage(world: World, life: Life) -> None:
    for wire in world.wires[life.author.number].storage.values():
        cut(world, wire, "storage", 8)


def cut_one_node(world: World, life: Life) -> None:
    wires = world.wires[life.author.number].storage
    cut(world, world.rng.choice(list(wires.values())), "one storage node", 6)


def lose_coordination(world: World, life: Life) -> None:
    for wires in world.wires.values():
        cut(world, wires.calls, "coordination of all", 4)
        cut(world, wires.watches, "watches of all", 4)


def cut_power(world: World, life: Life) -> None:
    world.rng.choice(list(world.hosts.values())).crash()


def cut_power_in_a_write(world: World, life: Life) -> None:
    host = world.rng.choice(list(world.hosts.values()))
    if host.node is not None:
        host.disk.calls_until_cut = world.rng.randint(0, 20)


#: Faults with their weights in runs of each focus.
FAULTS = [
    (crash, 17, 10, 20),
    (pause, 12, 25, 8),
    (stop, 7, 3, 4),
    (cut_coordination, 15, 25, 15),
    (cut_watches, 10, 5, 30),
    (cut_storage, 10, 10, 5),
    (cut_one_node, 10, 5, 5),
    (lose_coordination, 4, 4, 5),
    (cut_power, 7, 6, 4),
    (cut_power_in_a_write, 8, 7, 4),
]


def stir(world: World) -> None:
    """One random fault, and its end some time later."""
    number = world.rng.choice(world.numbers)
    life = world.newest(number)
    if life is None or not life.process.alive:
        world.start_broker(number)
        return
    column = 1 + FOCUSES.index(world.focus)
    weights = [row[column] for row in FAULTS]
    fault: Callable[[World, Life], None] = world.rng.choices(FAULTS, weights)[0][0]  # type: ignore[assignment]
    fault(world, life)


async def trouble(world: World) -> None:
    """Faults, until it is to be calm."""
    while not world.calm:
        await asyncio.sleep(world.rng.random() * 0.8)
        if not world.calm:
            stir(world)


async def play(world: World) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop)
    loop.set_exception_handler(world.failed)
    try:
        for number in world.numbers[: world.rng.randint(1, len(world.numbers))]:
            world.start_broker(number)
        start(world.keep_brokers_up())
        start(world.administer())
        start(trouble(world))
        start(keep_reading(world.streams_alive, world.live_ones, world.rng))
        start(keep_asking(world.streams_alive, world.no_twins, world.rng))
        while loop.time() < FAULTS_S:
            await asyncio.sleep(0.5)
            world.check_failure()
        world.heal()
        await world.settle()
        await world.names_are_free()
        await world.settle()
        await world.check_everything()
        world.check_failure()
    finally:
        await end_everything(loop, [life.process for life in world.lives])


def run(seed: int) -> World:
    async def main() -> World:
        world = World(seed)
        with repeatable(world):
            await play(world)
        return world

    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
        return runner.run(main())


def test_brokers_share_partitions_and_lose_nothing() -> None:
    """R1, L3, L8, L9, L15, B3, B4: whatever happens to whom; in the end all is served evenly."""
    worlds = run_seeds(run, least=5)
    assert any(world.history.pages_most > 1 for world in worlds), "no chain was long"


def test_a_seed_replays() -> None:
    """R1: the same seed, the same history, to the last revision."""
    assert run(3).digest() == run(3).digest()
