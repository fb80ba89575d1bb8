"""Quorum writes, ensemble changes, recovery and ownership under faults, seeded.

Two phases to a run. First, faults: storage nodes and owners crash, pause and wake, links are cut,
one way or both, messages are lost, slow and doubled, disks lose what was not synced, a minority
loses its disk altogether. Then everything heals, and an owner must take over and write within a
budget. At the end everything acknowledged must be read back, unchanged and in order.
"""

import random

from tests.sim.cluster import META, World
from tests.sim.seeds import run_seeds

from dovetail.errors import DovetailError
from dovetail.storage.identifiers import EntryId, LedgerId
from dovetail.storage.quorum.arithmetic import Quorum, fence_holds, places_of

FAULTS_MS = 2_000
#: Entries that must be acknowledged after everything has healed, within the budget.
PROGRESS = 10
HEAL_MS = 20_000

#: (quorum, storage nodes); with a spare, and without.
SHAPES = [
    (Quorum(3, 3, 2), 3),
    (Quorum(3, 3, 2), 4),
    (Quorum(3, 2, 2), 4),
    (Quorum(4, 3, 2), 5),
    (Quorum(5, 3, 2), 5),
    (Quorum(3, 3, 3), 5),
]


def stir(world: World) -> None:
    """One random fault, and its end some time later."""
    rng = world.rng
    everybody = [*world.nodes.values(), *world.owners.values()]
    victim = rng.choice(everybody)
    kind = rng.random()
    if kind < 0.25 and victim.alive:
        world.fault("crash")
        victim.crash()
        world.at(rng.random() * 400, victim.restart)
    elif kind < 0.45:
        world.fault("pause")
        victim.pause()
        world.at(rng.random() * 500, victim.wake)
    elif kind < 0.65:
        world.fault("partition")
        other = rng.choice([p.name for p in everybody] + [META])
        pairs = {(victim.name, other)}
        if rng.random() < 0.5:
            pairs.add((other, victim.name))
        world.blocked |= pairs
        world.at(rng.random() * 500, lambda: world.blocked.difference_update(pairs))
    elif kind < 0.8:
        node = rng.choice(list(world.nodes.values()))
        if node.alive:
            node.disk.calls_until_cut = rng.randint(0, 12)
    elif kind < 0.85:
        lost = sum(node.disk_lost for node in world.nodes.values())
        node = rng.choice(list(world.nodes.values()))
        if lost < min(world.quorum.ack - 1, len(world.nodes) - world.quorum.ensemble):
            world.fault("disk lost")
            node.disk_lost = True
            node.crash()
    else:
        world.loss = rng.choice([0.0, 0.05, 0.2])
        world.slow = rng.choice([0.0, 0.05, 0.3])


def run(seed: int) -> World:
    rng = random.Random(seed)
    quorum, nodes = rng.choice(SHAPES)
    world = World(seed, quorum=quorum, nodes=nodes, owners=2)
    # Every other run is a fight: owners take over from each other while messages crawl.
    fight = seed % 2 == 1
    world.slow = 0.35 if fight else 0.0

    def client() -> None:
        for owner in world.owners.values():
            if owner.ledger is not None and world.rng.random() < 0.7:
                owner.append(f"{next(world.payloads)}:".encode() + world.rng.randbytes(40))
        # In a fight records are few: an old owner that writes often learns at once that it is old.
        world.at(world.rng.random() * (60 if fight and world.now < FAULTS_MS else 8), client)

    def failover() -> None:
        """Now and then an owner believes that it is its turn, rightly or not."""
        owner = world.rng.choice(list(world.owners.values()))
        calm = world.now > FAULTS_MS
        served = any(
            o.alive and (o.ledger is not None or (calm and o.busy)) for o in world.owners.values()
        )
        if not served or (not calm and world.rng.random() < (0.6 if fight else 0.25)):
            owner.take_over()
        world.at(world.rng.random() * (80 if fight and not calm else 150), failover)

    def trouble() -> None:
        if world.now < FAULTS_MS:
            stir(world)
            world.at(world.rng.random() * 120, trouble)

    world.at(0, client)
    world.at(0, failover)
    world.at(50, trouble)
    world.run(FAULTS_MS)
    heal(world)
    before = len(world.acknowledged)
    while len(world.acknowledged) < before + PROGRESS:
        assert world.now < FAULTS_MS + HEAL_MS, "no progress after everything healed"
        world.run(world.now + 200)
    check(world)
    return world


def heal(world: World) -> None:
    world.loss = world.slow = 0.0
    world.blocked.clear()
    for process in [*world.nodes.values(), *world.owners.values()]:
        if process.paused:
            process.wake()
        if not process.alive:
            process.restart()
    for node in world.nodes.values():
        node.disk.calls_until_cut = None


def check(world: World) -> None:
    """Everything acknowledged is in the chain, in order, the same on every node that has it."""
    ends = {m.ledger: m.entry_last for m in world.chain.ledgers}
    order = {m.ledger: at for at, m in enumerate(world.chain.ledgers)}
    metas = {m.ledger: m for m in world.chain.ledgers}
    places = []
    for ledger, entry, payload in world.acknowledged:
        assert ledger in ends, f"ledger {ledger} with acknowledged entries left the chain"
        end = ends[ledger]
        assert end is None or entry <= end, f"entry {entry} of {ledger} was cut off at {end}"
        copies = []
        for node in metas[ledger].placement.nodes_for(entry):
            process = world.nodes[node]
            if process.disk_lost or not process.alive:
                continue
            try:
                found = process.store.read(
                    LedgerId(ledger), EntryId(entry), last=EntryId(entry), bytes_max=1
                )
            except DovetailError:
                continue
            copies.append(bytes(found[0].payload))
        assert copies, f"entry {entry} of ledger {ledger} is lost"
        assert set(copies) == {payload}, f"entry {entry} of ledger {ledger} has changed"
        places.append((order[ledger], entry))
    assert len(set(places)) == len(places), "an entry was acknowledged twice"
    by_ledger: dict[int, int] = {}
    for ledger, entry, _ in world.acknowledged:
        assert entry > by_ledger.get(ledger, -1), "acknowledged out of order"
        by_ledger[ledger] = entry


def test_no_acknowledged_entry_is_lost_or_changed() -> None:
    """L4, L5, L9, L10, R1: writers, recoveries and owners agree, whatever happens to whom."""
    run_seeds(run, least=200)


def dumb_fence_holds(quorum: Quorum, fenced: set[int]) -> bool:
    """By trying every entry and every set of Qa nodes that could still acknowledge it."""
    for entry in range(quorum.ensemble):
        places = [(entry + step) % quorum.ensemble for step in range(quorum.write)]
        if sum(place not in fenced for place in places) >= quorum.ack:
            return False
    return True


def test_quorum_arithmetic_against_a_dumb_version() -> None:
    """L2: 50,000 random cases; a fence that holds leaves no entry that could be acknowledged."""
    rng = random.Random(1)
    for _ in range(50_000):
        ensemble = rng.randint(1, 9)
        write = rng.randint(1, ensemble)
        quorum = Quorum(ensemble, write, rng.randint(1, write))
        fenced = {p for p in range(ensemble) if rng.random() < 0.6}
        assert fence_holds(quorum, fenced) == dumb_fence_holds(quorum, fenced)
        entry = rng.randrange(1000)
        places = places_of(quorum, entry)
        assert len(set(places)) == write
        acked = set(rng.sample(places, quorum.ack))
        noes = set(rng.sample(places, quorum.noes_needed))
        assert acked & noes, "an acknowledged entry could be proven absent"
