"""Probing: one connection to each peer, and two figures from one answer."""

import asyncio

import pytest
from tests.unit.storage.remote.storage_door import DEADLINE_S, Door, until

from dovetail.addresses import Address
from dovetail.clock import SystemClock
from dovetail.errors import Unavailable
from dovetail.wire import Connection, Reply
from dovetail.wire.calls import HELLO_KEY, answer_hello
from dovetail.wire.login import NOBODY
from dovetail.wire.probe import Prober, probe

SHIFT_MS = 7_000
CLOCK = SystemClock()


def ahead(connection: Connection, frame: memoryview) -> Reply:
    """A node whose clock is ahead."""
    return answer_hello(frame, node="n", now_ms=CLOCK.wall_ms() + SHIFT_MS, services=[])


async def test_a_probe_gives_latency_and_clock() -> None:
    """B2, B15: of every peer that answers, on one connection; one that is gone has no figures."""
    doors = [Door(ahead), Door(ahead)]
    for door in doors:
        await door.open()
    peers = [Address("127.0.0.1", door.port) for door in doors]
    prober = Prober(lambda: peers, client_id="test", clock=CLOCK)
    await prober.probe_all()
    await prober.probe_all()
    assert set(prober.probes()) == set(peers)
    for found in prober.probes().values():
        assert 0 <= found.latency_ms < DEADLINE_S * 1000
        assert abs(found.theirs_ms - found.sent_ms - SHIFT_MS) <= found.latency_ms + 2
    assert [door.opened_ever for door in doors] == [1, 1]
    assert set(doors[0].keys) == {HELLO_KEY}

    await doors[0].kill()
    gone = peers.pop(0)
    await prober.probe_all()
    assert set(prober.probes()) == set(peers)
    peers.append(gone)
    await prober.probe_all()
    assert gone not in prober.probes()

    await prober.stop()
    await until(lambda: not doors[1].connections)
    await doors[1].stop()


async def test_peers_are_probed_until_the_prober_stops() -> None:
    """B2: by itself, and nothing of it is left behind."""
    door = Door(ahead)
    await door.open()
    before = asyncio.all_tasks()
    peers = [Address("127.0.0.1", door.port)]
    prober = Prober(lambda: peers, client_id="test", clock=CLOCK)
    prober.start()
    await until(lambda: bool(prober.probes()))
    await prober.stop()
    assert asyncio.all_tasks() <= before
    await door.stop()


async def test_one_node_is_probed_once() -> None:
    """U5: for the doctor; a node that does not answer is an error."""
    door = Door(ahead)
    await door.open()
    where = Address("127.0.0.1", door.port)
    found = await probe(where, client_id="test", clock=CLOCK, login=NOBODY)
    assert found.theirs_ms > found.sent_ms + SHIFT_MS // 2
    await door.kill()
    with pytest.raises(Unavailable):
        await probe(where, client_id="test", clock=CLOCK, login=NOBODY)
