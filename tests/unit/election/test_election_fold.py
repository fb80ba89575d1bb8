"""The fold of the shared log: who leads, how far, and who is counted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.election.fold import (
    Challenge,
    Claim,
    Leave,
    LogState,
    Moment,
    Record,
    Register,
    Report,
    decode_record,
    encode_record,
    moment_of,
)
from dovetail.election.identifiers import Incarnation, MemberName, Term

A, B = MemberName("a"), MemberName("b")
A1, A2, B1 = Incarnation("a1"), Incarnation("a2"), Incarnation("b1")
INTERVAL_MS, GRACE_MS = 1_000.0, 100.0


def at(ms: float) -> Moment:
    return Moment(int(ms), ms)


def claim(term: int, member: MemberName = A, life: Incarnation = A1) -> Claim:
    return Claim(Term(term), member, life)


def report(term: int, sequence: int, offset: int, member: MemberName = A) -> Report:
    life = A1 if member == A else B1
    return Report(Term(term), member, life, sequence, {0: offset})


def counted(state: LogState, now_ms: float) -> list[str]:
    return list(state.counted(now_ms=now_ms, interval_ms=INTERVAL_MS, grace_ms=GRACE_MS))


def test_the_first_writer_of_a_term_wins() -> None:
    """S7: a second claim to the same term, or to a lower one, does not count."""
    state = LogState()
    assert state.apply(claim(3), at(0))
    assert not state.apply(claim(3, B, B1), at(1))
    assert not state.apply(claim(2, B, B1), at(2))
    assert (state.term, state.leader) == (3, A)
    assert state.apply(claim(4, B, B1), at(3))
    assert (state.term, state.leader) == (4, B)


def test_the_commit_of_an_old_leader_is_void() -> None:
    """S8, S9: from the higher claim on, the position moves by the new leader alone."""
    state = LogState()
    state.apply(claim(1), at(0))
    assert state.apply(report(1, 1, 10), at(1))
    state.apply(claim(2, B, B1), at(2))
    assert not state.apply(report(1, 2, 99), at(3))
    assert state.position == {0: 10}
    assert state.apply(report(2, 1, 11, B), at(4))
    assert state.position == {0: 11}


def test_the_commit_of_an_earlier_life_of_the_leader_is_void() -> None:
    """S8: a leader that died and came back under its name is another one."""
    state = LogState()
    state.apply(claim(1, A, A2), at(0))
    assert not state.apply(report(1, 1, 10), at(1))
    assert state.position is None


def test_a_report_that_arrives_late_moves_nothing_back() -> None:
    """S9: it counts as a sign of life, and the newer position stays."""
    state = LogState()
    state.apply(claim(1), at(0))
    state.apply(report(1, 2, 20), at(1))
    assert state.apply(report(1, 1, 10), at(2))
    assert state.position == {0: 20}


def test_the_stream_begins_where_the_first_member_found_it() -> None:
    """S9: what came before there was a cluster is not its business; later starts move nothing."""
    state = LogState()
    state.apply(Register(A, A1, {0: 5}, "orders"), at(0))
    state.apply(Register(B, B1, {0: 9}, "orders"), at(1))
    assert state.position == {0: 5}
    assert state.source == "orders"


def test_members_leave_the_count() -> None:
    """S6: by farewell, by silence for the interval, by a challenge without an answer."""
    state = LogState()
    state.apply(Register(A, A1), at(0))
    state.apply(Register(B, B1), at(0))
    assert counted(state, 10) == [A, B]
    assert counted(state, INTERVAL_MS) == []
    state.apply(Challenge(B, B1, A), at(20))
    assert counted(state, 20 + GRACE_MS - 1) == [A, B]
    assert counted(state, 20 + GRACE_MS) == [A]
    state.apply(Register(B, B1), at(300))
    assert counted(state, 310) == [A, B]
    state.apply(Leave(B, B1), at(320))
    assert counted(state, 330) == [A]


def test_only_the_present_life_can_be_challenged_or_leave() -> None:
    """S6: what was meant for an earlier life does not hit the next one."""
    state = LogState()
    state.apply(Register(A, A2), at(0))
    assert not state.apply(Challenge(A, A1, B), at(1))
    assert not state.apply(Leave(A, A1), at(2))
    assert counted(state, 500) == [A]


def test_a_leader_that_writes_has_answered_its_challenge() -> None:
    """S6: reports are signs of life."""
    state = LogState()
    state.apply(Register(A, A1), at(0))
    state.apply(claim(1), at(1))
    state.apply(Challenge(A, A1, B), at(10))
    state.apply(report(1, 1, 1), at(20))
    assert counted(state, 500) == [A]


def test_a_stored_time_in_the_future_is_now() -> None:
    """S6: a writer whose clock runs ahead is not counted for longer than the others."""
    now = Moment(1_000, 50.0)
    assert moment_of(1_500, now).monotonic_ms == 50.0
    assert moment_of(900, now).monotonic_ms == -50.0


_terms = st.integers(1, 5).map(Term)
_members = st.sampled_from([(A, A1), (A, A2), (B, B1)])
_positions = st.none() | st.dictionaries(st.integers(0, 2), st.integers(0, 9), max_size=2)
_records: st.SearchStrategy[Record] = st.one_of(
    st.builds(lambda t, m: Claim(t, *m), _terms, _members),
    st.builds(
        lambda t, m, s, p: Report(t, *m, s, p), _terms, _members, st.integers(0, 9), _positions
    ),
    st.builds(lambda m, p: Register(*m, p), _members, _positions),
    st.builds(lambda m: Leave(*m), _members),
    st.builds(lambda m: Challenge(*m, B), _members),
)


@settings(max_examples=50)
@given(st.lists(_records, max_size=30), st.integers(0, 30))
def test_a_snapshot_stands_for_all_records_before_it(records: list[Record], cut: int) -> None:
    """S6, S9: whoever starts from a snapshot agrees with whoever has read everything."""
    cut = min(cut, len(records))
    whole, before, after = LogState(), LogState(), LogState()
    for index, record in enumerate(records):
        whole.apply(record, at(index))
        if index < cut:
            before.apply(record, at(index))
    after.start_from(before.snapshot(base=cut - 1), now=at(cut))
    for index in range(cut, len(records)):
        after.apply(records[index], at(index))
    assert (after.claim, after.position, after.sequence) == (
        whole.claim,
        whole.position,
        whole.sequence,
    )
    assert list(after.elections) == list(whole.elections)


@settings(max_examples=50)
@given(st.lists(_records, max_size=30))
def test_terms_never_go_back_and_have_one_leader(records: list[Record]) -> None:
    """S8: in whatever order records come."""
    state, leaders = LogState(), {}
    for record in records:
        before = state.term
        counts = state.apply(record, at(0))
        assert state.term >= before
        if isinstance(record, Claim) and counts:
            assert record.term not in leaders
            leaders[record.term] = record.member


@given(_records)
def test_a_record_reads_back_as_it_was_written(record: Record) -> None:
    """S6: JSON and back."""
    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize("payload", [b"", b"{}", b"[1]", b'{"kind":"other"}', b"\xff\xfe"])
def test_foreign_bytes_are_no_record(payload: bytes) -> None:
    """S6: another version's record, or another program's, is passed over."""
    assert decode_record(payload) is None
