"""One transactional id: its table of states, its epochs, and what a late request meets. Pure."""

from typing import Any

import pytest

from dovetail.log.transactions import transaction as machine
from dovetail.log.transactions.transaction import EPOCH_LAST, Transaction
from dovetail.log.transactions.types import (
    Identity,
    Place,
    TransactionError,
    TransactionState,
)

PLACE, OTHER = Place("t", 0), Place("t", 1)


def begun(known: Transaction | None = None, *, expected: Identity | None = None) -> Any:
    return machine.begin(known, fresh_id=70, timeout_ms=1_000, expected=expected, now_ms=5)


def ended(known: Transaction, who: Identity, *, commit: bool = True, bumps: bool = False) -> Any:
    return machine.end(known, who, commit=commit, bumps=bumps, fresh_id=90, now_ms=9)


def ongoing(known: Transaction) -> Transaction:
    found = machine.add(known, known.identity, [PLACE], now_ms=6)
    assert isinstance(found, Transaction)
    return found


def test_a_new_id_begins_at_epoch_0_and_every_producer_after_it_has_the_next() -> None:
    """K8: whoever has a lower epoch is fenced."""
    first = begun()
    assert first.identity == (70, 0)
    second = begun(first)
    assert second.identity == (70, 1)
    assert machine.add(second, Identity(70, 0), [PLACE], now_ms=6) is TransactionError.FENCED
    assert ended(ongoing(second), Identity(70, 0)) is TransactionError.FENCED
    assert machine.add(second, Identity(71, 1), [PLACE], now_ms=6) is TransactionError.MAPPING


def test_an_open_transaction_is_aborted_under_a_higher_epoch_first() -> None:
    """K8: and the new producer gets one that is higher still."""
    fenced = begun(ongoing(begun()))
    assert fenced.state is TransactionState.PREPARE_ABORT
    assert fenced.marker(3)[:3] == (70, 1, False)
    assert begun(fenced) is TransactionError.BUSY
    assert begun(machine.complete(fenced, now_ms=8)).identity == (70, 2)


def test_a_producer_that_begins_anew_within_its_transaction_goes_on() -> None:
    """K8: KIP-360; it is aborted, and the producer has the epoch of that. Others are fenced."""
    before = ongoing(begun())
    fenced = begun(before, expected=before.identity)
    assert fenced.state is TransactionState.PREPARE_ABORT
    assert begun(fenced, expected=before.identity) is TransactionError.BUSY
    done = machine.complete(fenced, now_ms=8)
    assert begun(done, expected=before.identity) is done
    assert done.identity == (70, 1)
    assert begun(begun(done), expected=before.identity) is TransactionError.FENCED
    taken = machine.complete(begun(before), now_ms=8)
    assert begun(taken, expected=before.identity) is TransactionError.FENCED


def test_a_producer_whose_transaction_took_too_long_goes_on() -> None:
    """K8: KIP-588; by beginning anew, or by KIP-890's abort. It cannot commit what was aborted, and
    another one's beginning fences it."""
    before = ongoing(begun())
    done = machine.complete(machine.time_out(before, now_ms=7), now_ms=8)
    assert begun(done, expected=before.identity) is done
    assert done.identity == (70, 1)
    assert ended(done, before.identity, commit=False, bumps=True) is done
    assert ended(done, before.identity, bumps=True) is TransactionError.INVALID_STATE
    assert ended(done, before.identity, commit=False) is TransactionError.FENCED
    assert machine.add(done, before.identity, [PLACE], now_ms=9) is TransactionError.FENCED

    taken = begun(done)
    assert taken.identity == (70, 2)
    assert begun(taken, expected=before.identity) is TransactionError.FENCED
    assert ended(taken, before.identity, commit=False, bumps=True) is TransactionError.FENCED


def test_a_producer_that_got_a_new_id_and_took_too_long_goes_on() -> None:
    """K8: what it repeats names the id that it has, not the one before that."""
    moved = Transaction(70, 0, TransactionState.EMPTY, 1_000, 5, producer_before=50)
    for before in (
        machine.time_out(ongoing(moved), now_ms=7),
        begun(ongoing(moved), expected=moved.identity),
    ):
        done = machine.complete(before, now_ms=8)
        assert begun(done, expected=moved.identity) is done


