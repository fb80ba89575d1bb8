"""Share groups under faults, seeded: coordinator, owner and member die between any two steps."""

import asyncio

from tests.sim.broker_clients import start
from tests.sim.broker_world import HEAL_S
from tests.sim.processes import ProcessLoop, end_everything
from tests.sim.seeds import run_seeds
from tests.sim.share_world import (
    LETTERS,
    PARTITIONS,
    TOPIC,
    Member,
    ShareWorld,
    check_end,
    everything,
    keep_joined,
    produce,
    undone,
)
from tests.sim.wired_world import play_through

MEMBERS = 4


async def play(world: ShareWorld) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop)
    try:
        await world.begin()
        start(keep_joined(world))
        start(produce(world))
        for number in range(MEMBERS):
            start(Member(world, f"member-{number}").run())
        await world.suffer()
        deadline = loop.time() + HEAL_S
        while why := undone(world):
            world.check_failure()
            assert loop.time() < deadline, f"not done: {why}"
            await asyncio.sleep(0.2)
        world.resting = True
        stored = {
            (number, offset): value
            for number in range(PARTITIONS)
            for offset, value in (await everything(world, TOPIC, number)).items()
        }
        letters: set[bytes] = set()
        if LETTERS in world.history.topics:
            letters = set((await everything(world, LETTERS, 0)).values())
        check_end(world, stored, letters)
        world.check_failure()
    finally:
        await end_everything(loop, [life.process for life in world.lives])


def run(seed: int) -> ShareWorld:
    return play_through(ShareWorld, play, seed)


def test_no_record_is_lost_or_accepted_twice() -> None:
    """K10: one lock at a time, what is acknowledged stays so, the limit of deliveries holds, and
    whatever is given up has its dead letter; whoever dies when."""
    worlds = run_seeds(run, least=4)
    assert sum(world.told["ACCEPT"] for world in worlds) > 100
    assert sum(world.told["REJECT"] for world in worlds) > 10
    assert sum(world.faults.total() for world in worlds) > 20


def test_a_seed_of_shares_replays() -> None:
    """K10: the same seed, the same history."""
    first, again = run(2), run(2)
    assert first.digest() == again.digest()
    assert first.told == again.told
