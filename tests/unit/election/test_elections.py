"""The three elections, step by step: what the simulation checks by the thousand, by name."""

import random
from typing import Any, TypeVar

import pytest

from dovetail.election.bully import BullyElection, strength
from dovetail.election.effects import (
    Append,
    Campaign,
    Effect,
    Lead,
    Persist,
    Release,
    Renew,
    Reply,
    Send,
    StepDown,
    Vote,
)
from dovetail.election.election import AppendOutcome, Election, Identity, Role, Times
from dovetail.election.fold import Challenge, Claim, LogState, Moment, Record, Register, Report
from dovetail.election.identifiers import Incarnation, MemberName, Term
from dovetail.election.lease import LeaseElection
from dovetail.election.majority import PATIENCE, MajorityElection, majority_of
from dovetail.election.messages import Ping, PingAnswer, Resign, VoteAnswer, VoteRequest

TIMES = Times(timeout_ms=1_000, heartbeat_ms=250, event_ping_ms=50, interval_ms=60_000)
T = TIMES.timeout_ms
E = TypeVar("E")


def identity(name: str) -> Identity:
    return Identity(MemberName(name), Incarnation(f"{name}1"))


def state_of(*names: str) -> LogState:
    state = LogState()
    for name in names:
        me = identity(name)
        state.apply(Register(me.name, me.incarnation), Moment(0, 0.0))
    return state


def majority(name: str, *names: str, vote: Vote | None = None, seed: int = 1) -> MajorityElection:
    return MajorityElection(
        identity(name),
        TIMES,
        state_of(name, *names),
        random.Random(seed),
        now_ms=0.0,
        vote=vote or Vote(),
    )