def test_the_epoch_for_fencing_is_given_to_nobody() -> None:
    """K8: a producer at its last epoch that begins anew within a transaction gets another id."""
    last = ongoing(Transaction(50, EPOCH_LAST, TransactionState.EMPTY, 1_000, 5))
    fenced = begun(last, expected=last.identity)
    assert fenced.epoch == EPOCH_LAST + 1
    done = machine.complete(fenced, now_ms=8)
    assert begun(done, expected=last.identity).identity == (70, 0)
    late = machine.complete(machine.time_out(last, now_ms=7), now_ms=8)
    assert begun(late, expected=last.identity).identity == (70, 0)
    aborted = ended(late, last.identity, commit=False, bumps=True)
    assert aborted is TransactionError.FENCED


def test_a_producer_that_lost_the_answer_gets_the_same_again() -> None:
    """K8: KIP-360; but not after another one has begun."""
    first = begun()
    bumped = begun(first, expected=first.identity)
    assert bumped.identity == (70, 1)
    assert begun(bumped, expected=first.identity) is bumped
    assert begun(begun(bumped), expected=first.identity) is TransactionError.FENCED
    assert begun(ongoing(bumped), expected=first.identity) is TransactionError.FENCED


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_with_and_without_a_new_epoch(commit: bool) -> None:
    """K8: both versions of the protocol; a repeated request is answered like the first."""
    known = ongoing(begun())
    old = ended(known, known.identity, commit=commit)
    assert old.identity == known.identity
    new = ended(known, known.identity, commit=commit, bumps=True)
    assert new.identity == (70, 1)
    for prepared, bumps in ((old, False), (new, True)):
        done = machine.complete(prepared, now_ms=10)
        for state in (prepared, done):
            assert ended(state, known.identity, commit=commit, bumps=bumps) is state
            wrong = ended(state, known.identity, commit=not commit, bumps=bumps)
            assert wrong is TransactionError.INVALID_STATE
        assert done.partitions == ()


def test_a_late_end_does_not_touch_the_next_transaction() -> None:
    """K8: KIP-890: it carries the epoch of the last one."""
    first = ongoing(begun())
    second = ongoing(machine.complete(ended(first, first.identity, bumps=True), now_ms=10))
    assert second.number == first.number + 1
    late = ended(second, first.identity, bumps=True)
    assert late is TransactionError.FENCED


def test_an_empty_transaction_is_aborted_and_not_committed() -> None:
    """K8: a client of the new protocol counts on its new epoch."""
    empty = begun()
    assert ended(empty, empty.identity, bumps=True) is TransactionError.INVALID_STATE
    assert ended(empty, empty.identity, commit=False) is TransactionError.INVALID_STATE
    aborted = ended(empty, empty.identity, commit=False, bumps=True)
    assert (aborted.identity, aborted.partitions) == ((70, 1), ())


def test_nobody_has_the_epoch_that_is_for_fencing_alone() -> None:
    """K8, R8: who says so all the same would begin what no marker could end."""
    last = ongoing(machine._next(begun(), epoch=EPOCH_LAST))
    fenced = machine.complete(machine.fence(last, now_ms=7), now_ms=8)
    assert fenced.epoch == EPOCH_LAST + 1
    who = Identity(fenced.producer_id, fenced.epoch)
    assert machine.add(fenced, who, [PLACE], now_ms=9) is TransactionError.FENCED
    assert ended(fenced, who, commit=False, bumps=True) is TransactionError.FENCED
    assert begun(fenced).epoch == 0


