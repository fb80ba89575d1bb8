"""Static members: instances that restart under a new member id."""

import pytest
from tests.unit.log.groups.test_group import REBALANCE_MS, SESSION_MS, Bench, error_of, who

from dovetail.log.groups.types import GroupError, GroupSettings, GroupState, MemberProtocol


@pytest.fixture
def static() -> Bench:
    """A stable group of instances a (a-1, leads) and b (b-2), in generation 2."""
    bench = Bench()
    bench.join("j1", instance="a")
    bench.join("j2", instance="b")
    bench.join("j1b", "a-1", instance="a")
    bench.sync("s1", "a-1", instance="a", a_1=b"A", b_2=b"B")
    bench.sync("s2", "b-2", instance="b")
    assert bench.state() is GroupState.STABLE
    return bench


def test_restarted_instance_keeps_its_assignment(static: Bench) -> None:
    """K7: a new id, the same generation and assignment, no rebalance; the old id is fenced."""
    answer = static.join("r", instance="b")
    assert answer is not None
    assert (answer.error, answer.member_id, answer.generation) == (GroupError.NONE, "b-3", 2)
    assert answer.leader == "a-1"
    assert static.state() is GroupState.STABLE
    synced = static.sync("s", "b-3", instance="b")
    assert synced is not None
    assert synced.assignment == b"B"
    fenced = GroupError.FENCED_INSTANCE
    assert error_of(static.sync("o", "b-2", instance="b")) is fenced
    assert error_of(static.join("p", "b-2", instance="b")) is fenced
    assert static.check("b-2", 2, "b") is fenced
    assert static.leave(who("b-2", "b")) == [fenced]
    assert static.beat("b-2") is GroupError.UNKNOWN_MEMBER


def test_restart_is_stored_before_it_is_answered(static: Bench) -> None:
    """K7: the new id survives a crash; until it is stored the old one counts."""
    static.hold = True
    assert static.join("r", instance="b") is None
    assert static.check("b-2", 2, "b") is GroupError.NONE
    static.store(static.held.pop())
    assert error_of(static.joined("r")) is GroupError.NONE
    static.crash()
    assert static.state() is GroupState.STABLE
    assert static.check("b-3", 2, "b") is GroupError.NONE


def test_restart_that_is_not_stored_changes_nothing(static: Bench) -> None:
    """K7: a failing journal is a retriable error, and the old id goes on."""
    static.hold = True
    static.join("r", instance="b")
    static.fail(static.held.pop())
    assert error_of(static.joined("r")) is GroupError.COORDINATOR_NOT_AVAILABLE
    assert static.check("b-2", 2, "b") is GroupError.NONE


def test_two_restarts_at_once_are_stored_one_on_the_other(static: Bench) -> None:
    """K7: the later record has both new ids; none is lost in a crash."""
    static.hold = True
    static.join("ra", instance="a")
    static.join("rb", instance="b")
    assert len(static.held) == 1
    static.store(static.held.pop())
    static.store(static.held.pop())
    assert error_of(static.joined("ra")) is GroupError.NONE
    assert error_of(static.joined("rb")) is GroupError.NONE
    static.crash()
    ids = {m.member_id for m in static.group.describe().members}
    assert ids == {"a-3", "b-4"}


def test_restarted_leader_does_not_assign(static: Bench) -> None:
    """K7: a client that can skip the assignment is told so; another hears the old leader's id."""
    old = static.join("r1", instance="a")
    assert old is not None
    assert (old.leader, old.members, old.skip_assignment) == ("a-1", (), False)
    new = static.join("r2", instance="a", skip=True)
    assert new is not None
    assert (new.leader, new.skip_assignment) == (new.member_id, True)
    assert len(new.members) == 2
    assert static.join("again", new.member_id, instance="a") is None
    assert static.state() is GroupState.PREPARING_REBALANCE


def test_restart_with_other_topics_rebalances(static: Bench) -> None:
    """K7: what was owned before does not matter, other topics do."""
    owned = (MemberProtocol("range", b"t|owned"),)
    assert error_of(static.join("r", instance="b", protocols=owned)) is GroupError.NONE
    other = (MemberProtocol("range", b"u"),)
    assert static.join("q", instance="b", protocols=other) is None
    assert static.state() is GroupState.PREPARING_REBALANCE


