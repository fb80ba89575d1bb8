"""Transactions under faults, seeded: coordinator, owner and client die between any two steps."""

import asyncio

from tests.sim.broker_clients import start
from tests.sim.broker_world import HEAL_S, repeatable
from tests.sim.brokers import Life
from tests.sim.processes import ProcessLoop, end_everything
from tests.sim.seeds import run_seeds
from tests.sim.test_brokers_sim import cut, stir
from tests.sim.transaction_world import (
    IDS,
    PARTITIONS,
    Reader,
    TransactionWorld,
    keep_working,
    positions,
    whole,
)

FAULTS_S = 12.0
#: Transactions that each id must bring to an end after everything has healed.
PROGRESS = 2


def cut_brokers(world: TransactionWorld, life: Life) -> None:
    """A broker hears nothing of another one, or too late."""
    wires = [wire for pair, wire in world.between.items() if life.author.number in pair]
    cut(world, world.rng.choice(wires), "between brokers", 6)


async def trouble(world: TransactionWorld) -> None:
    while not world.calm:
        await asyncio.sleep(world.rng.random() * 0.9)
        if world.calm:
            return
        life = world.newest(world.rng.choice(world.numbers))
        if life is not None and world.rng.random() < 0.25:
            cut_brokers(world, life)
        else:
            stir(world)


async def play(world: TransactionWorld) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop)
    loop.set_exception_handler(world.failed)
    reader = Reader(world)
    try:
        for number in world.numbers:
            world.start_broker(number)
        start(world.keep_brokers_up())
        await world.create()
        for name in IDS:
            start(keep_working(world, name))
        start(trouble(world))
        for _ in range(2):
            start(reader.run())
        ends_at = loop.time() + FAULTS_S
        while loop.time() < ends_at:
            await asyncio.sleep(0.5)
            world.check_failure()

        world.heal()
        await settle(world)
        committed = {
            (number, offset): value
            for number in range(PARTITIONS)
            for offset, value in (await reader.everything(number)).items()
        }
        whole(world.seen, committed, await positions(world))
        world.check_failure()
    finally:
        await end_everything(loop, [life.process for life in world.lives])


async def settle(world: TransactionWorld) -> None:
    """Waits until everything is decided and everybody gets on, and stops the clients then."""
    deadline = asyncio.get_running_loop().time() + HEAL_S
    before = None
    while True:
        world.check_failure()
        why = world.unsettled()
        if not why:
            now = await positions(world)
            before = before or now
            behind = [name for name in IDS if now[name] < before[name] + PROGRESS]
            if not behind:
                break
            why = f"{behind} do not get on"
        assert asyncio.get_running_loop().time() < deadline, f"not healed: {why}"
        await asyncio.sleep(0.1)
    world.resting = True
    while (why := world.unsettled()) or world.clients:
        world.check_failure()
        late = asyncio.get_running_loop().time() > deadline + 20
        assert not late, f"not at rest: {why}, {world.clients} clients"
        await asyncio.sleep(0.1)


def run(seed: int) -> TransactionWorld:
    async def main() -> TransactionWorld:
        world = TransactionWorld(seed)
        with repeatable(world):
            await play(world)
        return world

    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
        return runner.run(main())


def test_a_transaction_is_seen_whole_or_not_at_all() -> None:
    """K8: records and positions, by every reader of what is committed, whoever dies when."""
    worlds = run_seeds(run, least=4)
    assert sum(world.ended["committed"] for world in worlds) > 20


def test_a_seed_of_transactions_replays() -> None:
    """K8: the same seed, the same history."""
    first, again = run(2), run(2)
    assert first.digest() == again.digest()
    assert first.ended == again.ended
