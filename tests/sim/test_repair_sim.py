"""Repair, damage, draining and sweeping while appends go on and owners change, seeded.

Two phases to a run. First, faults: storage nodes die and come back, lose their disks for good, find
damaged bytes at a start or at a read, are drained and kept after all; the topic's quorum changes;
somebody names the nodes that the partition is to lie on; owners die in the middle of whatever they
do, and are replaced while they live. What a disk has lost is never the last copy: a disk is hurt
only when everything that was acknowledged lies on two. Then everything heals, and within a budget
every closed ledger must be whole on Qw nodes that stay, those that were named if all of them do, no
node damaged, nothing acknowledged lost.
"""

import asyncio
import contextlib
import random

import pytest
from tests.sim.repair_world import World, values_of
from tests.sim.seeds import run_seeds
from tests.sim.world import VirtualLoop, end_all_tasks

from dovetail.errors import DovetailError
from dovetail.log.reading import read_from_storage
from dovetail.storage import chain
from dovetail.storage.quorum.arithmetic import Quorum

FAULTS_S = 12.0
HEAL_S = 60.0

#: (quorum, storage nodes)
SHAPES = [
    (Quorum(3, 3, 2), 4),
    (Quorum(3, 3, 2), 5),
    (Quorum(3, 2, 2), 4),
    (Quorum(4, 3, 2), 5),
    (Quorum(2, 2, 2), 4),
]


async def restart_later(world: World, number: int) -> None:
    await asyncio.sleep(world.rng.random() * 4)
    with contextlib.suppress(DovetailError):
        await world.processes[number].start()


async def hurt_a_disk(world: World) -> None:
    """A disk is lost, or bytes on it change; only if nothing acknowledged is lost by that."""
    up = [p for p in world.processes.values() if p.node is not None]
    if not up or not await world.is_safe_to_hurt():
        return
    process = world.rng.choice(up)
    kind = world.rng.random()
    if kind < 0.35:
        world.fault("disk lost")
        process.stop()
        process.disk_lost = True
        await world.add_node()
        return
    segments = [name for name in process.disk.names() if name.endswith(".segment")]
    name = world.rng.choice(sorted(segments))
    used = len(process.disk.open(name).read(0, 1 << 20).rstrip(b"\0"))
    position = world.rng.randrange(120, max(121, used))
    if position < used:
        world.fault("byte flipped")
        process.disk.flip(name, position)
        process.hurt.add(name)
    if kind < 0.8:
        process.stop()
        if world.rng.random() < 0.5:
            process.disk.remove(name.replace("segment", "index"))
        try:
            await process.start()
        except DovetailError:  # Its head or state does not check: an operator gives it up.
            world.fault("disk given up")
            process.disk_lost = True
            await world.add_node()


async def stir(world: World) -> None:
    """One random fault."""
    rng = world.rng
    kind = rng.random()
    process = rng.choice(list(world.processes.values()))
    owner = world.serving()
    if kind < 0.2 and process.node is not None:
        world.fault("node killed")
        process.stop()
        world.background(restart_later(world, process.number))
    elif kind < 0.35 and process.node is not None:
        world.fault("power cut in a write")
        process.disk.calls_until_cut = rng.randint(0, 20)
        world.background(restart_later(world, process.number))
    elif kind < 0.55:
        await hurt_a_disk(world)
    elif kind < 0.7 and owner is not None:
        world.fault("owner killed")
        owner.die()
    elif kind < 0.8:
        world.fault("owner replaced")
        await world.new_owner()
    elif kind < 0.83:
        world.fault("quorum changed")
        world.change_quorum(rng.choice(SHAPES)[0])
    elif kind < 0.86:
        world.fault("reassigned")
        known = sorted(n for n, one in world.processes.items() if not one.disk_lost)
        wanted = min(world.config.quorum.ensemble, len(known))
        world.reassign(tuple(rng.sample(known, wanted)) if rng.random() < 0.8 else ())
    elif kind < 0.92:
        if world.draining and rng.random() < 0.5:
            world.fault("drain cancelled")
            world.draining.pop()
        elif not world.draining and not process.disk_lost:
            world.fault("drain")
            world.draining.add(process.number)
    elif owner is not None and owner.partition is not None:
        closed = (await world.chain()).closed
        if len(closed) > 3:
            world.fault("trim")
            world.log_start = max(world.log_start, rng.choice(closed[:3]).offset_end)
            with contextlib.suppress(DovetailError):
                await owner.partition.trim(world.log_start)


