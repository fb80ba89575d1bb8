"""Elections and takeovers under thousands of seeded mixtures of faults.

SIM_SEED=17 pytest tests/sim/stream            one seed again; see tests/sim/seeds.py
"""

import random
from collections.abc import Callable, Iterable
from itertools import pairwise

from tests.sim.seeds import run_seeds
from tests.sim.stream.stream_world import (
    LANES,
    LEASES,
    LOG,
    STREAM,
    TIMEOUT_MS,
    Replica,
    World,
    strongest,
)

from dovetail.election.election import Role
from dovetail.election.identifiers import Algorithm
from dovetail.stream.settings import Takeover

#: Faults last so long, and after them a leader must be there within so many timeouts.
FAULTS_TIMEOUTS = 10
SETTLE_TIMEOUTS = 12
#: A leader that stays for so long is taken for settled; from then on nothing may move for longer.
STEADY_TIMEOUTS = 3
CALM_TIMEOUTS = 4

Fault = Callable[[World, random.Random], None]


def _one(world: World, rng: random.Random) -> Replica:
    leaders = world.leaders()
    if leaders and rng.random() < 0.6:
        return rng.choice(leaders)
    return rng.choice(world.replicas)


def crash(world: World, rng: random.Random) -> None:
    victim = _one(world, rng)
    victim.crash(lose_disk=rng.random() < 0.2)
    world.at(rng.random() * 5 * TIMEOUT_MS, victim.start)


def crash_at_a_write(world: World, rng: random.Random) -> None:
    victim = _one(world, rng)
    victim.crash_at_write = rng.randint(1, 3)
    world.at(rng.random() * 5 * TIMEOUT_MS, victim.start)


def pause(world: World, rng: random.Random) -> None:
    victim = _one(world, rng)
    if victim.alive and not victim.paused:
        victim.pause()
        life = victim.life
        world.at(
            rng.random() * 4 * TIMEOUT_MS,
            lambda: victim.wake() if victim.life == life else None,
        )


def _cut(world: World, rng: random.Random, pairs: Iterable[tuple[int, int]]) -> None:
    cut = set(pairs)
    world.blocked |= cut
    world.at(rng.uniform(1, 5) * TIMEOUT_MS, lambda: world.blocked.difference_update(cut))


def _both(a: int, b: int) -> list[tuple[int, int]]:
    return [(a, b), (b, a)]


def cut_stream(world: World, rng: random.Random) -> None:
    _cut(world, rng, _both(_one(world, rng).number, STREAM))


def cut_log(world: World, rng: random.Random) -> None:
    _cut(world, rng, _both(_one(world, rng).number, LOG))


def cut_members(world: World, rng: random.Random) -> None:
    victim = _one(world, rng).number
    pairs = [p for other in world.replicas for p in _both(victim, other.number)]
    _cut(world, rng, pairs)


def cut_all(world: World, rng: random.Random) -> None:
    victim = _one(world, rng).number
    others = [LOG, LEASES, STREAM, *(r.number for r in world.replicas)]
    _cut(world, rng, [pair for other in others for pair in _both(victim, other)])


def leave_only_the_stream(world: World, rng: random.Random) -> None:
    """The worst one for `skip`: a leader that gets events and learns nothing."""
    victim = _one(world, rng).number
    others = [LOG, LEASES, *(r.number for r in world.replicas)]
    _cut(world, rng, [pair for other in others for pair in _both(victim, other)])


def one_way(world: World, rng: random.Random) -> None:
    ends = [r.number for r in world.replicas] + [LOG, STREAM, LEASES]
    _cut(world, rng, [(rng.choice(ends), rng.choice(ends)) for _ in range(3)])


def split(world: World, rng: random.Random) -> None:
    parts = rng.choice((2, 2, 3))
    side = [rng.randrange(parts) for _ in world.replicas]
    _cut(
        world,
        rng,
        [
            (a.number, b.number)
            for a in world.replicas
            for b in world.replicas
            if side[a.number] != side[b.number]
        ],
    )


def bad_weather(world: World, rng: random.Random) -> None:
    world.loss, world.slow = rng.random() * 0.3, rng.random() * 0.2
    world.duplicates = rng.random() * 0.2

    def clear() -> None:
        world.loss = world.slow = world.duplicates = 0.0

    world.at(rng.random() * 5 * TIMEOUT_MS, clear)


FAULTS: list[Fault] = [
    crash,
    crash,
    crash_at_a_write,
    pause,
    pause,
    cut_stream,
    cut_log,
    cut_members,
    cut_all,
    leave_only_the_stream,
    one_way,
    split,
    bad_weather,
]


def _produce(world: World, rng: random.Random) -> None:
    def produce() -> None:
        if world.producing:
            world.stream.produce(rng.randrange(LANES))
            world.at(rng.expovariate(3 / TIMEOUT_MS), produce)

    world.at(0, produce)


