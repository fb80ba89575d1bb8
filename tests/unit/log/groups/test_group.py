"""The group state machine: every transition, and the edges of each request."""

from collections.abc import Callable, Sequence
from itertools import count

import pytest

from dovetail.log.groups import types as groups
from dovetail.log.groups.group import Group

SETTINGS = groups.GroupSettings(initial_rebalance_delay_ms=0)
SESSION_MS = 10_000
REBALANCE_MS = 30_000
RANGE = (groups.MemberProtocol("range", b"t"),)


def topics_of(protocol_type: str, metadata: bytes) -> frozenset[str] | None:
    """Subscriptions of these tests: topics, a bar, and what the member owned."""
    if protocol_type != "consumer":
        return None
    return frozenset(metadata.decode().split("|")[0].split(","))


class Bench:
    """A group with a clock; stores everything at once unless `hold` is set."""

    def __init__(self, settings: groups.GroupSettings = SETTINGS) -> None:
        numbers = count(1)

        def new_member_id(prefix: str) -> groups.MemberId:
            return groups.MemberId(f"{prefix}-{next(numbers)}")

        self.settings = settings
        self.now_ms = 0.0
        self.hold = False
        self.held: list[groups.Persist] = []
        self.answers: dict[object, groups.JoinAnswer | groups.SyncAnswer] = {}
        self.stored: groups.GroupSnapshot | None = None
        self._make: Callable[[], Group] = lambda: Group(
            groups.GroupId("g"), settings, new_member_id=new_member_id, topics_of=topics_of
        )
        self.group = self._make()

    def state(self) -> groups.GroupState:
        return self.group.state

    def perform(self, effects: Sequence[groups.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, groups.Answer):
                assert effect.token not in self.answers, "answered twice"
                self.answers[effect.token] = effect.answer
            elif self.hold:
                self.held.append(effect)
            else:
                self.store(effect)

    def store(self, effect: groups.Persist) -> None:
        self.stored = effect.snapshot
        self.perform(self.group.persisted(effect.ticket, now_ms=self.now_ms))

    def fail(self, effect: groups.Persist) -> None:
        error = groups.GroupError.COORDINATOR_NOT_AVAILABLE
        self.perform(self.group.persist_failed(effect.ticket, error, now_ms=self.now_ms))

    def crash(self) -> None:
        self.group = self._make()
        self.held.clear()
        if self.stored is not None:
            self.group.restore(self.stored, now_ms=self.now_ms)

    def join(
        self,
        token: str,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[groups.MemberProtocol, ...] = RANGE,
        protocol_type: str = "consumer",
        required: bool = False,
        skip: bool = False,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
    ) -> groups.JoinAnswer | None:
        request = groups.JoinRequest(
            groups.MemberId(member_id),
            protocol_type,
            protocols,
            session_ms,
            rebalance_ms,
            None if instance is None else groups.InstanceId(instance),
            client_id="c",
            member_id_required=required,
            skip_assignment_supported=skip,
        )
        self.perform(self.group.join(request, token, now_ms=self.now_ms))
        return self.joined(token)

    def joined(self, token: str) -> groups.JoinAnswer | None:
        answer = self.answers.get(token)
        assert answer is None or isinstance(answer, groups.JoinAnswer)
        return answer

    def synced(self, token: str) -> groups.SyncAnswer | None:
        answer = self.answers.get(token)
        assert answer is None or isinstance(answer, groups.SyncAnswer)
        return answer

    def sync(
        self,
        token: str,
        member_id: str,
        generation: int | None = None,
        instance: str | None = None,
        protocol: str | None = None,
        **assignments: bytes,
    ) -> groups.SyncAnswer | None:
        given = tuple((groups.MemberId(m.replace("_", "-")), a) for m, a in assignments.items())
        request = groups.SyncRequest(
            who(member_id, instance),
            self.group.generation if generation is None else groups.Generation(generation),
            given,
            protocol=protocol,
        )
        self.perform(self.group.sync(request, token, now_ms=self.now_ms))
        return self.synced(token)

    def beat(self, member_id: str, generation: int | None = None) -> groups.GroupError:
        number = self.group.generation if generation is None else groups.Generation(generation)
        return self.group.heartbeat(who(member_id), number, now_ms=self.now_ms)

    def leave(self, *members: groups.MemberIdentity) -> list[groups.GroupError]:
        outcomes, effects = self.group.leave(members, now_ms=self.now_ms)
        self.perform(effects)
        return [outcome.error for outcome in outcomes]

    def advance(self, delta_ms: float) -> None:
        """Lets time pass, with a tick at each deadline on the way."""
        end_ms = self.now_ms + delta_ms
        while (due := self.group.next_deadline_ms) is not None and due <= end_ms:
            self.now_ms = max(due, self.now_ms)
            self.perform(self.group.tick(now_ms=self.now_ms))
        self.now_ms = end_ms

    def check(
        self, member_id: str, generation: int, instance: str | None = None
    ) -> groups.GroupError:
        return self.group.commit_check(
            who(member_id, instance), groups.Generation(generation), now_ms=self.now_ms
        )


def who(member_id: str, instance: str | None = None) -> groups.MemberIdentity:
    return groups.MemberIdentity(
        groups.MemberId(member_id), None if instance is None else groups.InstanceId(instance)
    )


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def pair(bench: Bench) -> Bench:
    """A stable group of c-1, which leads, and c-2."""
    bench.join("j1")
    bench.join("j2")
    bench.join("j1b", "c-1")
    bench.sync("s1", "c-1", c_1=b"A", c_2=b"B")
    bench.sync("s2", "c-2")
    assert bench.state() is groups.GroupState.STABLE
    assert bench.group.generation == 2
    return bench


def error_of(answer: groups.JoinAnswer | groups.SyncAnswer | None) -> groups.GroupError:
    assert answer is not None
    return answer.error


# --- the way of a group ---------------------------------------------------------------------------


def test_first_member_leads_and_gets_its_assignment(bench: Bench) -> None:
    """K7: EMPTY, PREPARING, COMPLETING, STABLE, with the leader told about all members."""
    answer = bench.join("j")
    assert answer is not None
    assert answer.error is groups.GroupError.NONE
    assert (answer.generation, answer.leader, answer.protocol) == (1, "c-1", "range")
    assert [m.metadata for m in answer.members] == [b"t"]
    assert bench.state() is groups.GroupState.COMPLETING_REBALANCE
    synced = bench.sync("s", "c-1", c_1=b"A")
    assert synced == groups.SyncAnswer(groups.GroupError.NONE, b"A", "consumer", "range")
    assert bench.state() is groups.GroupState.STABLE


def test_second_member_makes_the_first_join_again(pair: Bench) -> None:
    """K7: a new generation has both, only the leader hears of the members, each its own part."""
    leader, follower = pair.joined("j1b"), pair.joined("j2")
    assert leader is not None
    assert follower is not None
    assert len(leader.members) == 2
    assert follower.members == ()
    assert follower.leader == "c-1"
    assert error_of(pair.synced("s2")) is groups.GroupError.NONE
    assert pair.synced("s2") == groups.SyncAnswer(groups.GroupError.NONE, b"B", "consumer", "range")


def test_follower_that_syncs_early_waits_for_the_leader(bench: Bench) -> None:
    """K7: a follower's sync is answered when the leader's assignment is stored."""
    bench.join("j1")
    bench.join("j2")
    bench.join("j1b", "c-1")
    assert bench.sync("s2", "c-2") is None
    bench.sync("s1", "c-1", c_2=b"B")
    assert bench.synced("s2") == groups.SyncAnswer(
        groups.GroupError.NONE, b"B", "consumer", "range"
    )
    assert bench.synced("s1") == groups.SyncAnswer(groups.GroupError.NONE, b"", "consumer", "range")


def test_last_member_leaves_and_the_group_is_empty(pair: Bench) -> None:
    """K7: PREPARING goes to EMPTY when nobody is left; the generation goes on."""
    assert pair.leave(who("c-1"), who("c-2")) == [groups.GroupError.NONE] * 2
    assert pair.state() is groups.GroupState.EMPTY
    assert pair.group.generation == 3
    assert pair.group.is_empty
    assert pair.stored is not None
    assert pair.stored.members == ()
    assert pair.group.next_deadline_ms is None


def test_dead_group_refuses_everything(pair: Bench) -> None:
    """K7: DEAD is final, and every request is told to look for the coordinator."""
    pair.perform(pair.group.end(groups.GroupError.NOT_COORDINATOR))
    gone = groups.GroupError.COORDINATOR_NOT_AVAILABLE
    assert error_of(pair.join("x")) is gone
    assert error_of(pair.sync("y", "c-1")) is gone
    assert pair.beat("c-1") is gone
    assert pair.leave(who("c-1")) == [gone]
    assert pair.check("c-1", 2) is gone
    assert pair.group.tick(now_ms=1e9) == ()


def test_end_answers_everybody_who_waits(bench: Bench) -> None:
    """K7: joins, syncs, and restarts that are being stored learn that the coordinator moved."""
    bench.join("j1", instance="a")
    bench.sync("s1", "a-1")
    bench.hold = True
    bench.join("r1", instance="a")
    bench.join("r2", instance="a")
    bench.perform(bench.group.end(groups.GroupError.NOT_COORDINATOR))
    assert error_of(bench.joined("r1")) is groups.GroupError.NOT_COORDINATOR
    assert error_of(bench.joined("r2")) is groups.GroupError.NOT_COORDINATOR


# --- joining --------------------------------------------------------------------------------------


def test_member_id_required_then_join_with_it(bench: Bench) -> None:
    """K7: a first join without an id is given one and sent back (JoinGroup 4 and later)."""
    answer = bench.join("j", required=True)
    assert answer == groups.JoinAnswer(groups.GroupError.MEMBER_ID_REQUIRED, groups.MemberId("c-1"))
    assert bench.state() is groups.GroupState.EMPTY
    assert not bench.group.is_empty
    again = bench.join("k", "c-1", required=True)
    assert again is not None
    assert (again.error, again.member_id) == (groups.GroupError.NONE, "c-1")


def test_unused_member_id_expires(bench: Bench) -> None:
    """K7: an id that was given out and not used is forgotten after the session timeout."""
    bench.join("j", required=True)
    bench.advance(SESSION_MS)
    assert bench.group.is_empty
    assert error_of(bench.join("k", "c-1")) is groups.GroupError.UNKNOWN_MEMBER


def test_pending_member_holds_the_rebalance_until_it_expires(pair: Bench) -> None:
    """K7: a rebalance waits for a member that was just given its id, but not for ever."""
    pair.join("p", required=True)
    pair.join("j1c", "c-1")
    pair.join("j2c", "c-2")
    assert pair.state() is groups.GroupState.PREPARING_REBALANCE
    pair.advance(SESSION_MS)
    assert pair.state() is groups.GroupState.COMPLETING_REBALANCE


def test_pending_member_can_leave(bench: Bench) -> None:
    """K7: leaving with an id that was not used yet gives it back."""
    bench.join("j", required=True)
    assert bench.leave(who("c-1")) == [groups.GroupError.NONE]
    assert bench.group.is_empty


def test_pending_id_with_an_instance_is_unknown(bench: Bench) -> None:
    """K7: ids that wait to be used never belong to static members."""
    bench.join("j", required=True)
    assert error_of(bench.join("k", "c-1", instance="a")) is groups.GroupError.UNKNOWN_MEMBER


@pytest.mark.parametrize("session_ms", [-1, 0, 5_999, 6_000, 1_800_000, 1_800_001, 2**31 - 1])
def test_session_timeout_bounds(bench: Bench, session_ms: int) -> None:
    """K7, R8: session timeouts outside of the bounds are refused, those at the bounds are not."""
    within = 6_000 <= session_ms <= 1_800_000
    refused = groups.GroupError.INVALID_SESSION_TIMEOUT
    assert (error_of(bench.join("j", session_ms=session_ms)) is refused) != within


def test_unknown_member_id_is_refused(pair: Bench) -> None:
    """K7: an id that the group never gave, or gave and took back, does not join."""
    assert error_of(pair.join("x", "c-9")) is groups.GroupError.UNKNOWN_MEMBER


def test_protocols_must_have_one_in_common(pair: Bench) -> None:
    """K7: a join that leaves no common protocol or comes with another type is refused."""
    other = (groups.MemberProtocol("sticky", b"t"),)
    refused = groups.GroupError.INCONSISTENT_PROTOCOL
    assert error_of(pair.join("x", protocols=other)) is refused
    assert error_of(pair.join("y", protocol_type="connect")) is refused
    assert error_of(pair.join("z", protocols=())) is refused
    assert pair.state() is groups.GroupState.STABLE


def test_a_lone_member_may_change_its_protocols(bench: Bench) -> None:
    """K7: what a member offered before does not bind itself."""
    bench.join("j")
    bench.sync("s", "c-1")
    answer = bench.join("k", "c-1", protocols=(groups.MemberProtocol("sticky", b"t"),))
    assert answer is not None
    assert answer.protocol == "sticky"


def test_protocol_by_votes_in_order_of_preference(bench: Bench) -> None:
    """K7: each votes for its first that all support; most votes win."""
    a, b, c = (groups.MemberProtocol(name, b"t") for name in "abc")
    bench.join("j1", protocols=(c, a, b))
    bench.join("j2", protocols=(b, a))
    bench.join("j3", protocols=(b, a))
    answer = bench.join("j1b", "c-1", protocols=(c, a, b))
    assert answer is not None
    assert answer.protocol == "b"


def test_leader_that_joins_again_starts_a_rebalance(pair: Bench) -> None:
    """K7: only the leader watches the topics, so its join always counts."""
    assert pair.join("x", "c-1") is None
    assert pair.state() is groups.GroupState.PREPARING_REBALANCE


def test_follower_that_joins_again_unchanged_is_answered_at_once(pair: Bench) -> None:
    """K7: a lost answer is given again, with no rebalance."""
    answer = pair.join("x", "c-2")
    assert answer is not None
    assert (answer.error, answer.generation, answer.members) == (groups.GroupError.NONE, 2, ())
    assert pair.state() is groups.GroupState.STABLE


def test_follower_with_other_metadata_starts_a_rebalance(pair: Bench) -> None:
    """K7: a changed subscription must reach the leader."""
    assert pair.join("x", "c-2", protocols=(groups.MemberProtocol("range", b"u"),)) is None
    assert pair.state() is groups.GroupState.PREPARING_REBALANCE
    leader = pair.join("y", "c-1")
    assert leader is not None
    assert {m.metadata for m in leader.members} == {b"t", b"u"}


def test_join_again_while_completing(bench: Bench) -> None:
    """K7: unchanged, the generation is told again, to the leader with members; changed, anew."""
    bench.join("j1")
    again = bench.join("j2", "c-1")
    assert again is not None
    assert again.generation == 1
    assert len(again.members) == 1
    changed = bench.join("j3", "c-1", protocols=(groups.MemberProtocol("range", b"u"),))
    assert changed is not None
    assert changed.generation == 2


def test_two_joins_of_one_member_answer_the_first(pair: Bench) -> None:
    """K7: no request waits for ever when its member asks again on another connection."""
    pair.join("x", "c-1")
    pair.join("y", "c-1")
    assert error_of(pair.joined("x")) is groups.GroupError.REBALANCE_IN_PROGRESS
    assert pair.joined("y") is None


def test_new_member_while_completing_sends_the_syncs_back(bench: Bench) -> None:
    """K7: COMPLETING goes to PREPARING, and who waits in sync joins again."""
    bench.join("j1")
    bench.join("j2")
    bench.join("j1b", "c-1")
    bench.sync("s2", "c-2")
    bench.join("j3")
    assert error_of(bench.synced("s2")) is groups.GroupError.REBALANCE_IN_PROGRESS
    assert bench.state() is groups.GroupState.PREPARING_REBALANCE


def test_group_max_size() -> None:
    """K7: a full group takes no new member, but keeps those it has."""
    bench = Bench(groups.GroupSettings(initial_rebalance_delay_ms=0, group_size_max=1))
    bench.join("j1")
    assert error_of(bench.join("j2")) is groups.GroupError.GROUP_MAX_SIZE
    assert error_of(bench.join("j3", "c-1")) is groups.GroupError.NONE


def test_pending_members_are_limited() -> None:
    """K7: ids that are given out and not used are limited like members."""
    bench = Bench(groups.GroupSettings(initial_rebalance_delay_ms=0, group_size_max=1))
    bench.join("j1", required=True)
    assert error_of(bench.join("j2", required=True)) is groups.GroupError.GROUP_MAX_SIZE
    assert error_of(bench.join("j3", "c-1", required=True)) is groups.GroupError.NONE


def test_group_that_is_over_its_limit_sheds_the_last_to_rejoin(pair: Bench) -> None:
    """K7: after the limit was lowered, those who come last must go."""
    limited = Bench(groups.GroupSettings(initial_rebalance_delay_ms=0, group_size_max=1))
    limited.stored = pair.stored
    limited.crash()
    limited.join("j1", "c-1")
    assert error_of(limited.join("j2", "c-2")) is groups.GroupError.GROUP_MAX_SIZE
    assert error_of(limited.joined("j1")) is groups.GroupError.NONE
    assert len(limited.group.describe().members) == 1


# --- time -----------------------------------------------------------------------------------------


def test_initial_delay_gathers_members_and_grows() -> None:
    """K7: members that start together form one generation."""
    bench = Bench(groups.GroupSettings(initial_rebalance_delay_ms=200))
    bench.join("j1")
    bench.advance(150)
    bench.join("j2")
    bench.advance(100)
    bench.join("j3")
    assert bench.joined("j1") is None
    bench.advance(400)
    assert [bench.joined(t).generation for t in ("j1", "j2", "j3")] == [1, 1, 1]  # type: ignore[union-attr]


def test_initial_delay_ends_with_the_rebalance_timeout() -> None:
    """K7: a steady trickle of members cannot hold back the first generation for ever."""
    bench = Bench(groups.GroupSettings(initial_rebalance_delay_ms=200))
    for number in range(10):
        bench.join(f"j{number}", rebalance_ms=500)
        bench.advance(100)
    assert error_of(bench.joined("j0")) is groups.GroupError.NONE


def test_session_end_removes_the_member(pair: Bench) -> None:
    """L13: a silent member's part goes to others after its session."""
    pair.advance(SESSION_MS - 1)
    assert pair.beat("c-1") is groups.GroupError.NONE
    pair.advance(1)
    assert pair.state() is groups.GroupState.PREPARING_REBALANCE
    assert pair.beat("c-2") is groups.GroupError.UNKNOWN_MEMBER
    assert pair.beat("c-1") is groups.GroupError.REBALANCE_IN_PROGRESS


def test_members_that_do_not_rejoin_are_removed(pair: Bench) -> None:
    """K7: the longest rebalance timeout of the members limits how long it is waited for them."""
    pair.join("x", "c-1", rebalance_ms=60_000)
    for _ in range(11):
        pair.advance(5_000)
        assert pair.beat("c-2") is groups.GroupError.REBALANCE_IN_PROGRESS
    pair.advance(5_000)
    assert error_of(pair.joined("x")) is groups.GroupError.NONE
    assert pair.beat("c-2") is groups.GroupError.UNKNOWN_MEMBER


def test_members_that_do_not_sync_are_removed(pair: Bench) -> None:
    """K7: a member that lives but does not fetch its assignment holds nobody up."""
    pair.join("x1", "c-1")
    pair.join("x2", "c-2")
    pair.sync("s1b", "c-1")
    for _ in range(6):
        pair.advance(5_000)
        pair.beat("c-1")
        pair.beat("c-2")
    assert pair.beat("c-2") is groups.GroupError.UNKNOWN_MEMBER
    assert pair.state() is groups.GroupState.PREPARING_REBALANCE


def test_waiting_members_do_not_expire_but_new_ones_do() -> None:
    """K7: who waits for us is not silent; a first join is limited, for it may be abandoned."""
    settings = groups.GroupSettings(initial_rebalance_delay_ms=0, new_member_join_timeout_ms=20_000)
    bench = Bench(settings)
    bench.join("j1", rebalance_ms=100_000)
    bench.sync("s1", "c-1")
    bench.join("j2")
    for _ in range(4):
        bench.advance(5_000)
        bench.beat("c-1")
    assert error_of(bench.joined("j2")) is groups.GroupError.UNKNOWN_MEMBER
    bench.join("j3")
    bench.join("j1b", "c-1")
    assert error_of(bench.joined("j1b")) is groups.GroupError.NONE


def test_next_deadline_is_the_earliest(pair: Bench) -> None:
    """K7: the timer is told when there is something to do, never later."""
    assert pair.group.next_deadline_ms == SESSION_MS
    pair.now_ms = 4_000
    pair.beat("c-1")
    pair.beat("c-2")
    assert pair.group.next_deadline_ms == 14_000


# --- sync, heartbeat, leave -----------------------------------------------------------------------


def test_sync_refusals(pair: Bench) -> None:
    """K7: unknown members, other generations, other protocols and rebalances refuse a sync."""
    assert error_of(pair.sync("a", "c-9")) is groups.GroupError.UNKNOWN_MEMBER
    assert error_of(pair.sync("b", "c-1", 1)) is groups.GroupError.ILLEGAL_GENERATION
    assert error_of(pair.sync("c", "c-1", protocol="x")) is groups.GroupError.INCONSISTENT_PROTOCOL
    pair.join("j", "c-1")
    assert error_of(pair.sync("d", "c-2")) is groups.GroupError.REBALANCE_IN_PROGRESS


def test_heartbeat_refusals(pair: Bench) -> None:
    """K7: a heartbeat says who is unknown, stale, or called to a rebalance."""
    assert pair.beat("c-9") is groups.GroupError.UNKNOWN_MEMBER
    assert pair.beat("c-1", 1) is groups.GroupError.ILLEGAL_GENERATION
    assert pair.beat("c-1") is groups.GroupError.NONE
    pair.join("j", "c-1")
    assert pair.beat("c-2") is groups.GroupError.REBALANCE_IN_PROGRESS
    pair.join("k", "c-2")
    assert pair.state() is groups.GroupState.COMPLETING_REBALANCE
    assert pair.beat("c-2") is groups.GroupError.NONE


def test_leave_of_several_each_with_its_outcome(pair: Bench) -> None:
    """K7: LeaveGroup 3 and later names several members; each has its own outcome."""
    pair.join("j3", instance="a")
    pair.join("j1c", "c-1")
    pair.join("j2c", "c-2")
    outcomes = pair.leave(
        who("c-9"), who("", "a"), who("c-2"), who("c-2"), who("x", "zz"), who("c-1", "zz")
    )
    unknown = groups.GroupError.UNKNOWN_MEMBER
    assert outcomes == [
        unknown,
        groups.GroupError.NONE,
        groups.GroupError.NONE,
        unknown,
        unknown,
        unknown,
    ]
    assert [m.member_id for m in pair.group.describe().members] == ["c-1"]


def test_leave_answers_a_join_that_waits(pair: Bench) -> None:
    """K7: a member that is removed while it waits is told so."""
    pair.join("x", "c-1")
    pair.leave(who("c-1"))
    assert error_of(pair.joined("x")) is groups.GroupError.UNKNOWN_MEMBER


def test_leader_is_replaced_when_it_goes(pair: Bench) -> None:
    """K7: the next generation is led by one that joined it."""
    pair.leave(who("c-1"))
    answer = pair.join("x", "c-2")
    assert answer is not None
    assert answer.leader == "c-2"


# --- commits --------------------------------------------------------------------------------------


def test_commit_checks(pair: Bench) -> None:
    """K7: only members of the current generation commit while there are members."""
    assert pair.check("c-1", 2) is groups.GroupError.NONE
    assert pair.check("c-1", 1) is groups.GroupError.ILLEGAL_GENERATION
    assert pair.check("c-9", 2) is groups.GroupError.UNKNOWN_MEMBER
    assert pair.check(groups.NO_MEMBER, groups.NO_GENERATION) is groups.GroupError.UNKNOWN_MEMBER
    pair.join("x", "c-1")
    assert pair.check("c-2", 2) is groups.GroupError.NONE
    pair.join("y", "c-2")
    assert pair.check("c-2", 3) is groups.GroupError.REBALANCE_IN_PROGRESS


def test_commit_from_outside_only_without_members(bench: Bench) -> None:
    """K7: a simple commit is for groups that have no members."""
    assert bench.check(groups.NO_MEMBER, groups.NO_GENERATION) is groups.GroupError.NONE
    bench.join("j")
    assert bench.check(groups.NO_MEMBER, groups.NO_GENERATION) is groups.GroupError.UNKNOWN_MEMBER


def test_commit_renews_the_session(pair: Bench) -> None:
    """K7: a commit is a sign of life."""
    pair.now_ms = 9_000
    pair.check("c-1", 2)
    pair.check("c-2", 2)
    assert pair.group.next_deadline_ms == 19_000


# --- storing --------------------------------------------------------------------------------------


def test_nothing_is_answered_before_it_is_stored(bench: Bench) -> None:
    """K7: neither a generation nor an assignment is told before the journal has it."""
    bench.hold = True
    assert bench.join("j") is None
    generation = bench.held.pop()
    assert not generation.snapshot.assigned
    bench.store(generation)
    assert error_of(bench.joined("j")) is groups.GroupError.NONE
    assert bench.sync("s", "c-1", c_1=b"A") is None
    assignment = bench.held.pop()
    assert assignment.snapshot.members[0].assignment == b"A"
    bench.store(assignment)
    assert error_of(bench.synced("s")) is groups.GroupError.NONE


def test_failed_generation_is_not_used_again(bench: Bench) -> None:
    """K7: joins are answered with a retriable error; the next generation is a higher one."""
    bench.hold = True
    bench.join("j")
    bench.fail(bench.held.pop())
    assert error_of(bench.joined("j")) is groups.GroupError.COORDINATOR_NOT_AVAILABLE
    assert bench.state() is groups.GroupState.PREPARING_REBALANCE
    bench.hold = False
    again = bench.join("k", "c-1")
    assert again is not None
    assert again.generation == 2


def test_failed_assignment_starts_over(bench: Bench) -> None:
    """K7: syncs are answered with a retriable error, and nobody has an assignment."""
    bench.join("j")
    bench.hold = True
    bench.sync("s", "c-1", c_1=b"A")
    bench.fail(bench.held.pop())
    assert error_of(bench.synced("s")) is groups.GroupError.COORDINATOR_NOT_AVAILABLE
    assert bench.state() is groups.GroupState.PREPARING_REBALANCE


def test_member_that_comes_while_a_generation_is_stored(bench: Bench) -> None:
    """K7: those who wait stay waiting and get the generation after it."""
    bench.hold = True
    bench.join("j1")
    bench.join("j2")
    assert bench.group.generation == 2
    first, second = bench.held
    bench.store(first)
    assert bench.joined("j1") is None
    bench.store(second)
    for token in ("j1", "j2"):
        answer = bench.joined(token)
        assert answer is not None
        assert answer.generation == 2


def test_member_that_comes_while_an_assignment_is_stored(bench: Bench) -> None:
    """K7: the assignment of a generation that is over is told to nobody."""
    bench.join("j1")
    bench.hold = True
    bench.sync("s1", "c-1", c_1=b"A")
    bench.join("j2")
    assert error_of(bench.synced("s1")) is groups.GroupError.REBALANCE_IN_PROGRESS
    bench.store(bench.held.pop(0))
    assert bench.state() is groups.GroupState.PREPARING_REBALANCE


def test_second_sync_of_the_leader_does_not_assign_again(bench: Bench) -> None:
    """K7: one generation has one assignment."""
    bench.join("j")
    bench.hold = True
    bench.sync("s1", "c-1", c_1=b"A")
    bench.sync("s2", "c-1", c_1=b"B")
    assert error_of(bench.synced("s1")) is groups.GroupError.REBALANCE_IN_PROGRESS
    assert len(bench.held) == 1
    bench.store(bench.held.pop())
    answer = bench.synced("s2")
    assert answer is not None
    assert answer.assignment == b"A"


def test_heartbeat_while_the_generation_is_stored(pair: Bench) -> None:
    """K7: a member that waits for a new generation is not told that it is stale."""
    pair.join("x", "c-1")
    pair.hold = True
    pair.join("y", "c-2")
    assert pair.beat("c-2", 2) is groups.GroupError.REBALANCE_IN_PROGRESS
    assert error_of(pair.sync("z", "c-2", 3)) is groups.GroupError.REBALANCE_IN_PROGRESS


def test_emptied_group_that_was_not_stored_is_stored_later(pair: Bench) -> None:
    """K7: whoever stores something for the group stores its end along."""
    pair.hold = True
    pair.leave(who("c-1"), who("c-2"))
    assert pair.group.unsaved_snapshot() is None
    pair.fail(pair.held.pop())
    unsaved = pair.group.unsaved_snapshot()
    assert unsaved is not None
    assert unsaved.members == ()
    pair.group.saved(unsaved)
    assert pair.group.unsaved_snapshot() is None


def test_stable_group_goes_on_after_a_crash(pair: Bench) -> None:
    """K7: after a reload members go on with heartbeat, sync and commit, in a fresh session."""
    pair.now_ms = 50_000
    pair.crash()
    assert pair.state() is groups.GroupState.STABLE
    assert pair.beat("c-1", 2) is groups.GroupError.NONE
    assert pair.check("c-2", 2) is groups.GroupError.NONE
    assert pair.sync("s", "c-2", 2) == groups.SyncAnswer(
        groups.GroupError.NONE, b"B", "consumer", "range"
    )
    assert pair.group.next_deadline_ms == 60_000


def test_generation_without_assignment_is_rebalanced_after_a_crash(pair: Bench) -> None:
    """K7: a generation number that was given out is never given out again."""
    pair.join("x", "c-1")
    pair.join("y", "c-2")
    assert pair.group.generation == 3
    pair.crash()
    assert pair.state() is groups.GroupState.PREPARING_REBALANCE
    assert pair.beat("c-1", 3) is groups.GroupError.REBALANCE_IN_PROGRESS
    pair.join("x2", "c-1")
    answer = pair.join("y2", "c-2")
    assert answer is not None
    assert answer.generation == 4


def test_empty_group_is_empty_after_a_crash(pair: Bench) -> None:
    """K7: an emptied group keeps its generation."""
    pair.leave(who("c-1"), who("c-2"))
    pair.crash()
    assert pair.state() is groups.GroupState.EMPTY
    answer = pair.join("x")
    assert answer is not None
    assert answer.generation == 4


# --- what others see ------------------------------------------------------------------------------


def test_describe_shows_assignments_of_stable_groups(pair: Bench) -> None:
    """K3: metadata and assignment are shown when they belong together."""
    stable = pair.group.describe()
    assert (stable.protocol_type, stable.protocol) == ("consumer", "range")
    assert [(m.member_id, m.metadata, m.assignment) for m in stable.members] == [
        ("c-1", b"t", b"A"),
        ("c-2", b"t", b"B"),
    ]
    pair.join("x", "c-1")
    assert [m.assignment for m in pair.group.describe().members] == [b"", b""]


def test_subscribed_topics_of_all_members(pair: Bench) -> None:
    """K3: a group is subscribed to what any member is; unreadable metadata is unknown."""
    pair.join("x", "c-2", protocols=(groups.MemberProtocol("range", b"u,v|own"),))
    assert pair.group.subscribed_topics() == frozenset({"t", "u", "v"})
    other = Bench()
    assert other.group.subscribed_topics() == frozenset()
    other.join("x", protocol_type="connect")
    assert other.group.subscribed_topics() is None