async def simulate(world: World) -> None:
    await world.start()
    loop = asyncio.get_running_loop()
    calm = done = False

    async def clients() -> None:
        while not done:
            owner = world.serving()
            if owner is None:
                if not world.taking_over or (not calm and world.rng.random() < 0.2):
                    await world.new_owner()
                await asyncio.sleep(world.rng.random() * 0.3)
                continue
            await world.append(owner)
            if world.rng.random() < 0.05 and owner.partition is not None:
                owner.partition.roll()
            await asyncio.sleep(world.rng.random() * 0.2)

    world.background(clients())
    world.background(clients())
    while loop.time() < FAULTS_S:
        await asyncio.sleep(world.rng.random() * 0.8)
        await stir(world)
        world.check_no_failure()
    calm = True
    await heal(world)
    done = True
    world.assignment_held = world.assignment_holds
    await world.background_ended()
    await check(world)


async def heal(world: World) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + HEAL_S
    lacking: str | None = "nothing was looked at"
    while lacking is not None:
        assert loop.time() < deadline, f"not healed: {lacking}"
        for process in list(world.processes.values()):
            process.disk.calls_until_cut = None
            with contextlib.suppress(DovetailError):
                await process.start()
        staying = [n for n in world.present() if n not in world.draining]
        ledgers = (await world.chain()).ledgers
        sizes = [world.config.quorum.ensemble, *(i.placement.quorum.ensemble for i in ledgers)]
        if len(staying) < max(sizes):
            await world.add_node()
        await asyncio.sleep(1)
        world.check_no_failure()
        lacking = await world.lacking()


async def check(world: World) -> None:
    """A new owner reads everything that was acknowledged, in order and unchanged."""
    owner = None
    while owner is None:
        await world.new_owner()
        owner = world.serving()
    partition = owner.partition
    assert partition is not None
    assert not world.acknowledged or partition.high_watermark > max(world.acknowledged)
    found: dict[int, bytes | None] = {}
    offset = partition.log_start
    while offset < partition.high_watermark:
        records = values_of(await read_from_storage(partition, offset, 10_000))
        found |= {record.offset: record.value for record in records if record.offset >= offset}
        offset = records[-1].offset + 1
    for at, value in world.acknowledged.items():
        if at >= partition.log_start:
            assert found.get(at) == value, f"offset {at} is lost or changed"
    world.check_no_failure()
    assert partition.log_start <= world.log_start, "more was trimmed than was asked for"


def run(seed: int) -> World:
    rng = random.Random(seed)
    quorum, nodes = rng.choice(SHAPES)
    world = World(seed, quorum=quorum, nodes=nodes)

    async def whole() -> None:
        try:
            await simulate(world)
        finally:
            await end_all_tasks()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(whole())
    return world


def test_closed_ledgers_are_whole_again_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L8, L10, L11, L14, K13: disks lost and damaged, nodes drained, quorums changed, partitions
    moved to named nodes, owners dying.

    L15: pages of chains hold two ledgers here.
    """
    monkeypatch.setattr(chain, "PAGE_BYTES", 250)
    worlds = run_seeds(run, least=10)
    assert sum(world.pages for world in worlds) > 10 * len(worlds), "hardly any pages"
    assert any(world.assignment_held for world in worlds), "no assignment was ever followed"