def run_seed(seed: int, **planted: object) -> list[str]:
    """One history; what went wrong, with the seed."""
    rng = random.Random(seed)
    algorithm = rng.choice([Algorithm.MAJORITY, Algorithm.MAJORITY, *Algorithm])
    takeover = rng.choice(list(Takeover))
    algorithm = planted.pop("algorithm", algorithm)  # type: ignore[assignment]
    takeover = planted.pop("takeover", takeover)  # type: ignore[assignment]
    members = 2 if algorithm is Algorithm.BULLY else rng.choice((2, 3, 3, 3, 4, 5, 5, 7))
    world = World(
        seed,
        members=members,
        algorithm=algorithm,
        takeover=takeover,
        **planted,  # type: ignore[arg-type]
    )
    end = FAULTS_TIMEOUTS * TIMEOUT_MS
    _produce(world, rng)
    at = rng.random() * 3 * TIMEOUT_MS
    while at < end:
        world.run(at)
        rng.choice(FAULTS)(world, rng)
        at += rng.expovariate(1 / (1.5 * TIMEOUT_MS))
    world.run(end)
    problems = world.checker.problems + _settle(world, rng) + _moved_back(world)
    return [f"seed={seed} ({algorithm.name}, {members}): {problem}" for problem in problems]


def _settle(world: World, rng: random.Random) -> list[str]:
    """Heals, and demands a leader, calm, and every event handled."""
    world.heal()
    # Some are gone for good; the others must go on without them.
    gone = rng.sample(world.replicas, rng.randrange(len(world.replicas)))
    for replica in world.replicas:
        if replica in gone and rng.random() < 0.5:
            replica.crash()
            replica.gone = True
        elif not replica.alive:
            replica.start()
        elif replica.paused:
            replica.wake()
        replica.crash_at_write = 0
    if not _settles(world):
        roles = {r.name: (r.election.role.name, r.election.term) for r in world.living()}
        return [f"no leader {SETTLE_TIMEOUTS} timeouts after healing: {roles}"]
    claims = list(world.log.claims)
    world.producing = False
    world.run(world.now + CALM_TIMEOUTS * TIMEOUT_MS)
    problems = []
    if world.log.claims != claims:
        problems.append(f"elections in calm weather: {world.log.claims[len(claims) :]}")
    if not _settled(world):
        problems.append("the leader was lost in calm weather")
    if world.takeover is Takeover.RESUME:
        problems += _unhandled(world)
    elif not any(world.checker.handled):
        problems.append("nothing was handled at all")
    return problems


def _settles(world: World) -> bool:
    """Whether within the time one leader is there that also stays for a while."""
    healed, since, claims = world.now, world.now, len(world.log.claims)
    while world.now - since < STEADY_TIMEOUTS * TIMEOUT_MS:
        world.run(world.now + TIMEOUT_MS / 4)
        if not _settled(world) or len(world.log.claims) != claims:
            since, claims = world.now, len(world.log.claims)
        if since - healed > SETTLE_TIMEOUTS * TIMEOUT_MS:
            return False
    return True


def _settled(world: World) -> bool:
    leaders = world.leaders()
    if len(leaders) != 1 or not world.log.claims:
        return False
    (leader,) = leaders
    if world.log.claims[-1].incarnation != leader.me.incarnation:
        return False
    if world.algorithm is Algorithm.BULLY and leader is not strongest(world.living()):
        return False
    return all(r.election.role is not Role.CLAIMING for r in world.living())


def _moved_back(world: World) -> list[str]:
    positions = world.log.positions
    return [
        f"the committed position went from {before} back to {after}"
        for before, after in pairwise(positions)
        if any(after.get(lane, 0) < offset for lane, offset in before.items())
    ]


def _unhandled(world: World) -> list[str]:
    first = next(
        (r.position for r, _ in world.log.entries if getattr(r, "position", None) is not None), {}
    )
    missing = [
        (lane, offset)
        for lane, end in enumerate(world.stream.ends)
        for offset in range(first.get(lane, 0), end)
        if (lane, offset) not in world.checker.handled
    ]
    return [f"{len(missing)} events were never handled, such as {missing[:3]}"] if missing else []


def test_elections_and_takeovers_under_faults() -> None:
    """S3, S4, S5, S6, S7, S8, S9, R1: one leader a term, progress, calm; nothing lost."""
    assert [problem for problems in run_seeds(run_seed, least=200) for problem in problems] == []


def test_clocks_that_run_wild_cost_time_but_never_safety() -> None:
    """S8, S9: with clocks that run up to four times as fast as others, nothing is doubled."""
    rates = (0.5, 2.0)
    runs = run_seeds(lambda seed: run_seed(seed, clock_rates=rates), least=50)
    problems = [problem for found in runs for problem in found]
    slow = ("no leader", "calm weather", "never handled", "nothing was handled")
    assert [p for p in problems if not any(word in p for word in slow)] == []
