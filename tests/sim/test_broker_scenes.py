"""Brokers in single, named troubles, timed in virtual time; the mixture is in `test_brokers_sim`.

Nothing here depends on the machine: a second is a second of the simulation, in which messages
take up to 2 ms and syncs up to 3 ms.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.sim.broker_clients import NoAnswer, Stream, ask, start
from tests.sim.broker_history import Author
from tests.sim.broker_world import World, repeatable
from tests.sim.brokers import Life
from tests.sim.processes import ProcessLoop, end_everything
from tests.sim.seeds import SCENE_SEEDS
from tests.sim.world import VirtualClock

from dovetail.coordination import Put
from dovetail.errors import DovetailError, Fenced
from dovetail.log.catalog import partition_key
from dovetail.log.claims import SETTLE_MS
from dovetail.log.context import PartitionContext
from dovetail.log.owners import Place
from dovetail.log.ownership import claim
from dovetail.log.partition import Partition
from dovetail.log.topic import TopicState
from dovetail.storage import chain

Scene = Callable[[World], Awaitable[None]]


def play(seed: int, scene: Scene, *, pause_s: float = 0.3) -> None:
    """A cluster of three brokers with two topics and their clients, then the scene."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        world = World(seed, brokers=3)
        world.calm = True
        world.pause_s = pause_s
        loop.set_exception_handler(world.failed)
        with repeatable(world):
            try:
                for number in world.numbers:
                    world.start_broker(number)
                await until(world, lambda: len(world.live_ones()) == 3)
                for name, partitions in (("a", 4), ("b", 5)):
                    await create(world, name, partitions)
                await world.settle()
                await scene(world)
                world.check_failure()
            finally:
                await end_everything(loop, [life.process for life in world.lives])

    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
        runner.run(main())


async def create(world: World, name: str, partitions: int) -> None:
    life = world.live_ones()[0]
    assert life.log is not None
    log = life.log
    await ask(life, lambda: log.create_topic(name, partitions=partitions), wait_s=5)


async def until(world: World, done: Callable[[], bool], *, within_s: float = 30.0) -> float:
    """Waits; how long it took, in seconds."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not done():
        world.check_failure()
        assert loop.time() - began <= within_s, f"not within {within_s} s"
        await asyncio.sleep(0.005)
    return loop.time() - began


def served(world: World, *, without: int) -> bool:
    """Whether every partition is open on exactly one broker, and not on this one."""
    others = [life for life in world.live_ones() if life.author.number != without]
    return all(
        sum(stream.open_at(life) is not None for life in others) == 1
        for stream in world.streams_alive()
    )


def owned_by(world: World, life: Life) -> list[Stream]:
    return [stream for stream in world.streams_alive() if stream.open_at(life) is not None]


@pytest.mark.parametrize("seed", range(1, SCENE_SEEDS + 1))
def test_a_clean_stop_is_a_fast_hand_over(seed: int) -> None:
    """L9: under 500 ms from the order to stop until others serve everything; ledgers are closed."""

    async def scene(world: World) -> None:
        victim = world.live_ones()[1]
        assert len(owned_by(world, victim)) == 3
        world.history.handed_over.clear()
        victim.stop()
        await until(world, lambda: served(world, without=victim.author.number), within_s=0.5)
        await until(world, lambda: not victim.process.alive, within_s=5)
        assert [record.open for record in world.history.handed_over] == [()] * 3

    play(seed, scene)


@pytest.mark.parametrize("seed", range(1, SCENE_SEEDS + 1))
def test_a_crash_costs_the_lease_and_little_more(seed: int) -> None:
    """L9: others serve within the lease's time and a second, and take records."""

    async def scene(world: World) -> None:
        victim = world.live_ones()[1]
        victim.process.kill()
        number, within_s = victim.author.number, world.ttl_ms / 1000 + 1
        took_s = await until(world, lambda: served(world, without=number), within_s=within_s)
        assert took_s > world.ttl_ms / 1000 / 2, "who was silent for a moment is not dead"
        before = {stream: stream.acknowledged for stream in world.streams_alive()}
        await until(world, lambda: all(s.acknowledged > n for s, n in before.items()))

    play(seed, scene)