def of(effects: list[Effect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def read(election: Election, record: Record, now_ms: float) -> list[Effect]:
    counts = election.state.apply(record, Moment(int(now_ms), now_ms))
    return election.on_record(record, counts=counts, now_ms=now_ms)


def ping(sender: str, term: int, *, sent_ms: float = 0.0, **position: Any) -> Ping:
    me = identity(sender)
    return Ping(
        sender=me.name,
        incarnation=me.incarnation,
        term=Term(term),
        sent_ms=sent_ms,
        position=position.get("position", {}),
        busy=position.get("busy", False),
    )


def vote_request(sender: str, term: int, *, trial: bool = False) -> VoteRequest:
    me = identity(sender)
    return VoteRequest(
        sender=me.name, incarnation=me.incarnation, term=Term(term), election=1, trial=trial
    )


def granted(sender: str, request: VoteRequest, **changed: Any) -> VoteAnswer:
    me = identity(sender)
    given: dict[str, Any] = {
        "term": request.term,
        "election": request.election,
        "trial": request.trial,
        "granted": True,
        "known_term": Term(0),
    }
    return VoteAnswer(sender=me.name, incarnation=me.incarnation, **{**given, **changed})


def stand(election: MajorityElection, now_ms: float) -> VoteRequest:
    """Until the trial round has begun."""
    request = of(election.on_tick(now_ms=now_ms), Send)[0].message
    assert isinstance(request, VoteRequest)
    assert request.trial
    return request


def become_leader(election: MajorityElection, voter: str, now_ms: float) -> Term:
    trial = stand(election, now_ms)
    effects = election.on_message(granted(voter, trial), now_ms=now_ms)
    assert isinstance(effects[0], Persist), "the vote for oneself is on disk first"
    request = of(effects, Send)[0].message
    assert isinstance(request, VoteRequest)
    (append,) = of(election.on_message(granted(voter, request), now_ms=now_ms), Append)
    assert isinstance(append.record, Claim)
    (lead,) = of(read(election, append.record, now_ms), Lead)
    return lead.term


@pytest.mark.parametrize(("count", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_a_majority_is_more_than_half(count: int, needed: int) -> None:
    """S3: n/2+1."""
    assert majority_of(count) == needed


def test_a_leader_is_elected_and_claims_before_it_leads() -> None:
    """S3, S7: trial round, real round with the vote on disk, claim in the log, then leader."""
    election = majority("a", "b", "c")
    term = become_leader(election, "b", 2 * T)
    assert term == 1
    assert election.role is Role.LEADER
    assert of(election.on_tick(now_ms=2 * T + TIMES.heartbeat_ms), Send)


def test_one_vote_per_term_on_disk_before_it_is_said() -> None:
    """S3: the first candidate gets it; a second one in the same term does not."""
    election = majority("a", "b", "c")
    effects = election.on_message(vote_request("b", 5), now_ms=T)
    assert [type(effect) for effect in effects] == [Persist, Reply]
    assert of(effects, Persist)[0].vote == Vote(Term(5), MemberName("b"))
    (answer,) = of(election.on_message(vote_request("c", 5), now_ms=T), Reply)
    assert isinstance(answer.message, VoteAnswer)
    assert not answer.message.granted
    (again,) = of(election.on_message(vote_request("b", 5), now_ms=T), Reply)
    assert isinstance(again.message, VoteAnswer)
    assert again.message.granted


def test_a_vote_survives_the_restart() -> None:
    """S3: the vote that was on disk is not given to another."""
    election = majority("a", "b", "c", vote=Vote(Term(5), MemberName("b")))
    (answer,) = of(election.on_message(vote_request("c", 5), now_ms=T), Reply)
    assert isinstance(answer.message, VoteAnswer)
    assert not answer.message.granted


@pytest.mark.parametrize(
    "stale", [{"election": 0}, {"term": Term(0)}, {"trial": False}], ids=["round", "term", "kind"]
)
def test_stale_replies_are_ignored(stale: dict[str, Any]) -> None:
    """S3: an answer to another round, term or kind of round counts nothing."""
    election = majority("a", "b", "c")
    trial = stand(election, 2 * T)
    assert election.on_message(granted("b", trial, **stale), now_ms=2 * T) == []
    assert election.role is Role.CANDIDATE


def test_a_grant_by_one_that_is_not_counted_counts_nothing() -> None:
    """S3, S6: only counted members make a majority."""
    election = majority("a", "b", "c")
    trial = stand(election, 2 * T)
    assert election.on_message(granted("stranger", trial), now_ms=2 * T) == []


def test_who_hears_the_leader_votes_for_nobody() -> None:
    """S3: a member that alone misses the leader disturbs nobody, and costs no term."""
    election = majority("a", "b", "c")
    read(election, Claim(Term(1), MemberName("b"), Incarnation("b1")), T)
    election.on_message(ping("b", 1), now_ms=2 * T)
    for trial in (True, False):
        (answer,) = election.on_message(vote_request("c", 9, trial=trial), now_ms=2 * T + 1)
        assert isinstance(answer, Reply)
        assert isinstance(answer.message, VoteAnswer)
        assert not answer.message.granted
    assert election.vote == Vote()


def test_each_election_draws_a_fresh_timeout() -> None:
    """S7: within its bounds, and another one each time."""
    election = majority("a", "b")
    read(election, Claim(Term(1), MemberName("b"), Incarnation("b1")), 0)
    waits = []
    for now in range(0, 20):
        election.on_message(ping("b", 1), now_ms=float(now))
        waits.append((election.wake_ms() - now) / T)
    assert len(set(waits)) == len(waits)
    assert min(waits) >= PATIENCE[0]
    assert max(waits) <= PATIENCE[1]


def test_a_leader_without_a_majority_steps_down() -> None:
    """S3: counted from the sending of the last ping that was answered."""
    election = majority("a", "b", "c")
    become_leader(election, "b", 2 * T)
    answer = PingAnswer(
        sender=MemberName("b"), incarnation=Incarnation("b1"), term=Term(1), sent_ms=2 * T + 100
    )
    election.on_message(answer, now_ms=2 * T + 900)
    assert of(election.on_tick(now_ms=3 * T + 99), StepDown) == []
    (down,) = of(election.on_tick(now_ms=3 * T + 100), StepDown)
    assert "no majority of 3" in down.reason


def test_a_leader_whose_time_is_over_says_so_when_it_votes() -> None:
    """S3, R5: it can be asked before its tick; what it led must end all the same."""
    election = majority("a", "b", "c")
    become_leader(election, "b", 2 * T)
    effects = election.on_message(vote_request("c", 2), now_ms=3 * T + 1)
    assert [type(effect) for effect in effects] == [StepDown, Persist, Reply]
    assert of(effects, StepDown)[0].term == 1
    assert election.role is Role.FOLLOWER


def test_an_older_leader_that_reads_a_higher_claim_gives_way() -> None:
    """S7: at once."""
    election = majority("a", "b", "c")
    become_leader(election, "b", 2 * T)
    effects = read(election, Claim(Term(2), MemberName("b"), Incarnation("b1")), 2 * T + 1)
    assert of(effects, StepDown)[0].term == 1
    assert election.role is Role.FOLLOWER


def test_an_older_leader_that_hears_a_higher_ping_gives_way() -> None:
    """S7: also when it cannot read the log."""
    election = majority("a", "b", "c")
    become_leader(election, "b", 2 * T)
    effects = election.on_message(ping("b", 2), now_ms=2 * T + 1)
    assert of(effects, StepDown)
    assert of(effects, Reply)


def test_pings_of_an_old_term_are_not_answered() -> None:
    """S7: so that the old leader finds no majority."""
    election = majority("a", "b", "c")
    read(election, Claim(Term(3), MemberName("b"), Incarnation("b1")), 1)
    assert election.on_message(ping("c", 2), now_ms=2) == []


def test_pings_follow_events_but_only_so_fast() -> None:
    """S7: on an event sooner than the heartbeat, and never faster than the stated rate."""
    election = majority("a", "b")
    become_leader(election, "b", 2 * T)
    sent, now = 0, 2 * T
    for step in range(1_000):
        effects = election.on_received({0: step}, busy=False, now_ms=now + step)
        sent += len(of(effects, Send))
        for effect in of(effects, Send):
            assert isinstance(effect.message, Ping)
            answer = PingAnswer(
                sender=MemberName("b"),
                incarnation=Incarnation("b1"),
                term=Term(1),
                sent_ms=effect.message.sent_ms,
            )
            election.on_message(answer, now_ms=now + step)
    assert 1_000 / TIMES.event_ping_ms - 1 <= sent <= 1_000 / TIMES.event_ping_ms + 1


def test_a_leader_that_lost_the_stream_is_replaced() -> None:
    """S8: its pings do not cover what the followers see."""
    election = majority("a", "b", "c")
    read(election, Claim(Term(1), MemberName("b"), Incarnation("b1")), 0)
    election.on_received({0: 7}, busy=False, now_ms=10)
    for now in range(100, 3_000, 100):
        if election.on_tick(now_ms=now):
            break
        election.on_message(ping("b", 1, position={0: 6}), now_ms=now)
    assert election.role is Role.CANDIDATE
    assert T <= now <= 10 + PATIENCE[1] * T + 200


@pytest.mark.parametrize("busy", [True, False])
def test_a_leader_that_is_only_slow_is_kept(busy: bool) -> None:
    """S8: it says that it is busy, or it moves."""
    election = majority("a", "b", "c")
    read(election, Claim(Term(1), MemberName("b"), Incarnation("b1")), 0)
    election.on_received({0: 1_000}, busy=False, now_ms=10)
    for now in range(100, 5_000, 100):
        position = {0: 0 if busy else now // 100}
        election.on_message(ping("b", 1, position=position, busy=busy), now_ms=now)
        assert election.on_tick(now_ms=now) == []


def test_a_member_without_the_stream_neither_leads_nor_stands() -> None:
    """S8: it resigns, so that the others need not wait, and stands again when it is back."""
    election = majority("a", "b", "c")
    become_leader(election, "b", 2 * T)
    effects = election.on_source(alive=False, now_ms=2 * T)
    assert of(effects, StepDown)
    assert {type(effect.message) for effect in of(effects, Send)} == {Resign}
    assert election.on_tick(now_ms=9 * T) == []
    election.on_source(alive=True, now_ms=9 * T)
    assert of(election.on_tick(now_ms=9 * T), Send)


def test_a_resignation_is_followed_at_once() -> None:
    """S7: within a fraction of the timeout; one of an older term is ignored."""
    election = majority("a", "b", "c")
    read(election, Claim(Term(2), MemberName("b"), Incarnation("b1")), 0)
    for term in (1, 2):
        told = Resign(sender=MemberName("b"), incarnation=Incarnation("b1"), term=Term(term))
        election.on_message(told, now_ms=10)
        assert (election.wake_ms() < 10 + 0.5 * T) == (term == 2)


def test_the_silent_are_challenged_and_then_not_counted() -> None:
    """S6: two of three die for good, and the third leads on."""
    election = majority("a", "b", "c")
    stand(election, 2 * T)
    challenges = of(election.on_tick(now_ms=2.5 * T), Append)
    assert {c.record.member for c in challenges if isinstance(c.record, Challenge)} == {"b", "c"}
    for append in challenges:
        read(election, append.record, 2.5 * T)
    now = 2.5 * T + TIMES.grace_ms
    assert election.members(now) == ["a"]
    assert any(isinstance(e.record, Claim) for e in of(election.on_tick(now_ms=now), Append))


def test_a_challenged_member_registers_again() -> None:
    """S6: at once, and stays counted."""
    election = majority("a", "b", "c")
    effects = read(election, Challenge(MemberName("a"), Incarnation("a1"), MemberName("b")), 10)
    assert of(effects, Append)[0].record == Register(MemberName("a"), Incarnation("a1"))


def test_members_register_at_an_interval() -> None:
    """S6: three times in the interval within which they must be heard of."""
    election = majority("a", "b")
    due = TIMES.interval_ms / 3
    assert not any(isinstance(e, Append) for e in election.on_tick(now_ms=0.5))
    registered = of(election.on_tick(now_ms=due), Append)
    assert any(isinstance(append.record, Register) for append in registered)


@pytest.mark.parametrize("outcome", [AppendOutcome.REFUSED, AppendOutcome.UNKNOWN])
def test_a_claim_that_is_not_accepted_makes_no_leader(outcome: AppendOutcome) -> None:
    """S7: the log decides; also when its answer is lost and the claim turns up later."""
    election = majority("a")
    (append,) = of(election.on_tick(now_ms=2 * T), Append)
    assert election.role is Role.CLAIMING
    election.on_appended(append.record, outcome, now_ms=2 * T)
    assert election.role is Role.FOLLOWER
    assert read(election, append.record, 2 * T + 1) == []


# --- BULLY --------------------------------------------------------------------------------------


def two() -> tuple[str, str]:
    """The stronger and the weaker of two."""
    first, second = sorted(("x", "y"), key=lambda name: strength(MemberName(name)), reverse=True)
    return first, second


def bully(name: str, other: str) -> BullyElection:
    return BullyElection(identity(name), TIMES, state_of(name, other), random.Random(1), now_ms=0.0)


def test_strength_is_the_same_everywhere() -> None:
    """S4: a stable hash of the endpoint, not Python's own, which differs by process."""
    assert strength(MemberName("http://a:1/x"))[0].hex() == "d549aa2454ef73e2"


def test_the_strongest_stands_first() -> None:
    """S4: the weaker one waits for it."""
    strong, weak = two()
    assert bully(strong, weak).wake_ms() + 0.1 * T < bully(weak, strong).wake_ms()


def test_the_primary_takes_over_when_it_returns() -> None:
    """S4: it hears the ping of a weaker leader and claims the next term; not the other way."""
    strong, weak = two()
    for name, other, claims in ((strong, weak, True), (weak, strong, False)):
        election = bully(name, other)
        me = identity(other)
        read(election, Claim(Term(4), me.name, me.incarnation), 1)
        appended = of(election.on_message(ping(other, 4), now_ms=2), Append)
        assert [isinstance(a.record, Claim) and a.record.term for a in appended] == (
            [5] if claims else []
        )


def test_reports_in_the_log_are_signs_of_life() -> None:
    """S4, S8: a cut between the two alone changes nothing."""
    strong, weak = two()
    election = bully(weak, strong)
    me = identity(strong)
    read(election, Claim(Term(1), me.name, me.incarnation), 0)
    for now in range(300, 5_000, 300):
        read(election, Report(Term(1), me.name, me.incarnation, now), now)
        assert election.on_tick(now_ms=now) == []
    assert any(isinstance(e, Append) for e in election.on_tick(now_ms=now + 2 * T))


def test_a_leader_that_no_ping_of_comes_through_is_judged_by_its_reports() -> None:
    """S4, S8: it keeps up with the stream and is kept; it does not, and is replaced."""
    strong, weak = two()
    for keeps_up in (True, False):
        election = bully(weak, strong)
        me = identity(strong)
        read(election, Claim(Term(1), me.name, me.incarnation), 0)
        claimed = False
        for now in range(300, 6_000, 300):
            election.on_received({0: now}, busy=False, now_ms=now)
            got = {0: now if keeps_up else 0}
            report = Report(Term(1), me.name, me.incarnation, now, received=got)
            read(election, report, now)
            claimed |= any(isinstance(e, Append) for e in election.on_tick(now_ms=now))
        assert claimed != keeps_up


def test_a_bully_that_cannot_write_stops() -> None:
    """S4: whoever is cut off from the log does not lead."""
    strong, weak = two()
    election = bully(strong, weak)
    (append,) = of(election.on_tick(now_ms=2 * T), Append)
    effects = read(election, append.record, 2 * T)
    assert of(effects, Lead)
    assert of(effects, Renew)
    assert of(election.on_tick(now_ms=4 * T - 1), StepDown) == []
    assert of(election.on_tick(now_ms=4 * T), StepDown)


# --- COORDINATOR --------------------------------------------------------------------------------


def lease(name: str = "a") -> LeaseElection:
    return LeaseElection(identity(name), TIMES, state_of(name), random.Random(1), now_ms=0.0)


def test_the_lease_gives_the_term_and_the_claim_makes_the_leader() -> None:
    """S5: campaign, lease held, claim, leader; above every term that the log has seen."""
    election = lease()
    read(election, Claim(Term(6), MemberName("z"), Incarnation("z1")), 0)
    (campaign,) = of(election.on_tick(now_ms=3 * T), Campaign)
    assert campaign.term_min == 7
    (append,) = of(election.on_held(Term(9), valid_until_ms=4 * T, now_ms=3 * T), Append)
    assert isinstance(append.record, Claim)
    assert append.record.term == 9
    assert of(read(election, append.record, 3 * T), Lead)
    assert of(election.on_tick(now_ms=4 * T - 1), StepDown) == []
    assert {type(e) for e in election.on_tick(now_ms=4 * T)} == {StepDown, Release}


def test_a_lost_lease_ends_the_leadership() -> None:
    """S5: at once, and the next look comes soon."""
    election = lease()
    election.on_tick(now_ms=0)
    (append,) = of(election.on_held(Term(1), valid_until_ms=T, now_ms=0), Append)
    read(election, append.record, 0)
    assert of(election.on_lease_lost(now_ms=10), StepDown)
    election.on_free(now_ms=20)
    assert election.wake_ms() <= 20 + 0.1 * T


def test_a_lease_that_came_too_late_is_given_back() -> None:
    """S5: the campaign was given up, or the stream is lost."""
    election = lease()
    election.on_tick(now_ms=0)
    election.on_source(alive=False, now_ms=1)
    assert election.on_held(Term(1), valid_until_ms=T, now_ms=2) == [Release()]


def test_a_leader_that_stops_says_so() -> None:
    """S7, S11: the others are told, and nothing more is said."""
    election = majority("a", "b", "c")
    become_leader(election, "b", 2 * T)
    effects = election.on_stop(now_ms=2 * T)
    assert {type(effect.message) for effect in of(effects, Send)} == {Resign}
    assert election.on_tick(now_ms=99 * T) == []
    assert election.on_message(vote_request("b", 7), now_ms=99 * T) == []
