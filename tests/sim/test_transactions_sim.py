"""Transactions under faults, seeded: coordinator, owner and client die between any two steps."""

import asyncio

from tests.sim.broker_clients import start
from tests.sim.broker_world import HEAL_S
from tests.sim.processes import ProcessLoop, end_everything
from tests.sim.seeds import run_seeds
from tests.sim.transaction_world import (
    IDS,
    PARTITIONS,
    Reader,
    TransactionWorld,
    keep_working,
    positions,
    whole,
)
from tests.sim.wired_world import play_through

#: Transactions that each id must bring to an end after everything has healed.
PROGRESS = 2


async def play(world: TransactionWorld) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop)
    reader = Reader(world)
    try:
        await world.begin()
        for name in IDS:
            start(keep_working(world, name))
        for _ in range(2):
            start(reader.run())
        await world.suffer()
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
    return play_through(TransactionWorld, play, seed)


def test_a_transaction_is_seen_whole_or_not_at_all() -> None:
    """K8: records and positions, by every reader of what is committed, whoever dies when."""
    worlds = run_seeds(run, least=4)
    assert sum(world.ended["committed"] for world in worlds) > 20


def test_a_seed_of_transactions_replays() -> None:
    """K8: the same seed, the same history."""
    first, again = run(2), run(2)
    assert first.digest() == again.digest()
    assert first.ended == again.ended