def test_restart_with_other_protocols_rebalances() -> None:
    """K7: an instance that changes what the group would choose is no quiet restart."""
    a, b = MemberProtocol("x", b"t"), MemberProtocol("y", b"t")
    bench = Bench()
    bench.join("j", instance="a", protocols=(a, b))
    bench.sync("s", "a-1", instance="a")
    answer = bench.join("r", instance="a", protocols=(b, a))
    assert answer is not None
    assert (answer.generation, answer.protocol) == (2, "y")


def test_restart_during_a_rebalance_joins_it(static: Bench) -> None:
    """K7: in PREPARING the new id takes the old one's place, and who waits under it is fenced."""
    static.join("x", "a-1", instance="a")
    static.join("r", instance="a")
    assert error_of(static.joined("x")) is GroupError.FENCED_INSTANCE
    static.join("y", "b-2", instance="b")
    answer = static.joined("r")
    assert answer is not None
    assert (answer.generation, answer.leader) == (3, answer.member_id)


def test_restart_while_completing_rebalances(static: Bench) -> None:
    """K7: the leader may be assigning to the old id, so it must be asked again."""
    static.join("x", "a-1", instance="a")
    static.join("y", "b-2", instance="b")
    assert static.state() is GroupState.COMPLETING_REBALANCE
    static.sync("s", "b-2", instance="b")
    static.join("r", instance="b")
    assert error_of(static.synced("s")) is GroupError.FENCED_INSTANCE
    assert static.state() is GroupState.PREPARING_REBALANCE


def test_restart_that_is_overtaken_by_a_rebalance(static: Bench) -> None:
    """K7: if the group goes on while the new id is stored, the restarted one joins that."""
    static.hold = True
    static.join("r", instance="b")
    static.join("x", "a-1", instance="a")
    static.store(static.held.pop())
    static.store(static.held.pop())
    answer = static.joined("r")
    assert answer is not None
    assert answer.generation == 3


def test_missing_static_member_stays_until_its_session_ends(static: Bench) -> None:
    """K7: a rebalance goes on without a static member and keeps its place."""
    static.join("x", "a-1", instance="a", session_ms=SESSION_MS, rebalance_ms=1_000)
    static.join("y", "b-2", instance="b", rebalance_ms=1_000)
    static.sync("s1b", "a-1", instance="a")
    static.sync("s2b", "b-2", instance="b")
    static.join("x2", "a-1", instance="a", rebalance_ms=1_000)
    static.advance(1_000)
    assert error_of(static.joined("x2")) is GroupError.NONE
    assert len(static.group.describe().members) == 2
    static.advance(1_000)
    assert len(static.group.describe().members) == 0


def test_rebalance_waits_if_only_static_members_are_missing(static: Bench) -> None:
    """K7: with nobody to lead, the phase goes on until somebody joins or all sessions end."""
    static.join("x", "a-1", instance="a", session_ms=300_000)
    static.leave(who("a-1", "a"))
    assert static.state() is GroupState.PREPARING_REBALANCE
    for _ in range(8):
        static.advance(5_000)
        static.beat("b-2")
    assert static.now_ms > REBALANCE_MS
    assert static.state() is GroupState.PREPARING_REBALANCE
    assert error_of(static.join("y", "b-2", instance="b")) is GroupError.NONE


def test_full_group_takes_a_restarted_instance() -> None:
    """K7: a restart is no new member."""
    bench = Bench(GroupSettings(initial_rebalance_delay_ms=0, group_size_max=1))
    bench.join("j", instance="a")
    bench.sync("s", "a-1", instance="a")
    assert error_of(bench.join("r", instance="a")) is GroupError.NONE


def test_unknown_instance_with_a_member_id(static: Bench) -> None:
    """K7: an instance that was removed starts without an id."""
    assert error_of(static.join("x", "a-1", instance="zz")) is GroupError.UNKNOWN_MEMBER
