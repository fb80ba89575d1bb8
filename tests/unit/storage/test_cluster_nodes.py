"""Which storage nodes of a cluster get something new."""

import random

import pytest

from dovetail.coordination.membership import STORAGE_ROLE, Member, Membership
from dovetail.errors import Unavailable
from dovetail.storage import Ensembles, LedgerId, Quorum
from dovetail.storage.cluster import ClusterNodes
from dovetail.storage.identity import Disks
from dovetail.storage.selection import selection_named

GIB = 1 << 30


def nodes_of(*members: Member, joined: int) -> ClusterNodes:
    """The storage nodes 1 to `joined`, of which `members` hold their lease."""
    membership = Membership(None, node_id=9, clock=None, ttl_ms=1)  # type: ignore[arg-type]
    membership._members = {member.node_id: member for member in members}
    disks = Disks(None)  # type: ignore[arg-type]
    disks.values = {number: f"disk-{number}" for number in range(1, joined + 1)}
    return ClusterNodes(
        membership,
        disks,
        client_id="test",
        local=None,
        select=selection_named("least-loaded"),
        rng=random.Random(1),
        bytes_in_flight_max=GIB,
    )


def member(number: int, *, out: bool = False) -> Member:
    """One that took itself out holds the least: others went on writing."""
    held = 0 if out else GIB
    return Member(number, "h", 1, (STORAGE_ROLE,), "1", stored_bytes=held, storage_out=out)


def test_a_node_that_took_itself_out_is_not_chosen() -> None:
    """F34: not even where it is the least loaded one."""
    nodes = nodes_of(member(1, out=True), member(2), member(3), member(4), joined=4)
    for _ in range(20):
        assert set(nodes.choose(3, without=())) == {2, 3, 4}
    with pytest.raises(Unavailable, match="4 storage nodes are needed and 3 are there"):
        nodes.choose(4, without=())


def test_a_ledger_is_placed_with_one_node_out_and_one_dead() -> None:
    """F34: 4/4/2 names both among its four nodes, each once, and goes on with the other two."""
    nodes = nodes_of(member(1, out=True), member(2), member(3), joined=4)
    for number in range(20):
        placement = Ensembles(nodes).place(LedgerId(number), Quorum(4, 4, 2))
        assert sorted(placement.fragments[0].nodes) == [1, 2, 3, 4]