def test_epochs_that_are_used_up_give_a_new_producer_id() -> None:
    """K8: by both ways to a new epoch; the last epoch is for fencing alone."""
    last = machine._next(begun(), epoch=EPOCH_LAST)
    assert machine.needs_id(last)
    assert begun(last).identity == (70, 0)
    lone = machine._next(last, producer_id=60)
    renewed = begun(lone, expected=lone.identity)
    assert renewed.identity == (70, 0)
    assert begun(renewed, expected=lone.identity) is renewed

    prepared = ended(ongoing(lone), lone.identity, bumps=True)
    assert prepared.identity == (90, 0)
    assert prepared.marker(1)[:2] == (60, EPOCH_LAST + 1)
    done = machine.complete(prepared, now_ms=10)
    assert done.identity == (90, 0)
    assert ended(done, lone.identity, bumps=True) is done


def test_partitions_join_while_it_goes_on_and_only_then() -> None:
    """K8: and a partition is verified only if it is one of them."""
    known = ongoing(begun())
    assert machine.add(known, known.identity, [PLACE], now_ms=7) is known
    more = machine.add(known, known.identity, [OTHER, PLACE], now_ms=7)
    assert isinstance(more, Transaction)
    assert (more.partitions, more.number) == ((PLACE, OTHER), known.number)
    assert machine.verify(more, known.identity, OTHER) is more
    assert machine.verify(known, known.identity, OTHER) is TransactionError.NOT_PART
    prepared = ended(known, known.identity)
    assert machine.verify(prepared, known.identity, PLACE) is TransactionError.BUSY
    assert machine.add(prepared, known.identity, [OTHER], now_ms=7) is TransactionError.BUSY


def test_an_id_that_nobody_uses_dies_and_one_with_a_transaction_does_not() -> None:
    """K8: what comes after it is a new one."""
    known = begun()
    assert machine.expire(known, after_ms=100, now_ms=104) is known
    dead = machine.expire(known, after_ms=100, now_ms=105)
    assert dead.state is TransactionState.DEAD
    assert machine.add(dead, known.identity, [PLACE], now_ms=200) is TransactionError.MAPPING
    assert ended(dead, known.identity) is TransactionError.MAPPING
    assert begun(dead).identity == (70, 0)
    open_one = ongoing(known)
    assert machine.expire(open_one, after_ms=0, now_ms=10**9) is open_one


def test_the_next_request_waits_while_the_last_epoch_is_being_ended() -> None:
    """K8: the producer has its new id with the answer, so no request of it is fatal."""
    lone = machine._next(ongoing(begun()), producer_id=60, epoch=EPOCH_LAST)
    prepared = ended(lone, lone.identity, bumps=True)
    who = prepared.identity
    assert who == (90, 0)
    assert machine.add(prepared, who, [OTHER], now_ms=10) is TransactionError.BUSY
    assert machine.verify(prepared, who, OTHER) is TransactionError.BUSY
    assert ended(prepared, who, commit=False, bumps=True) is TransactionError.BUSY
    assert begun(prepared, expected=who) is TransactionError.BUSY
    assert machine.add(prepared, Identity(90, 1), [OTHER], now_ms=10) is TransactionError.MAPPING


def test_an_abort_right_behind_a_commit_waits_for_it() -> None:
    """K8: a transaction whose first batch fails ends before the markers of the last are stored."""
    known = ongoing(begun())
    prepared = ended(known, known.identity, bumps=True)
    again = ended(prepared, prepared.identity, commit=False, bumps=True)
    assert again is TransactionError.BUSY


def test_without_a_new_id_the_last_epoch_gives_none() -> None:
    """K8: others have used the epochs up while this one waited; it asks again, with an id."""
    last = machine._next(begun(), epoch=EPOCH_LAST)
    nobody = machine.NOBODY
    begins = machine.begin(last, fresh_id=nobody, timeout_ms=1, expected=None, now_ms=5)
    assert begins is TransactionError.BUSY
    who, open_one = last.identity, ongoing(last)
    ends = machine.end(open_one, who, commit=True, bumps=True, fresh_id=nobody, now_ms=5)
    assert ends is TransactionError.BUSY


def test_an_epoch_that_is_none_opens_no_door() -> None:
    """K8: a producer that names an id without an epoch gets nobody else's."""
    known = begun()
    assert begun(known, expected=Identity(70, -1)) is TransactionError.FENCED
