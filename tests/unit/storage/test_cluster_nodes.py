"""Which storage nodes of a cluster get something new."""

import random
from collections.abc import Mapping

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
    with pytest.raises(Unavailable, match="4 storage nodes are needed, 3 are available"):
        nodes.choose(4, without=())


def test_a_ledger_is_placed_with_one_node_out_and_one_dead() -> None:
    """F34: 4/4/2 names both among its four nodes, each once, and goes on with the other two."""
    nodes = nodes_of(member(1, out=True), member(2), member(3), joined=4)
    for number in range(20):
        placement = Ensembles(nodes).place(LedgerId(number), Quorum(4, 4, 2))
        assert sorted(placement.fragments[0].nodes) == [1, 2, 3, 4]


def in_racks(racks: str, *, away: str = "", loads: Mapping[int, int] | None = None) -> ClusterNodes:
    """Storage nodes 1, 2 ... in racks of a letter each; those in `away` are not there."""
    every = [
        Member(
            number,
            "h",
            1,
            (STORAGE_ROLE,),
            "1",
            stored_bytes=(loads or {}).get(number, 0),
            rack=rack,
        )
        for number, rack in enumerate(racks, 1)
    ]
    nodes = nodes_of(*every, joined=len(every))
    if away:
        nodes.choose(1, without=())  # It has seen all of them once.
        left = {m.node_id: m for m in every if m.rack not in away}
        nodes._membership._members = left
    return nodes


@pytest.mark.parametrize("racks", ["abc", "aabbcc", "aaaabc", "aabbc"])
def test_an_ensemble_spreads_over_racks(racks: str) -> None:
    """L16: each copy in another rack, so that any rack can go; whatever the loads are."""
    rng = random.Random(racks)
    for _ in range(50):
        loads = {number: rng.randrange(9) * GIB for number in range(1, len(racks) + 1)}
        chosen = in_racks(racks, loads=loads).choose(3, without=())
        assert {racks[number - 1] for number in chosen} == {"a", "b", "c"}


def test_the_least_loaded_of_a_rack_is_taken() -> None:
    """L16, L12: within a rack the strategy decides."""
    nodes = in_racks("aabbcc", loads={1: GIB, 4: GIB, 6: GIB})
    assert set(nodes.choose(3, without=())) == {2, 3, 5}


def test_more_copies_than_racks_are_even() -> None:
    """L16: four copies on two racks are two and two."""
    for turn in range(20):
        nodes = in_racks("aaabbb", loads={1: turn * GIB})
        chosen = nodes.choose(4, without=())
        assert sorted("aaabbb"[number - 1] for number in chosen) == ["a", "a", "b", "b"]


def test_a_node_is_replaced_in_a_rack_of_its_own() -> None:
    """L16: what takes the place of a node that failed stands where no other copy is."""
    for turn in range(20):
        nodes = in_racks("aabbcc", loads={6: turn * GIB})
        assert nodes.choose(1, without=(1, 3, 5), beside=(1, 3)) == (6,)


def test_a_missing_rack_is_said_and_the_copies_go_on(caplog: pytest.LogCaptureFixture) -> None:
    """L16: while a rack is gone two copies share one; that is logged once, and not for ever."""
    nodes = in_racks("aabbcc", away="c")
    for _ in range(3):
        assert len(nodes.choose(3, without=())) == 3
    (said,) = [r.getMessage() for r in caplog.records if "share a rack" in r.getMessage()]
    assert "c" in said

    caplog.clear()
    assert len(in_racks("aabb").choose(3, without=())) == 3
    assert not caplog.records, "two racks are all that there are"


def test_a_reader_asks_its_own_rack_first() -> None:
    """L16: and nobody is near where no rack is named."""
    nodes = in_racks("aab")
    assert not any(map(nodes.near, (1, 2, 3)))
    nodes._rack = "b"
    assert [nodes.near(number) for number in (1, 2, 3)] == [False, False, True]
