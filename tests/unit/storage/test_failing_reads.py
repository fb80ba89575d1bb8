"""Ensembles over local disks that fail to read."""

import asyncio
import errno
import random
from typing import Any

import pytest
from tests.faulty_disk import FaultyDisk
from tests.local_nodes import LocalNodes

from dovetail.errors import Damaged, DovetailError, Unavailable
from dovetail.storage import (
    Ensembles,
    EntryId,
    LedgerId,
    LedgerStore,
    LocalStorageNode,
    Placement,
    Quorum,
    StoreSettings,
    Term,
)


def several(count: int) -> LocalNodes:
    return LocalNodes({n: _node(n) for n in range(1, count + 1)})


def _node(number: int) -> LocalStorageNode:
    store = LedgerStore(
        FaultyDisk(random.Random(number)),
        StoreSettings(disk_free_bytes_min=0),
        random.Random(number),
    )
    return LocalStorageNode(store)


async def filled(nodes: LocalNodes, quorum: Quorum) -> tuple[Ensembles, Placement]:
    """A ledger with three entries."""
    ensembles = Ensembles(nodes)
    placement = ensembles.place(LedgerId(1), quorum)

    async def change(_: Placement) -> None:
        raise AssertionError("nothing is replaced")

    writer = ensembles.writer(placement, term=Term(1), change=change)
    for number in range(3):
        stored: asyncio.Future[DovetailError | None] = asyncio.get_running_loop().create_future()
        writer.append(b"%d" % number, stored.set_result)
        assert await stored is None
    return ensembles, placement


def input_output_error(*_: Any, **__: Any) -> None:
    raise OSError(errno.EIO, "input/output error")


async def test_another_node_is_read_when_a_local_disk_fails() -> None:
    """L7: two others have the entry."""
    nodes = several(3)
    ensembles, placement = await filled(nodes, Quorum(3, 3, 2))
    first = nodes.local[placement.nodes_for(0)[0]]
    first._store.read = input_output_error  # type: ignore[method-assign, assignment]
    found = await ensembles.read(placement, EntryId(0), last=EntryId(0), bytes_max=1)
    assert bytes(found[0].payload) == b"0"


async def test_a_recovery_ends_when_the_disk_fails() -> None:
    """L9: with an error, and not never."""
    nodes = several(1)
    ensembles, placement = await filled(nodes, Quorum(1, 1, 1))
    nodes.local[1]._store.read = input_output_error  # type: ignore[method-assign, assignment]
    async with asyncio.timeout(30):
        with pytest.raises(DovetailError):
            await ensembles.recover(placement, Term(2))


async def test_who_is_away_may_have_what_another_has_damaged() -> None:
    """L7: that passes, so it is asked again; damage would be for good."""
    nodes = several(2)
    ensembles, placement = await filled(nodes, Quorum(2, 2, 2))
    away, damaged = placement.nodes_for(0)

    def rotten(*_: Any, **__: Any) -> None:
        raise Damaged("rot")

    nodes.local[damaged]._store.read = rotten  # type: ignore[method-assign, assignment]
    nodes.absent.add(away)
    with pytest.raises(Unavailable):
        await ensembles.read(placement, EntryId(0), last=EntryId(0), bytes_max=1)


class Silent:
    """A node that never answers a read, and counts who asks."""

    def __init__(self) -> None:
        self.asked = 0

    async def read(self, *_: Any, **__: Any) -> None:
        self.asked += 1
        await asyncio.get_running_loop().create_future()


async def test_a_silent_node_is_waited_for_once() -> None:
    """L9: a takeover makes a dozen reads in a row, and the first node of a write set may be dead.

    Nobody waits for it alone, and it is asked last from then on.
    """
    nodes = several(3)
    ensembles, placement = await filled(nodes, Quorum(3, 3, 2))
    silent = Silent()
    nodes.local[placement.nodes_for(0)[0]] = silent  # type: ignore[assignment]
    async with asyncio.timeout(30):  # It never answers: waiting for it alone would never end.
        for _ in range(3):
            found = await ensembles.read(placement, EntryId(0), last=EntryId(0), bytes_max=1)
            assert bytes(found[0].payload) == b"0"
    assert silent.asked == 1


async def test_a_silent_node_is_still_asked_when_the_others_have_nothing() -> None:
    """L7: who does not answer may have it; "nobody has it" would be a lie."""
    nodes = several(3)
    ensembles, placement = await filled(nodes, Quorum(3, 3, 2))
    last, *others = placement.nodes_for(0)
    for number in others:
        await nodes.local[number].delete(LedgerId(1))
    nodes.absent.add(last)
    with pytest.raises(Unavailable):
        await ensembles.read(placement, EntryId(0), last=EntryId(0), bytes_max=1)
    nodes.absent.clear()
    found = await ensembles.read(placement, EntryId(0), last=EntryId(0), bytes_max=1)
    assert bytes(found[0].payload) == b"0"