@pytest.mark.parametrize("seed", range(1, SCENE_SEEDS + 1))
def test_power_is_cut_everywhere(seed: int) -> None:
    """L6, L9, L10: all brokers and storage nodes at once, in the middle of writing; what was not
    synced is gone, and what was acknowledged is there."""

    async def scene(world: World) -> None:
        for life in world.live_ones():
            life.process.kill()
        for host in world.hosts.values():
            host.crash()
        await until(world, lambda: all(host.node is None for host in world.hosts.values()))
        assert all(stream.acknowledged for stream in world.streams_alive())
        for number in world.numbers:
            world.start_broker(number)
        await world.settle()
        await world.check_everything()

    play(seed, scene)


@pytest.mark.parametrize("jump_ms", [-90_000_000, 90_000_000])
def test_clocks_that_jump_move_and_stop_nothing(
    jump_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1, L9: by a day and an hour, ahead or back: leases count elapsed time, owners stay."""

    async def scene(world: World) -> None:
        claims, wall_ms = world.history.claims, VirtualClock.wall_ms
        monkeypatch.setattr(VirtualClock, "wall_ms", lambda clock: wall_ms(clock) + jump_ms)
        await asyncio.sleep(3 * world.ttl_ms / 1000)
        assert world.history.claims == claims
        await world.settle()

    play(1, scene, pause_s=1.0)


@pytest.mark.parametrize("seed", range(1, SCENE_SEEDS + 1))
def test_a_zombie_is_refused_by_the_storage(seed: int) -> None:
    """L9: cut off from coordination, it goes on as if nothing were; nothing of that is stored."""

    async def scene(world: World) -> None:
        victim = world.live_ones()[1]
        wires = world.wires[victim.author.number]
        for wire in (wires.calls, wires.watches):
            wire.requests.cut = wire.answers.cut = True
        await until(world, lambda: served(world, without=victim.author.number))
        assert owned_by(world, victim), "it knows nothing of that, and its clients go on sending"
        before = {stream: stream.acknowledged for stream in world.streams_alive()}
        await until(world, lambda: all(s.acknowledged > n + 5 for s, n in before.items()))
        wires.heal()
        await world.settle()
        await world.check_everything()

    play(seed, scene)


@pytest.mark.parametrize("seed", range(1, SCENE_SEEDS + 1))
def test_a_broker_that_is_back_tells_no_old_end(seed: int) -> None:
    """L9: it has a lease again before it hears of its successors, and says nothing of the past."""

    async def scene(world: World) -> None:
        victim = world.live_ones()[1]
        wires = world.wires[victim.author.number]
        lost = owned_by(world, victim)
        for wire in (wires.calls, wires.watches, *wires.storage.values()):
            wire.requests.cut = wire.answers.cut = True
        await until(world, lambda: served(world, without=victim.author.number))
        before = {stream: stream.acknowledged for stream in world.streams_alive()}
        await until(world, lambda: all(s.acknowledged > n + 5 for s, n in before.items()))
        wires.calls.heal()
        membership = victim.membership
        assert membership is not None
        asked = 0
        while asked < 100:
            asked += membership.holds_lease()
            for stream in lost:
                with contextlib.suppress(DovetailError):
                    await stream.ask_end(victim)
            await asyncio.sleep(0.01)
        assert victim.log is not None
        told = victim.log.catalog.owners
        for stream in lost:
            place = Place(stream.topic_id, stream.number)
            assert told[place].owner != victim.author.number, "clients are sent to it"
        wires.heal()
        await world.settle()
        await world.check_everything()

    play(seed, scene)


@pytest.mark.parametrize("seed", range(1, SCENE_SEEDS + 1))
def test_a_broker_without_storage_hands_on(seed: int) -> None:
    """L9, B18: it lives and holds its lease, but others can serve; they get what it had."""

    async def scene(world: World) -> None:
        victim = world.live_ones()[1]
        wires = world.wires[victim.author.number].storage.values()
        for wire in wires:
            wire.requests.cut = True
        await until(world, lambda: served(world, without=victim.author.number), within_s=15)
        # It declines, so that balance does not bring everything back to it at once.
        for _ in range(10):
            await asyncio.sleep(SETTLE_MS / 1000 / 5)
            assert not owned_by(world, victim)
        for wire in wires:
            wire.heal()
        await world.settle()
        await world.check_everything()

    play(seed, scene)


@pytest.mark.parametrize("seed", range(1, SCENE_SEEDS + 1))
def test_a_broker_that_joins_gets_its_share(seed: int) -> None:
    """L3, B2: after the time to settle, by moves that each pause one partition."""

    async def scene(world: World) -> None:
        victim = world.live_ones()[1]
        victim.stop()
        await until(world, lambda: not victim.process.alive)
        number = victim.author.number
        world.start_broker(number)
        await until(world, lambda: len(world.live_ones()) == 3)
        newcomer = world.newest(number)
        assert newcomer is not None
        await asyncio.sleep(SETTLE_MS / 1000 / 2)
        assert not owned_by(world, newcomer), "a restart is no reason to move at once"
        await until(world, lambda: len(owned_by(world, newcomer)) == 3, within_s=5)
        await world.settle()

    play(seed, scene)


@pytest.mark.parametrize("step", range(0, 30, 10 if SCENE_SEEDS == 1 else 1))
def test_a_master_that_dies_at_any_step_is_replaced(step: int) -> None:
    """L3, L8, B3, B4: a creation and a deletion are finished by others, whoever dies when."""

    async def scene(world: World) -> None:
        life = world.live_ones()[step % 3]
        log = life.log
        assert log is not None
        revision = len(world.service.history)
        for work in (
            lambda: log.create_topic("c", partitions=3),
            lambda: log.delete_topic("a"),
            lambda: log.add_partitions("b", 8),
        ):
            start(swallow(ask(life, work, wait_s=5)))
        await until(world, lambda: len(world.service.history) >= revision + step)
        life.process.kill()
        topics = world.history.topics
        await until(world, lambda: all(t.state is TopicState.READY for t in topics.values()))
        world.start_broker(life.author.number)
        await world.settle()
        await world.names_are_free()
        await world.check_everything()

    async def swallow(asked: Awaitable[object]) -> None:
        with contextlib.suppress(DovetailError, NoAnswer):
            await asked

    play(step, scene)


def delete_behind_the_owner(seed: int) -> None:
    """A topic is deleted while an owner of it does not hear of anything, and goes on writing."""

    async def scene(world: World) -> None:
        stream = world.streams_alive()[0]
        owner = world.owner_of(stream)
        watches = world.wires[owner.author.number].watches
        watches.requests.cut = watches.answers.cut = True
        other = next(life for life in world.live_ones() if life is not owner)
        for wire in world.wires[other.author.number].storage.values():
            wire.requests.delay_s = wire.answers.delay_s = 0.3
        log = other.log
        assert log is not None
        await ask(other, lambda: log.delete_topic(stream.name), wait_s=5)
        await until(world, lambda: stream.name not in world.history.topics)
        for wires in world.wires.values():
            wires.heal()
        await world.settle()
        await world.names_are_free()

    play(seed, scene, pause_s=0.02)


@pytest.mark.parametrize("seed", range(1, SCENE_SEEDS + 1))
def test_an_owner_that_hears_of_nothing_adds_nothing_to_a_dying_topic(seed: int) -> None:
    """L8, B4: when the name is free no ledger is left, and nobody writes any more."""
    delete_behind_the_owner(seed)


def test_a_term_above_ours_is_not_ours_even_under_our_number() -> None:
    """L9: a process that was replaced claims once more and ends; its successor serves on."""

    async def scene(world: World) -> None:
        stream = world.streams_alive()[0]
        owner = world.owner_of(stream)
        key = partition_key(stream.topic_id, stream.number)
        found = world.service.look(key)
        assert found is not None
        record = chain.decode(found.value)
        claimed = msgspec.structs.replace(record, term=record.term + 1)
        twin = Author(owner.author.number, 99)
        assert world.service.apply_as(twin, [Put(key, chain.encode(claimed))], []).applied

        def claimed_above() -> bool:
            mine = stream.open_at(owner)
            return mine is not None and mine.term > claimed.term

        await until(world, claimed_above, within_s=2)

    # Clients write so seldom that nothing but the record tells.
    play(1, scene, pause_s=60.0)


def test_who_was_fenced_while_it_opened_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """L9: another had a higher term then; by now the partition may be this broker's to serve."""
    original = Partition.open
    refused: set[tuple[int, str]] = set()

    async def fenced_once(context: PartitionContext, key: str, *args: Any, **named: Any) -> Any:
        if (context.node_id, key) not in refused:
            refused.add((context.node_id, key))
            await claim(
                context.coordinator, key, owner=context.node_id, may_claim=named["may_claim"]
            )
            raise Fenced(f"{key}: a higher term has fenced")
        return await original(context, key, *args, **named)

    async def scene(world: World) -> None:
        victim = world.live_ones()[1]
        monkeypatch.setattr(Partition, "open", fenced_once)
        victim.process.kill()
        await until(world, lambda: served(world, without=victim.author.number), within_s=10)
        assert refused

    play(2, scene)
